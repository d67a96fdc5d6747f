"""Boxes in shares of the input, 0 to 1, in a layout that has pixels otherwise: how they are told, and the families that read them.

Exports to TensorFlow divide boxes by the input's size (YOLOv5's, ultralytics'), and so do many graphs that end in suppression.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from octavo.tasks.detection.boxes import Boxes
from octavo.tasks.detection.family import Family, Rows, Size
from octavo.tasks.outputs import Outputs

__all__ = ["SUFFIX", "are_even", "cover", "in_both_units", "middles", "y_first"]

# Behind the name of the family that has pixels.
SUFFIX = "-shares"
# No share reaches that, though boxes may leave the image; in pixels boxes of nearly every photo do (as TensorRT's sample of
# EfficientDet tells them, too: samples/python/efficientdet/infer.py).
_FAR = 2.0
# How far from evenly spread a grid's centres may be, in the mean; all at one place they are a quarter at least.
_UNEVEN = 0.15
# How much farther x runs than y, at least, for a grid to be told by it, and of how many boxes the mean centre is taken: each lies
# somewhere about its cell.
_FARTHER, _TOGETHER = 1.5, 8


def in_both_units(family: Family) -> tuple[Family, Family]:
    """A family of boxes in pixels, and the one of the same layout whose boxes are in shares: what fits one does not fit the other.

    Args:
        family: fits in either unit, and reads pixels.

    Returns:
        Both, pixels first. Where a graph chooses boxes and has found none, both fit, and nothing is told.
    """

    def told(outputs: Outputs, size: Size) -> bool | None:
        """Whether boxes are in shares; None where there is nothing to tell by."""
        if family.rows is None:
            return _chosen_in_shares(family.boxes(outputs, size, 0.0).xyxy)
        return are_even(middles(family.rows(outputs, size)[0]))

    allowed = family.allows or family.fits

    def may_be_shares(outputs: Outputs, size: Size) -> bool:
        """Whether boxes may be in shares though a grid's are not evenly spread: most are where shares are."""
        if family.rows is None:
            return told(outputs, size) is not False
        return bool((np.abs(middles(family.rows(outputs, size)[0])) <= _FAR).mean() > 0.5)

    def rows(outputs: Outputs, size: Size) -> Rows:
        corners, scores = family.rows(outputs, size)
        return corners * _extent(size).astype(corners.dtype), scores

    def decode(outputs: Outputs, size: Size, least: float) -> Boxes:
        found = family.decode(outputs, size, least)
        return replace(found, xyxy=found.xyxy * _extent(size))

    def tells(outputs: Outputs, size: Size) -> bool:
        return told(outputs, size) is not None

    pixels = replace(
        family,
        fits=lambda outputs, size: family.fits(outputs, size) and told(outputs, size) is not True,
        allows=lambda outputs, size: allowed(outputs, size) and told(outputs, size) is not True,
        tells=tells,
    )
    shares = replace(
        family,
        name=family.name + SUFFIX,
        layout=f"as {family.name}, with boxes in shares of the input (0 to 1)",
        fits=lambda outputs, size: family.fits(outputs, size) and told(outputs, size) is not False,
        allows=lambda outputs, size: allowed(outputs, size) and may_be_shares(outputs, size),
        rows=rows if family.rows else None,
        decode=decode if family.decode else None,
        tells=tells,
    )
    return pixels, shares


def are_even(centres: np.ndarray) -> bool:
    """Whether a grid's centres, n x 2, are in shares: each lies near its cell, and so all are evenly spread over 0 to 1.

    The order of cells does not matter, which exporters have in several ways.
    """
    if not (np.abs(centres) <= _FAR).all():
        return False
    even = (np.arange(len(centres)) + 0.5) / len(centres)
    return bool(np.abs(np.sort(centres, axis=0) - even[:, None]).mean(axis=0).max() < _UNEVEN)


def cover(centres: np.ndarray, size: Size) -> bool:
    """Whether they are a grid's in either unit, evenly spread over the whole input."""
    return are_even(centres) or are_even(centres / size[::-1])


def y_first(corners: np.ndarray, size: Size) -> bool:
    """Whether y stands before x in a grid's corners, n x 4 in either unit; cells come line by line.

    So x runs to and fro where y goes down once: it is told by how far centres move from row to row, in pixels whichever of the two
    is which.
    """
    centres = middles(corners)[: len(corners) // _TOGETHER * _TOGETHER]
    means = centres.reshape(-1, _TOGETHER, 2).mean(axis=1, dtype=np.float64)
    first, second = np.abs(np.diff(means, axis=0)).sum(axis=0)
    # What moves both alike (boxes point to objects) does so in pixels.
    return bool(min(second * size[1] / (first * size[0]), second * size[0] / (first * size[1])) > _FARTHER) if first else False


def middles(corners: np.ndarray) -> np.ndarray:
    """Of corners n x 4 the centres, n x 2."""
    return (corners[:, :2] + corners[:, 2:]) / 2


def _chosen_in_shares(corners: np.ndarray) -> bool | None:
    # Rows that hold no box are zeros.
    return bool(np.abs(corners).max() < _FAR) if corners.any() else None


def _extent(size: Size) -> np.ndarray:
    """Width, height, width, height."""
    return np.tile(size[::-1], 2)
