"""YOLO-NAS (https://github.com/Deci-AI/super-gradients): corners and class scores at each cell, apart, no suppression."""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.family import Family, Rows, Size, are_scores, boxes_and_scores, cells, outside
from octavo.tasks.detection.shares import are_even, in_both_units
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILIES"]

_STRIDES = (8, 16, 32)
# The share of boxes that must have their corners in order; of a network's offsets half have.
_MOST = 0.99


def _parts(outputs: Outputs) -> tuple[np.ndarray, np.ndarray] | None:
    return boxes_and_scores(outputs, lambda values: -outside(values))


def _fits(outputs: Outputs, size: Size) -> bool:
    parts = _parts(outputs)
    if parts is None or len(parts[0]) != cells(size, _STRIDES):
        return False
    boxes, scores = parts
    # Boxes in 0 to 1 may be scores, or queries, unless they are spread as a grid's are.
    located = not are_scores(boxes) or are_even((boxes[:, :2] + boxes[:, 2:]) / 2)
    return located and bool((boxes[:, 2:] >= boxes[:, :2]).mean() > _MOST) and are_scores(scores)


def _rows(outputs: Outputs, size: Size) -> Rows:  # noqa: ARG001 - one signature for all families
    boxes, scores = _parts(outputs)
    return boxes.astype(np.float32, copy=False), scores.astype(np.float32, copy=False)


FAMILIES = in_both_units(
    Family(
        name="yolonas",
        networks="YOLO-NAS",
        layout="1 x n x 4 boxes (corners, pixels of the input) and 1 x n x c scores (0 to 1) at n cells; n is 8400 for 640x640",
        fits=_fits,
        rows=_rows,
        classes=lambda outputs, _: _parts(outputs)[1].shape[1],
    )
)
