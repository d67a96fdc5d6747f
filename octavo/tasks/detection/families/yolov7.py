"""YOLOv7 exported with `--end2end` for ONNX Runtime (https://github.com/WongKinYiu/yolov7): suppressed boxes of a whole batch.

So are those of YOLO-NAS in super-gradients' flat format (`model.export`, DetectionOutputFormatMode.FLAT_FORMAT).
"""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.boxes import Boxes
from octavo.tasks.detection.family import Family, Size, are_scores
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILIES"]


def _rows(outputs: Outputs) -> np.ndarray | None:
    """Place in the batch, corners, class and score, k x 7; None where the outputs are others."""
    rows = next(iter(outputs.values()))
    found = len(outputs) == 1 and rows.ndim == 2 and rows.shape[1] == 7 and np.issubdtype(rows.dtype, np.floating)
    return rows if found else None


def _lacks(outputs: Outputs, size: Size) -> str | None:  # noqa: ARG001 - one signature for all families
    """OpenVINO's and Caffe's DetectionOutput: 1 x 1 x k x 7, whose first row without a box begins with -1."""
    rows = next(iter(outputs.values()))
    if len(outputs) != 1 or rows.ndim != 4 or rows.shape[:2] != (1, 1) or rows.shape[3] != 7:
        return None
    return (
        "they look like DetectionOutput's rows (place in the batch, class, score, corners in shares), which are not read: put out "
        "their last four columns as 1 x k x 4, the score and the class as 1 x k, the class cast to int64, which is `chosen`"
    )


def _family(name: str, networks: str, layout: str, kind: int, score: int) -> Family:
    """Of rows that have their class and their score in these columns."""

    def fits(outputs: Outputs, size: Size) -> bool:  # noqa: ARG001 - one signature for all families
        rows = _rows(outputs)
        if rows is None:
            return False
        # Without a row the shape alone tells: no other network's is that.
        classes = rows[:, kind]
        whole = bool((classes == np.rint(classes)).all() and (classes >= 0).all())
        return not rows[:, 0].any() and whole and are_scores(rows[:, score])

    def tells(outputs: Outputs, size: Size) -> bool:  # noqa: ARG001
        scores = _rows(outputs)[:, score]
        return bool((scores != np.rint(scores)).any())

    def decode(outputs: Outputs, size: Size, least: float) -> Boxes:  # noqa: ARG001
        rows = _rows(outputs).astype(np.float64)
        rows = rows[np.nan_to_num(rows[:, score], nan=0.0) > least]
        return Boxes.of(rows[:, 1:5], rows[:, score], np.rint(np.nan_to_num(rows[:, kind])))

    return Family(name=name, networks=networks, layout=layout, fits=fits, tells=tells, decode=decode, overlaps=False, lacks=_lacks)


FAMILIES = (
    _family(
        "yolov7-end2end",
        "YOLOv7 exported with `--end2end`",
        "k x 7: place in the batch (0), corners in pixels of the input, class, score",
        kind=5,
        score=6,
    ),
    _family(
        "yolonas-flat",
        "YOLO-NAS exported in the flat format",
        "as yolov7-end2end, with the score before the class",
        kind=6,
        score=5,
    ),
)
