"""YOLOv7 exported with `--end2end` for ONNX Runtime (https://github.com/WongKinYiu/yolov7): suppressed boxes of a whole batch."""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.boxes import Boxes
from octavo.tasks.detection.family import Family, Size, are_scores
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILY"]


def _rows(outputs: Outputs) -> np.ndarray | None:
    """Place in the batch, corners, class, score, k x 7; None where the outputs are others."""
    rows = next(iter(outputs.values()))
    found = len(outputs) == 1 and rows.ndim == 2 and rows.shape[1] == 7 and np.issubdtype(rows.dtype, np.floating)
    return rows if found else None


def _fits(outputs: Outputs, size: Size) -> bool:  # noqa: ARG001 - one signature for all families
    rows = _rows(outputs)
    if rows is None:
        return False
    # Without a row the shape alone tells: no other family's is that.
    classes = rows[:, 5]
    return not rows[:, 0].any() and bool((classes == np.rint(classes)).all() and (classes >= 0).all()) and are_scores(rows[:, 6])


def _decode(outputs: Outputs, size: Size, least: float) -> Boxes:  # noqa: ARG001
    rows = _rows(outputs).astype(np.float64)
    rows = rows[np.nan_to_num(rows[:, 6], nan=0.0) > least]
    return Boxes.of(rows[:, 1:5], rows[:, 6], np.rint(np.nan_to_num(rows[:, 5])))


FAMILY = Family(
    name="yolov7-end2end",
    networks="YOLOv7 exported with `--end2end`",
    layout="k x 7: place in the batch (0), corners in pixels of the input, class, score",
    fits=_fits,
    decode=_decode,
    overlaps=False,
)
