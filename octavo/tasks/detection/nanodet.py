"""NanoDet (https://github.com/RangiLyu/nanodet): scores and distributions of distances for each stride, told apart by shape."""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.family import Family, Rows, Size, cells, centres, sigmoid
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILY"]

_STRIDES = (8, 16, 32)
# Values of each of a box's four distances: 0 .. 7 strides.
_BINS = 8


def _pairs(outputs: Outputs, size: Size) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """(scores, distances) of each stride, as rows of cells; None where the shapes are others."""
    found = []
    for stride in _STRIDES:
        rows = cells(size, (stride,))
        values = [value.reshape(rows, -1) for value in outputs.values() if value.ndim >= 2 and value.shape[-2] == rows]
        distances = [value for value in values if value.shape[1] == 4 * _BINS]
        scores = [value for value in values if value.shape[1] != 4 * _BINS]
        if len(values) != 2 or len(distances) != 1:
            return None
        found.append((scores[0], distances[0]))
    return found if len({scores.shape[1] for scores, _ in found}) == 1 else None


def _fits(outputs: Outputs, size: Size) -> bool:
    return _pairs(outputs, size) is not None


def _rows(outputs: Outputs, size: Size) -> Rows:
    pairs = _pairs(outputs, size) or []
    scores = np.concatenate([scores for scores, _ in pairs]).astype(np.float32, copy=False)
    if scores.min(initial=0.0) < 0 or scores.max(initial=0.0) > 1:
        scores = sigmoid(scores)
    raw = np.concatenate([distances for _, distances in pairs]).reshape(-1, 4, _BINS).astype(np.float64)
    # Generalized Focal Loss (https://arxiv.org/abs/2006.04388): a distance is the expectation of its distribution.
    weight = np.exp(raw - raw.max(axis=2, keepdims=True))
    grid, step = centres(size, _STRIDES, 0.5)
    distance = (weight @ np.arange(_BINS)) / weight.sum(axis=2) * step
    centre = grid * step
    return np.concatenate([centre - distance[:, :2], centre + distance[:, 2:]], axis=1), scores


def _classes(outputs: Outputs, size: Size) -> int:  # noqa: ARG001 - one signature for all families
    widths = {value.shape[-1] for value in outputs.values() if value.ndim >= 2} - {4 * _BINS}
    # 32 classes look like distances.
    return widths.pop() if widths else 4 * _BINS


FAMILY = Family(
    name="nanodet",
    networks="NanoDet",
    layout="for each of the strides 8, 16, 32 with n cells: n x c scores and n x 32 distances, in any order",
    fits=_fits,
    rows=_rows,
    classes=_classes,
)
