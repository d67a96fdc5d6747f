"""Input sizes beside the model's own, and whether a graph takes them."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.errors import ParamsError
from octavo.params.grammar import Input

__all__ = ["named", "refuse_fixed_sides", "refuse_fixed_size"]

Shape = Sequence[int | str | None]


def named(size: tuple[int, int]) -> str:
    """`640x480`, height first, as keys of the metrics have it."""
    return f"{size[0]}x{size[1]}"


def refuse_fixed_size(sizes: Sequence[tuple[int, int]], shape: Shape, spec: Input) -> None:
    """Refuse `benchmark.resolutions` that a graph does not take.

    Args:
        sizes: (height, width) each.
        shape: of the graph's image input, batch first; symbols and None are dynamic.
        spec: the model's `input:` block.

    Raises:
        ParamsError: a size differs from a fixed dimension.
    """
    sides = _sides(shape, spec)
    for size in sizes:
        if any(isinstance(side, int) and side != asked for side, asked in zip(sides, size, strict=True)):
            raise ParamsError(
                f"`benchmark.resolutions` has {named(size)}, the graph takes {'x'.join(map(str, sides))} alone",
                "export it with dynamic height and width (`source.dynamic_size: true` for torch), or remove the resolutions",
            )


def refuse_fixed_sides(shape: Sequence[int | str | None], spec: Input, where: str) -> None:
    """Refuse `resize.stride` for a graph whose height or width is a number.

    Args:
        shape: of the graph's image input, batch first; symbols and None are dynamic.
        spec: the model's `input:` block.
        where: its path in params.yaml (`models.yolov5n.input`).

    Raises:
        ParamsError: naming the setting and the graph's sides.
    """
    sides = _sides(shape, spec)
    if spec.resize.stride is not None and any(isinstance(side, int) for side in sides):
        raise ParamsError(
            f"{where}.resize.stride: the inputs follow the photos' aspect ratio, the graph takes {'x'.join(map(str, sides))} alone",
            "remove `stride`, or export the graph with dynamic height and width (`source.dynamic_size: true` for torch)",
        )


def _sides(shape: Shape, spec: Input) -> list[int | str | None]:
    return list(shape)[2:4] if spec.layout == "nchw" else list(shape)[1:3]
