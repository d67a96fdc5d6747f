"""YOLOv8, v9 and v11 (https://docs.ultralytics.com): no anchors, no objectness, channels before cells, or after in some exports."""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.boxes import corners
from octavo.tasks.detection.family import Family, Rows, Size, are_scores, cells, coefficients, only
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILY", "ROWS"]

# With P2 and P6 heads, too.
_STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32))


def _scores(rows: np.ndarray, outputs: Outputs, size: Size) -> np.ndarray:
    return rows[0, 4 : rows.shape[1] - coefficients(outputs, size, rows.shape[1])]


def _fits(outputs: Outputs, size: Size) -> bool:
    rows = only(outputs, 3)
    if rows is None or rows.shape[2] not in [cells(size, strides) for strides in _STRIDES]:
        return False
    scores = _scores(rows, outputs, size)
    return len(scores) > 0 and are_scores(scores)


def _rows(outputs: Outputs, size: Size) -> Rows:
    rows = only(outputs, 3)
    box, scores = (part.astype(np.float32, copy=False).T for part in (rows[0, :4], _scores(rows, outputs, size)))
    return corners(box[:, :2], box[:, 2:]), scores


def _turned(outputs: Outputs) -> Outputs:
    return {name: value.swapaxes(1, 2) if value.ndim == 3 else value for name, value in outputs.items()}


def _fits_rows(outputs: Outputs, size: Size) -> bool:
    turned = _turned(outputs)
    # YOLOX's sizes are logarithms.
    return _fits(turned, size) and bool((only(turned, 3)[0, 2:4] >= 0).all())


FAMILY = Family(
    name="yolov8",
    networks="YOLOv8, YOLOv9, YOLO11",
    layout="1 x (4 + c) x n: centre, size, class scores (0 to 1) at each of n cells; 1 x 84 x 8400 for 640x640",
    fits=_fits,
    rows=_rows,
    classes=lambda outputs, size: len(_scores(only(outputs, 3), outputs, size)),
)
ROWS = Family(
    name="yolov8-rows",
    networks="YOLOv8, YOLOv9, YOLO11 with cells before channels",
    layout="1 x n x (4 + c): centre, size, class scores (0 to 1) at each of n cells; 1 x 8400 x 84 for 640x640",
    fits=_fits_rows,
    rows=lambda outputs, size: _rows(_turned(outputs), size),
    classes=lambda outputs, size: FAMILY.classes(_turned(outputs), size),
)
