"""Boxes on their way from a detector's raw outputs to a photo, and suppression of what overlaps."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from octavo.images.frame import Frame

__all__ = ["Boxes", "corners", "suppressed"]

# What reaches suppression at most: a broken model scores everything, and comparing all pairs is quadratic.
CANDIDATES = 30_000
# Suppression begins with so many candidates, and takes so many times more where they were too few.
_FIRST, _MORE = 4096, 4


@dataclass(frozen=True)
class Boxes:
    """Some boxes, each with one class; by falling score once they come out of `suppressed` or `best`.

    Attributes:
        xyxy: float64, n x 4, corners in pixels.
        scores: float64, n.
        classes: int64, n; the model's own index.
    """

    xyxy: np.ndarray
    scores: np.ndarray
    classes: np.ndarray

    @classmethod
    def above(cls, xyxy: np.ndarray, scores: np.ndarray, least: float) -> Boxes:
        """Every pair of box and class whose score is above `least`.

        Args:
            xyxy: n x 4.
            scores: n x classes; NaN counts as 0.
            least: a score.
        """
        place, kind = np.nonzero(np.nan_to_num(scores, nan=0.0) > least)
        return cls.of(xyxy[place], scores[place, kind], kind)

    @classmethod
    def of(cls, xyxy: np.ndarray, scores: np.ndarray, classes: np.ndarray) -> Boxes:
        """From arrays of any number type; coordinates that are not finite become 0, so that such a box has no area."""
        finite = np.nan_to_num(np.asarray(xyxy, np.float64).reshape(-1, 4), posinf=0.0, neginf=0.0)
        return cls(finite, np.asarray(scores, np.float64).reshape(-1), np.asarray(classes, np.int64).reshape(-1))

    def __len__(self) -> int:
        return len(self.scores)

    def taken(self, places: np.ndarray) -> Boxes:
        """Those at some places, or where a mask is true."""
        return Boxes(self.xyxy[places], self.scores[places], self.classes[places])

    def best(self, most: int) -> Boxes:
        """At most so many, by falling score; equal ones in the order they came."""
        return self.taken(np.argsort(-self.scores, kind="stable")[:most])

    def on_photo(self, frame: Frame) -> Boxes:
        """From pixels of the network's input to the photo's, clipped to it."""
        return Boxes(frame.back(self.xyxy), self.scores, self.classes)


def corners(centre: np.ndarray, size: np.ndarray) -> np.ndarray:
    """N x 4 corners of boxes given by centre (x, y) and size (width, height), n x 2 each."""
    return np.concatenate([centre - size / 2, centre + size / 2], axis=1)


def suppressed(boxes: Boxes, iou: float, most: int, *, across: bool = False, whole: bool = False) -> Boxes:
    """Non-maximum suppression class by class (OpenCV's); a box may come back under several classes.

    Args:
        boxes: candidates.
        iou: of two boxes of one class that overlap more, the lower one goes.
        most: how many come back at most.
        across: boxes of different classes suppress each other, too.
        whole: a side counts both of the pixels that it ends at, as Caffe has it.

    Returns:
        By falling score; of equal ones those first that came first.
    """
    boxes = boxes.best(CANDIDATES)
    count = _FIRST
    while True:
        # Greedy: no box gives way to one below it, so that the first of the best are the first of all.
        kept = _survivors(boxes.taken(np.arange(min(count, len(boxes)))), iou, across=across, more=int(whole))
        if len(kept) >= most or count >= len(boxes):
            return boxes.taken(kept[:most])
        count *= _MORE


def _survivors(boxes: Boxes, iou: float, *, across: bool, more: int) -> np.ndarray:
    """Places of the boxes that stay, of some by falling score; ascending. `more` is added to their sides."""
    xywh = np.concatenate([boxes.xyxy[:, :2], boxes.xyxy[:, 2:] - boxes.xyxy[:, :2] + more], axis=1)
    kinds = np.zeros_like(boxes.classes) if across else boxes.classes
    survivors = [np.zeros(0, np.int64)]
    # Class by class: OpenCV's batched form compares every pair of boxes, whatever their classes.
    for kind in np.unique(kinds):
        members = np.flatnonzero(kinds == kind)
        # Ranks in place of scores, which may be logits below the least that it takes.
        kept = cv2.dnn.NMSBoxes(xywh[members], np.arange(len(members), 0, -1, dtype=np.float32), 0.0, iou)
        survivors.append(members[np.asarray(kept, np.int64).reshape(-1)])
    return np.sort(np.concatenate(survivors))
