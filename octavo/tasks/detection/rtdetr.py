"""RT-DETR, RT-DETRv2 and D-FINE: queries, each a box in shares of the image, and no suppression."""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.boxes import Boxes, corners
from octavo.tasks.detection.family import Family, Size, only, sigmoid
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILY"]

# Queries at most, grids of cells have more rows; and columns that boxes and classes may be.
_MOST, _COLUMNS = 1000, range(7, 2000)
# A share of the image that no box has; of boxes in pixels nearly all have more.
_FAR = 4.0


def _parts(outputs: Outputs) -> tuple[np.ndarray, np.ndarray] | None:
    """(boxes, scores or logits), queries x 4 and queries x classes; None where the shapes are others."""
    rows = only(outputs, 3)
    if rows is not None:
        # Ultralytics' export puts boxes and scores side by side; six columns are a box that is whole.
        return (rows[0, :, :4], rows[0, :, 4:]) if rows.shape[1] <= _MOST and rows.shape[2] in _COLUMNS else None
    values = [value[0] for value in outputs.values() if value.ndim == 3 and value.shape[0] == 1]
    boxes = [value for value in values if value.shape[1] == 4]
    others = [value for value in values if value.shape[1] != 4]
    if len(boxes) != 1 or len(others) != 1 or len(boxes[0]) != len(others[0]) or len(boxes[0]) > _MOST:
        return None
    return boxes[0], others[0]


def _fits(outputs: Outputs, size: Size) -> bool:  # noqa: ARG001 - one signature for all families
    parts = _parts(outputs)
    return parts is not None and not (np.abs(parts[0]) > _FAR).any()


def _decode(outputs: Outputs, size: Size, least: float) -> Boxes:
    boxes, scores = _parts(outputs)
    if scores.min(initial=0.0) < 0 or scores.max(initial=0.0) > 1:
        scores = sigmoid(scores)
    boxes = boxes.astype(np.float64) * np.tile(size[::-1], 2)
    # As many as there are queries, over all classes: what these networks are trained to rank.
    return Boxes.above(corners(boxes[:, :2], boxes[:, 2:]), scores, least).best(len(boxes))


FAMILY = Family(
    name="rtdetr",
    networks="RT-DETR, RT-DETRv2, D-FINE",
    layout="1 x k x 4 boxes (centre and size, 0 to 1) and 1 x k x c logits or scores, or both as 1 x k x (4 + c); k is 300",
    fits=_fits,
    decode=_decode,
    classes=lambda outputs, _: _parts(outputs)[1].shape[1],
    overlaps=False,
)
