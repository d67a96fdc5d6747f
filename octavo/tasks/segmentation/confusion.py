"""Confusion matrices of pixels, and what follows from them."""

from __future__ import annotations

import numpy as np

__all__ = ["confusion", "ious", "mean_iou"]


def confusion(truth: np.ndarray, found: np.ndarray, classes: int) -> np.ndarray:
    """How often a pixel of one class (row) was called another (column).

    Args:
        truth, found: class of every pixel, of one shape; pixels that are below 0 in one of them do not count.
        classes: how many there are.

    Returns:
        int64, classes x classes.
    """
    counts = (truth >= 0) & (found >= 0)
    places = truth[counts].astype(np.int64) * classes + found[counts]
    return np.bincount(places, minlength=classes * classes).reshape(classes, classes)


def ious(matrix: np.ndarray) -> np.ndarray:
    """Intersection over union of each class, NaN for one that is neither there nor found.

    Args:
        matrix: ... x classes x classes.
    """
    matrix = np.asarray(matrix, np.float64)
    right = np.diagonal(matrix, axis1=-2, axis2=-1)
    union = matrix.sum(-1) + matrix.sum(-2) - right
    return np.divide(right, union, out=np.full(right.shape, np.nan), where=union > 0)


def mean_iou(matrix: np.ndarray) -> np.ndarray:
    """mIoU: the mean over the classes that are there or found, from one matrix over all images; 0 where there is none."""
    each = ious(matrix)
    there = ~np.isnan(each)
    return np.where(there, each, 0).sum(-1) / np.maximum(there.sum(-1), 1)
