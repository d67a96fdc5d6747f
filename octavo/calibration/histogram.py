"""A histogram whose bins do not depend on the data, so that merging is exact, associative and blind to order.

A bin is the top 16 bits of a float32: sign, exponent and 7 mantissa bits, that is 128 bins an octave, each no wider than 0.8 %
of its values. Every float32 has its bin before the first value is seen; NaN and infinity have bins of their own.

Of one image's large tensor only every `stride`-th value is counted: counting all of them costs more than the inference that makes
them, and changes the chosen ranges hardly (docs/int8.md has figures). Which are counted depends on the shape alone. Extremes and
means are exact: they are taken of all values elsewhere.
"""

from __future__ import annotations

import math
import sys
from functools import cache

import numpy as np

__all__ = ["BINS", "COUNTED", "add_counts", "bin_edges", "bin_middles", "stride"]

BINS = 1 << 16
# Values of one image's tensor that are counted at most. A constant, not a setting: the same images shall give the same bytes.
COUNTED = 1 << 14
# The top half of a float32 is its second uint16 on little-endian machines.
_TOP = 1 if sys.byteorder == "little" else 0
# Bin numbers are widened to numpy's index type in pieces that stay in the second-level cache.
_PIECE = 1 << 16


@cache
def stride(shape: tuple[int, ...]) -> int:
    """The step between counted values of a tensor: the least that leaves at most `COUNTED` and shares no factor with a row.

    With a common factor it would meet the same columns (or channels, where these are last) in every row.

    Args:
        shape: of one image's tensor, which holds values.
    """
    row = next((size for size in reversed(shape) if size > 1), 1)
    step = -(-math.prod(shape) // COUNTED)
    while math.gcd(step, row) > 1:
        step += 1
    return step


def add_counts(values: np.ndarray, counts: np.ndarray, step: int = 1) -> None:
    """Count every `step`-th value per bin, on top of what was counted.

    `np.bincount` would make a copy eight bytes a value wide and a fresh array of all bins at every call; counted in place only
    those pages of `counts` are ever touched that hold a value.

    Args:
        values: float32, any shape; the step goes over them in C order.
        counts: int64 of `BINS`; bin b gains the values whose upper 16 bits are b.
        step: 1 or more.
    """
    bins = np.ascontiguousarray(values, dtype=np.float32).reshape(-1).view(np.uint16)[_TOP :: 2 * step]
    for start in range(0, len(bins), _PIECE):
        np.add.at(counts, bins[start : start + _PIECE].astype(np.intp), 1)


def bin_edges(bins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and largest float32 of each bin.

    Args:
        bins: bin numbers, any integer dtype, finite bins only.

    Returns:
        (low, high), float32 each, low <= high.
    """
    upper = bins.astype(np.uint32) << np.uint32(16)
    towards_zero = upper.view(np.float32)
    away = (upper | np.uint32(0xFFFF)).view(np.float32)
    return np.minimum(towards_zero, away), np.maximum(towards_zero, away)


def bin_middles(bins: np.ndarray) -> np.ndarray:
    """The middle of each bin as float64; bin 0 and its negative hold zero itself (ReLU's output) and stand for 0."""
    low, high = bin_edges(bins)
    middles = (low.astype(np.float64) + high) / 2
    middles[(bins & 0x7FFF) == 0] = 0.0
    return middles
