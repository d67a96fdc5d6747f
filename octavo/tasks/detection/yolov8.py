"""YOLOv8, v9 and v11 (https://docs.ultralytics.com): no anchors, no objectness, channels before cells."""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.boxes import Boxes, corners
from octavo.tasks.detection.family import Family, Size, cells, only
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILY"]

# With P2 and P6 heads, too.
_STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32))


def _fits(outputs: Outputs, size: Size) -> bool:
    rows = only(outputs, 3)
    return rows is not None and rows.shape[1] > 4 and rows.shape[2] in [cells(size, strides) for strides in _STRIDES]


def _decode(outputs: Outputs, size: Size, least: float) -> Boxes:  # noqa: ARG001 - one signature for all families
    rows = only(outputs, 3)[0].astype(np.float64).T
    return Boxes.above(corners(rows[:, :2], rows[:, 2:4]), rows[:, 4:], least)


FAMILY = Family(
    name="yolov8",
    networks="YOLOv8, YOLOv9, YOLO11",
    layout="1 x (4 + c) x n: centre, size, class scores at each of n cells; 1 x 84 x 8400 for 640x640",
    fits=_fits,
    decode=_decode,
    classes=lambda outputs: only(outputs, 3).shape[1] - 4,
)
