"""YOLOv10 and other graphs that end in a few whole boxes (exports with `end2end`, or NMS inside)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from octavo.tasks.detection.boxes import Boxes
from octavo.tasks.detection.family import Family, Size, are_scores, coefficients, only
from octavo.tasks.detection.shares import in_both_units
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILIES", "ordered"]

_MOST = 1000
# The share of boxes at least that have their corners in order, which hardly any by centre and size have: of pixels, and of shares,
# in which a photo full of one object has many that could be both (RT-DETR's queries, all about its middle).
_ORDERED, _SURELY = 0.5, 0.98


def ordered(boxes: np.ndarray) -> float:
    """The share of boxes, n x 4, whose third number is above their first, and whose fourth above their second; 1 of none."""
    return float((boxes[:, 2:4] > boxes[:, :2]).all(axis=1).mean()) if len(boxes) else 1.0


def _rows(outputs: Outputs) -> np.ndarray | None:
    """Boxes as they stand, k x 6 and more; None where there are no such rows, or other outputs of the kind beside them."""
    rows = only(outputs, 3)
    if rows is not None:
        return rows[0]
    # What suppression has kept of one image often has no dimension of a batch.
    value = next(iter(outputs.values()))
    return value if len(outputs) == 1 and value.ndim == 2 and value.shape[1] == 6 else None


def _found(outputs: Outputs) -> np.ndarray | None:
    """Rows that hold a box: its corners (or centre and size), score, class and what more there is; None where they are others."""
    rows = _rows(outputs)
    if rows is None or rows.shape[1] < 6 or len(rows) > _MOST:
        return None
    found = rows[rows[:, 4] > 0]
    return found if are_scores(found[:, 4]) and (found[:, 5] == np.rint(found[:, 5])).all() else None


def _allows(outputs: Outputs, size: Size) -> bool:
    found = _found(outputs)
    return found is not None and found.shape[1] == 6 + coefficients(outputs, size, found.shape[1])


def _fits(outputs: Outputs, size: Size) -> bool:
    return _allows(outputs, size) and ordered(_found(outputs)) >= _ORDERED


def _lacks(outputs: Outputs, size: Size) -> str | None:
    found = _found(outputs)
    if found is None or not len(found) or are_scores(found[:, :4]):
        return None
    if _allows(outputs, size):
        return (
            "they look like whole boxes by centre and size in pixels: put out corners (`yolov10`), or centre and size in shares of "
            "the input (`rtdetr-chosen`); or, where they are corners, set `task.decoder: yolov10`"
        )
    return (
        f"they look like whole boxes with {found.shape[1] - 6} more numbers each (key points, say), which are not read: put out "
        "the first six alone (corners, score, class), which is `yolov10`"
    )


def _decode(outputs: Outputs, size: Size, least: float) -> Boxes:  # noqa: ARG001 - one signature for all families
    rows = _rows(outputs).astype(np.float64)
    # Rows that hold no box have a score of 0.
    rows = rows[np.nan_to_num(rows[:, 4], nan=0.0) > least]
    return Boxes.of(rows[:, :4], rows[:, 4], np.rint(np.nan_to_num(rows[:, 5])))


def _fits_shares(outputs: Outputs, size: Size) -> bool:
    return _IN_SHARES.fits(outputs, size) and ordered(_found(outputs)) >= _SURELY


_IN_PIXELS, _IN_SHARES = in_both_units(
    Family(
        name="yolov10",
        networks="YOLOv10, and YOLO exported with NMS inside",
        layout="1 x k x 6 or k x 6: corners, score, class; 1 x 300 x 6",
        fits=_fits,
        allows=_allows,
        decode=_decode,
        overlaps=False,
        lacks=_lacks,
    )
)
FAMILIES = (_IN_PIXELS, replace(_IN_SHARES, fits=_fits_shares))
