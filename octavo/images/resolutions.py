"""Input sizes beside the model's own: their names in metrics, and whether a graph takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.errors import ParamsError

__all__ = ["named", "refuse_fixed"]


def named(size: tuple[int, int]) -> str:
    """`640x480`, height first, as keys of the metrics have it."""
    return f"{size[0]}x{size[1]}"


def refuse_fixed(sizes: Sequence[tuple[int, int]], shape: Sequence[Any], layout: str) -> None:
    """Refuse resolutions of a graph that takes one size.

    Args:
        sizes: (height, width) each.
        shape: the input's, an int where a dimension is fixed.
        layout: `nchw` or `nhwc`.

    Raises:
        ParamsError: a size differs from a fixed dimension.
    """
    fixed = tuple(shape[layout.index(letter)] for letter in "hw") if len(shape) == 4 else (None, None)
    for size in sizes:
        if any(isinstance(dim, int) and dim != asked for dim, asked in zip(fixed, size, strict=True)):
            raise ParamsError(
                f"`benchmark.resolutions` has {named(size)}, the graph takes {fixed[0]} x {fixed[1]}",
                "export it with dynamic height and width (`source.dynamic_size: true` for torch), or remove the resolutions",
            )
