"""Road scenes that the project draws itself, with exact masks: data for a segmentation network where no photos may be shipped.

A camera above a straight or bent road: lanes with their markings, sidewalks, verges, buildings, trees, poles and cars, by day and
night, in fog, in shadow, on wet ground. Colours tell little: road, sidewalk and walls share theirs, sky may be as grey as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np

from octavo.images.scenes.canvas import Camera, Canvas
from octavo.images.scenes.cars import car
from octavo.images.scenes.colours import greenery, grey, wall_colour
from octavo.images.scenes.drawing import numbered, photographed, smooth
from octavo.images.scenes.ground import FARTHEST, Road, paint_ground
from octavo.images.scenes.road_classes import BUILDING, CLASSES, SKY, VEGETATION, VOID
from octavo.images.scenes.roadside import building, bush, pole, tree

__all__ = ["CLASSES", "VOID", "Scene", "render"]

# (rows, columns) of a scene and how often it is taken.
SIZES = ((160, 320), (192, 384), (160, 256), (192, 320), (128, 256))
OFTEN = (0.6, 0.1, 0.1, 0.1, 0.1)
# Depth of the sky: any fog hides it.
ENDLESS = 1e4
# Through fog less than this share of the light comes: the class cannot be told.
HIDDEN = 0.06
LANE = 3.2
# Places drawn for cars; one too near to another is left out.
MOST_CARS = 7


@dataclass(frozen=True, eq=False)
class Scene:
    """An image and its mask.

    Attributes:
        image: uint8, rows x columns x 3, RGB.
        classes: uint8, rows x columns; index into `CLASSES` of what covers at least half of the pixel, or `VOID`.
    """

    image: np.ndarray
    classes: np.ndarray


def render(seed: int, number: int) -> Scene:
    """One scene of a series; the same two numbers give the same pixels.

    Raises:
        DataError: a negative number.
    """
    generator = numbered(seed, number)
    size = SIZES[generator.choice(len(SIZES), p=OFTEN)]
    camera = Camera(
        size,
        focal=size[1] * generator.uniform(0.65, 1.05),
        height=generator.uniform(1.2, 2.3),
        horizon=size[0] * generator.uniform(0.3, 0.52),
        middle=size[1] * generator.uniform(0.42, 0.58),
    )
    night = generator.random() < 0.2
    fog = float(np.exp(generator.uniform(np.log(18), np.log(90)))) if generator.random() < 0.22 else None
    road = _laid(generator)
    canvas = Canvas(generator, _sky(generator, camera), SKY, ENDLESS)
    _backdrop(canvas, camera)
    paint_ground(canvas, camera, road, shadows=not night and fog is None)
    # From far to near, so that what is nearer hides what is behind.
    for _, draw in sorted(_things(canvas, camera, road, night=night), key=lambda thing: -thing[0]):
        draw()
    _light(canvas, night=night, fog=fog)
    if generator.random() < 0.3:
        _bonnet(canvas)
    return Scene(photographed(generator, canvas.colour.transpose(1, 2, 0)), canvas.classes)


def _laid(generator: np.random.Generator) -> Road:
    lanes = int(generator.choice((1, 2, 2, 2, 3, 4)))
    half = lanes * LANE / 2 * generator.uniform(0.95, 1.15) + generator.choice((0.0, 0.3, 1.8), p=(0.3, 0.4, 0.3))
    # The camera's own lane: somewhere right of the left edge, away from both edges.
    offset = generator.uniform(-1, 1) * max(0.2, half - 1.3)
    curved = generator.random() < 0.55
    walks = generator.uniform(1.2, 4.5, 2) * (generator.random(2) < 0.8)
    open_side = generator.random(2) < 0.4
    verges = np.where(open_side, generator.uniform(2, 9, 2), generator.uniform(0, 0.6, 2))
    yaw = generator.normal(0, 0.05)
    bend = generator.uniform(-0.005, 0.005) if curved else 0.0
    return Road(float(offset), float(yaw), float(bend), float(half), tuple(walks.tolist()), tuple(verges.tolist()), lanes)


def _sky(generator: np.random.Generator, camera: Camera) -> np.ndarray:
    rows, columns = camera.size
    kind = generator.random()
    if kind < 0.45:
        upper, lower = generator.uniform((50, 110, 170), (150, 190, 245)), generator.uniform((160, 180, 195), (225, 230, 240))
    elif kind < 0.85:
        upper = grey(generator, 110, 225, 6)
        lower = upper + generator.uniform(-25, 40)
    else:
        upper, lower = generator.uniform((70, 70, 100), (130, 120, 160)), generator.uniform((190, 120, 70), (240, 180, 140))
    share = np.clip((np.arange(rows, dtype=np.float32) + 0.5) / camera.horizon, 0, 1)[:, None]
    upper, lower = (colour.astype(np.float32)[:, None, None] for colour in (upper, lower))
    clouds = smooth(generator, (rows, columns), int(generator.integers(3, 9)), 1, generator.uniform(0, 30))
    tints = smooth(generator, (rows, columns), 2, 3, 10)
    return np.ascontiguousarray((clouds + tints).transpose(2, 0, 1)) + (1 - share) * upper + share * lower


def _backdrop(canvas: Canvas, camera: Camera) -> None:
    """Houses and trees that close the view where the ground ends."""
    generator, (_, columns) = canvas.generator, camera.size
    foot = camera.row_of(FARTHEST) + 1
    tall = camera.horizon * generator.uniform(0.12, 0.5)
    left = -generator.uniform(0, 30)
    while left < columns:
        width, height = columns * generator.uniform(0.06, 0.3), tall * generator.uniform(0.4, 1.0)
        right, roof = left + width, camera.horizon - height
        if generator.random() < 0.5:
            outline = np.array([[left, foot], [left, roof], [right, roof], [right, foot]])
            canvas.paint([outline], wall_colour(generator), BUILDING, FARTHEST, uneven=18, grain=4)
        else:
            places = np.linspace(left - 3, right + 3, 12)
            leaves = np.stack([places, roof + generator.uniform(0, 0.45 * height, 12)], axis=1)
            outline = np.concatenate([[[left - 3, foot]], leaves, [[right + 3, foot]]])
            canvas.paint([outline], greenery(generator), VEGETATION, FARTHEST, uneven=20, grain=3)
        left = right


def _things(canvas: Canvas, camera: Camera, road: Road, *, night: bool) -> list[tuple[float, Callable[[], None]]]:
    """What stands in the scene: how far it reaches from the camera, and what paints it."""
    generator, found = canvas.generator, []
    dense = generator.uniform(0.2, 1.0)

    def put(ahead: float, draw: Callable[..., None], *arguments: object, **named: object) -> None:
        found.append((ahead, lambda: draw(canvas, camera, *arguments, **named)))

    def beside(ahead: float, aside: float) -> tuple[float, float]:
        return float(road.middle(ahead)) + aside, ahead

    for side in (-1, 1):
        line = road.house_line(side)
        ahead = generator.uniform(1.3, 6)
        while ahead < FARTHEST - 8:
            length = generator.uniform(5, 24)
            far = min(ahead + length, FARTHEST)
            kind = generator.random()
            if kind < dense:
                height = generator.uniform(1.2, 3) if generator.random() < 0.15 else generator.uniform(5, 24)
                put(far, building, beside(ahead, side * line), beside(far, side * line), height, lit=night)
            elif kind < dense + 0.5 * (1 - dense):
                for _ in range(int(generator.integers(1, 4))):
                    place = generator.uniform(max(ahead, 5), far + 5)
                    put(place, tree, beside(place, side * (line + generator.uniform(0.5, 5))), generator.uniform(4, 11))
            if generator.random() < 0.25:
                place = generator.uniform(max(ahead, 4), far + 4)
                put(place, bush, beside(place, side * (line - generator.uniform(0.3, 0.8))), generator.uniform(0.7, 1.8))
            ahead = far + generator.choice((0.0, generator.uniform(1, 12)))
        kerb = road.half + generator.uniform(0.35, 0.8)
        ahead, step = generator.uniform(3, 14), generator.uniform(8, 24)
        while ahead < 34:
            if generator.random() < 0.75:
                put(ahead, pole, beside(ahead, side * kerb), lit=night)
            elif generator.random() < 0.4 and ahead > 6:
                put(ahead, tree, beside(ahead, side * (kerb + 0.5)), generator.uniform(4, 8))
            ahead += step * generator.uniform(0.5, 1.3)
    taken: list[tuple[float, float]] = []
    for _ in range(int(generator.integers(0, MOST_CARS, endpoint=True))):
        ahead = float(np.exp(generator.uniform(np.log(5), np.log(55))))
        parked = generator.random() < 0.4
        if parked:
            side = int(generator.choice((-1, 1)))
            aside, turn = side * (road.half - 1.0), 0.0
        else:
            lane = generator.integers(road.lanes)
            aside, turn = (
                -road.half + (lane + 0.5) * 2 * road.half / road.lanes + generator.uniform(-0.4, 0.4),
                generator.normal(0, 0.05),
            )
            if generator.random() < 0.1:
                turn = np.pi / 2 + generator.normal(0, 0.2)
        if any(abs(ahead - other) < 7 and abs(aside - across) < 2.6 for other, across in taken):
            continue
        taken.append((ahead, aside))
        # Those on the left come towards the camera.
        around = np.pi if aside < 0 and generator.random() < 0.8 else 0.0
        put(ahead, car, beside(ahead, aside), road.heading(ahead) + turn + around, lit=night)
    return found


def _light(canvas: Canvas, *, night: bool, fog: float | None) -> None:
    """Lamps by night, haze by day, fog: in place, the mask too where fog hides a thing."""
    generator, (rows, columns) = canvas.generator, canvas.classes.shape
    if night:
        ambient = generator.uniform(0.15, 0.4) * generator.uniform((0.8, 0.8, 0.85), (1.15, 1.0, 1.0))
        beam = np.exp(-(((np.arange(columns) / columns - generator.uniform(0.4, 0.6)) / 0.35) ** 2))
        lamps = (
            generator.uniform(0.25, 0.8) * np.exp(-canvas.depth / np.float32(generator.uniform(8, 22))) * beam.astype(np.float32)
        )
        for plane, glow, least, share in zip(canvas.colour, canvas.glow, ambient, (1.0, 0.95, 0.85), strict=True):
            plane *= np.float32(least) + np.float32(share) * lamps
            plane += np.float32(0.6) * glow + np.float32(0.5) * cv2.GaussianBlur(glow, (0, 0), rows / 50)
    else:
        canvas.colour *= np.float32(generator.uniform(0.7, 1.15))
    through = np.exp(-canvas.depth / np.float32(fog or generator.uniform(150, 900)))
    air = grey(generator, 25, 70, 5) if night else grey(generator, 130, 225, 6)
    sky = canvas.classes == SKY
    if fog is None:
        through[sky] = 1
    canvas.colour *= through
    canvas.colour += air.astype(np.float32)[:, None, None] * (1 - through)
    canvas.classes[(through < HIDDEN) & ~sky] = VOID


def _bonnet(canvas: Canvas) -> None:
    """The front of the car that carries the camera: at the lower edge, of no class."""
    generator, (rows, columns) = canvas.generator, canvas.classes.shape
    height, reach = rows * generator.uniform(0.03, 0.12), columns * generator.uniform(0.3, 0.6)
    middle = columns * generator.uniform(0.45, 0.55)
    turn = np.linspace(np.pi, 2 * np.pi, 24)
    outline = np.stack([middle + reach * np.cos(turn), rows + 1 + (height + 1) * np.sin(turn)], axis=1)
    canvas.paint([outline], grey(generator, 10, 140, 8), VOID, uneven=25, grain=8)
