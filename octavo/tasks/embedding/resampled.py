"""The area under the ROC curve over many resamples of the identities at once, from similarities sorted once."""

from __future__ import annotations

import numpy as np
from scipy import sparse

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
        first, second: int, n; the identity of each end, 0 .. identities - 1; equal in genuine pairs.
        identities: how many there are.

    Source: Bolle, Ratha and Pankanti, Error analysis of pattern recognition systems: the subsets bootstrap (CVIU 2004).
    """

    def __init__(self, scores: np.ndarray, same: np.ndarray, first: np.ndarray, second: np.ndarray, identities: int) -> None:
        # Only where genuine pairs lie matters: the weight of the impostors below each, ties by half.
        values, slot = np.unique(scores[same], return_inverse=True)
        others = scores[~same]
        after = np.searchsorted(values, others, side="right")
        tied = np.searchsorted(values, others, side="left") < after
        ends = np.sort(np.stack([first[~same], second[~same]], axis=1), axis=1)
        self.ends, group = np.unique(ends, axis=0, return_inverse=True)
        group = group.reshape(-1)
        # One column more, for impostors above all genuine pairs.
        shape = (len(self.ends), len(values) + 1)
        halves = np.where(tied, 0.5, 1.0)
        rows, columns = np.concatenate([group, group[tied]]), np.concatenate([after, after[tied] - 1])
        weights = np.concatenate([halves, halves[tied]])
        self._below = sparse.csr_matrix((weights, (rows, columns)), shape=shape)
        self._genuine = sparse.csr_matrix((np.ones(len(slot)), (first[same], slot)), shape=(identities, shape[1]))

    def resampled(self, counts: np.ndarray) -> np.ndarray:
        """AUC of each resample.

        Args:
            counts: int, resamples x identities: how often each is drawn.

        Returns:
            float64, one a resample; NaN where it has no genuine or no impostor pair.
        """
        rows = max(1, _CELLS // max(self._below.shape))
        parts = [self._resampled(np.asarray(counts[start : start + rows], np.float64)) for start in range(0, len(counts), rows)]
        return np.concatenate([np.zeros(0), *parts])

    def _resampled(self, counts: np.ndarray) -> np.ndarray:
        impostors = np.asarray((counts[:, self.ends[:, 0]] * counts[:, self.ends[:, 1]]) @ self._below)
        genuine = np.asarray(counts @ self._genuine)
        below = np.cumsum(impostors, axis=1)
        pairs = genuine.sum(axis=1) * below[:, -1]
        return np.divide((genuine * below).sum(axis=1), pairs, out=np.full(len(counts), np.nan), where=pairs > 0)
