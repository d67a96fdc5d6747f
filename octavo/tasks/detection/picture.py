"""Boxes on a photo, coloured by whether they have a partner."""

from __future__ import annotations

import cv2
import numpy as np

from octavo.images.objects import Objects
from octavo.tasks.detection.boxes import Boxes
from octavo.tasks.detection.matching import SAME, matched

__all__ = ["drawn_found", "drawn_truth"]

# RGB
RIGHT, WRONG, MISSED, CROWD = (40, 170, 60), (220, 40, 40), (250, 150, 0), (150, 150, 150)


def drawn_found(photo: np.ndarray, scale: float, found: Boxes, truth: Objects) -> tuple[str, np.ndarray]:
    """Found boxes, green where they have an annotated partner, red where not, and in orange what was missed.

    Args:
        photo: uint8, rows x columns x 3, RGB, resized by `scale`.
        scale: pixels of `photo` per pixel of the boxes.
        found: by falling score.
        truth: what is there.

    Returns:
        The figures in words, and the picture.
    """
    pairs = matched(found, truth, SAME)
    partner = np.full(len(found), -1)
    partner[pairs.found] = pairs.partner[0]
    missed = np.setdiff1d(np.flatnonzero(~truth.crowd), partner)
    canvas = photo.copy()
    _draw(canvas, scale, truth.xyxy[missed], MISSED)
    in_crowd = (partner >= 0) & truth.crowd[partner] if len(truth) else np.zeros(len(found), bool)
    for chosen, colour in (((partner >= 0) & ~in_crowd, RIGHT), (in_crowd, CROWD), (partner < 0, WRONG)):
        _draw(canvas, scale, found.xyxy[chosen], colour)
    right = int(((partner >= 0) & ~in_crowd).sum())
    return f"{right} right, {int((partner < 0).sum())} false, {len(missed)} missed", canvas


def drawn_truth(photo: np.ndarray, scale: float, found: Boxes, truth: Objects) -> tuple[str, np.ndarray]:
    """Annotated boxes, green where they were found, orange where missed, grey where they are crowds; see `drawn_found`."""
    partner = matched(found, truth, SAME).partner[0]
    hit = np.isin(np.arange(len(truth)), partner)
    canvas = photo.copy()
    for chosen, colour in ((hit & ~truth.crowd, RIGHT), (~hit & ~truth.crowd, MISSED), (truth.crowd, CROWD)):
        _draw(canvas, scale, truth.xyxy[chosen], colour)
    return f"ground truth: {int((~truth.crowd).sum())}", canvas


def _draw(canvas: np.ndarray, scale: float, xyxy: np.ndarray, colour: tuple[int, int, int]) -> None:
    for left, top, right, bottom in np.rint(xyxy * scale).astype(int).tolist():
        cv2.rectangle(canvas, (left, top), (right, bottom), colour, 2)
