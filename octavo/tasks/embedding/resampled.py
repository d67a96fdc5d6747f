"""The area under the ROC curve over many resamples of the identities at once, from similarities sorted once."""

from __future__ import annotations

import numpy as np

__all__ = ["Areas"]

# Resamples times pairs at once: bounds the memory.
_CELLS = 4_000_000


class Areas:
    """Pairs of images, from which the AUC of any resample of their identities follows.

    Pairs that share somebody are no independent draws: images of one identity are alike in what makes them easy or hard, so
    identities are drawn. Where identity i is drawn c_i times, a genuine pair of it weighs c_i and an impostor pair of i and j
    c_i c_j, as if each copy were a person of its own whose pairs with the other copies are left out.

    Args:
        scores: float, n; similarities.
        same: bool, n.
        first, second: int, n; the identity of each end, from 0; equal in genuine pairs.

    Source: Bolle, Ratha and Pankanti, Error analysis of pattern recognition systems: the subsets bootstrap (CVIU 2004).
    """

    def __init__(self, scores: np.ndarray, same: np.ndarray, first: np.ndarray, second: np.ndarray) -> None:
        # Impostors by rising similarity: the weight of those below a genuine pair is then a difference of running sums.
        others = np.flatnonzero(~same)
        others = others[np.argsort(scores[others], kind="stable")]
        # By similarity, too, so that the sums are read in the order in which they lie.
        mine = np.flatnonzero(same)
        mine = mine[np.argsort(scores[mine], kind="stable")]
        self._first, self._second, self._genuine = first[others], second[others], first[mine]
        self._below, self._upto = (np.searchsorted(scores[others], scores[mine], side) for side in ("left", "right"))

    def resampled(self, counts: np.ndarray) -> np.ndarray:
        """AUC of each resample.

        Args:
            counts: int, resamples x identities: how often each is drawn.

        Returns:
            float64, one a resample; NaN where it has no genuine or no impostor pair.
        """
        rows = max(1, _CELLS // (len(self._first) + len(self._genuine)))
        parts = [self._resampled(np.asarray(counts[start : start + rows], np.float64)) for start in range(0, len(counts), rows)]
        return np.concatenate([np.zeros(0), *parts])

    def _resampled(self, counts: np.ndarray) -> np.ndarray:
        weights = np.zeros((len(counts), len(self._first) + 1))
        np.multiply(counts.take(self._first, axis=1), counts.take(self._second, axis=1), out=weights[:, 1:])
        running = np.cumsum(weights, axis=1, out=weights)
        genuine = counts.take(self._genuine, axis=1)
        # Ties by half.
        won = (genuine * (running.take(self._below, axis=1) + running.take(self._upto, axis=1))).sum(axis=1) / 2
        pairs = genuine.sum(axis=1) * running[:, -1]
        return np.divide(won, pairs, out=np.full(len(counts), np.nan), where=pairs > 0)
