"""Which found box is which annotated one: COCO's greedy assignment (https://cocodataset.org/#detection-eval, pycocotools).

Class by class, found boxes by falling score take the annotated box they overlap most, once each. A crowd can be taken again and
again; what takes it is neither right nor wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.images.objects import Objects
from octavo.tasks.detection.boxes import Boxes

__all__ = ["IOUS", "SAME", "Matches", "matched", "overlaps"]

# mAP@[.5:.95]
IOUS = np.linspace(0.5, 0.95, 10)
# Of two boxes that are the same object.
SAME = np.array([0.5])
_FREE = -1


@dataclass(frozen=True)
class Matches:
    """Of one image.

    Attributes:
        found: int64, n; places in the found boxes that were considered, by falling score within their class.
        partner: int64, thresholds x n; the annotated box that each takes, -1 for none.
        iou: float64, n; with the partner at the lowest threshold, 0 where there is none.
    """

    found: np.ndarray
    partner: np.ndarray
    iou: np.ndarray


def overlaps(first: np.ndarray, second: np.ndarray, crowd: np.ndarray | None = None) -> np.ndarray:
    """Intersection over union of every pair of boxes, n x m.

    Args:
        first, second: n x 4 and m x 4 corners.
        crowd: bool, m; with these, the intersection is held against the first box alone, as COCO does.
    """
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2)
    own, other = ((boxes[:, 2:] - boxes[:, :2]).clip(0).prod(axis=1) for boxes in (first, second))
    union = own[:, None] + other[None, :] - shared
    if crowd is not None:
        union = np.where(crowd[None, :], own[:, None], union)
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def matched(found: Boxes, truth: Objects, thresholds: np.ndarray = IOUS, most: int | None = None) -> Matches:
    """Assign one image's found boxes to its annotated ones.

    Args:
        found: by falling score.
        truth: the annotated boxes.
        thresholds: least IoU of a pair, rising, one assignment each.
        most: found boxes of a class that count; None for all.
    """
    # As pycocotools: an IoU of exactly 1 must pass a threshold of 1.
    bounds = np.minimum(thresholds, 1 - 1e-10)
    places, partners, best = [], [], []
    for kind in np.unique(found.classes):
        mine = np.flatnonzero(found.classes == kind)[:most]
        theirs = np.flatnonzero(truth.classes == kind)
        partner = np.full((len(bounds), len(mine)), _FREE)
        iou = np.zeros(len(mine))
        if len(theirs):
            crowd = truth.crowd[theirs]
            table = overlaps(found.xyxy[mine], truth.xyxy[theirs], crowd)
            taken = np.zeros((len(bounds), len(theirs)), bool)
            for place in np.flatnonzero((table >= bounds[0]).any(axis=1)):
                row = table[place]
                for level, bound in enumerate(bounds):
                    choice = _best(row, (row >= bound) & ~taken[level] & ~crowd)
                    if choice == _FREE:
                        choice = _best(row, (row >= bound) & crowd)
                    if choice == _FREE:
                        continue
                    taken[level, choice] = True
                    partner[level, place] = theirs[choice]
                    if level == 0:
                        iou[place] = row[choice]
        places.append(mine)
        partners.append(partner)
        best.append(iou)
    if not places:
        return Matches(np.zeros(0, np.int64), np.zeros((len(bounds), 0), np.int64), np.zeros(0))
    return Matches(np.concatenate(places), np.concatenate(partners, axis=1), np.concatenate(best))


def _best(row: np.ndarray, allowed: np.ndarray) -> int:
    """The place of the largest allowed value, the last of equal ones; -1 where none is allowed."""
    if not allowed.any():
        return _FREE
    reverse = np.where(allowed, row, -1.0)[::-1]
    return len(row) - 1 - int(reverse.argmax())
