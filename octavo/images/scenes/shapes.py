"""Scenes of shapes that the project draws itself, with exact boxes: data for a detector where no photos may be shipped.

Six kinds of shapes, 14 to 112 pixels long, turned, stretched and partly over each other, on clutter that is of no kind; some are
hardly brighter or darker than what lies behind them, all of it blurred and noisy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.images.scenes.drawing import coverage, numbered, photographed, smooth

__all__ = ["SHAPES", "Scene", "render"]

# Class index -> name.
SHAPES = ("disc", "square", "triangle", "star", "ring", "cross")

# (rows, columns) of a scene and how often it is taken.
SIZES = ((192, 256), (240, 320), (192, 192), (160, 256), (256, 192))
OFTEN = (0.6, 0.1, 0.1, 0.1, 0.1)
# Longer side of a shape in pixels; its logarithm is uniform, so that half of them are small (COCO: below 32 x 32).
SHORTEST, LONGEST = 14, 112
MOST_SHAPES = 12
# What must stay visible of a shape, inside the image and under others; one that would hide more of another is left out.
VISIBLE = 0.6
# Places tried for a shape.
TRIES = 8


@dataclass(frozen=True, eq=False)
class Scene:
    """An image and what is in it.

    Attributes:
        image: uint8, rows x columns x 3, RGB.
        owner: int16, rows x columns; 1 + the place in `classes` of the shape that covers at least half of the pixel, 0 for none.
        classes: int64, n; indices into `SHAPES`.
    """

    image: np.ndarray
    owner: np.ndarray
    classes: np.ndarray

    def boxes(self) -> tuple[np.ndarray, np.ndarray]:
        """What is visible of each shape: corners in pixels (float64, n x 4) and area in square pixels (int64, n)."""
        corners, areas = np.zeros((len(self.classes), 4)), np.zeros(len(self.classes), np.int64)
        for place in range(len(self.classes)):
            y, x = np.nonzero(self.owner == place + 1)
            corners[place] = x.min(), y.min(), x.max() + 1, y.max() + 1
            areas[place] = len(x)
        return corners, areas


def render(seed: int, number: int) -> Scene:
    """One scene of a series; the same two numbers give the same pixels.

    Raises:
        DataError: a negative number.
    """
    generator = numbered(seed, number)
    rows, columns = SIZES[generator.choice(len(SIZES), p=OFTEN)]
    canvas = _background(generator, rows, columns)
    owner, classes = np.zeros((rows, columns), np.int16), []
    # Pixels of each shape: all that it has, and those that are still seen.
    whole, shown = [], np.zeros(0, np.int64)
    for _ in range(int(generator.integers(2, MOST_SHAPES, endpoint=True))):
        kind = int(generator.integers(len(SHAPES)))
        length = float(np.exp(generator.uniform(np.log(SHORTEST), np.log(LONGEST))))
        outlines = _shape(generator, kind, length)
        for middle in generator.uniform((0, 0), (columns, rows), (TRIES, 2)):
            drawn = _drawn(outlines, middle, rows, columns)
            covered, under = drawn.mask > 127, owner[drawn.window]
            hidden = np.bincount(under[covered], minlength=len(whole) + 1)[1:]
            if np.count_nonzero(covered) >= VISIBLE * drawn.area and (shown - hidden >= VISIBLE * np.asarray(whole)).all():
                under[covered] = len(classes) + 1
                classes.append(kind)
                whole.append(drawn.area)
                shown = np.append(shown - hidden, np.count_nonzero(covered))
                _paint(generator, canvas, drawn)
                break
    return Scene(photographed(generator, canvas), owner, np.asarray(classes, np.int64))


def _background(generator: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """A gradient, blobs, texture and clutter of no kind; float32, about 0..255."""
    canvas = generator.uniform(60, 195, 3).astype(np.float32) + smooth(generator, (rows, columns), 2, 3, 50)
    canvas += smooth(generator, (rows, columns), int(generator.integers(3, 9)), 3, generator.uniform(0, 25))
    canvas += smooth(generator, (rows, columns), rows // int(generator.integers(3, 9)), 1, generator.uniform(0, 18))
    for _ in range(generator.integers(0, 8)):
        ends = generator.uniform((-20, -20), (columns + 20, rows + 20), (2, 2))
        across = (ends[1] - ends[0])[::-1] * (-1, 1)
        across *= generator.uniform(0.5, 2.5) / max(1.0, float(np.hypot(*across)))
        line = np.array([ends[0] + across, ends[1] + across, ends[1] - across, ends[0] - across])
        _paint(generator, canvas, _drawn([line - line.mean(axis=0)], line.mean(axis=0), rows, columns))
    for _ in range(generator.integers(0, 8)):
        # Uneven polygons: corners of any kind, but no regular outline.
        corners = int(generator.integers(4, 9))
        turn = np.sort(generator.uniform(0, 2 * np.pi, corners))
        reach = generator.uniform(0.3, 1, corners) * np.exp(generator.uniform(np.log(3), np.log(45)))
        blob = np.stack([reach * np.cos(turn), reach * np.sin(turn) * generator.uniform(0.3, 1)], axis=1)
        middle = generator.uniform((0, 0), (columns, rows))
        _paint(generator, canvas, _drawn([blob @ _rotation(generator)], middle, rows, columns))
    return canvas


def _rotation(generator: np.random.Generator) -> np.ndarray:
    angle = generator.uniform(0, 2 * np.pi)
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def _shape(generator: np.random.Generator, kind: int, length: float) -> list[np.ndarray]:
    """Outlines (corners x 2, pixels) around (0, 0); where two lie in each other the inner one is a hole."""
    name = SHAPES[kind]
    if name == "cross":
        arm = generator.uniform(0.25, 0.4)
        quarter, turn = np.array([[arm, 1], [arm, arm], [1, arm]]), np.array([[0, -1], [1, 0]])
        outlines = [np.concatenate([quarter @ np.linalg.matrix_power(turn, times) for times in range(4)])]
    elif name == "star":
        outlines = [_regular(10) * np.tile([[1.0], [generator.uniform(0.38, 0.5)]], (5, 1))]
    else:
        outlines = [_regular({"square": 4, "triangle": 3}.get(name, 48))]
        if name == "ring":
            outlines.append(outlines[0] * generator.uniform(0.5, 0.72))
    stretch = _rotation(generator) @ np.diag([1.0, generator.uniform(0.75, 1)]) @ _rotation(generator)
    outlines = [outline @ stretch for outline in outlines]
    return [outline * (length / np.ptp(outlines[0], axis=0).max()) for outline in outlines]


def _regular(corners: int) -> np.ndarray:
    turn = np.arange(corners) * (2 * np.pi / corners)
    return np.stack([np.cos(turn), np.sin(turn)], axis=1)


@dataclass(frozen=True, eq=False)
class _Drawn:
    """Coverage (uint8, 255 for all of a pixel) of the part of the image that `window` cuts out, and the pixels before that cut."""

    window: tuple[slice, slice]
    mask: np.ndarray
    area: int


def _drawn(outlines: list[np.ndarray], middle: np.ndarray, rows: int, columns: int) -> _Drawn:
    """A shape put at `middle` (x, y)."""
    reach = int(np.ceil(max(np.abs(outline).max() for outline in outlines))) + 2
    corner = np.floor(middle).astype(int) - reach
    side = 2 * reach + 1
    patch = coverage([outline + middle - corner for outline in outlines], (side, side))
    (left, top), (right, bottom) = np.clip(corner, 0, (columns, rows)), np.clip(corner + side, 0, (columns, rows))
    inside = patch[top - corner[1] : bottom - corner[1], left - corner[0] : right - corner[0]]
    return _Drawn((slice(top, bottom), slice(left, right)), inside, int(np.count_nonzero(patch > 127)))


def _paint(generator: np.random.Generator, canvas: np.ndarray, drawn: _Drawn) -> None:
    """Lay a colour over the canvas, in place: near that of what it covers, so that its contrast is sometimes low."""
    away = generator.standard_normal(3)
    away *= np.exp(generator.uniform(np.log(45), np.log(170))) / np.linalg.norm(away)
    across, along = generator.uniform(-12, 12, 2)
    share = drawn.mask[:, :, None] / np.float32(255)
    if not share.any():
        return
    part = canvas[drawn.window]
    around = (part * share).sum(axis=(0, 1)) / share.sum()
    # Away from black and white: a colour that would be cut off loses its contrast.
    colour = around + np.where((around + away < 5) | (around + away > 250), -away, away)
    height, width = share.shape[:2]
    shade = np.linspace(-along, along, height)[:, None] + np.linspace(-across, across, width)
    part += share * ((colour + shade[:, :, None]).astype(np.float32) - part)
