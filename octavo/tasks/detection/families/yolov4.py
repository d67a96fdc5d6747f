"""YOLOv3 and v4 as pytorch-YOLOv4 and darknet2any export them (github.com/Tianxiaomo/pytorch-YOLOv4): boxes and scores apart."""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.family import Family, Rows, Size, are_scores, only
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILY"]

# In shares of the input most corners are below, in pixels none but a few are.
_FAR = 2.0


def _parts(outputs: Outputs) -> tuple[np.ndarray, np.ndarray] | None:
    """Corners n x 4 in shares of the input, scores n x c; None where the shapes are others."""
    boxes, scores = only(outputs, 4), only(outputs, 3)
    if boxes is None or scores is None or boxes.shape != (1, scores.shape[1], 1, 4):
        return None
    return boxes[0, :, 0], scores[0]


def _fits(outputs: Outputs, size: Size) -> bool:  # noqa: ARG001 - one signature for all families
    parts = _parts(outputs)
    return parts is not None and are_scores(parts[1]) and bool((np.abs(parts[0]) < _FAR).mean() > 0.5)


def _rows(outputs: Outputs, size: Size) -> Rows:
    boxes, scores = _parts(outputs)
    return boxes * np.tile(size[::-1], 2).astype(np.float32), scores.astype(np.float32, copy=False)


FAMILY = Family(
    name="yolov4",
    networks="YOLOv3, YOLOv4 of pytorch-YOLOv4 and darknet2any",
    layout="1 x n x 1 x 4 boxes (corners, 0 to 1) and 1 x n x c scores (0 to 1); n is 10647 for 416x416",
    fits=_fits,
    rows=_rows,
    classes=lambda outputs, _: _parts(outputs)[1].shape[1],
)
