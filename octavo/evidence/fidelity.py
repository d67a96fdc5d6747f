"""How close a variant's raw outputs are to FP32's on the same images; needs no labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from octavo.runtime.noise import cosine, distance, sqnr_db

__all__ = ["Fidelity"]

# An image's outputs are blank below this share (30 dB) of the energy that FP32's have where they have much: maps and scores of
# photos on which there is nothing, whose direction is chance. Much is the images' quantile, so that neither many blank ones nor a
# single wild one decides.
_BLANK, _MUCH = 1e-3, 0.9


@dataclass
class Fidelity:
    """Running fidelity of one variant, over all float outputs; nothing but sums is kept.

    Attributes:
        signal, noise: per output, sums of squares of FP32's values and of the difference.
        directions: per image, the cosine over all outputs together, whatever their size.
        energies: per image, the sums of squares of FP32's values and of the variant's.
        largest: per output, the largest absolute difference.
        values: per output, how many of both that are not zero were compared.
    """

    signal: dict[str, float] = field(default_factory=dict)
    noise: dict[str, float] = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)
    directions: list[float] = field(default_factory=list)
    energies: list[tuple[float, float]] = field(default_factory=list)

    @property
    def cosines(self) -> list[float]:
        """Per image, the cosine over all outputs together; 1 where both models' are blank beside FP32's on other images."""
        if not self.energies:
            return []
        energies = np.array(self.energies)
        blank = energies.max(axis=1) <= _BLANK * np.quantile(energies[:, 0], _MUCH)
        return [1.0 if nothing else value for nothing, value in zip(blank, self.directions, strict=True)]

    def update(self, reference: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> None:
        """Add one image's outputs; outputs whose shapes differ (a different number of boxes) count by their common part."""
        pairs, energies = [], np.zeros(2)
        for name, expected in reference.items():
            if not np.issubdtype(expected.dtype, np.floating):
                continue
            a, b = _common(expected, other[name])
            found = distance(a, b)
            self.signal[name] = self.signal.get(name, 0.0) + found.first
            self.noise[name] = self.noise.get(name, 0.0) + found.noise
            self.largest[name] = max(self.largest.get(name, 0.0), found.largest)
            self.values[name] = self.values.get(name, 0) + int(np.count_nonzero(a) + np.count_nonzero(b))
            energies += found.first, found.second
            pairs.append((a, b))
        if pairs:
            self.directions.append(cosine(pairs))
            self.energies.append((float(energies[0]), float(energies[1])))

    def metrics(self) -> dict[str, float]:
        """`sqnr_db` (of the worst output), `cosine_mean`, `cosine_min`, `max_abs_diff`; `sqnr_db.<output>` for several.

        Empty where no output is float: whole numbers (the classes of an ArgMax) lie at no distance. So is an output left out that
        holds nothing on any image, or zeros alone, as a detector's without a box: two empty sets are equal, and that says nothing
        of the variant.
        """
        each = {name: sqnr_db(self.signal[name], self.noise[name]) for name, count in self.values.items() if count}
        if not each:
            return {}
        cosines = self.cosines
        found = {
            "sqnr_db": min(each.values()),
            "cosine_mean": float(np.mean(cosines)),
            "cosine_min": float(np.min(cosines)),
            "max_abs_diff": max(self.largest.values()),
        }
        return found | ({f"sqnr_db.{name}": value for name, value in each.items()} if len(each) > 1 else {})


def _common(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if a.shape == b.shape:
        return a, b
    if a.ndim != b.ndim:
        raise ValueError(f"outputs of ranks {a.ndim} and {b.ndim} cannot be compared")
    window = tuple(slice(0, min(first, second)) for first, second in zip(a.shape, b.shape, strict=True))
    return a[window], b[window]
