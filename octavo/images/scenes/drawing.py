"""What every kind of scene is drawn with: outlines with their coverage of pixels, uneven fields, a lens and a sensor."""

from __future__ import annotations

import cv2
import numpy as np

from octavo.errors import DataError

__all__ = ["coverage", "numbered", "photographed", "smooth"]

# A mask is drawn this much larger and averaged, so that its edges have their true coverage.
FINER = 4


def numbered(seed: int, number: int) -> np.random.Generator:
    """The random numbers of one scene of a series.

    Raises:
        DataError: a negative number.
    """
    if seed < 0 or number < 0:
        raise DataError(f"scene {number} of seed {seed} cannot be rendered", "give seeds and numbers of 0 or more")
    return np.random.default_rng([seed, number])


def coverage(outlines: list[np.ndarray] | np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """How much of each pixel lies inside of outlines.

    Args:
        outlines: corners x 2 each, (x, y) in pixels, the first pixel being 0..1; where two lie in each other the inner one is a
            hole. As one array (n x corners x 2) they are faster.
        size: rows and columns.

    Returns:
        uint8, rows x columns; 255 for all of a pixel.
    """
    rows, columns = size
    fine = np.zeros((rows * FINER, columns * FINER), np.uint8)
    # Pixel centres lie at whole numbers for OpenCV, hence the half pixel.
    points = _fixed(outlines) if isinstance(outlines, np.ndarray) else [_fixed(outline) for outline in outlines]
    cv2.fillPoly(fine, list(points), 255, shift=4)
    return cv2.resize(fine, (columns, rows), interpolation=cv2.INTER_AREA)


def _fixed(points: np.ndarray) -> np.ndarray:
    return np.rint((points * FINER - 0.5) * 16).astype(np.int32)


def smooth(generator: np.random.Generator, size: tuple[int, int], cells: int, channels: int, spread: float) -> np.ndarray:
    """Random values on a coarse grid, blown up: float32, rows x columns x channels, within about +-spread."""
    rows, columns = size
    grid = generator.uniform(-spread, spread, (cells, max(2, cells * columns // rows), channels)).astype(np.float32)
    return cv2.resize(grid, (columns, rows), interpolation=cv2.INTER_CUBIC).reshape(rows, columns, channels)


def photographed(generator: np.random.Generator, canvas: np.ndarray) -> np.ndarray:
    """Uneven light, a lens and a sensor: uint8."""
    rows, columns = canvas.shape[:2]
    canvas = canvas * (1 + smooth(generator, (rows, columns), 2, 1, 0.25))
    blur = generator.uniform(0, 0.9)
    if blur > 0.3:
        canvas = cv2.GaussianBlur(canvas, (0, 0), blur)
    noise = generator.standard_normal(canvas.shape, np.float32) * np.float32(generator.uniform(2, 8))
    return np.clip(np.rint(canvas + noise), 0, 255).astype(np.uint8)
