"""NanoDet (https://github.com/RangiLyu/nanodet): scores and distributions of distances, for each stride or all in one."""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.family import Family, Rows, Size, are_scores, cells, centres, only, outside, sigmoid
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILY"]

# NanoDet-Plus has the fourth.
_STRIDES = ((8, 16, 32, 64), (8, 16, 32))
# Values of each of a box's four distances: 0 .. 7 strides.
_BINS = 8


def _parts(outputs: Outputs, size: Size) -> tuple[tuple[int, ...], np.ndarray, np.ndarray] | None:
    """(strides, scores, distances) of all cells, n x c and n x 32; None where the shapes are others."""
    for strides in _STRIDES:
        found = _side_by_side(outputs, size, strides) or _by_stride(outputs, size, strides)
        if found:
            return strides, *found
    return None


def _side_by_side(outputs: Outputs, size: Size, strides: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
    rows = only(outputs, 3)
    if rows is None or rows.shape[1] != cells(size, strides) or rows.shape[2] <= 4 * _BINS:
        return None
    return rows[0, :, : -4 * _BINS], rows[0, :, -4 * _BINS :]


def _by_stride(outputs: Outputs, size: Size, strides: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
    scores, distances = [], []
    if len({cells(size, (stride,)) for stride in strides}) != len(strides):
        return None  # of a tiny input, outputs of two strides look alike
    for stride in strides:
        rows = cells(size, (stride,))
        values = [value.reshape(rows, -1) for value in outputs.values() if value.ndim >= 2 and value.shape[-2] == rows]
        # 32 classes look like distances, which are no scores.
        values.sort(key=lambda value: (value.shape[1] == 4 * _BINS, outside(value)))
        if len(values) != 2 or values[1].shape[1] != 4 * _BINS:
            return None
        scores.append(values[0])
        distances.append(values[1])
    return (np.concatenate(scores), np.concatenate(distances)) if len({one.shape[1] for one in scores}) == 1 else None


def _fits(outputs: Outputs, size: Size) -> bool:
    parts = _parts(outputs, size)
    if parts is None or only(outputs, 3) is None:
        return parts is not None
    # In one output, other columns than these may be as many.
    _, scores, distances = parts
    return are_scores(scores) and not are_scores(distances)


def _rows(outputs: Outputs, size: Size) -> Rows:
    strides, scores, distances = _parts(outputs, size)
    scores = scores.astype(np.float32, copy=False)
    raw = distances.reshape(-1, 4, _BINS).astype(np.float64)
    # Generalized Focal Loss (https://arxiv.org/abs/2006.04388): a distance is the expectation of its distribution.
    weight = np.exp(raw - raw.max(axis=2, keepdims=True))
    grid, step = centres(size, strides, 0.5)
    distance = (weight @ np.arange(_BINS)) / weight.sum(axis=2) * step
    centre = grid * step
    corners = np.concatenate([centre - distance[:, :2], centre + distance[:, 2:]], axis=1)
    return corners, scores if are_scores(scores) else sigmoid(scores)


FAMILY = Family(
    name="nanodet",
    networks="NanoDet, NanoDet-Plus",
    layout="for each of the strides 8, 16, 32 (and 64) with n cells: n x c scores and n x 32 distances, in any order; or all as "
    "1 x n x (c + 32); 1 x 2125 x 112 for 320x320",
    fits=_fits,
    rows=_rows,
    classes=lambda outputs, size: _parts(outputs, size)[1].shape[1],
)
