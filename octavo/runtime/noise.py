"""Signal to quantization noise ratio: one definition for every place that compares tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

__all__ = ["SQNR_CAP", "Distance", "cosine", "distance", "sqnr_db"]

# Identical tensors have no noise; JSON has no infinity.
SQNR_CAP = 200.0
# Values that are float64 at a time: 100 masks of 320x320 pixels are 82 MB as float64, and an expression holds them some times over.
_BLOCK = 1 << 20


def sqnr_db(signal: float, noise: float) -> float:
    """10 log10(signal / noise) in dB from two sums of squares, within +-`SQNR_CAP`; 0 where there is noise but no signal."""
    if noise == 0:
        return SQNR_CAP
    return float(np.clip(10 * np.log10(signal / noise), -SQNR_CAP, SQNR_CAP)) if signal > 0 else 0.0


@dataclass(frozen=True)
class Distance:
    """How far two arrays are apart, in float64.

    Attributes:
        first, second: sums of squares of either.
        noise: sum of squares of their difference.
        largest: the largest absolute difference; 0 of empty arrays.
    """

    first: float
    second: float
    noise: float
    largest: float


def distance(first: np.ndarray, second: np.ndarray) -> Distance:
    """Of two arrays of one shape and any float type."""
    found = [
        (float((a**2).sum()), float((b**2).sum()), float(((a - b) ** 2).sum()), float(np.abs(a - b).max(initial=0.0)))
        for a, b in _blocks(first, second)
    ]
    one, other, noise, largest = zip(*found, strict=True) if found else ((0.0,),) * 4
    return Distance(sum(one), sum(other), sum(noise), max(largest))


def cosine(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> float:
    """Cosine of two lists of arrays, each as one flat vector; 1 for two zero vectors, 0 where only one is zero.

    Args:
        pairs: arrays of one shape and any float type.
    """
    pairs = list(pairs)
    # Scaled first: squares of very small values would vanish.
    largest = [max(float(np.abs(pair[place]).max(initial=0.0)) for pair in pairs) for place in (0, 1)]
    if not all(largest):
        return 1.0 if largest[0] == largest[1] else 0.0
    product, one, other = 0.0, 0.0, 0.0
    for pair in pairs:
        for a, b in _blocks(*pair):
            a, b = a / largest[0], b / largest[1]
            product, one, other = product + float(a @ b), one + float(a @ a), other + float(b @ b)
    return float(np.clip(product / np.sqrt(one) / np.sqrt(other), -1, 1))


def _blocks(first: np.ndarray, second: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Both as flat float64, part by part."""
    first, second = first.reshape(-1), second.reshape(-1)
    for start in range(0, first.size, _BLOCK):
        yield tuple(each[start : start + _BLOCK].astype(np.float64) for each in (first, second))
