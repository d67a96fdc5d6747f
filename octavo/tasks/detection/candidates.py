"""What a graph's own suppression chooses among: a box and its scores at every place, told without knowing the family.

Suppression asks no more of what it reads than that rows of boxes and rows of scores belong together; whether boxes are corners or
centre and size, and scores logits, probabilities or a softmax with its background, their values say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from octavo.tasks.detection.boxes import corners
from octavo.tasks.detection.family import Rows, Size, are_scores, from_one, sigmoid
from octavo.tasks.detection.shares import cover
from octavo.tasks.outputs import Outputs

__all__ = ["Candidates", "as_rows", "centre_and_size"]

# The share of boxes that must be such boxes, and of rows that must be background for a column to be that of it.
_MOST, _BACKGROUND = 0.99, 0.5
# How far from 1 the sums of softmax's rows are, and quotients of equal scores, for rounding.
_ROUNDED = 0.01
# Scores below this are none: nothing is divided by less.
_LEAST = 1e-12


@dataclass(frozen=True)
class Candidates:
    """How boxes and scores lie in what suppression reads.

    Attributes:
        boxes: the tensor that has n x 4 of them.
        scores: the tensor that has n x c of them, or c x n.
        centred: whether boxes are centre and size, else two corners.
        turned: whether scores are c x n.
        logits: whether scores are such, whose sigmoid counts.
        background: the column that is no class; None where there is none.
        best: the tensor with what each place's best class counts, where that is its score times an objectness (as YOLOX's demo
            computes it); None where scores count as they are.
    """

    boxes: str
    scores: str
    centred: bool
    turned: bool
    logits: bool = False
    background: int | None = None
    best: str | None = None

    @classmethod
    def told(cls, outputs: Outputs, size: Size) -> Candidates | None:
        """What one image tells.

        Args:
            outputs: FP32's, of the graph cut before its suppression.
            size: (rows, columns) of the network's input.

        Returns:
            None where no two tensors are the boxes of a grid that covers the input, and their scores.
        """
        # Maps of features and of masks may stand beside them.
        tables = {name: value for name, value in outputs.items() if value.dtype.kind == "f" and value.squeeze().ndim <= 2}
        values = {name: as_rows(value) for name, value in tables.items()}
        for name, boxes in values.items():
            centred = centre_and_size(boxes, size)
            if centred is None:
                continue
            for other, scores, turned in _beside(values, name, len(boxes)):
                if not are_scores(scores):
                    return cls(name, other, centred, turned, logits=True)
                return cls(name, other, centred, turned, background=_background(scores), best=_best(values, scores))
        return None

    def rows(self, outputs: Outputs) -> Rows:
        """One image's, of any variant; boxes in the units that they have."""
        boxes, scores = (as_rows(outputs[name]).astype(np.float32, copy=False) for name in (self.boxes, self.scores))
        scores = scores.T if self.turned else scores
        if self.background is not None:
            scores = np.delete(scores, self.background, axis=1)
        if self.logits:
            scores = sigmoid(scores).astype(np.float32)
        if self.best is not None:
            scores = scores * (outputs[self.best].ravel() / np.maximum(scores.max(axis=1), _LEAST))[:, None]
        return corners(boxes[:, :2], boxes[:, 2:]) if self.centred else boxes, scores


def as_rows(value: np.ndarray) -> np.ndarray:
    """One image's as a row for each box, with the boxes of all classes beside each other where each has its own."""
    value = value[0] if value.ndim > 2 and value.shape[0] == 1 else np.atleast_1d(value)
    # Without rows there is nothing to tell columns by but the shape.
    return value.reshape(len(value), int(np.prod(value.shape[1:])))


def centre_and_size(boxes: np.ndarray, size: Size) -> bool | None:
    """Whether n x 4 values are boxes by centre and size; False for corners, None where they are none of a grid's.

    Either axis may come first: suppression does not ask.
    """
    if boxes.shape[1] != 4:
        return None
    first, second = boxes[:, :2].astype(np.float64), boxes[:, 2:].astype(np.float64)
    if (second >= first).all(axis=1).mean() > _MOST and _cover((first + second) / 2, size):
        return False
    return True if (second >= 0).all(axis=1).mean() > _MOST and _cover(first, size) else None


def _cover(centres: np.ndarray, size: Size) -> bool:
    return cover(centres, size) or cover(centres[:, ::-1], size)


def _beside(values: Outputs, boxes: str, count: int) -> Iterator[tuple[str, np.ndarray, bool]]:
    """(name, scores n x c, whether they are c x n) of what has a column or a row for each of the boxes, most classes first.

    What is behind, the best class's score and the like, has fewer.
    """
    found = []
    for name, value in values.items():
        if name != boxes and count in value.shape:
            turned = value.shape[0] != count
            found.append((name, value.T if turned else value, turned))
    yield from sorted(found, key=lambda each: (-each[1].shape[1], not are_scores(each[1])))


def _background(scores: np.ndarray) -> int | None:
    """The first or the last column of a softmax, where most rows are surest of it."""
    if scores.shape[1] == 1 or not (from_one(scores) < _ROUNDED).all():
        return None
    best = scores.argmax(axis=1)
    return next((column for column in (0, scores.shape[1] - 1) if (best == column).mean() > _BACKGROUND), None)


def _best(values: Outputs, scores: np.ndarray) -> str | None:
    """What is below each row's largest score everywhere, and is not that score itself."""
    largest = scores.max(axis=1)
    for name, value in ((name, value.ravel()) for name, value in values.items()):
        below = value.shape == largest.shape and are_scores(value) and (value <= largest * (1 + _ROUNDED)).all()
        if below and (value < largest * (1 - _ROUNDED)).mean() > _BACKGROUND:
            return name
    return None
