"""SCRFD (https://arxiv.org/abs/2105.04714), insightface's face detectors: scores, distances and points for each stride."""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.family import Family, Rows, Size, are_scores, by_level, cells, centres
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILY"]

_STRIDES = (8, 16, 32)
# Anchors of a cell, which lie at one place and are trained on faces of different sizes.
_ANCHORS = 2
# Columns of scores and of distances, and of five points, which some networks lack.
_COLUMNS = ([1, 4], [1, 4, 10])


def _parts(outputs: Outputs, size: Size) -> tuple[np.ndarray, np.ndarray] | None:
    """Scores n x 1 and distances n x 4, in strides, of all cells; None where the shapes are others."""
    levels = by_level(outputs, [_ANCHORS * cells(size, (stride,)) for stride in _STRIDES])
    if levels is None or any([value.shape[1] for value in level] not in _COLUMNS for level in levels):
        return None
    return np.concatenate([level[0] for level in levels]), np.concatenate([level[1] for level in levels])


def _fits(outputs: Outputs, size: Size) -> bool:
    parts = _parts(outputs, size)
    return parts is not None and are_scores(parts[0])


def _rows(outputs: Outputs, size: Size) -> Rows:
    scores, distances = _parts(outputs, size)
    # A cell's corner, not its middle (insightface, detection/scrfd).
    grid, step = (np.repeat(each, _ANCHORS, axis=0) for each in centres(size, _STRIDES, 0.0))
    return (grid[:, [0, 1, 0, 1]] + distances.astype(np.float64) * [-1, -1, 1, 1]) * step, scores


FAMILY = Family(
    name="scrfd",
    networks="SCRFD of insightface",
    layout="for each of the strides 8, 16, 32 with n cells: 2n x 1 scores, 2n x 4 distances and 2n x 10 points (or none), in any "
    "order; 2n is 12800, 3200, 800 for 640x640",
    fits=_fits,
    rows=_rows,
    classes=lambda _, __: 1,
)
