"""Paired bootstrap: is a drop real, or would other images of the same kind have shown none?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Interval", "paired_ratio"]

# Resamples drawn at once: bounds the memory on large sets.
_CELLS = 8_000_000


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval."""

    estimate: float
    low: float
    high: float


def paired_ratio(variant: np.ndarray, reference: np.ndarray, *, resamples: int, seed: int) -> Interval | None:
    """mean(variant) / mean(reference) with a percentile interval; images are drawn, each with both of its scores.

    Args:
        variant, reference: one score an image (1 right, 0 wrong), the same images in the same order.
        resamples: number of bootstrap resamples.
        seed: of the generator; equal input gives an equal interval.

    Returns:
        None where there is no image, or the reference scores 0 and a ratio has no meaning.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13 (percentile interval).
    """
    variant, reference = np.asarray(variant, np.float64), np.asarray(reference, np.float64)
    if variant.shape != reference.shape:
        raise ValueError(f"paired scores differ in number: {variant.shape} and {reference.shape}")
    if not len(reference) or reference.sum() == 0:
        return None
    generator = np.random.default_rng(seed)
    chunk = max(1, _CELLS // len(reference))
    ratios: list[np.ndarray] = []
    for start in range(0, resamples, chunk):
        drawn = generator.integers(0, len(reference), (min(chunk, resamples - start), len(reference)))
        below = reference[drawn].sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            # A resample on which FP32 has nothing right says nothing about the ratio.
            ratios.append((variant[drawn].sum(axis=1) / below)[below > 0])
    low, high = np.percentile(np.concatenate(ratios), [2.5, 97.5])
    return Interval(float(variant.sum() / reference.sum()), float(low), float(high))
