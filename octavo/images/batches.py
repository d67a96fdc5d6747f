"""Tensors as a graph takes them together: images in one batch, and inputs whose sides follow the photo."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle, islice

import numpy as np

from octavo.errors import ParamsError
from octavo.params.grammar import Input

__all__ = ["batch_of", "refuse_fixed_sides"]


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


def refuse_fixed_sides(shape: Sequence[int | str | None], spec: Input, where: str) -> None:
    """Refuse `resize.stride` for a graph whose height or width is a number.

    Args:
        shape: of the graph's image input, batch first; symbols and None are dynamic.
        spec: the model's `input:` block.
        where: its path in params.yaml (`models.yolov5n.input`).

    Raises:
        ParamsError: naming the setting and the graph's sides.
    """
    sides = list(shape)[2:] if spec.layout == "nchw" else list(shape)[1:3]
    if spec.resize.stride is not None and any(isinstance(side, int) for side in sides):
        raise ParamsError(
            f"{where}.resize.stride: the inputs follow the photos' aspect ratio, the graph takes {'x'.join(map(str, sides))} alone",
            "remove `stride`, or export the graph with dynamic height and width",
        )
