"""NanoDet and NanoDet-Plus (https://github.com/RangiLyu/nanodet): scores and distributions of distances, for each stride or in one.

PicoDet of PaddleDetection has them for each stride where its export leaves decoding out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from octavo.tasks.detection.family import Family, Rows, Size, are_scores, cells, centres, only, outside, sigmoid
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILIES"]

# NanoDet's, PicoDet's by stride, and those of NanoDet-Plus, one of whose configurations has five.
_STRIDES, _PICODET, _PLUS = (8, 16, 32), (8, 16, 32, 64), ((8, 16, 32, 64), (4, 8, 16, 32, 64))
# Values of each of a box's four distances: 0 .. 7 strides, or 0 .. 10 (`reg_max` of nanodet-g, RepVGG and EfficientNet-Lite).
_BINS = (8, 11)
# Of a class's logits so many are below 0, as most places are background; of a distance's bins about half.
_BACKGROUND = 0.9
# Strides, scores n x c and distances n x 4 bins of all cells.
_Parts = tuple[tuple[int, ...], np.ndarray, np.ndarray]


def _parts(outputs: Outputs, size: Size) -> _Parts | None:
    """Of NanoDet and PicoDet; None where the outputs are others."""
    found = _side_by_side(outputs, size, (_STRIDES,))
    return found or next(filter(None, (_by_stride(outputs, size, strides) for strides in (_PICODET, _STRIDES))), None)


def _parts_plus(outputs: Outputs, size: Size) -> _Parts | None:
    return _side_by_side(outputs, size, (*_PLUS, _STRIDES))


def _side_by_side(outputs: Outputs, size: Size, known: Sequence[tuple[int, ...]]) -> _Parts | None:
    rows = only(outputs, 3)
    strides = next((each for each in known if rows is not None and rows.shape[1] == cells(size, each)), None)
    if strides is None:
        return None
    for bins in _BINS:
        scores, distances = rows[0, :, : -4 * bins], rows[0, :, -4 * bins :]
        # Other columns than these may be as many.
        if rows.shape[2] > 4 * bins and _are_classes(scores) and not are_scores(distances):
            return strides, scores, distances
    return None


def _are_classes(values: np.ndarray) -> bool:
    return are_scores(values) or bool(((values < 0).mean(axis=0) > _BACKGROUND).all())


def _by_stride(outputs: Outputs, size: Size, strides: tuple[int, ...]) -> _Parts | None:
    scores, distances = [], []
    if len({cells(size, (stride,)) for stride in strides}) != len(strides):
        return None  # of a tiny input, outputs of two strides look alike
    for stride in strides:
        rows = cells(size, (stride,))
        values = [value.reshape(rows, -1) for value in outputs.values() if value.ndim >= 2 and value.shape[-2] == rows]
        # 32 classes look like distances, which are no scores.
        values.sort(key=lambda value: (value.shape[1] in [4 * bins for bins in _BINS], outside(value)))
        if len(values) != 2 or values[1].shape[1] not in [4 * bins for bins in _BINS]:
            return None
        scores.append(values[0])
        distances.append(values[1])
    alike = all(len({one.shape[1] for one in each}) == 1 for each in (scores, distances))
    return (strides, np.concatenate(scores), np.concatenate(distances)) if alike else None


def _fits_plus(outputs: Outputs, size: Size) -> bool:
    parts = _parts_plus(outputs, size)
    return parts is not None and parts[0] in _PLUS


def _decoded(parts: _Parts, size: Size, shift: float) -> Rows:
    strides, scores, distances = parts
    scores = scores.astype(np.float32, copy=False)
    raw = distances.reshape(len(distances), 4, -1).astype(np.float64)
    # Generalized Focal Loss (https://arxiv.org/abs/2006.04388): a distance is the expectation of its distribution.
    weight = np.exp(raw - raw.max(axis=2, keepdims=True))
    grid, step = centres(size, strides, shift)
    distance = (weight @ np.arange(raw.shape[2])) / weight.sum(axis=2) * step
    centre = grid * step
    corners = np.concatenate([centre - distance[:, :2], centre + distance[:, 2:]], axis=1)
    return corners, scores if are_scores(scores) else sigmoid(scores)


_MIDDLE = Family(
    name="nanodet",
    networks="NanoDet, and PicoDet without decoding",
    layout="for each of the strides 8, 16, 32 (and 64) with n cells: n x c scores and n x 32 (or 44) distances, in any order; or "
    "of three strides all as 1 x n x (c + 32); 1 x 2100 x 112 for 320x320",
    fits=lambda outputs, size: _parts(outputs, size) is not None,
    rows=lambda outputs, size: _decoded(_parts(outputs, size), size, 0.5),
    classes=lambda outputs, size: _parts(outputs, size)[1].shape[1],
)
FAMILIES = (
    _MIDDLE,
    replace(
        _MIDDLE,
        name="nanodet-plus",
        networks="NanoDet-Plus",
        layout="1 x n x (c + 32) scores and distances at the n cells of strides 8, 16, 32, 64 (and 4), whose corners, not middles, "
        "distances are from; 1 x 2125 x 112 for 320x320",
        fits=_fits_plus,
        # Of three strides, nothing tells it from NanoDet.
        allows=lambda outputs, size: _parts_plus(outputs, size) is not None,
        # `get_single_level_center_priors` of its nanodet_plus_head.py.
        rows=lambda outputs, size: _decoded(_parts_plus(outputs, size), size, 0.0),
        classes=lambda outputs, size: _parts_plus(outputs, size)[1].shape[1],
    ),
)
