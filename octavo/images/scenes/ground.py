"""The ground of a road scene: verge, sidewalks, road, markings, shadows, each by its distance from the middle of the road."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from octavo.images.scenes.canvas import Camera, Canvas
from octavo.images.scenes.colours import greenery, grey
from octavo.images.scenes.road_classes import MARKING, ROAD, SIDEWALK, VEGETATION

__all__ = ["FARTHEST", "Road", "paint_ground"]

# The ground ends so many metres ahead, where houses or trees close the view.
FARTHEST = 90.0


@dataclass(frozen=True)
class Road:
    """A ribbon on the ground; its middle lies `offset` + `yaw` * ahead + `bend` * ahead^2 to the right (metres, as all lengths).

    Attributes:
        half: from the middle to the edge.
        walks: width of the sidewalk on the left and on the right, 0 where there is none.
        verges: from there to the line of the houses.
        lanes: how many.
    """

    offset: float
    yaw: float
    bend: float
    half: float
    walks: tuple[float, float]
    verges: tuple[float, float]
    lanes: int

    def middle(self, ahead: np.ndarray | float) -> np.ndarray | float:
        """How far to the right of the camera the road's middle lies."""
        return self.offset + (self.yaw + self.bend * ahead) * ahead

    def heading(self, ahead: float) -> float:
        """Where it leads there: radians to the right of straight ahead."""
        return float(np.arctan(self.yaw + 2 * self.bend * ahead))

    def house_line(self, side: int) -> float:
        """Distance of the houses from the middle of the road."""
        place = (side + 1) // 2
        return self.half + self.walks[place] + self.verges[place]


def paint_ground(canvas: Canvas, camera: Camera, road: Road, *, shadows: bool) -> None:
    """Verge, sidewalks, road and markings; a pixel's share of each follows from its distance to the edges, in pixels."""
    generator, (rows, columns) = canvas.generator, camera.size
    first = int(np.ceil(camera.row_of(FARTHEST) - 0.5))
    if first >= rows:
        return
    ahead = (camera.focal * camera.height / (np.arange(first, rows) + 0.5 - camera.horizon)).astype(np.float32)[:, None]
    right = (np.arange(columns, dtype=np.float32) + 0.5 - np.float32(camera.middle)) * (ahead / np.float32(camera.focal))
    aside = right - road.middle(ahead).astype(np.float32)
    surface = _Surface(
        generator,
        aside,
        ahead,
        # Metres to the next pixel, across the edges of the road and along it.
        np.hypot(ahead / np.float32(camera.focal), np.gradient(aside, axis=0)),
        ahead**2 / np.float32(camera.focal * camera.height),
        canvas.colour[:, first:],
        canvas.classes[first:],
    )
    canvas.depth[first:] = ahead
    fine, coarse = (_noise(generator, right, ahead, scale) / (1 + surface.across * scale) for scale in (9.0, 1.2))
    paved = generator.random() < 0.3
    open_ground = grey(generator, 70, 180, 9) if paved else greenery(generator)
    surface.lay(None, open_ground, SIDEWALK if paved else VEGETATION, 22 * fine + 22 * coarse)
    pavement = grey(generator, 70, 190, 9)
    for side, width in zip((-1, 1), road.walks, strict=True):
        if width:
            outward = side * aside - road.half
            surface.lay(np.minimum(outward, width - outward), pavement, SIDEWALK, 10 * fine + 12 * coarse)
            surface.lay(0.14 - np.abs(outward - 0.14), pavement * generator.uniform(0.75, 1.3), None, 5 * fine)
    if generator.random() < 0.5:
        _slabs(surface, pavement * generator.uniform(0.7, 0.95))
    asphalt = grey(generator, 40, 165, 6)
    surface.lay(road.half - np.abs(aside), asphalt, ROAD, generator.uniform(5, 16) * fine + generator.uniform(3, 16) * coarse)
    for _ in range(int(generator.integers(0, 4))):
        # Mended asphalt.
        away, wide = generator.uniform(4, 35), generator.uniform(0.4, 1.6)
        along = generator.uniform(0.5, 6) - np.abs(ahead - away)
        across = wide - np.abs(aside - generator.uniform(-1, 1) * (road.half - wide))
        patch = np.minimum(across, along * surface.across / surface.along)
        surface.lay(np.minimum(patch, road.half - np.abs(aside)), asphalt + generator.uniform(-25, 25), None, 8 * fine)
    if generator.random() < 0.2:
        # Wet: the sky is seen in it, the more the flatter one looks.
        surface.blend(0.6 * np.exp(-18 / ahead), canvas.colour[:, 0].mean(axis=1), None)
    _markings(surface, road, fine, coarse)
    if shadows and generator.random() < 0.6:
        _shadows(surface, road, coarse)


@dataclass(frozen=True, eq=False)
class _Surface:
    """The part of the picture that shows the ground.

    Attributes:
        aside: metres to the right of the middle of the road, rows x columns.
        ahead: metres from the camera, rows x 1.
        across, along: metres that a pixel is wide and deep there.
        colour, classes: views of the canvas, written in place.
    """

    generator: np.random.Generator
    aside: np.ndarray
    ahead: np.ndarray
    across: np.ndarray
    along: np.ndarray
    colour: np.ndarray
    classes: np.ndarray

    def lay(self, inside: np.ndarray | None, colour: np.ndarray, kind: int | None, uneven: np.ndarray) -> None:
        """Paint what lies `inside` (metres from the edge, below 0 outside; None for all); a detail has no class of its own."""
        self.blend(1 if inside is None else np.clip(inside / self.across + 0.5, 0, 1), colour, kind, uneven)

    def blend(
        self,
        share: np.ndarray | float,
        colour: np.ndarray,
        kind: int | None,
        uneven: np.ndarray | float = 0.0,
        opacity: np.ndarray | float = 1.0,
    ) -> None:
        """Paint a share of each pixel; what is worn lets through what is below it, and is of its class all the same."""
        share = np.broadcast_to(np.asarray(share, np.float32), self.aside.shape)
        shade = colour.astype(np.float32)[:, None, None] + np.asarray(uneven, np.float32)
        self.colour[:] += share * np.asarray(opacity, np.float32) * (shade - self.colour)
        if kind is not None:
            self.classes[share > 0.5] = kind

    def stripe(self, middle: float | np.ndarray, half: float) -> np.ndarray:
        """Share of each pixel in a line along the road."""
        return np.minimum(np.clip((half - np.abs(self.aside - middle)) / self.across + 0.5, 0, 1), 2 * half / self.across)

    def dashes(self, phase: float, length: float, period: float) -> np.ndarray:
        """Share of each row in pieces of `length`, one every `period`; rows x 1."""
        place = np.abs((self.ahead - phase + period / 2) % period - period / 2)
        return np.minimum(np.clip((length / 2 - place) / self.along + 0.5, 0, 1), np.maximum(length / self.along, length / period))


def _noise(generator: np.random.Generator, right: np.ndarray, ahead: np.ndarray, scale: float) -> np.ndarray:
    """A texture of the ground with `scale` cells a metre, about -1..1."""
    tile = cv2.blur(generator.standard_normal((64, 64), np.float32), (2, 2), borderType=cv2.BORDER_REFLECT)
    across = (right * np.float32(scale)) % 63
    along = np.broadcast_to((ahead * np.float32(scale)) % 63, right.shape)
    return cv2.remap(tile, across, np.ascontiguousarray(along), cv2.INTER_LINEAR)


def _slabs(surface: _Surface, colour: np.ndarray) -> None:
    """Joints of a pavement, on all that is sidewalk."""
    size = surface.generator.uniform(0.5, 1.4)
    nearest = size * np.round(surface.aside / size)
    joints = np.maximum(surface.stripe(nearest, 0.025), surface.dashes(0, 0.05, size))
    surface.blend(joints * (surface.classes == SIDEWALK), colour, None)


def _markings(surface: _Surface, road: Road, fine: np.ndarray, coarse: np.ndarray) -> None:
    generator = surface.generator
    white = grey(generator, 150, 240, 5)
    yellow = np.array([1.0, generator.uniform(0.75, 0.85), generator.uniform(0.25, 0.45)]) * generator.uniform(150, 230)
    # Worn paint lets the road show through.
    paint = np.clip(generator.uniform(0.6, 1.05) + 0.35 * fine + 0.2 * coarse, 0.4, 1)
    period, wide = generator.uniform(5, 12), generator.uniform(0.07, 0.12)
    length, phase = period * generator.uniform(0.35, 0.6), generator.uniform(0, 12)
    edge = road.half - generator.uniform(0.15, 0.5)
    lines: list[tuple[float, bool, np.ndarray]] = []
    if generator.random() < 0.65:
        lines += [(-edge, False, white), (edge, False, white)]
    middle_colour = yellow if generator.random() < 0.35 else white
    for lane in range(1, road.lanes):
        place = -road.half + lane * 2 * road.half / road.lanes
        central = road.lanes == 2 * lane
        colour = middle_colour if central else white
        if central and generator.random() < 0.25:
            lines += [(place - 0.2, False, colour), (place + 0.2, False, colour)]
        else:
            lines.append((place, not (central and generator.random() < 0.4), colour))
    for place, dashed, colour in lines:
        share = surface.stripe(place, wide)
        if dashed:
            share = share * surface.dashes(phase, length, period)
        surface.blend(share, colour, MARKING, opacity=paint)
    inside = np.clip((road.half - 0.2 - np.abs(surface.aside)) / surface.across + 0.5, 0, 1)
    if generator.random() < 0.22:
        # A crossing for pedestrians: bars along the road.
        pitch = generator.uniform(0.8, 1.2)
        bars = surface.stripe(pitch * np.round(surface.aside / pitch), 0.26 * pitch)
        here = surface.dashes(generator.uniform(6, 22), generator.uniform(2.5, 4), 1000.0)
        surface.blend(bars * inside * here, white, MARKING, opacity=paint)
    elif generator.random() < 0.15:
        own = inside * (surface.aside > -0.3 * road.half)
        here = surface.dashes(generator.uniform(6, 22), generator.uniform(0.3, 0.6), 1000.0)
        surface.blend(own * here, white, MARKING, opacity=paint)


def _shadows(surface: _Surface, road: Road, coarse: np.ndarray) -> None:
    """Of houses beside the road, or of leaves above it."""
    generator = surface.generator
    dark = generator.uniform(0.4, 0.75)
    if generator.random() < 0.3:
        share = np.clip(coarse * 4 + generator.uniform(-0.5, 1.0), 0, 1)
    else:
        ends = np.cumsum(generator.uniform(2, 16, 16))
        reach = generator.uniform(-2, 2.6 * road.half, 17)[np.searchsorted(ends, surface.ahead[:, 0])].astype(np.float32)[:, None]
        side = generator.choice((-1, 1))
        share = np.clip((side * surface.aside - road.half - 2 + reach) / surface.across + 0.5, 0, 1)
    surface.colour[:] *= 1 - np.float32(1 - dark) * share.astype(np.float32)
