"""Class maps as pictures: in colours over the photo, and where two of them differ."""

from __future__ import annotations

import cv2
import numpy as np

from octavo.images.masks import VOID
from octavo.tasks.score import Panel

__all__ = ["coloured", "difference"]

# Share of the photo that shows through the colours of a panel.
_THROUGH = 0.45
# Colours of pixels whose class changed.
_LOST, _WON, _NEITHER = (220, 0, 0), (0, 150, 0), (230, 180, 0)


def coloured(photo: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The photo under a colour for each class; void stays grey."""
    values = _large(values, photo)
    # Hues a golden angle apart, as far from each other as any number of them can be.
    hues = (np.arange(max(1, int(values.max(initial=0)) + 1)) * 137.508 % 180).astype(np.uint8)
    colours = cv2.cvtColor(np.stack([hues, np.full_like(hues, 200), np.full_like(hues, 230)], 1)[None], cv2.COLOR_HSV2RGB)[0]
    shown = np.where((values == VOID)[:, :, None], np.uint8(128), colours[np.maximum(values, 0)])
    return (photo * _THROUGH + shown * (1 - _THROUGH)).astype(np.uint8)


def difference(photo: np.ndarray, mine: np.ndarray, theirs: np.ndarray, mask: np.ndarray | None) -> Panel:
    """Where two class maps differ: red where the mask says that the second was right, green where the first is, else yellow."""
    apart = mine != theirs
    kinds = apart.astype(np.int16)
    words = f"{apart.mean():.2%} not as FP32"
    if mask is not None:
        lost, won = apart & (theirs == mask), apart & (mine == mask)
        kinds = kinds + lost + 2 * won
        words += f": {lost.mean():.2%} lost (red), {won.mean():.2%} won (green)"
    drawn = (photo * _THROUGH + 255 * (1 - _THROUGH)).astype(np.uint8)
    colours = {1: _NEITHER, 2: _LOST, 3: _WON} if mask is not None else {1: _LOST}
    shown = _large(kinds, photo)
    for kind, colour in colours.items():
        drawn[shown == kind] = colour
    return words, drawn


def _large(values: np.ndarray, photo: np.ndarray) -> np.ndarray:
    return cv2.resize(values, photo.shape[1::-1], interpolation=cv2.INTER_NEAREST)
