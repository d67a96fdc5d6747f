"""How well similarities tell genuine pairs from impostors (verification), and who is nearest (identification).

A pair is accepted where its similarity reaches a threshold. FAR is the share of impostor pairs that are accepted (the ROC curve's
false positive rate), TAR that of genuine pairs (its true positive rate).
"""

from __future__ import annotations

import numpy as np

__all__ = ["FARS", "area", "best_accuracy", "equal_error_rate", "folds_of", "nearest", "roc", "similarities", "tar_at"]

# False accept rates that TAR is given at, by the metric's key.
FARS = {"tar_1e-1": 1e-1, "tar_1e-2": 1e-2, "tar_1e-3": 1e-3, "tar_1e-4": 1e-4}
FOLDS = 10
# Similarities computed at once: bounds the memory.
_CELLS = 16_000_000


def similarities(vectors: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Inner products of pairs of rows, float64: cosines where vectors are of length 1."""
    found = np.empty(len(first), np.float64)
    rows = max(1, _CELLS // max(1, vectors.shape[1]))
    for start in range(0, len(first), rows):
        part = slice(start, start + rows)
        found[part] = np.einsum("nd,nd->n", vectors[first[part]].astype(np.float64), vectors[second[part]].astype(np.float64))
    return found


def roc(scores: np.ndarray, same: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """FAR and TAR at every threshold, from the highest (infinite, nothing is accepted) down; all float64.

    Args:
        scores: n similarities, of genuine and of impostor pairs.
        same: bool, n.
    """
    # Imported here: whoever reads embeddings alone needs no scikit-learn.
    from sklearn.metrics import roc_curve

    return roc_curve(same, scores, drop_intermediate=False)


def area(far: np.ndarray, tar: np.ndarray) -> float:
    """Area under the ROC curve: how often a genuine pair is more alike than an impostor pair, ties by half."""
    from sklearn.metrics import auc

    return float(auc(far, tar))


def tar_at(far: np.ndarray, tar: np.ndarray, bound: float) -> float:
    """The most genuine pairs that any threshold accepts with FAR at most `bound`; nothing is interpolated."""
    return float(tar[far <= bound].max())


def equal_error_rate(far: np.ndarray, tar: np.ndarray) -> float:
    """Where the ROC curve has as many false accepts as false rejects, by rates; interpolated between its two nearest points."""
    apart = far - (1 - tar)
    place = int(np.argmax(apart >= 0))
    before, after = apart[place - 1], apart[place]
    share = before / (before - after)
    return float(far[place - 1] + share * (far[place] - far[place - 1]))


def folds_of(same: np.ndarray, seed: int = 0) -> np.ndarray | None:
    """Seeded folds of pairs that bring none: 10, or as many as there are pairs of the rarer kind; both kinds in equal shares.

    Returns:
        int64, n; None where that leaves fewer than two.
    """
    count = min(FOLDS, int(same.sum()), int((~same).sum()))
    if count < 2:
        return None
    generator, fold = np.random.default_rng(seed), np.empty(len(same), np.int64)
    for kind in (True, False):
        places = np.flatnonzero(same == kind)
        fold[generator.permutation(places)] = np.arange(len(places)) % count
    return fold


def best_accuracy(scores: np.ndarray, same: np.ndarray, fold: np.ndarray) -> float | None:
    """Accuracy at thresholds that were chosen on other pairs: for each fold the best one of all other folds; the folds' mean.

    Genuine and impostor pairs weigh the same: it is the mean of the rates at which both are told right, which is the share of right
    answers where there are as many of the one as of the other, as in LFW. Else a model that refuses all would look good.

    Args:
        scores, same: n.
        fold: int, n.

    Returns:
        None where no fold has both kinds outside of it.

    Source: Huang et al., Labeled Faces in the Wild (2007), view 2.
    """
    found = []
    for held in np.unique(fold):
        here = fold == held
        if not same[~here].any() or same[~here].all():
            continue
        far, tar, thresholds = roc(scores[~here], same[~here])
        best = int(np.argmax(tar - far))
        # Between the last pair that is accepted and the first that is not.
        threshold = (thresholds[best] + thresholds[min(best + 1, len(thresholds) - 1)]) / 2
        accepted = scores[here] >= threshold
        found.append(np.mean([(accepted == same[here])[same[here] == kind].mean() for kind in np.unique(same[here])]))
    return float(np.mean(found)) if found else None


def nearest(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each row the other row with the largest inner product, the first of equals.

    Args:
        vectors: float, n x D; n >= 2.

    Returns:
        Its place (int64, n) and the product (float64, n).
    """
    count = len(vectors)
    whole = vectors.astype(np.float64)
    places, values = np.empty(count, np.int64), np.empty(count, np.float64)
    rows = max(1, _CELLS // count)
    for start in range(0, count, rows):
        products = whole[start : start + rows] @ whole.T
        here = np.arange(len(products))
        products[here, here + start] = -np.inf
        places[start : start + rows] = products.argmax(axis=1)
        values[start : start + rows] = products[here, places[start : start + rows]]
    return places, values
