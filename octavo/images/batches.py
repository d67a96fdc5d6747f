"""Images in one batch."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle, islice

import numpy as np

__all__ = ["batch_of"]


def batch_of(tensors: Iterable[np.ndarray], count: int) -> np.ndarray:
    """One batch of `count` images, from the first that many, repeated where there are fewer.

    With `resize.stride` photos come out of different heights and widths, which no batch can hold: those of the first one's shape
    are taken, repeated.

    Args:
        tensors: one image each, batch dimension 1; at least one.
        count: how many the batch holds.

    Returns:
        count x the shape of the first without its batch dimension; contiguous.
    """
    found = list(islice(tensors, count))
    alike = [tensor for tensor in found if tensor.shape == found[0].shape]
    return np.concatenate(list(islice(cycle(alike), count)))
