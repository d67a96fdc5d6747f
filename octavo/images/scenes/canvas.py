"""A picture of the ground and of things that stand on it: where a camera sees a point, and paint that knows its class and depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor

import cv2
import numpy as np

from octavo.images.scenes.drawing import coverage, smooth

__all__ = ["Camera", "Canvas"]


@dataclass(frozen=True)
class Camera:
    """A pinhole that looks along the ground.

    Attributes:
        size: rows and columns of the picture.
        focal: pixels.
        height: metres above the ground.
        horizon: row of the horizon, in pixels from the upper edge.
        middle: column that lies straight ahead.
    """

    size: tuple[int, int]
    focal: float
    height: float
    horizon: float
    middle: float

    def seen(self, points: np.ndarray) -> np.ndarray:
        """Pixels (..., 2: x and y) of points (..., 3: metres to the right, above the ground and ahead; ahead of the camera all)."""
        points = np.asarray(points, np.float64)
        scale = self.focal / points[..., 2]
        return np.stack([self.middle + scale * points[..., 0], self.horizon + scale * (self.height - points[..., 1])], axis=-1)

    def row_of(self, ahead: float) -> float:
        """Where the ground at a distance of so many metres lies."""
        return self.horizon + self.focal * self.height / ahead


class Canvas:
    """What has been painted so far.

    Attributes:
        generator: random numbers of the scene.
        colour: float32, 3 x rows x columns (planes are faster to paint), RGB of about 0..255 as in plain daylight.
        classes: uint8, rows x columns; the class of what covers at least half of the pixel and lies before everything else.
        depth: float32, rows x columns; metres to it.
        glow: float32, 3 x rows x columns; light that comes from the things themselves, to be added whatever the light of the day.
    """

    def __init__(self, generator: np.random.Generator, colour: np.ndarray, kind: int, depth: float) -> None:
        self.generator = generator
        self.colour = colour
        self.classes = np.full(colour.shape[1:], kind, np.uint8)
        self.depth = np.full(colour.shape[1:], depth, np.float32)
        self.glow = np.zeros_like(colour)

    def paint(
        self,
        outlines: Sequence[np.ndarray] | np.ndarray,
        colour: Sequence[float] | np.ndarray,
        kind: int | None = None,
        depth: float = 0.0,
        *,
        uneven: float = 0.0,
        grain: float = 6.0,
        glow: float = 0.0,
    ) -> bool:
        """Lay a colour over what is there.

        Args:
            outlines: corners x 2 each, pixels.
            colour: RGB.
            kind: class of the thing; None for a detail of what is there, which keeps its class and depth.
            depth: metres.
            uneven: how far the colour strays, in smooth patches.
            grain: size of these patches, in pixels.
            glow: share of the colour that shines by itself.

        Returns:
            Whether any of it lies in the picture.
        """
        window, mask = self._covered(outlines)
        # A detail of a pixel or two is none.
        if mask.size < (1 if kind is not None else 4):
            return False
        shade = np.asarray(colour, np.float32)[:, None, None]
        size = mask.shape
        if uneven and min(size) > grain:
            shade = shade + smooth(self.generator, size, max(2, int(size[0] / grain)), 1, uneven)[:, :, 0]
        share = mask * np.float32(1 / 255)
        part = self.colour[:, *window]
        part += share * (shade - part)
        if kind is not None:
            whole = mask > 127
            self.classes[window][whole] = kind
            self.depth[window][whole] = depth
            self.glow[:, *window] *= ~whole
        if glow:
            self.glow[:, *window] += share * (np.float32(glow) * shade)
        return True

    def darken(self, outlines: Sequence[np.ndarray] | np.ndarray, share: float) -> None:
        """A shadow: the colours of what is there are multiplied by `share`."""
        window, mask = self._covered(outlines)
        if mask.size:
            self.colour[:, *window] *= 1 - cv2.blur(mask, (3, 3)) * np.float32((1 - share) / 255)

    def _covered(self, outlines: Sequence[np.ndarray] | np.ndarray) -> tuple[tuple[slice, slice], np.ndarray]:
        """The part of the picture that outlines reach into, and their coverage there."""
        points = outlines[0] if len(outlines) == 1 else np.concatenate(outlines)
        rows, columns = self.classes.shape
        (left, top), (right, bottom) = points.min(axis=0).tolist(), points.max(axis=0).tolist()
        left, right = min(max(floor(left), 0), columns), max(min(ceil(right), columns), 0)
        top, bottom = min(max(floor(top), 0), rows), max(min(ceil(bottom), rows), 0)
        window = slice(top, bottom), slice(left, right)
        if left >= right or top >= bottom:
            return window, np.empty((0, 0), np.uint8)
        corner, size = (left, top), (bottom - top, right - left)
        whole = isinstance(outlines, np.ndarray)
        return window, coverage(outlines - corner if whole else [outline - corner for outline in outlines], size)
