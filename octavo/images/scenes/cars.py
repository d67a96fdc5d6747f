"""Cars and vans: boxes on wheels, of any colour.

Lengths are metres.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from octavo.images.scenes.canvas import Camera, Canvas
from octavo.images.scenes.colours import grey
from octavo.images.scenes.road_classes import CAR

__all__ = ["car"]

# A car is not drawn nearer to the camera than so many times its height: it would be all that is seen.
NEAREST = 1.8
# Height of a car in pixels from which its unlit lamps are drawn.
SMALLEST_CAR = 9


def car(canvas: Canvas, camera: Camera, at: tuple[float, float], heading: float, *, lit: bool) -> None:
    """A car or a van on its wheels and over its shadow; left out where it would come too near.

    Args:
        at: its middle, (right, ahead) of the camera.
        heading: radians to the right of straight ahead, of its front.
        lit: its lamps shine.
    """
    generator = canvas.generator
    tall = generator.random() < 0.2
    length, width = (
        (generator.uniform(4.8, 7.5), generator.uniform(1.9, 2.3))
        if tall
        else (generator.uniform(3.5, 4.8), generator.uniform(1.6, 1.9))
    )
    height = generator.uniform(2.0, 3.2) if tall else generator.uniform(1.38, 1.75)
    waist = height * (0.62 if tall else generator.uniform(0.56, 0.64))
    solid = _Solid(canvas, camera, at, heading)
    if at[1] - np.hypot(length, width) / 2 < NEAREST * height:
        return
    colour = grey(generator, 15, 235, 5) if generator.random() < 0.6 else generator.uniform(10, 225, 3)
    dark = generator.uniform(10, 45)
    half, side = length / 2, width / 2
    ground = solid.placed(np.array([[-half, 0, -side], [half, 0, -side], [half, 0, side], [-half, 0, side]]) * (1.04, 1, 1.12))
    canvas.darken([camera.seen(ground)], generator.uniform(0.3, 0.6))
    wheel = 0.31 if not tall else 0.38
    for end in (-0.62, 0.62):
        for edge in (-1, 1):
            solid.box(
                (end * half - wheel, end * half + wheel),
                (0, 2 * wheel),
                sorted((edge * (side - 0.22), edge * side)),
                np.full(3, dark),
                shade=False,
            )
    solid.box((-half, half), (0.2, waist), (-side, side), colour)
    # The cabin narrows towards the roof; its sides are glass but for the pillars.
    low = (-0.96 * half, 0.95 * half) if tall else (-generator.uniform(0.7, 0.97) * half, generator.uniform(0.3, 0.5) * half)
    taper = (0.98, 0.92) if tall else (generator.uniform(0.6, 0.8), generator.uniform(0.78, 0.88))
    glass = generator.uniform(15, 95) + generator.normal(0, 6, 3)
    solid.box(
        low,
        (waist, height),
        (-0.94 * side, 0.94 * side),
        colour,
        taper=taper,
        glass=None if tall and generator.random() < 0.4 else glass,
    )
    if camera.focal / at[1] * height < SMALLEST_CAR and not lit:
        return
    for edge in (-1, 1):
        sides = sorted((edge * 0.55 * side, edge * 0.95 * side))
        for end, lamp in ((-half, (200, 25, 20)), (half, (235, 230, 210))):
            solid.panel(end, (0.62 * waist, 0.85 * waist), sides, lamp, glow=1.5 if lit else 0.0)
    if not lit and generator.random() < 0.7:
        solid.panel(-half, (0.35 * waist, 0.5 * waist), (-0.3 * side, 0.3 * side), (215, 215, 205))


class _Solid:
    """Boxes in a frame of their own (forward, up, right) that stands on the ground."""

    def __init__(self, canvas: Canvas, camera: Camera, at: tuple[float, float], heading: float) -> None:
        self.canvas, self.camera = canvas, camera
        self.at = np.array([at[0], 0.0, at[1]])
        ahead, aside = np.array([np.sin(heading), 0, np.cos(heading)]), np.array([np.cos(heading), 0, -np.sin(heading)])
        self.axes = np.stack([ahead, (0.0, 1.0, 0.0), aside])
        # The sun: brightness of walls by the way that they face.
        turn = canvas.generator.uniform(0, 2 * np.pi)
        self.sun = np.array([np.sin(turn), 0.0, np.cos(turn)])

    def placed(self, points: np.ndarray) -> np.ndarray:
        """Points of the frame as the camera's."""
        return points @ self.axes + self.at

    def box(
        self,
        along: Sequence[float],
        up: Sequence[float],
        across: Sequence[float],
        colour: np.ndarray,
        *,
        taper: tuple[float, float] = (1.0, 1.0),
        glass: np.ndarray | None = None,
        shade: bool = True,
    ) -> None:
        """A box of class car, its upper side `taper` (along, across) as large as its lower; with `glass` its walls are windows."""
        corners = np.array(
            [
                [x, y, z]
                for y in up
                for x, z in ((along[0], across[0]), (along[1], across[0]), (along[1], across[1]), (along[0], across[1]))
            ]
        )
        middle = corners.mean(axis=0)
        corners[4:, [0, 2]] = middle[[0, 2]] + (corners[4:, [0, 2]] - middle[[0, 2]]) * taper
        placed = self.placed(corners)
        seen = self.camera.seen(placed)
        hull = cv2.convexHull(seen.astype(np.float32))[:, 0]
        self.canvas.paint([hull.astype(np.float64)], colour, CAR, float(self.at[2]))
        if not shade:
            return
        eye = np.array([0.0, self.camera.height, 0.0])
        ahead, above, aside = self.axes
        for wall, normal in (
            ((0, 1, 5, 4), -aside),
            ((1, 2, 6, 5), ahead),
            ((2, 3, 7, 6), aside),
            ((3, 0, 4, 7), -ahead),
            ((4, 5, 6, 7), above),
        ):
            if normal @ (placed[wall[0]] - eye) >= 0:
                continue
            outline = seen[list(wall)]
            light = 1.1 if wall[0] == 4 else 0.78 + 0.27 * float(normal @ self.sun)
            self.canvas.paint([outline], colour * light, uneven=8, grain=6)
            if glass is not None and wall[0] != 4:
                self.canvas.paint([outline.mean(axis=0) + 0.84 * (outline - outline.mean(axis=0))], glass, uneven=25, grain=5)

    def panel(
        self, end: float, up: Sequence[float], across: Sequence[float], colour: Sequence[float], *, glow: float = 0.0
    ) -> None:
        """A rectangle on the front or the back wall, where the camera sees that wall."""
        corners = self.placed(
            np.array([[end, up[0], across[0]], [end, up[0], across[1]], [end, up[1], across[1]], [end, up[1], across[0]]])
        )
        if (np.sign(end) * self.axes[0]) @ (corners.mean(axis=0) - (0, self.camera.height, 0)) < 0:
            self.canvas.paint([self.camera.seen(corners)], colour, glow=glow)
