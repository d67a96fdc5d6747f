"""A histogram whose bins do not depend on the data, so that merging is exact, associative and blind to order.

A bin is the top 16 bits of a float32: sign, exponent and 7 mantissa bits, that is 128 bins an octave, each no wider than 0.8 %
of its values. Every float32 has its bin before the first value is seen; NaN and infinity have bins of their own.
"""

from __future__ import annotations

import sys

import numpy as np

__all__ = ["BINS", "bin_counts", "bin_edges", "bin_middles", "not_finite"]

BINS = 1 << 16
_EXPONENT = 0x7F80
# The top half of a float32 is its second uint16 on little-endian machines.
_TOP = 1 if sys.byteorder == "little" else 0


def bin_counts(values: np.ndarray) -> np.ndarray:
    """Count values per bin.

    Args:
        values: float32, any shape, contiguous.

    Returns:
        int64 of `BINS` counts; bin b holds the values whose upper 16 bits are b.
    """
    halves = np.ascontiguousarray(values, dtype=np.float32).reshape(-1).view(np.uint16)
    return np.bincount(halves[_TOP::2], minlength=BINS)


def not_finite(counts: np.ndarray) -> int:
    """How many NaN and infinite values a histogram holds."""
    bins = np.arange(BINS, dtype=np.uint32)
    return int(counts[(bins & _EXPONENT) == _EXPONENT].sum())


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
