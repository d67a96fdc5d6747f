"""What a network is worth, in numbers: mIoU, ROC AUC; and how far its raw outputs are from FP32's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from octavo.runtime.noise import sqnr_db

__all__ = ["ChannelNoise", "ConfusionMatrix", "verification_auc"]


class ConfusionMatrix:
    """One confusion matrix over all pixels of all images.

    Args:
        classes: how many; a label of `classes` or more is void and does not count.
    """

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.counts = np.zeros((classes, classes), np.int64)

    def update(self, truth: np.ndarray, found: np.ndarray) -> None:
        """Add an image: two integer arrays of one shape; `found` holds classes only."""
        valid = truth < self.classes
        pairs = truth[valid].astype(np.int64) * self.classes + found[valid].astype(np.int64)
        self.counts += np.bincount(pairs, minlength=self.classes**2).reshape(self.classes, self.classes)

    def iou(self) -> np.ndarray:
        """Intersection over union of each class; NaN for one that is neither there nor found."""
        hit = np.diag(self.counts)
        union = self.counts.sum(axis=0) + self.counts.sum(axis=1) - hit
        with np.errstate(invalid="ignore"):
            return np.where(union > 0, hit / np.maximum(union, 1), np.nan)

    def mean_iou(self) -> float:
        """Mean of `iou` over the classes that occur."""
        return float(np.nanmean(self.iou()))


def verification_auc(embeddings: np.ndarray, people: Sequence[int]) -> float:
    """Area under the ROC curve of "same person" over all pairs, scored by cosine (as the Mann-Whitney statistic, ties by half).

    Args:
        embeddings: photos x features.
        people: whose photo each is.
    """
    unit = embeddings / np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-12)
    first, second = np.triu_indices(len(unit), 1)
    same = np.asarray(people)[first] == np.asarray(people)[second]
    scores = (unit @ unit.T)[first, second]
    others = np.sort(scores[~same])
    below = np.searchsorted(others, scores[same], "left") + np.searchsorted(others, scores[same], "right")
    return float(below.mean() / 2 / len(others))


class ChannelNoise:
    """Signal to noise of raw outputs against FP32's, per output and per channel of it.

    The channels are axis 1 of a rank-4 output (NCHW) and the last axis of any other (boxes x features, logits). A channel that
    is zero throughout in FP32 has no signal and does not count.
    """

    def __init__(self) -> None:
        self.signal: dict[str, np.ndarray] = {}
        self.noise: dict[str, np.ndarray] = {}

    def update(self, reference: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> None:
        """Add one image's outputs."""
        for name, expected in reference.items():
            if not np.issubdtype(expected.dtype, np.floating):
                continue
            rest = tuple(axis for axis in range(expected.ndim) if axis != (1 if expected.ndim == 4 else expected.ndim - 1))
            a, b = expected.astype(np.float64), other[name].astype(np.float64)
            self.signal[name] = self.signal.get(name, 0.0) + np.square(a).sum(axis=rest)
            self.noise[name] = self.noise.get(name, 0.0) + np.square(a - b).sum(axis=rest)

    def metrics(self) -> dict[str, float]:
        """`sqnr_db`: of the worst output; `sqnr_db_channels`: mean over its channels, of the output where that is worst."""
        whole = [sqnr_db(self.signal[name].sum(), self.noise[name].sum()) for name in self.signal]
        channels = [
            float(np.mean([sqnr_db(s, n) for s, n in zip(self.signal[name], self.noise[name], strict=True) if s > 0] or [0.0]))
            for name in self.signal
        ]
        return {"sqnr_db": min(whole), "sqnr_db_channels": min(channels)}
