"""Boxes on a photo, coloured by whether they have a partner, each with its class and its score."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from octavo.images.objects import Objects
from octavo.tasks.detection.boxes import Boxes
from octavo.tasks.detection.matching import SAME, matched

__all__ = ["drawn_found", "drawn_truth"]

# RGB
RIGHT, WRONG, MISSED, CROWD = (40, 170, 60), (220, 40, 40), (250, 150, 0), (150, 150, 150)
WHITE = (255, 255, 255)
# Of a box's words: their font and size, and the pixels around them.
_FONT, _SIZE, _EDGE = cv2.FONT_HERSHEY_SIMPLEX, 0.4, 2
# Left, top, right, bottom, in pixels of the picture.
_Place = tuple[int, int, int, int]


def drawn_found(
    photo: np.ndarray, scale: float, found: Boxes, truth: Objects, names: Sequence[str] | None = None
) -> tuple[str, np.ndarray]:
    """Found boxes, green where they have an annotated partner, red where not, and in orange what was missed.

    Args:
        photo: uint8, rows x columns x 3, RGB, resized by `scale`.
        scale: pixels of `photo` per pixel of the boxes.
        found: by falling score.
        truth: what is there.
        names: of the classes, by index; the index stands for what has none.

    Returns:
        The figures in words, and the picture.
    """
    pairs = matched(found, truth, SAME)
    partner = np.full(len(found), -1)
    partner[pairs.found] = pairs.partner[0]
    missed = np.setdiff1d(np.flatnonzero(~truth.crowd), partner)
    in_crowd = (partner >= 0) & truth.crowd[partner] if len(truth) else np.zeros(len(found), bool)
    right, wrong = (partner >= 0) & ~in_crowd, partner < 0
    told = [f"{_name(kind, names)} {score:.2f}" for kind, score in zip(found.classes, found.scores, strict=True)]
    layers = [(truth.xyxy[missed], MISSED, [_name(kind, names) for kind in truth.classes[missed]])]
    for chosen, colour in ((right, RIGHT), (in_crowd, CROWD), (wrong, WRONG)):
        layers.append((found.xyxy[chosen], colour, [told[place] for place in np.flatnonzero(chosen)]))
    return f"{right.sum()} right, {wrong.sum()} false, {len(missed)} missed", _drawn(photo, scale, layers)


def drawn_truth(
    photo: np.ndarray, scale: float, found: Boxes, truth: Objects, names: Sequence[str] | None = None
) -> tuple[str, np.ndarray]:
    """Annotated boxes, green where they were found, orange where missed, grey where they are crowds; see `drawn_found`."""
    partner = matched(found, truth, SAME).partner[0]
    hit = np.isin(np.arange(len(truth)), partner)
    layers = []
    for chosen, colour in ((hit & ~truth.crowd, RIGHT), (~hit & ~truth.crowd, MISSED), (truth.crowd, CROWD)):
        layers.append((truth.xyxy[chosen], colour, [_name(kind, names) for kind in truth.classes[chosen]]))
    return f"ground truth: {int((~truth.crowd).sum())}", _drawn(photo, scale, layers)


def _name(kind: int, names: Sequence[str] | None) -> str:
    return names[kind] if names is not None and 0 <= kind < len(names) else str(kind)


def _drawn(photo: np.ndarray, scale: float, layers: Sequence[tuple[np.ndarray, tuple[int, int, int], Sequence[str]]]) -> np.ndarray:
    """A copy with boxes n x 4, each layer in its colour, the last on top; their words lie on all of them."""
    canvas = photo.copy()
    boxes = [(np.rint(xyxy * scale).astype(int).tolist(), colour, words) for xyxy, colour, words in layers]
    for corners, colour, _ in boxes:
        for left, top, right, bottom in corners:
            cv2.rectangle(canvas, (left, top), (right, bottom), colour, 2)
    labels: list[tuple[_Place, str, tuple[int, int, int]]] = []
    # What lies on top looks for its place first.
    for corners, colour, words in reversed(boxes):
        for box, told in zip(corners, words, strict=True):
            labels.append((_place(canvas, box, told, [place for place, _, _ in labels]), told, colour))
    for place, told, colour in reversed(labels):
        _write(canvas, place, told, colour)
    return canvas


def _place(canvas: np.ndarray, box: _Place, words: str, taken: Sequence[_Place]) -> _Place:
    """Where a box's words go: above it, within it at its top or its bottom, or below, where no others lie; on the picture."""
    (width, height), below = cv2.getTextSize(words, _FONT, _SIZE, 1)
    wide, high = min(width + 2 * _EDGE, canvas.shape[1]), height + below + _EDGE
    places = [
        (max(0, min(left, canvas.shape[1] - wide)), max(0, min(top, canvas.shape[0] - high)))
        for top in (box[1] - high, box[1], box[3] - high, box[3])
        for left in (box[0], box[2] - wide)
    ]
    whole = [(left, top, left + wide, top + high) for left, top in places]
    return next((place for place in whole if not any(_meet(place, other) for other in taken)), whole[0])


def _write(canvas: np.ndarray, place: _Place, words: str, colour: tuple[int, int, int]) -> None:
    """In a size that does not depend on the photo's; what is wider than the picture is made smaller."""
    left, top, right, bottom = place
    cv2.rectangle(canvas, (left, top), (right, bottom), colour, -1)
    (width, _), below = cv2.getTextSize(words, _FONT, _SIZE, 1)
    size = _SIZE * min(1.0, (right - left - 2 * _EDGE) / width)
    if size > 0:
        cv2.putText(canvas, words, (left + _EDGE, bottom - below), _FONT, size, WHITE, 1, cv2.LINE_AA)


def _meet(first: _Place, second: _Place) -> bool:
    return first[0] < second[2] and second[0] < first[2] and first[1] < second[3] and second[1] < first[3]
