"""What stands beside the road: buildings, trees, poles, each a painter of a canvas.

Lengths are metres; `at` is a place on the ground, (right, ahead) of the camera.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.images.scenes.canvas import Camera, Canvas
from octavo.images.scenes.colours import greenery, grey, wall_colour
from octavo.images.scenes.road_classes import BUILDING, POLE, VEGETATION

__all__ = ["building", "bush", "pole", "tree"]

# Storeys and bays of a facade.
STOREY, BAY = 3.0, 2.6
# What a window is at least, in pixels, to be drawn.
SMALLEST_WINDOW = 1.5


def building(
    canvas: Canvas, camera: Camera, near: tuple[float, float], far: tuple[float, float], height: float, *, lit: bool
) -> None:
    """A house along the road, from `near` to `far` (right, ahead), with the wall that faces the camera; below 4 m a plain wall.

    Args:
        lit: windows shine.
    """
    generator = canvas.generator
    colour = wall_colour(generator)
    glass = generator.uniform(15, 90, 3) if generator.random() < 0.7 else generator.uniform(120, 220, 3)
    outward = np.sign(near[0]) * generator.uniform(6, 20)
    along = np.array([[near[0], near[1]], [far[0], far[1]]])
    facing = np.array([[near[0], near[1]], [near[0] + outward, near[1]]])
    size = generator.uniform(0.35, 0.7, 2)
    for base, light in ((facing, generator.uniform(0.6, 1.0)), (along, generator.uniform(0.7, 1.1))):
        wall = camera.seen(_upright(base, 0, height))
        if not canvas.paint([wall], colour * light, BUILDING, near[1] + 2, uneven=12, grain=5) or height < 4:
            continue
        windows = _windows(camera, base, height, size)
        # Not all windows look alike, as far as that can be seen.
        apart = 3 if near[1] < 25 else 1
        for part in (windows[::apart], windows[np.arange(len(windows)) % apart > 0]):
            if len(part):
                shine = 1.6 if lit and generator.random() < 0.6 else 0.0
                shown = np.array([235.0, 200.0, 130.0]) if shine else glass * generator.uniform(0.8, 1.2)
                canvas.paint(part, shown, uneven=15, grain=4, glow=shine)


def _upright(base: np.ndarray, low: float, high: float) -> np.ndarray:
    """A rectangle over a line of the ground: 4 x 3."""
    return np.array([[*base[0], low], [*base[1], low], [*base[1], high], [*base[0], high]])[:, [0, 2, 1]]


def _windows(camera: Camera, base: np.ndarray, height: float, size: np.ndarray) -> np.ndarray:
    """Outlines of the windows of a wall, as far as they can be seen: n x 4 x 2."""
    bays = max(1, int(np.hypot(*(base[1] - base[0])) / BAY))
    storeys = int(height / STOREY)
    half = size / 2
    across = (np.arange(bays)[:, None] + 0.5 + half[0] * np.array([-1, 1, 1, -1])) / bays
    up = (np.arange(storeys)[:, None] + 0.55 + half[1] * np.array([-1, -1, 1, 1])) * STOREY
    corners = np.empty((bays, storeys, 4, 3))
    corners[..., 0] = (base[0, 0] + across * (base[1, 0] - base[0, 0]))[:, None]
    corners[..., 2] = (base[0, 1] + across * (base[1, 1] - base[0, 1]))[:, None]
    corners[..., 1] = up[None]
    found = camera.seen(corners.reshape(-1, 4, 3))
    rows, columns = camera.size
    inside = (found[:, :, 0].max(1) > 0) & (found[:, :, 0].min(1) < columns) & (found[:, :, 1].min(1) < rows)
    large = np.ptp(found, axis=1).min(axis=1) > SMALLEST_WINDOW
    return found[inside & large & (found[:, :, 1].max(1) > 0)]


def _blob(generator: np.random.Generator, middle: Sequence[float], reach: Sequence[float], corners: int = 18) -> np.ndarray:
    """An uneven round outline."""
    turn = np.arange(corners) * (2 * np.pi / corners)
    wobble = generator.uniform(0.75, 1.1, corners)[:, None]
    return np.asarray(middle) + np.stack([np.cos(turn), np.sin(turn)], axis=1) * wobble * np.asarray(reach)


def tree(canvas: Canvas, camera: Camera, at: tuple[float, float], height: float) -> None:
    """A trunk with leaves, vegetation both."""
    generator = canvas.generator
    scale = camera.focal / at[1]
    foot = camera.seen(np.array([at[0], 0.0, at[1]]))
    width, crown = generator.uniform(0.1, 0.22) * scale, height * generator.uniform(0.3, 0.45)
    top = foot[1] - height * scale
    trunk = np.array(
        [[-width, 0], [width, 0], [0.6 * width, top + crown * scale - foot[1]], [-0.6 * width, top + crown * scale - foot[1]]]
    )
    canvas.paint([foot + trunk], generator.uniform(30, 110) * np.array([1.0, 0.85, 0.7]), VEGETATION, at[1], uneven=10, grain=3)
    colour = greenery(generator)
    wide = crown * generator.uniform(0.7, 1.1)
    for _ in range(int(generator.integers(2, 5))):
        middle = foot[0] + generator.uniform(-0.5, 0.5) * wide * scale, top + generator.uniform(0.7, 1.3) * crown * scale
        blob = _blob(generator, middle, (wide * scale * generator.uniform(0.6, 0.9), crown * scale * generator.uniform(0.6, 0.9)))
        canvas.paint([blob], colour * generator.uniform(0.75, 1.25), VEGETATION, at[1], uneven=28, grain=3)


def bush(canvas: Canvas, camera: Camera, at: tuple[float, float], height: float) -> None:
    """Leaves down to the ground."""
    generator = canvas.generator
    scale = camera.focal / at[1]
    middle = camera.seen(np.array([at[0], 0.45 * height, at[1]]))
    wide = height * generator.uniform(0.6, 1.8)
    canvas.paint(
        [_blob(generator, middle, (wide * scale, 0.5 * height * scale))], greenery(generator), VEGETATION, at[1], uneven=25, grain=3
    )


def pole(canvas: Canvas, camera: Camera, at: tuple[float, float], *, lit: bool) -> None:
    """A lamp, a traffic light or a sign, with its post.

    Args:
        lit: it shines.
    """
    generator = canvas.generator
    scale = camera.focal / at[1]
    foot = camera.seen(np.array([at[0], 0.0, at[1]]))
    kind = int(generator.integers(3))
    height = (generator.uniform(5, 8), generator.uniform(2.8, 4.5), generator.uniform(2.2, 3.4))[kind]
    colour, half = grey(generator, 35, 185, 6), generator.uniform(0.09, 0.16)

    def box(left: float, right: float, low: float, high: float) -> np.ndarray:
        return foot + scale * np.array([[left, -low], [right, -low], [right, -high], [left, -high]])

    canvas.paint([box(-half, half, 0, height)], colour, POLE, at[1])
    # The light falls from one side.
    canvas.paint([box(-half, 0, 0, height)], colour * generator.uniform(0.6, 1.0))
    if kind == 0:
        arm = -np.sign(at[0]) * generator.uniform(0.8, 2.2)
        canvas.paint([box(*sorted((0, arm)), height - 0.18, height)], colour, POLE, at[1])
        lamp = box(*sorted((0.6 * arm, 1.1 * arm)), height - 0.3, height)
        canvas.paint([lamp], (245, 225, 170) if lit else colour * 1.2, POLE, at[1], glow=2.0 if lit else 0.0)
    elif kind == 1:
        canvas.paint([box(-0.24, 0.24, height - 1.0, height)], generator.uniform(15, 70, 3), POLE, at[1])
        place = int(generator.integers(3))
        shown = ((60, 220, 120), (240, 190, 50), (235, 50, 40))[place]
        low = height - 0.92 + 0.29 * place
        canvas.paint([box(-0.13, 0.13, low, low + 0.24)], shown, glow=1.2)
    else:
        shown = np.array(((40, 70, 170), (200, 40, 40), (225, 225, 220), (225, 190, 40))[int(generator.integers(4))], np.float64)
        reach = generator.uniform(0.3, 0.5)
        corners = (3, 4, 20)[int(generator.integers(3))]
        turn = np.arange(corners) * (2 * np.pi / corners) - np.pi / 2 + (np.pi / 4 if corners == 4 else 0)
        middle = foot - (0, (height - reach) * scale)
        sign = np.stack([np.cos(turn), np.sin(turn)], axis=1) * reach * scale
        canvas.paint([middle + sign], shown * generator.uniform(0.6, 1), POLE, at[1])
        canvas.paint([middle + 0.6 * sign], generator.uniform(30, 240, 3))
