"""How many images an exported graph is compared on, by what its outputs take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

__all__ = ["as_many"]

# Bytes of a graph's outputs that are held, those of its module beside them: Mask R-CNN puts out 100 masks of the image's own size,
# 26 MB of 256x256 pixels and 430 MB of 800x1344.
_HELD = 256 << 20
# Images that are compared whatever their outputs take.
_FEWEST = 2


def as_many(outputs: Iterable[Mapping[str, np.ndarray]]) -> list[Mapping[str, np.ndarray]]:
    """A graph's outputs on the first images: on as many as can be held, two at least.

    Args:
        outputs: on one image after the other; the rest are not asked for.
    """
    found: list[Mapping[str, np.ndarray]] = []
    held = 0
    for each in outputs:
        found.append(each)
        held += sum(value.nbytes for value in each.values())
        if len(found) >= _FEWEST and held >= _HELD:
            break
    return found
