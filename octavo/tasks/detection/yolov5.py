"""YOLOv5 (https://github.com/ultralytics/yolov5): three anchors a cell, decoded by the graph."""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.boxes import Boxes, corners
from octavo.tasks.detection.family import Family, Size, cells, only
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILY"]

_STRIDES = ((8, 16, 32), (8, 16, 32, 64))
_ANCHORS = 3


def _fits(outputs: Outputs, size: Size) -> bool:
    rows = only(outputs, 3)
    return rows is not None and rows.shape[2] > 5 and rows.shape[1] in [_ANCHORS * cells(size, strides) for strides in _STRIDES]


def _decode(outputs: Outputs, size: Size, least: float) -> Boxes:  # noqa: ARG001 - one signature for all families
    rows = only(outputs, 3)[0].astype(np.float64)
    return Boxes.above(corners(rows[:, :2], rows[:, 2:4]), rows[:, 4:5] * rows[:, 5:], least)


FAMILY = Family(
    name="yolov5",
    networks="YOLOv5",
    layout="1 x 3n x (5 + c): centre, size, objectness, class scores of 3 anchors at n cells; 1 x 25200 x 85 for 640x640",
    fits=_fits,
    decode=_decode,
    classes=lambda outputs: only(outputs, 3).shape[2] - 5,
)
