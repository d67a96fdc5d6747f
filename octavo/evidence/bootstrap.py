"""Paired bootstrap: is a drop real, or would other images (or identities) of the same kind have shown none?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

__all__ = ["Interval", "Resamples", "paired"]

Metric = Callable[[np.ndarray], np.ndarray]

# Resamples drawn at once: bounds the memory on large sets.
_CELLS = 8_000_000


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Resamples:
    """The metric of FP32 and of every variant, on all units and on the same resamples of them.

    Attributes:
        whole: FP32's metric with each unit once; None where there is no unit.
        below: float64, FP32's metric of each resample; NaN where it has none.
        variants: by name, the same of each variant.
    """

    whole: float | None
    below: np.ndarray
    variants: Mapping[str, tuple[float, np.ndarray]]

    def ratios(self, least: float = 0.0) -> dict[str, Interval | None]:
        """Each variant's metric relative to FP32's, with a percentile interval.

        Args:
            least: FP32's metric below which a ratio has no meaning: of next to nothing any share is kept by chance.

        Returns:
            None of a variant where there is no unit, or FP32's metric is 0 or below `least`.
        """
        if not self.whole or self.whole < least:
            return dict.fromkeys(self.variants)
        # A resample on which FP32 has nothing right says nothing about the ratio.
        says = self.below > 0
        return {
            name: _interval(whole / self.whole, values[says] / self.below[says]) for name, (whole, values) in self.variants.items()
        }

    def drops(self) -> dict[str, Interval | None]:
        """FP32's metric minus each variant's, with a percentile interval; None of a variant where there is no unit."""
        if self.whole is None:
            return dict.fromkeys(self.variants)
        says = np.isfinite(self.below)
        return {
            name: _interval(self.whole - whole, self.below[says] - values[says]) for name, (whole, values) in self.variants.items()
        }


def paired(variants: Mapping[str, Metric], reference: Metric, units: int, *, resamples: int, seed: int) -> Resamples:
    """Draw units (images, or identities), each with the scores of all variants.

    Args:
        variants, reference: from int counts, resamples x units, how often each unit is drawn, to the metric of each resample.
        units: how many there are.
        resamples: number of bootstrap resamples.
        seed: of the generator; equal input gives an equal interval.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13 (percentile interval).
    """
    if not units:
        return Resamples(None, np.zeros(0), {name: (0.0, np.zeros(0)) for name in variants})
    each_once = np.ones((1, units), np.int64)
    generator = np.random.default_rng(seed)
    chunk = max(1, _CELLS // units)
    below: list[np.ndarray] = []
    found: dict[str, list[np.ndarray]] = {name: [] for name in variants}
    for start in range(0, resamples, chunk):
        rows = min(chunk, resamples - start)
        drawn = generator.integers(0, units, (rows, units)) + np.arange(rows)[:, None] * units
        counts = np.bincount(drawn.ravel(), minlength=rows * units).reshape(rows, units)
        below.append(reference(counts))
        for name, variant in variants.items():
            found[name].append(variant(counts))
    return Resamples(
        float(reference(each_once)[0]),
        np.concatenate(below),
        {name: (float(variant(each_once)[0]), np.concatenate(found[name])) for name, variant in variants.items()},
    )


def _interval(estimate: float, values: np.ndarray) -> Interval | None:
    if not len(values):
        return None
    low, high = np.percentile(values, [2.5, 97.5])
    return Interval(float(estimate), float(low), float(high))
