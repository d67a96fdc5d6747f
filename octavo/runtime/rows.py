"""Outputs whose rows a graph chose (queries by TopK, boxes by suppression): compared row by row, in whatever order they come.

Detectors that choose rows put them out by rank, and ranks of close ones change with the last bit. Row by row and out of order, all
values of a box would count as noise where nothing but its place changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

__all__ = ["matched_rows", "rows_of"]

Outputs = Mapping[str, np.ndarray]

# More rows than a graph chooses beside outputs that have others: those of a grid keep their places.
_MOST = 1000
# Columns of an output that rows are paired by at most, evenly taken: of 100 masks of 640x640 pixels all are 330 MB as float64, in
# some copies, and 4 s an image.
_COLUMNS = 4096


def rows_of(outputs: Outputs) -> int | None:
    """The axis along which outputs have rows: 1 for [1, rows, ...], 0 for [rows, ...]; None where it is not the same for all.

    [1, rows] counts beside an output [1, rows, columns] only: alone it may be one row of columns.
    """
    values = list(outputs.values())
    for axis in (1, 0):
        if axis == 1 and (any(value.shape[:1] != (1,) for value in values) or all(value.ndim < 3 for value in values)):
            continue
        if values and all(value.ndim > axis for value in values) and len({value.shape[axis] for value in values}) == 1:
            return axis
    return None


def matched_rows(expected: Outputs, got: Outputs, *, lost: bool = False) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Two models' outputs on one image with the rows of the second in the order of the first; rows too many are left out.

    The pairs are those with the least sum of distances (the Hungarian method); each column counts by its own spread in `expected`,
    and each output alike.

    Args:
        expected: output to array, [1, rows, ...] or [rows, ...], any number type; others may stand beside them, left as they are: a
            number alone, which says how many rows there are (an integer, or a float beside [1, rows, columns], as TensorFlow has
            it); maps, and outputs with other numbers of rows than most have.
        got: the same of the other model; the number of rows may differ.
        lost: rows of `expected` that have no counterpart stay, and are held against zeros: all that they say is missing.

    Returns:
        Both, with as many rows as the smaller one has, or with `lost` as `expected` has; unchanged where outputs have no rows in
        common.
    """
    if set(got) != set(expected):
        return dict(expected), dict(got)
    floats = any(value.ndim > 2 for value in expected.values())
    counts = {name for name, value in expected.items() if _counts(value, floats=floats) and _counts(got[name], floats=floats)}
    if counts and len(counts) < len(expected):
        return _of_some(expected, got, [name for name in expected if name not in counts], lost=lost)
    axis = rows_of(expected)
    # One row along the first axis may be the batch of outputs that have no rows in common.
    alone = axis is None or (axis == 0 and all(value.shape[0] == 1 for value in expected.values()))
    if alone and (most := _of_most_rows(expected)):
        return _of_some(expected, got, most, lost=lost)
    if axis is None or rows_of(got) != axis:
        return dict(expected), dict(got)
    distance = 0.0
    for name, value in expected.items():
        if np.prod(value.shape[axis + 1 :]) != np.prod(got[name].shape[axis + 1 :]):
            return dict(expected), dict(got)
        mine, theirs = _columns(value, axis), _columns(got[name], axis)
        spread = np.maximum(mine.std(axis=0), 1e-12) if len(mine) > 1 else np.ones(mine.shape[1])
        mine, theirs = mine / spread, theirs / spread
        # |a - b|^2 without a rows x rows x columns array.
        squares = (mine**2).sum(1)[:, None] + (theirs**2).sum(1)[None] - 2 * mine @ theirs.T
        distance = distance + np.sqrt(np.maximum(squares, 0)) / max(mine.shape[1], 1) ** 0.5
    # Half a second to import, and most stages' models choose no rows.
    from scipy.optimize import linear_sum_assignment

    first, second = linear_sum_assignment(np.nan_to_num(distance, posinf=1e30))
    without = np.setdiff1d(np.arange(distance.shape[0]), first) if lost else first[:0]
    return (
        {name: np.take(value, np.concatenate([first, without]), axis) for name, value in expected.items()},
        {name: _with_zeros(np.take(value, second, axis), len(without), axis) for name, value in got.items()},
    )


def _of_some(
    expected: Outputs, got: Outputs, names: Sequence[str], *, lost: bool
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """`matched_rows` of some outputs, with the others as they are."""
    pair = matched_rows(*({name: each[name] for name in names} for each in (expected, got)), lost=lost)
    return tuple({name: rows.get(name, each[name]) for name in each} for rows, each in zip(pair, (expected, got), strict=True))


def _of_most_rows(outputs: Outputs) -> list[str]:
    """Of outputs that have no rows in common, the most that have; fewer than all, of equally many those with the fewest rows.

    TensorFlow's detectors put out all boxes and their scores beside those that they have chosen, YOLO's maps of masks.
    """
    groups: dict[tuple[int, int], list[str]] = {}
    for name, value in outputs.items():
        for axis in (1, 0):
            if axis < value.ndim <= axis + 2 and value.shape[axis] <= _MOST:
                groups.setdefault((axis, value.shape[axis]), []).append(name)
    found = [
        (-len(names), rows, names)
        for (axis, rows), names in groups.items()
        if len(names) < len(outputs) and rows_of({name: outputs[name] for name in names}) == axis and (axis == 1 or len(names) > 1)
    ]
    return min(found, default=(0, 0, []))[2]


def _with_zeros(value: np.ndarray, rows: int, axis: int) -> np.ndarray:
    return np.pad(value, [(0, rows if place == axis else 0) for place in range(value.ndim)])


def _counts(value: np.ndarray, *, floats: bool) -> bool:
    whole = np.issubdtype(value.dtype, np.integer) or (floats and value.ndim < 2 and (value == np.rint(value)).all())
    return value.size == 1 and bool(whole)


def _columns(value: np.ndarray, axis: int) -> np.ndarray:
    """Rows x columns that tell rows apart, float64."""
    rows = value[0] if axis == 1 else value
    columns = rows.reshape(len(rows), -1 if rows.size else int(np.prod(rows.shape[1:])))
    return columns[:, :: -(-columns.shape[1] // _COLUMNS) or 1].astype(np.float64)
