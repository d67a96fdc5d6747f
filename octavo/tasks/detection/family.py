"""What a family of detectors is: how its outputs look, and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.tasks.detection.boxes import Boxes
from octavo.tasks.outputs import Outputs

__all__ = [
    "Family",
    "Rows",
    "Size",
    "are_key_points",
    "are_scores",
    "boxes_and_scores",
    "by_level",
    "cells",
    "centres",
    "coefficients",
    "from_one",
    "grown",
    "only",
    "outside",
    "sigmoid",
]

# (rows, columns) of the network's input, in pixels.
Size = tuple[int, int]
# Corners in input pixels, n x 4, and scores, n x c, float32 or float64.
Rows = tuple[np.ndarray, np.ndarray]

# How far rounding may take a score out of 0 to 1.
_ROUNDED = 0.1
# exp of more is wider than any image: the output of a broken network would overflow.
_WIDEST = 10.0
# The least correlation of a key point with the centre of its box, on whose object it lies; and how far all lie from their mean, in
# shares of the image: an even spread has .25, and a few scores may follow anything.
_FOLLOWS, _SPREAD = 0.8, 0.1
# What exporters call boxes, and scores or logits, the surest names first.
_BOXES = ("pred_boxes", "boxes", "bboxes")
_SCORES = ("logits", "pred_logits", "scores")


@dataclass(frozen=True)
class Family:
    """One way to write boxes into a graph's outputs.

    Attributes:
        name: `task.decoder` in params.yaml.
        networks: which networks are exported like this.
        layout: what the outputs look like, for messages; `c` is the number of classes.
        fits: whether one image's outputs look like that.
        allows: whether they may, where `fits` also asks by values which of several families of one layout it is: a guess, which
            `task.decoder` overrules; None where there is none.
        rows: one image's outputs as rows whose place does not depend on values: corners in input pixels n x 4, scores n x c; None
            where the graph puts out nothing but boxes that it has chosen.
        decode: one image's outputs to boxes in input pixels whose score is above a least one; needed where there are no `rows`, or
            the graph says which of them it has chosen.
        classes: how many classes one image's outputs tell apart; None where their shapes do not say.
        background: whether class 0 is the background, so that the first class is 1 and an order of classes does not tell theirs.
        overlaps: whether boxes overlap, so that they need suppression.
        lacks: what outputs that fit no family lack to be this one's, in words; None where they are something else.
        tells: whether one image's outputs tell this family from others that fit; None where they always do. A graph that chooses
            boxes may have found none.
    """

    name: str
    networks: str
    layout: str
    fits: Callable[[Outputs, Size], bool]
    allows: Callable[[Outputs, Size], bool] | None = None
    rows: Callable[[Outputs, Size], Rows] | None = None
    decode: Callable[[Outputs, Size, float], Boxes] | None = None
    overlaps: bool = True
    classes: Callable[[Outputs, Size], int] | None = None
    background: bool = False
    tells: Callable[[Outputs, Size], bool] | None = None
    lacks: Callable[[Outputs, Size], str | None] | None = None

    def boxes(self, outputs: Outputs, size: Size, least: float) -> Boxes:
        """One image's boxes in input pixels, each pair of box and class whose score is above `least`."""
        return self.decode(outputs, size, least) if self.decode else Boxes.above(*self.rows(outputs, size), least)


def only(outputs: Outputs, rank: int) -> np.ndarray | None:
    """The one output of this rank, batch dimension 1; None where there is none or several."""
    found = [value for value in outputs.values() if value.ndim == rank and value.shape[0] == 1]
    return found[0] if len(found) == 1 else None


def boxes_and_scores(outputs: Outputs, off: Callable[[np.ndarray], float]) -> tuple[np.ndarray, np.ndarray] | None:
    """One image's boxes n x 4 and scores (or logits) n x c, of outputs that have them apart, 1 x n x 4 and 1 x n x c.

    They are told apart by their columns; where that leaves a choice (four classes, or further outputs), by their names; where these
    say nothing, and there are two, by their values.

    Args:
        outputs: one image's.
        off: how far values are from what boxes are in this family, or from what scores are not.

    Returns:
        Both; None where there are no such two, or nothing tells which is which.
    """
    values = {name: value[0] for name, value in outputs.items() if value.ndim == 3 and value.shape[0] == 1}
    found = _by_columns(list(values.values())) or _by_name(values) or _by_values(list(values.values()), off)
    return found if found and found[0].shape[1] == 4 and len(found[0]) == len(found[1]) else None


def _by_columns(values: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray] | None:
    boxes = [value for value in values if value.shape[1] == 4]
    others = [value for value in values if value.shape[1] != 4]
    return (boxes[0], others[0]) if len(boxes) == len(others) == 1 else None


def _by_name(values: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray] | None:
    boxes, scores = ([values[name] for name in names if name in values] for names in (_BOXES, _SCORES))
    return (boxes[0], scores[0]) if boxes and scores else None


def _by_values(values: list[np.ndarray], off: Callable[[np.ndarray], float]) -> tuple[np.ndarray, np.ndarray] | None:
    if len(values) != 2 or off(values[0]) == off(values[1]):
        return None
    return tuple(sorted(values, key=off))


def coefficients(outputs: Outputs, size: Size, columns: int) -> int:
    """How many columns at the end of a row weigh the maps of instance segmentation; 0 without such maps.

    They stand beside the rows, 1 x m x rows / 4 x columns / 4, and a box's mask is their sum, weighted (YOLACT, arXiv:1904.02689).

    Args:
        outputs: one image's.
        size: (rows, columns) of the network's input.
        columns: of a row; a row has a box and a score beside its coefficients, so that other maps of that size are none of these.
    """
    maps = only(outputs, 4)
    found = maps is not None and maps.shape[2:] == (size[0] // 4, size[1] // 4) and maps.shape[1] <= columns - 5
    return maps.shape[1] if found else 0


def are_scores(values: np.ndarray) -> bool:
    """Whether all may be scores from 0 to 1, rounded somewhat: key points, angles and coefficients of masks are not."""
    return not ((values < -_ROUNDED).any() or (values > 1 + _ROUNDED).any())


def are_key_points(centre: np.ndarray, columns: np.ndarray) -> bool:
    """Whether there are places among what would be class scores: two columns that follow the boxes' centres, x and y.

    In shares of the image they are in 0 to 1 as scores are.

    Args:
        centre: of boxes, n x 2.
        columns: what stands behind the boxes, n x c.
    """
    if not len(centre):
        return False
    place, value = (each - each.mean(axis=0) for each in (centre.astype(np.float64), columns.astype(np.float64)))
    apart = np.sqrt((place**2).sum(axis=0))[:, None] * np.sqrt((value**2).sum(axis=0))[None, :]
    follows = (place.T @ value > _FOLLOWS * np.maximum(apart, 1e-12)) & (np.abs(value).mean(axis=0) > _SPREAD)
    return bool((follows[0, :-1] & follows[1, 1:]).any())


def outside(values: np.ndarray) -> float:
    """How far the farthest value lies outside of 0 to 1; 0 where none does."""
    return max(0.0, -float(values.min(initial=0.0)), float(values.max(initial=1.0)) - 1)


def cells(size: Size, strides: Sequence[int]) -> int:
    """How many cells grids of these strides have in all; a grid covers the whole input."""
    return sum(-(-size[0] // stride) * -(-size[1] // stride) for stride in strides)


def centres(size: Size, strides: Sequence[int], shift: float) -> tuple[np.ndarray, np.ndarray]:
    """Of every cell, stride by stride, row by row: its place (x, y) plus `shift`, in cells, n x 2; and its stride, n x 1."""
    grids, steps = [], []
    for stride in strides:
        y, x = np.mgrid[: -(-size[0] // stride), : -(-size[1] // stride)]
        grids.append(np.stack([x.ravel(), y.ravel()], axis=1) + shift)
        steps.append(np.full((x.size, 1), stride))
    return np.concatenate(grids).astype(np.float64), np.concatenate(steps).astype(np.float64)


def by_level(outputs: Outputs, counts: Sequence[int]) -> list[list[np.ndarray]] | None:
    """All outputs as rows x columns, for each level those with its rows, by rising columns.

    Args:
        outputs: one image's; with a batch dimension of 1, or without.
        counts: rows of each level.

    Returns:
        None where an output is of no level, or two levels look alike (of a tiny input).
    """
    rows = [value[0] if value.ndim == 3 and value.shape[0] == 1 else value for value in outputs.values()]
    if len(set(counts)) != len(counts) or not all(value.ndim == 2 and len(value) in counts for value in rows):
        return None
    return [sorted((value for value in rows if len(value) == count), key=lambda value: value.shape[1]) for count in counts]


def from_one(values: np.ndarray) -> np.ndarray:
    """How far each row's sum is from 1, which is that of scores after softmax; n x c to n float64."""
    return np.abs(values.astype(np.float64).sum(axis=1) - 1)


def grown(logs: np.ndarray) -> np.ndarray:
    """Exp of what a network writes sizes as, of the same shape."""
    return np.exp(np.minimum(logs, _WIDEST))


def sigmoid(values: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), without overflow, float64."""
    return 1 / (1 + np.exp(-np.clip(values.astype(np.float64), -60, 60)))
