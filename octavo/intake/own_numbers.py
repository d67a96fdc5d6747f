"""Candidates with the images' own mean: networks that were trained on one set alone often subtract that set's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.errors import OctavoError
from octavo.images.dataset import Item
from octavo.images.splits import pick
from octavo.intake.preprocessing import Guessed, for_colour

__all__ = ["own_numbers"]

# Images that the numbers are taken of: beyond, they change in the last digits.
_IMAGES = 64


def own_numbers(first: Guessed, photos: Sequence[Item]) -> list[Guessed]:
    """The first guess with these images' mean, of levels 0..255, and with their mean and standard deviation, of shares 0..1.

    Args:
        first: what is usual; where it is settled or known (`Guessed.firm`), there is nothing else to try.
        photos: those that stand nearest to what the network was trained on, RGB.
    """
    if first.settled or first.firm:
        return []
    sums, squares, count = np.zeros(3), np.zeros(3), 0
    for item in pick(list(photos), _IMAGES, 0):
        try:
            pixels = item.read().reshape(-1, 3)
        except OctavoError:
            continue  # a broken image is for the stages to complain of
        sums += pixels.sum(axis=0, dtype=np.float64)
        squares += np.square(pixels, dtype=np.float64).sum(axis=0)
        count += len(pixels)
    if not count:
        return []
    mean = sums / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 1.0))
    colour = first.keys.get("colour", "rgb")
    found = {
        "0..255 less these images' mean": {"scale": 1, "mean": [round(float(each), 1) for each in mean]},
        "these images' mean and std": {
            "mean": [round(float(each) / 255, 3) for each in mean],
            "std": [round(float(each) / 255, 3) for each in std],
        },
    }
    return [first.with_normalisation(label, for_colour(numbers, colour), colour) for label, numbers in found.items()]
