"""YOLO-NAS (https://github.com/Deci-AI/super-gradients): corners and class scores at each cell, apart, no suppression.

So are PP-YOLOE and PicoDet of PaddleDetection where suppression is left out, with scores by class, and others without anchors.
"""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.family import Family, Rows, Size, are_scores, boxes_and_scores, cells, outside
from octavo.tasks.detection.shares import are_even, in_both_units, middles
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILIES", "ORDERED", "corners_and_scores"]

# PicoDet has the fourth, FCOS and its kin the fifth.
_STRIDES = ((8, 16, 32), (8, 16, 32, 64), (8, 16, 32, 64, 128), (4, 8, 16, 32))
# The share of boxes that must have their corners in order; of a network's offsets half have.
ORDERED = 0.99


def corners_and_scores(outputs: Outputs) -> tuple[np.ndarray, np.ndarray] | None:
    """Corners n x 4, scores n x c; None where the shapes are others."""
    return boxes_and_scores(_turned(outputs), lambda values: -outside(values))


def _turned(outputs: Outputs) -> Outputs:
    """With scores n x c where they are c x n beside boxes n x 4."""
    values = {name: value for name, value in outputs.items() if value.ndim == 3}
    counts = {value.shape[1] for value in values.values() if value.shape[2] == 4}
    turn = len(values) == 2 and len(counts) == 1
    return {name: value.swapaxes(1, 2) if turn and value.shape[2] in counts else value for name, value in values.items()}


def _fits(outputs: Outputs, size: Size) -> bool:
    parts = corners_and_scores(outputs)
    if parts is None or len(parts[0]) not in [cells(size, strides) for strides in _STRIDES]:
        return False
    boxes, scores = parts
    # Boxes in 0 to 1 may be scores, or queries, unless they are spread as a grid's are.
    located = not are_scores(boxes) or are_even(middles(boxes))
    return located and bool((boxes[:, 2:] >= boxes[:, :2]).mean() > ORDERED) and are_scores(scores)


def _rows(outputs: Outputs, size: Size) -> Rows:  # noqa: ARG001 - one signature for all families
    boxes, scores = corners_and_scores(outputs)
    return boxes.astype(np.float32, copy=False), scores.astype(np.float32, copy=False)


FAMILIES = in_both_units(
    Family(
        name="yolonas",
        networks="YOLO-NAS, PP-YOLOE, PicoDet and FCOS without suppression",
        layout="1 x n x 4 boxes (corners, pixels of the input) and 1 x n x c or 1 x c x n scores (0 to 1) at n cells; n is 8400 "
        "for 640x640",
        fits=_fits,
        rows=_rows,
        classes=lambda outputs, _: corners_and_scores(outputs)[1].shape[1],
    )
)
