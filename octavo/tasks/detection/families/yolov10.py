"""YOLOv10 and other graphs that end in a few whole boxes (exports with `end2end`, or NMS inside)."""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.boxes import Boxes
from octavo.tasks.detection.family import Family, Size, are_scores, coefficients, only
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILY"]

_MOST = 1000


def _found(outputs: Outputs) -> np.ndarray | None:
    """Rows that hold a box: its corners (or centre and size), score, class and what more there is; None where they are others."""
    rows = only(outputs, 3)
    if rows is None or rows.shape[2] < 6 or rows.shape[1] > _MOST:
        return None
    found = rows[0, rows[0, :, 4] > 0]
    return found if are_scores(found[:, 4]) and (found[:, 5] == np.rint(found[:, 5])).all() else None


def _fits(outputs: Outputs, size: Size) -> bool:
    found = _found(outputs)
    if found is None or found.shape[1] != 6 + coefficients(outputs, size, found.shape[1]):
        return False
    # In shares of the image, not in pixels, they are RT-DETR's; where nothing is found there is nothing to tell by.
    return not len(found) or not are_scores(found[:, :4])


def _lacks(outputs: Outputs, size: Size) -> str | None:  # noqa: ARG001 - one signature for all families
    found = _found(outputs)
    if found is None or not len(found) or found.shape[1] == 6 or are_scores(found[:, :4]):
        return None
    return (
        f"they look like whole boxes with {found.shape[1] - 6} more numbers each (key points, say), which are not read: put out "
        "the first six alone (corners, score, class), which is `yolov10`"
    )


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
    lacks=_lacks,
)
