"""Rows of outputs that a graph chose (queries, boxes): which of two models' are the same, in whatever order they come.

Of maps that hang on a choice (peaks, places of maxima) it is values, which stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from octavo.runtime.rows import matched_rows, rows_of

__all__ = ["SAME_ROWS", "SAME_VALUES", "TOLERANCE", "Run", "in_rows", "same_rows", "same_values"]

# Two implementations of FP32 round differently; a difference above this share of the largest output is a wrong export.
TOLERANCE = 1e-3
# Of rows that a graph chose: two that lie close change places with the last bit, and what is near them changes with them.
SAME_ROWS = 0.9
# Of a map's values: a maximum that changes places moves what the layers behind see of it.
SAME_VALUES = 0.98

Outputs = Mapping[str, np.ndarray]
Run = Callable[[np.ndarray], Outputs]


def in_rows(pairs: Sequence[tuple[Outputs, Outputs]]) -> bool:
    """Whether both of each pair have rows along one axis, and rows of one shape. Maps alone have none, but channels."""
    for truth, mine in pairs:
        if all(value.ndim > 3 for value in truth.values()):
            return False
        axis = rows_of(truth)
        if axis is None or rows_of(mine) != axis:
            return False
        one, other = ({key: np.delete(value.shape, axis).tolist() for key, value in each.items()} for each in (truth, mine))
        if one != other:
            return False
    return True


def same_rows(pairs: Sequence[tuple[Outputs, Outputs]]) -> tuple[list[tuple[Outputs, Outputs]], float]:
    """The rows that both have, in one order, and their share of all; 1 where there is none at all. Pairs are `in_rows`."""
    kept, same, total = [], 0, 0
    for truth, mine in pairs:
        axis = rows_of(truth)
        total += max(next(iter(found.values())).shape[axis] for found in (truth, mine))
        first, second = matched_rows(truth, mine)
        close = np.ones(next(iter(first.values())).shape[axis], bool)
        for key, value in first.items():
            scale = max(float(np.abs(truth[key]).max(initial=0.0)), 1e-6)
            others = tuple(place for place in range(value.ndim) if place != axis)
            close &= np.abs(value.astype(np.float64) - second[key]).max(axis=others, initial=0.0) <= TOLERANCE * scale
        same += int(close.sum())
        kept.append(tuple({key: np.compress(close, value, axis) for key, value in each.items()} for each in (first, second)))
    return kept, same / total if total else 1.0


def same_values(pairs: Sequence[tuple[Outputs, Outputs]]) -> tuple[list[tuple[Outputs, Outputs]], float]:
    """The values that both have in one place, each output in one dimension, and their share of all; both have the same shapes."""
    kept, same, total = [], 0, 0
    for truth, mine in pairs:
        close = {}
        for key, value in truth.items():
            scale = max(float(np.abs(value).max(initial=0.0)), 1e-6)
            close[key] = np.abs(value.astype(np.float64) - mine[key]) <= TOLERANCE * scale
        same += sum(int(found.sum()) for found in close.values())
        total += sum(found.size for found in close.values())
        kept.append(tuple({key: each[key][found] for key, found in close.items()} for each in (truth, mine)))
    return kept, same / total if total else 1.0
