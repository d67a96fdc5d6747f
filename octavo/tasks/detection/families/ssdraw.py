"""SSD (https://arxiv.org/abs/1512.02325) whose graph leaves decoding to the caller: offsets from prior boxes, and logits.

The priors hang on the network's settings (sizes and ratios of each level, in several orders), which no shape tells: a graph that
puts them out beside the rest can be read, as ssd.pytorch's in its training phase does.
"""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.boxes import corners
from octavo.tasks.detection.family import Family, Rows, Size, are_scores, cells, from_one, grown
from octavo.tasks.detection.shares import are_even
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILY"]

# What offsets are multiplied by: of centres, in sides of the prior, and of the logarithm of sizes.
_CENTRES, _SIZES = 0.1, 0.2
# A prior's side in shares is no more than that; of softmax's sum, for rounding.
_WIDE, _ROUNDED = 2.0, 0.01
# Fewer priors are queries of another kind.
_LEAST = 100
# The share of rows that are surest of the background, at least: where there is none (RetinaNet, EfficientDet) scores are sigmoid's.
_MOSTLY = 0.5


def _tables(outputs: Outputs) -> list[np.ndarray]:
    """Each output as a table, its longer side down: n x 4 offsets and priors, n x (1 + c) logits."""
    values = [value[0] if value.ndim == 3 and value.shape[0] == 1 else value for value in outputs.values()]
    return [value.T if value.ndim == 2 and value.shape[0] < value.shape[1] else value for value in values]


def _parts(outputs: Outputs) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """(offsets n x 4, logits or scores n x (1 + c), priors n x 4: centre and size in shares); None where they are others."""
    tables = _tables(outputs)
    if len(tables) != 3 or any(table.ndim != 2 for table in tables) or len({len(table) for table in tables}) != 1:
        return None
    priors = [place for place, table in enumerate(tables) if table.shape[1] == 4 and _are_priors(table)]
    if len(priors) != 1 or len(tables[0]) < _LEAST:
        return None
    first, second = (table for place, table in enumerate(tables) if place != priors[0])
    # Three classes and the background are four columns, too.
    is_first = first.shape[1] == 4 and (second.shape[1] != 4 or _background(first) < _background(second))
    offsets, classes = (first, second) if is_first else (second, first)
    return (offsets, classes, tables[priors[0]]) if offsets.shape[1] == 4 and classes.shape[1] > 1 else None


def _fits(outputs: Outputs, size: Size) -> bool:  # noqa: ARG001 - one signature for all families
    parts = _parts(outputs)
    return parts is not None and _background(parts[1]) > _MOSTLY


def _background(table: np.ndarray) -> float:
    """The share of rows whose first column is the largest."""
    return float((table.argmax(axis=1) == 0).mean())


def _are_priors(table: np.ndarray) -> bool:
    centre, side = table[:, :2].astype(np.float64), table[:, 2:]
    return bool((side > 0).all() and (side <= _WIDE).all() and are_even(centre))


def _rows(outputs: Outputs, size: Size) -> Rows:
    offsets, classes, priors = (part.astype(np.float64) for part in _parts(outputs))
    centre = priors[:, :2] + offsets[:, :2] * _CENTRES * priors[:, 2:]
    boxes = corners(centre, priors[:, 2:] * grown(offsets[:, 2:] * _SIZES))
    return boxes * np.tile(size[::-1], 2), _softmax(classes)[:, 1:]


def _softmax(values: np.ndarray) -> np.ndarray:
    if are_scores(values) and (from_one(values) < _ROUNDED).all():
        return values
    weights = np.exp(values - values.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def _lacks(outputs: Outputs, size: Size) -> str | None:
    """Offsets and logits of as many rows, which are no cells of one box each: what is missing are the priors."""
    tables = _tables(outputs)
    if len(tables) != 2 or any(table.ndim != 2 for table in tables) or len(tables[0]) != len(tables[1]):
        return None
    offsets, others = sorted(tables, key=lambda table: table.shape[1] != 4)
    if offsets.shape[1] != 4 or others.shape[1] < 2 or len(offsets) < _LEAST or len(offsets) == cells(size, (8, 16, 32)):
        return None
    if max(map(_background, (offsets, others) if others.shape[1] == 4 else (others,))) <= _MOSTLY:
        return None
    return (
        "they look like SSD's offsets and logits; put its prior boxes out, too: n x 4, centre and size, 0 to 1 (in torch, `return "
        "offsets, logits, priors` from the exported module), or decode boxes and softmax in the graph, which is `ssd`"
    )


FAMILY = Family(
    name="ssd-raw",
    networks="SSD whose graph does not decode, ssd.pytorch in its training phase",
    layout="1 x n x 4 offsets, 1 x n x (1 + c) logits (or their softmax), the first that of the background, and n x 4 prior boxes "
    "(centre and size, 0 to 1); or turned (1 x 4 x n); n is 8732 for 300x300",
    fits=_fits,
    allows=lambda outputs, _: _parts(outputs) is not None,
    rows=_rows,
    classes=lambda outputs, _: _parts(outputs)[1].shape[1] - 1,
    lacks=_lacks,
)
