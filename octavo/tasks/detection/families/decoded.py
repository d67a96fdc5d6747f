"""SSD of TensorFlow's Object Detection API, RetinaNet, EfficientDet and others by anchors whose graph decodes boxes.

Each class has a score of its own (sigmoid), and suppression is left to the caller. How many anchors stand at a cell is the
network's setting: boxes are told by lying evenly over the input, whatever their number. TensorFlow's have y before x, and some
score the background, too (`raw_detection_boxes` and `raw_detection_scores` of its exporter_lib_v2.py).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from octavo.tasks.detection.families.yolonas import ORDERED, corners_and_scores
from octavo.tasks.detection.family import Family, Rows, Size, are_key_points, are_scores
from octavo.tasks.detection.shares import cover, in_both_units, middles, y_first
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILIES"]

# Fewer rows are queries, or were chosen.
_LEAST = 1000
# The share of rows in which the first score is that of the background, at least, and what it is there.
_MOSTLY, _SURE = 0.5, 0.5


def _fits(outputs: Outputs, size: Size) -> bool:
    return _is_decoded(outputs, size, turned=False)


def _fits_turned(outputs: Outputs, size: Size) -> bool:
    return _is_decoded(outputs, size, turned=True)


def _is_decoded(outputs: Outputs, size: Size, *, turned: bool) -> bool:
    parts = corners_and_scores(outputs)
    if parts is None or len(parts[0]) < _LEAST or y_first(parts[0], size) != turned:
        return False
    boxes, scores = parts[0][:, [1, 0, 3, 2]] if turned else parts[0], parts[1]
    in_order = (boxes[:, 2:] >= boxes[:, :2]).mean() > ORDERED
    is_grid = bool(in_order and are_scores(scores) and cover(middles(boxes), size))
    return is_grid and not are_key_points(middles(boxes), scores)


def _has_background(scores: np.ndarray) -> bool:
    return scores.shape[1] > 1 and bool((scores[:, 0] > _SURE).mean() > _MOSTLY)


def _rows(outputs: Outputs, size: Size) -> Rows:  # noqa: ARG001 - one signature for all families
    boxes, scores = corners_and_scores(outputs)
    return boxes.astype(np.float32, copy=False), scores[:, int(_has_background(scores)) :].astype(np.float32, copy=False)


def _rows_turned(outputs: Outputs, size: Size) -> Rows:
    boxes, scores = _rows(outputs, size)
    return boxes[:, [1, 0, 3, 2]], scores


def _classes(outputs: Outputs, size: Size) -> int:
    return _rows(outputs, size)[1].shape[1]


_UPRIGHT = Family(
    name="decoded",
    networks="SSD with sigmoid scores, RetinaNet and EfficientDet without suppression",
    layout="1 x n x 4 boxes (corners, pixels of the input) and 1 x n x c or 1 x c x n scores (0 to 1, each by itself), the first "
    "that of the background where it is sure in most rows; n is any number from 1000",
    fits=_fits,
    allows=lambda outputs, size: _fits(outputs, size) or _fits_turned(outputs, size),
    rows=_rows,
    classes=_classes,
)
FAMILIES = (
    *in_both_units(_UPRIGHT),
    *in_both_units(
        replace(
            _UPRIGHT,
            name="decoded-yx",
            networks="SSD and EfficientDet of TensorFlow without suppression",
            layout="as decoded, with y before x",
            fits=_fits_turned,
            rows=_rows_turned,
        )
    ),
)
