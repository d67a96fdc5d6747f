"""RetinaFace (https://arxiv.org/abs/1905.00641) as its PyTorch version is exported: offsets from two anchors a cell, undecoded."""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.boxes import corners
from octavo.tasks.detection.family import Family, Rows, Size, are_scores, cells, centres, from_one, grown
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILY"]

_STRIDES = (8, 16, 32)
# The side of the smaller anchor in strides, by how many numbers its points take: a face's five
# (https://github.com/biubug6/Pytorch_Retinaface), a plate's four corners (https://github.com/zeusees/License-Plate-Detector). The
# other anchor is twice as large, and a level's stand at four times the size of the level before.
_ANCHORS, _GROWTH = {10: 16.0, 8: 24.0}, 4.0
# What offsets are multiplied by: of centres, in sides of the anchor, and of the logarithm of sizes.
_CENTRES, _SIZES = 0.1, 0.2
# Of softmax's sum, for rounding.
_ROUNDED = 0.1


def _parts(outputs: Outputs, size: Size) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Offsets n x 4, scores n x 2 and the numbers of an anchor's points; None where the shapes are others."""
    rows = 2 * cells(size, _STRIDES)
    found = {value.shape[2]: value[0] for value in outputs.values() if value.ndim == 3 and value.shape[:2] == (1, rows)}
    points = found.keys() - {4, 2}
    if len(outputs) != 3 or len(found) != 3 or len(points) != 1 or not points <= _ANCHORS.keys():
        return None
    return found[4], found[2], points.pop()


def _fits(outputs: Outputs, size: Size) -> bool:
    parts = _parts(outputs, size)
    if parts is None:
        return False
    return are_scores(parts[1]) and bool((from_one(parts[1]) < _ROUNDED).all())


def _rows(outputs: Outputs, size: Size) -> Rows:
    offsets, scores, points = _parts(outputs, size)
    grid, step = (np.repeat(each, 2, axis=0) for each in centres(size, _STRIDES, 0.5))
    side = _ANCHORS[points] * _GROWTH ** np.log2(step / _STRIDES[0])
    side[1::2] *= 2
    offsets = offsets.astype(np.float64)
    extent = grown(offsets[:, 2:] * _SIZES) * side
    return corners(grid * step + offsets[:, :2] * _CENTRES * side, extent), scores[:, 1:]


FAMILY = Family(
    name="retinaface",
    networks="RetinaFace",
    layout="1 x 2n x 4 offsets from anchors, 1 x 2n x 2 scores that sum to 1, the first that of the background, and 1 x 2n x 10 "
    "or 8 points, at n cells of strides 8, 16, 32; 2n is 16800 for 640x640",
    fits=_fits,
    rows=_rows,
    classes=lambda _, __: 1,
)
