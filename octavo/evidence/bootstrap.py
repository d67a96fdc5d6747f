"""Paired bootstrap: is a drop real, or would other images of the same kind have shown none?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

__all__ = ["Interval", "paired_ratios"]

Metric = Callable[[np.ndarray], np.ndarray]

# Resamples drawn at once: bounds the memory on large sets.
_CELLS = 8_000_000


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval."""

    estimate: float
    low: float
    high: float


def paired_ratios(
    variants: Mapping[str, Metric], reference: Metric, images: int, *, resamples: int, seed: int
) -> dict[str, Interval | None]:
    """Each variant's metric relative to FP32's with a percentile interval; images are drawn, each with the scores of all.

    Args:
        variants, reference: from int counts, resamples x images, how often each image is drawn, to the metric of each resample.
        images: how many there are.
        resamples: number of bootstrap resamples.
        seed: of the generator; equal input gives an equal interval.

    Returns:
        None of a variant where there is no image, or the reference's metric is 0 and a ratio has no meaning.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13 (percentile interval).
    """
    each_once = np.ones((1, images), np.int64)
    whole = float(reference(each_once)[0]) if images else 0.0
    if whole == 0:
        return dict.fromkeys(variants)
    generator = np.random.default_rng(seed)
    chunk = max(1, _CELLS // images)
    ratios: dict[str, list[np.ndarray]] = {name: [] for name in variants}
    for start in range(0, resamples, chunk):
        rows = min(chunk, resamples - start)
        drawn = generator.integers(0, images, (rows, images)) + np.arange(rows)[:, None] * images
        counts = np.bincount(drawn.ravel(), minlength=rows * images).reshape(rows, images)
        below = reference(counts)
        for name, variant in variants.items():
            # A resample on which FP32 has nothing right says nothing about the ratio.
            ratios[name].append(variant(counts)[below > 0] / below[below > 0])
    found = {}
    for name, variant in variants.items():
        low, high = np.percentile(np.concatenate(ratios[name]), [2.5, 97.5])
        found[name] = Interval(float(variant(each_once)[0]) / whole, float(low), float(high))
    return found
