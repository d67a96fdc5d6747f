"""Average precision over many resamples of the images at once, from matches made once: what its bootstrap interval needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from octavo.images.objects import Objects
from octavo.tasks.detection.boxes import Boxes
from octavo.tasks.detection.matching import IOUS, matched

__all__ = ["Curves"]

RECALLS = np.linspace(0.0, 1.0, 101)
# Found boxes of a class that count in one image, as COCO has it.
_MOST = 100
# Resamples times boxes of one class at once: bounds the memory.
_CELLS = 4_000_000


@dataclass(frozen=True)
class _Class:
    """Found boxes of one class over all images, by falling score."""

    image: np.ndarray
    # thresholds x n
    right: np.ndarray
    wrong: np.ndarray
    # images: annotated boxes that are no crowd
    there: np.ndarray


class Curves:
    """Matches of a set of images, from which AP of any resample follows as if its images were copies.

    Equal scores aside: copies of an image lie together or apart then, and COCO ranks them by their place.

    Only right boxes matter: between two of them precision falls, so that its envelope is made of the values at right ones. An image
    that is drawn k times weighs its boxes k times.

    Args:
        truth, found: of each image.
    """

    def __init__(self, truth: Sequence[Objects], found: Sequence[Boxes]) -> None:
        self.images = len(truth)
        pairs = [matched(boxes, objects, most=_MOST) for boxes, objects in zip(found, truth, strict=True)]
        image = np.repeat(np.arange(self.images), [len(pair.found) for pair in pairs])
        kinds = _joined([boxes.classes[pair.found] for boxes, pair in zip(found, pairs, strict=True)], np.int64)
        scores = _joined([boxes.scores[pair.found] for boxes, pair in zip(found, pairs, strict=True)], np.float64)
        partner = np.concatenate([np.zeros((len(IOUS), 0), np.int64), *(pair.partner for pair in pairs)], axis=1)
        crowded = np.zeros_like(partner, bool)
        for place, (pair, objects) in enumerate(zip(pairs, truth, strict=True)):
            if objects.crowd.any():
                crowded[:, image == place] = (pair.partner >= 0) & objects.crowd[pair.partner]
        owner = np.repeat(np.arange(self.images), [len(objects) for objects in truth])
        kind_of = _joined([objects.classes for objects in truth], np.int64)
        whole = ~_joined([objects.crowd for objects in truth], bool)
        self.each: list[_Class] = []
        for kind in np.unique(kind_of[whole]):
            mine = np.flatnonzero(kinds == kind)
            # Stable, images in their order: equal scores rank as COCO's evaluation ranks them.
            mine = mine[np.argsort(-scores[mine], kind="stable")]
            there = np.bincount(owner[whole & (kind_of == kind)], minlength=self.images)
            hit = partner[:, mine] >= 0
            self.each.append(_Class(image[mine], hit & ~crowded[:, mine], ~hit, there))

    def resampled(self, counts: np.ndarray) -> np.ndarray:
        """AP@[.5:.95] of each resample.

        Args:
            counts: int, resamples x images: how often each image is drawn.

        Returns:
            float64, one a resample; 0 where it holds no annotated box.

        Source: COCO's evaluation (https://cocodataset.org/#detection-eval): 101 recalls, mean over IoU and the classes there are.
        """
        widest = max((each.right.shape[1] for each in self.each), default=0)
        rows = max(1, _CELLS // max(1, widest))
        parts = [self._resampled(np.asarray(counts[start : start + rows], np.float64)) for start in range(0, len(counts), rows)]
        return _joined(parts, np.float64)

    def _resampled(self, counts: np.ndarray) -> np.ndarray:
        total, kinds = np.zeros(len(counts)), np.zeros(len(counts))
        for each in self.each:
            expected = counts @ each.there
            there = expected > 0
            kinds += there
            for level in range(len(IOUS)):
                total[there] += _precision(each, level, counts[there], expected[there]) / len(IOUS)
        return np.divide(total, kinds, out=np.zeros_like(total), where=kinds > 0)


def _precision(each: _Class, level: int, counts: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Interpolated precision, mean over the recalls, of each resample."""
    right = np.flatnonzero(each.right[level])
    if not len(right):
        return np.zeros(len(counts))
    wrong = np.flatnonzero(each.wrong[level][: right[-1]])
    before = np.searchsorted(right, wrong)
    table = sparse.csr_matrix((np.ones(len(wrong)), (each.image[wrong], before)), shape=(counts.shape[1], len(right)))
    false = np.cumsum(counts @ table, axis=1)
    true = np.cumsum(counts[:, each.image[right]], axis=1)
    precision = np.divide(true, true + false, out=np.zeros_like(true), where=true > 0)
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    # How many of the recalls are reached at each right box; a recall's precision is that of the box that first reaches it.
    reached = np.searchsorted(RECALLS, true / expected[:, None], side="right")
    new = np.diff(reached, axis=1, prepend=0)
    return (envelope * new).sum(axis=1) / len(RECALLS)


def _joined(parts: Sequence[np.ndarray], kind: type) -> np.ndarray:
    return np.concatenate([np.zeros(0, kind), *parts])
