"""YOLOv3 and its tiny one as Keras' are exported (ONNX's model zoo): all boxes, y before x, their scores, and which are kept."""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.boxes import Boxes
from octavo.tasks.detection.family import Family, Rows, Size, are_scores
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILY"]


def _parts(outputs: Outputs) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """(boxes n x 4, scores c x n, what suppression kept k x 3: image, class, box); None where they are others."""
    floats = [value[0] for value in outputs.values() if value.ndim == 3 and value.shape[0] == 1 and value.dtype.kind == "f"]
    kept = [value for value in outputs.values() if value.shape[-1:] == (3,) and value.dtype.kind == "i"]
    if len(outputs) != 3 or len(floats) != 2 or len(kept) != 1:
        return None
    # In whatever order: scores have a column for each of the boxes.
    for boxes, scores in (floats, floats[::-1]):
        if boxes.shape[1] == 4 and scores.shape[1] == len(boxes):
            return boxes, scores, kept[0].reshape(-1, 3)
    return None


def _fits(outputs: Outputs, size: Size) -> bool:  # noqa: ARG001 - one signature for all families
    parts = _parts(outputs)
    if parts is None or not are_scores(parts[1]):
        return False
    kept = parts[2][(parts[2] >= 0).all(axis=1)]
    return bool((kept < [1, len(parts[1]), len(parts[0])]).all())


def _rows(outputs: Outputs, size: Size) -> Rows:  # noqa: ARG001
    boxes, scores, _ = _parts(outputs)
    return boxes[:, [1, 0, 3, 2]].astype(np.float32, copy=False), scores.T.astype(np.float32, copy=False)


def _decode(outputs: Outputs, size: Size, least: float) -> Boxes:
    corners, scores = _rows(outputs, size)
    kept = _parts(outputs)[2]
    # Rows that hold no box are -1.
    _, kind, place = kept[(kept >= 0).all(axis=1)].T
    return Boxes.of(corners[place], scores[place, kind], kind).taken(np.nan_to_num(scores[place, kind], nan=0.0) > least)


FAMILY = Family(
    name="yolov3-keras",
    networks="YOLOv3 and its tiny one of Keras, as in ONNX's model zoo",
    layout="1 x n x 4 boxes (corners, y before x, pixels of the input), 1 x c x n scores, k x 3 or 1 x k x 3 whole numbers: "
    "image, class and box of what suppression kept",
    fits=_fits,
    rows=_rows,
    decode=_decode,
    classes=lambda outputs, _: len(_parts(outputs)[1]),
    overlaps=False,
)
