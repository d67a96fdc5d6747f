"""YuNet (https://doi.org/10.1007/s11633-023-1423-y), OpenCV's face detector: YOLOX's boxes, for each stride apart."""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.boxes import corners
from octavo.tasks.detection.family import Family, Rows, Size, are_scores, by_level, cells, centres, grown
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILY"]

_STRIDES = (8, 16, 32)
# Columns of a class's score and objectness, whichever is which, of a box and of five points.
_COLUMNS = [1, 1, 4, 10]


def _parts(outputs: Outputs, size: Size) -> list[np.ndarray] | None:
    """Both scores n x 1 and boxes n x 4, in cells, of all cells; None where the shapes are others."""
    levels = by_level(outputs, [cells(size, (stride,)) for stride in _STRIDES])
    if levels is None or any([value.shape[1] for value in level] != _COLUMNS for level in levels):
        return None
    return [np.concatenate([level[place] for level in levels]) for place in range(3)]


def _fits(outputs: Outputs, size: Size) -> bool:
    parts = _parts(outputs, size)
    return parts is not None and are_scores(parts[0]) and are_scores(parts[1])


def _rows(outputs: Outputs, size: Size) -> Rows:
    *scores, boxes = _parts(outputs, size)
    grid, step = centres(size, _STRIDES, 0.0)
    boxes = boxes.astype(np.float64)
    extent = grown(boxes[:, 2:]) * step
    # As OpenCV's FaceDetectorYN has it (modules/objdetect/src/face_detect.cpp).
    one, other = (np.clip(score, 0, 1) for score in scores)
    return corners((boxes[:, :2] + grid) * step, extent), np.sqrt(one * other)


FAMILY = Family(
    name="yunet",
    networks="YuNet of OpenCV",
    layout="for each of the strides 8, 16, 32 with n cells: twice 1 x n x 1 scores, 1 x n x 4 centre and log of size, in cells, "
    "and 1 x n x 10 points, in any order; n is 6400, 1600, 400 for 640x640",
    fits=_fits,
    rows=_rows,
    classes=lambda _, __: 1,
)
