"""RT-DETR, RT-DETRv2 and D-FINE: queries, each a box in shares of the image, and no suppression.

DETR's first kind (https://arxiv.org/abs/2005.12872) has the same shapes: its queries have one more class, "no object", and softmax.
"""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.boxes import Boxes, corners
from octavo.tasks.detection.families.yolov8 import has_cells
from octavo.tasks.detection.families.yolov10 import ordered
from octavo.tasks.detection.family import (
    Family,
    Size,
    are_key_points,
    are_scores,
    boxes_and_scores,
    from_one,
    only,
    outside,
    sigmoid,
)
from octavo.tasks.outputs import Outputs

__all__ = ["CHOSEN", "FAMILY", "SOFTMAX"]

# Queries at most, grids of cells have more rows; and columns that boxes and classes may be.
_MOST, _COLUMNS = 1000, range(5, 2000)
# A share of the image that no box has; of boxes in pixels nearly all have more.
_FAR = 4.0
# Of softmax's sum, for rounding.
_ROUNDED = 0.01
# What softmax gives "no object" in the background at least, and the share of queries that are background at least.
_SURE, _BACKGROUND = 0.9, 0.75


def _parts(outputs: Outputs) -> tuple[np.ndarray, np.ndarray] | None:
    """(boxes, scores or logits), queries x 4 and queries x classes; None where the shapes are others."""
    rows = only(outputs, 3)
    if rows is not None:
        # Older exports by ultralytics put boxes and scores side by side.
        return (rows[0, :, :4], rows[0, :, 4:]) if rows.shape[1] <= _MOST and rows.shape[2] in _COLUMNS else None
    parts = boxes_and_scores(outputs, outside)
    return parts if parts is not None and len(parts[0]) <= _MOST else None


def _in_shares(outputs: Outputs, size: Size) -> bool:
    parts = None if has_cells(outputs, size) else _parts(outputs)
    # Six columns whose last is a class are a box that is whole.
    whole = parts is not None and only(outputs, 3) is not None and parts[1].shape[1] == 2 and _are_classes(parts[1][:, 1])
    if parts is None or whole or (np.abs(parts[0]) > _FAR).any():
        return False
    return only(outputs, 3) is None or not (are_key_points(parts[0][:, :2], parts[1]) or _are_one_softmax(*parts))


def _fits(outputs: Outputs, size: Size) -> bool:
    return _in_shares(outputs, size) and not _has_no_object(_parts(outputs)[1])


def _tells(outputs: Outputs, size: Size) -> bool:  # noqa: ARG001 - one signature for all families
    """Not by rows of zeros: a graph that suppresses boxes, of people with their key points say, has found none."""
    return any(part.any() for part in _parts(outputs))


def _allows_softmax(outputs: Outputs, size: Size) -> bool:
    return _in_shares(outputs, size) and _parts(outputs)[1].shape[1] > 1


def _fits_softmax(outputs: Outputs, size: Size) -> bool:
    if not _allows_softmax(outputs, size):
        return False
    values = _parts(outputs)[1]
    # Logits from 0 to 1 are those of a network that has learnt nothing, and may be scores.
    return not are_scores(values) or _has_no_object(values)


def _has_no_object(values: np.ndarray) -> bool:
    """Whether most queries are sure of the last class alone: "no object", for no photo shows so many of one kind."""
    if values.shape[1] == 1:
        return False
    sure = _softmax(values)[:, -1] > _SURE
    return bool((sure if _sum_to_one(values) else sure & (values[:, -1] > 1)).mean() > _BACKGROUND)


def _softmax(values: np.ndarray) -> np.ndarray:
    """Of logits; of what a graph has taken it of already, the values."""
    values = values.astype(np.float64)
    if _sum_to_one(values):
        return values
    weights = np.exp(values - values.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def _sum_to_one(rows: np.ndarray) -> bool:
    return are_scores(rows) and bool((from_one(rows) < _ROUNDED).all())


def _are_classes(values: np.ndarray) -> bool:
    return bool((values == np.rint(values)).all())


def _are_one_softmax(*columns: np.ndarray) -> bool:
    """Whether each row sums to 1, as the characters of a line of text do at each step: no boxes with scores."""
    return _sum_to_one(np.concatenate(columns, axis=1))


def _best(boxes: np.ndarray, scores: np.ndarray, size: Size, least: float) -> Boxes:
    boxes = boxes.astype(np.float64) * np.tile(size[::-1], 2)
    # As many as there are queries, over all classes: what these networks are trained to rank.
    return Boxes.above(corners(boxes[:, :2], boxes[:, 2:]), scores, least).best(len(boxes))


def _decode(outputs: Outputs, size: Size, least: float) -> Boxes:
    boxes, scores = _parts(outputs)
    # Of a network that has learnt little logits lie in 0 to 1, too, on one image and not on the next: exporters' names are surer.
    logits = any("logit" in name.lower() for name in outputs) or not are_scores(scores)
    return _best(boxes, sigmoid(scores) if logits else scores, size, least)


def _decode_softmax(outputs: Outputs, size: Size, least: float) -> Boxes:
    boxes, values = _parts(outputs)
    scores = _softmax(values)[:, :-1]
    # A query is of one class (PostProcess of https://github.com/facebookresearch/detr), where sigmoid's may be of several.
    best, places = np.zeros_like(scores), scores.argmax(axis=1)[:, None]
    np.put_along_axis(best, places, np.take_along_axis(scores, places, axis=1), axis=1)
    return _best(boxes, best, size, least)


def _allows_chosen(outputs: Outputs, size: Size) -> bool:  # noqa: ARG001 - one signature for all families
    rows = only(outputs, 3)
    if rows is None or rows.shape[2] != 6 or rows.shape[1] > _MOST:
        return False
    classes = rows[0, :, 5]
    return are_scores(rows[0, :, :5]) and _are_classes(classes) and bool((classes >= 0).all())


def _fits_chosen(outputs: Outputs, size: Size) -> bool:
    if not _allows_chosen(outputs, size):
        return False
    # Every query has a score; where none has, suppression has found nothing.
    found = only(outputs, 3)[0]
    found = found[found[:, 4] > 0]
    # Right of left in nearly every row, these are corners in shares (`yolov10-shares`).
    return len(found) > 0 and ordered(found) < 1


def _decode_chosen(outputs: Outputs, size: Size, least: float) -> Boxes:
    rows = only(outputs, 3)[0].astype(np.float64)
    rows = rows[np.nan_to_num(rows[:, 4], nan=0.0) > least]
    boxes = rows[:, :4] * np.tile(size[::-1], 2)
    return Boxes.of(corners(boxes[:, :2], boxes[:, 2:]), rows[:, 4], np.rint(np.nan_to_num(rows[:, 5])))


FAMILY = Family(
    name="rtdetr",
    networks="RT-DETR, RT-DETRv2, D-FINE",
    layout="1 x k x 4 boxes (centre and size, 0 to 1) and 1 x k x c logits or scores, or both as 1 x k x (4 + c); k is 300",
    fits=_fits,
    allows=_in_shares,
    decode=_decode,
    classes=lambda outputs, _: _parts(outputs)[1].shape[1],
    overlaps=False,
    tells=_tells,
)
CHOSEN = Family(
    name="rtdetr-chosen",
    networks="RT-DETR as ultralytics exports it",
    layout="1 x k x 6: centre and size (0 to 1), score, class; 1 x 300 x 6",
    fits=_fits_chosen,
    allows=_allows_chosen,
    decode=_decode_chosen,
    overlaps=False,
)
SOFTMAX = Family(
    name="detr",
    networks="DETR, YOLOS",
    layout='1 x k x 4 boxes (centre and size, 0 to 1) and 1 x k x (c + 1) logits or their softmax, the last that of "no object"; '
    "k is 100",
    fits=_fits_softmax,
    allows=_allows_softmax,
    decode=_decode_softmax,
    classes=lambda outputs, _: _parts(outputs)[1].shape[1] - 1,
    overlaps=False,
)
