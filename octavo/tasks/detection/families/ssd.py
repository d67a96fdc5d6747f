"""SSD and its kin whose graph decodes boxes and scores, and leaves suppression to the caller; class 0 is the background.

TensorFlow's and Keras' have y before x.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from octavo.tasks.detection.family import Family, Rows, Size, are_scores, boxes_and_scores, from_one
from octavo.tasks.detection.shares import are_even, middles, y_first
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILIES"]

# Up to so many rows may be queries, which are told from a grid's boxes by where they lie.
_QUERIES = 1000
# Of softmax's sum, for rounding; where nearly all of a grid's boxes lie, in shares; and what share "nearly all" is.
_ROUNDED, _NEAR, _MOST = 0.1, (-0.5, 1.5), 0.9
# The share of rows that are background, at least: of queries' softmax it is the last class.
_BACKGROUND = 0.5


def _parts(outputs: Outputs) -> tuple[np.ndarray, np.ndarray] | None:
    return boxes_and_scores(outputs, lambda values: -from_one(values).mean())


def _fits(outputs: Outputs, size: Size) -> bool:
    return _is_decoded(outputs) and not y_first(_parts(outputs)[0], size)


def _fits_turned(outputs: Outputs, size: Size) -> bool:
    return _is_decoded(outputs) and y_first(_parts(outputs)[0], size)


def _is_decoded(outputs: Outputs) -> bool:
    parts = _parts(outputs)
    if parts is None or not are_scores(parts[1]) or (from_one(parts[1]) > _ROUNDED).any():
        return False
    boxes, best = parts[0], parts[1].argmax(axis=1)
    if (best == parts[1].shape[1] - 1).mean() > _BACKGROUND:
        return False  # that of the background is the last
    if len(boxes) <= _QUERIES and not (_are_a_grid(boxes) and (best == 0).mean() > _BACKGROUND):
        return False
    near = (boxes >= _NEAR[0]) & (boxes <= _NEAR[1])
    # Offsets that the graph leaves undecoded lie there, too, and half of them are corners the wrong way round.
    return bool(near.mean() > _MOST and (boxes[:, 2:] >= boxes[:, :2]).mean() > _MOST)


def _are_a_grid(boxes: np.ndarray) -> bool:
    return are_even(middles(boxes))


def _rows(outputs: Outputs, size: Size) -> Rows:
    boxes, scores = _parts(outputs)
    return boxes.astype(np.float64) * np.tile(size[::-1], 2), scores[:, 1:]


def _rows_turned(outputs: Outputs, size: Size) -> Rows:
    boxes, scores = _parts(outputs)
    return boxes[:, [1, 0, 3, 2]].astype(np.float64) * np.tile(size[::-1], 2), scores[:, 1:]


_UPRIGHT = Family(
    name="ssd",
    networks="SSD, and face detectors of its kind",
    layout="1 x n x 4 boxes (corners, 0 to 1) and 1 x n x (1 + c) scores that sum to 1, the first that of the background",
    fits=_fits,
    allows=lambda outputs, _: _is_decoded(outputs),
    rows=_rows,
    classes=lambda outputs, _: _parts(outputs)[1].shape[1] - 1,
)
FAMILIES = (
    _UPRIGHT,
    replace(
        _UPRIGHT,
        name="ssd-yx",
        networks="SSD of TensorFlow and Keras",
        layout="as ssd, with y before x",
        fits=_fits_turned,
        rows=_rows_turned,
    ),
)
