"""YOLOv10 and other graphs that end in a few whole boxes (exports with `end2end`, or NMS inside)."""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.boxes import Boxes
from octavo.tasks.detection.family import Family, Size, are_scores, coefficients, only
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILY"]

_MOST = 1000


def _fits(outputs: Outputs, size: Size) -> bool:
    rows = only(outputs, 3)
    if rows is None or rows.shape[2] != 6 + coefficients(outputs, size, rows.shape[2]) or rows.shape[1] > _MOST:
        return False
    found = rows[0, rows[0, :, 4] > 0]
    # In shares of the image, not in pixels, they are RT-DETR's; where nothing is found there is nothing to tell by.
    return not len(found) or not are_scores(found[:, :4])


def _decode(outputs: Outputs, size: Size, least: float) -> Boxes:  # noqa: ARG001 - one signature for all families
    rows = only(outputs, 3)[0].astype(np.float64)
    # Rows that hold no box have a score of 0.
    rows = rows[np.nan_to_num(rows[:, 4], nan=0.0) > least]
    return Boxes.of(rows[:, :4], rows[:, 4], np.rint(np.nan_to_num(rows[:, 5])))


FAMILY = Family(
    name="yolov10",
    networks="YOLOv10, and YOLO exported with NMS inside",
    layout="1 x k x 6: corners, score, class; 1 x 300 x 6",
    fits=_fits,
    decode=_decode,
    overlaps=False,
)
