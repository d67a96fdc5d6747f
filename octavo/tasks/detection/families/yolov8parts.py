"""YOLOv8's head in parts, as exports for accelerators leave it: boxes and scores apart, or the last layers' maps of each level.

Boxes and scores have ranges so far apart that one scale for both loses all classes, so that their joining is left to the caller;
what decodes boxes (DFL, anchors' centres, strides) some leave as well (Rockchip's, Hailo's, Sophgo's model zoos).
"""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.families import yolov8
from octavo.tasks.detection.family import Family, Rows, Size, are_scores, boxes_and_scores, centres, outside, sigmoid
from octavo.tasks.detection.shares import cover, in_both_units
from octavo.tasks.outputs import Outputs

__all__ = ["APART", "LEVELS"]

_STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32))
# Values of each of a box's four distances, 0 .. 15 strides.
_BINS = 16
_SIDES = 4 * _BINS
# The share of boxes that have their corners in order at least, which those by centre and size have not.
_ORDERED = 0.99
# A class is more likely than not in so many of the cells at most; what YOLOv5 has in such maps, coordinates, is in half of them.
_FOUND = 0.1


def _joined(outputs: Outputs) -> Outputs:
    """The one output of `yolov8`, from boxes 4 x n and scores c x n, or n x 4 and n x c; nothing where there are no such two."""
    maps = {name: value for name, value in outputs.items() if value.ndim == 4}
    rows = {name: value for name, value in outputs.items() if value.ndim == 3 and value.shape[0] == 1}
    common = set.intersection(*(set(value.shape[1:]) for value in rows.values())) if len(rows) == 2 else set()
    if not common:
        return {}
    cells = max(common)
    turned = {name: value if value.shape[1] == cells else value.swapaxes(1, 2) for name, value in rows.items()}
    parts = boxes_and_scores(turned, lambda values: -outside(values))
    return {**maps, "rows": np.concatenate(parts, axis=1).T[None]} if parts is not None else {}


def _fits_apart(outputs: Outputs, size: Size) -> bool:
    joined = _joined(outputs)
    if not joined or not any(family.fits(joined, size) for family in yolov8.FAMILIES):
        return False
    centre, extent = joined["rows"][0, :2].T, joined["rows"][0, 2:4].T
    corners = (extent >= centre).all(axis=1).mean() > _ORDERED
    return not corners and bool((extent >= 0).all()) and cover(centre, size)


APART = in_both_units(
    Family(
        name="yolov8-apart",
        networks="YOLOv8 and its kin with boxes and scores apart",
        layout="1 x 4 x n boxes (centre, size) and 1 x c x n scores (0 to 1) at each of n cells, or both with cells first",
        fits=_fits_apart,
        rows=lambda outputs, size: yolov8.FAMILIES[0].rows(_joined(outputs), size),
        classes=lambda outputs, size: yolov8.FAMILIES[0].classes(_joined(outputs), size),
    )
)


def _parts(outputs: Outputs, size: Size) -> tuple[tuple[int, ...], np.ndarray, np.ndarray] | None:
    """(strides, distances n x 64, logits or scores n x c) of all cells; None where the shapes are others."""
    for strides in _STRIDES:
        grids = [(-(-size[0] // stride), -(-size[1] // stride)) for stride in strides]
        levels = [_level(outputs, grid) for grid in grids]
        known = [level for level in levels if level is not None]
        if len(set(grids)) == len(known) == len(strides) and len({scores.shape[1] for _, scores in known}) == 1:
            used = sum(value.ndim == 4 for value in outputs.values())
            # Further maps are those of another network.
            if used in (len(strides), 2 * len(strides), 3 * len(strides)):
                return strides, *(np.concatenate(part) for part in zip(*known, strict=True))
    return None


def _level(outputs: Outputs, grid: tuple[int, int]) -> tuple[np.ndarray, np.ndarray] | None:
    found = []
    for value in outputs.values():
        if value.ndim == 4 and value.shape[0] == 1 and grid in (value.shape[2:], value.shape[1:3]):
            last = value.shape[2:] != grid
            found.append(value[0].reshape(-1, value.shape[3]) if last else value[0].reshape(value.shape[1], -1).T)
    if len(found) == 1 and found[0].shape[1] > _SIDES:
        return found[0][:, :_SIDES], found[0][:, _SIDES:]
    distances = [value for value in found if value.shape[1] == _SIDES]
    scores = sorted((value for value in found if value.shape[1] != _SIDES), key=lambda value: -value.shape[1])
    # Rockchip's have the sum of all scores beside them, to look for places by.
    summed = len(scores) == 2 and scores[1].shape[1] == 1
    return (distances[0], scores[0]) if len(distances) == 1 and (len(scores) == 1 or summed) else None


def _allows_levels(outputs: Outputs, size: Size) -> bool:
    parts = _parts(outputs, size)
    # Of YOLOX's maps, box, objectness and classes in one, these would be boxes and scores.
    return parts is not None and not are_scores(parts[1][:, 5:])


def _fits_levels(outputs: Outputs, size: Size) -> bool:
    return _allows_levels(outputs, size) and bool(((_scores(_parts(outputs, size)[2]) > 0.5).mean(axis=0) < _FOUND).all())


def _scores(values: np.ndarray) -> np.ndarray:
    return values if not outside(values) else sigmoid(values)


def _rows_levels(outputs: Outputs, size: Size) -> Rows:
    strides, distances, values = _parts(outputs, size)
    raw = distances.reshape(-1, 4, _BINS).astype(np.float64)
    # A distance is the expectation of its distribution, as in `nanodet`.
    weight = np.exp(raw - raw.max(axis=2, keepdims=True))
    grid, step = centres(size, strides, 0.5)
    distance = (weight @ np.arange(_BINS)) / weight.sum(axis=2) * step
    return np.concatenate([grid * step - distance[:, :2], grid * step + distance[:, 2:]], axis=1), _scores(values)


LEVELS = Family(
    name="yolov8-levels",
    networks="YOLOv8 and its kin without decoding",
    layout="for each of the strides 8, 16, 32 (and 64, or 4) with h x w cells: 1 x 64 x h x w distributions of distances and "
    "1 x c x h x w scores or logits, in any order, or both as 1 x (64 + c) x h x w; channels last, too",
    fits=_fits_levels,
    allows=_allows_levels,
    rows=_rows_levels,
    classes=lambda outputs, size: _parts(outputs, size)[2].shape[1],
)
