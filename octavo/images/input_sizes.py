"""Input sizes beside the model's own and batches of several images, and whether a graph takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np

from octavo.errors import ModelRunError, ParamsError
from octavo.images.dataset import Images, Item
from octavo.params.grammar import Input, ModelSpec

__all__ = ["further_sizes", "named", "refuse_fixed_batch", "refuse_fixed_sides", "refuse_untaken"]

Shape = Sequence[int | str | None]


def named(size: tuple[int, int]) -> str:
    """`640x480`, height first, as keys of the metrics have it."""
    return f"{size[0]}x{size[1]}"


def further_sizes(spec: ModelSpec) -> list[tuple[int, int]]:
    """`benchmark.resolutions` as (height, width), each once; the model's own size, which is measured anyway, is none of them."""
    return [size for size in dict.fromkeys(spec.benchmark.sizes) if size != spec.input.size]


def refuse_untaken(spec: ModelSpec, shape: Shape, items: list[Item], run: Callable[[np.ndarray], object]) -> None:
    """Refuse `benchmark.resolutions` and `benchmark.batch` that a graph does not take, before anything is measured.

    Args:
        spec: the model's block.
        shape: of the graph's image input, batch first; symbols and None are dynamic.
        items: images, of which one is run at each size: sides that are left open may still have to be multiples of a stride.
        run: runs FP32 on an image's tensor.

    Raises:
        ParamsError: a size differs from a fixed dimension, or the graph fails on it; or as `refuse_fixed_batch`.
    """
    refuse_fixed_batch(shape, spec.benchmark.batch)
    sides = _sides(shape, spec.input)
    for size in further_sizes(spec):
        told = f"`benchmark.resolutions` has {named(size)}"
        if any(isinstance(side, int) and side != asked for side, asked in zip(sides, size, strict=True)):
            raise ParamsError(
                f"{told}, the graph takes {'x'.join(map(str, sides))} alone",
                "export it with dynamic height and width (`source.dynamic_size: true` for torch), give each size an entry "
                "of its own with its own export (`<<: *name`, another `input.size`), or remove the resolutions",
            )
        for _, tensor in islice(Images(items, spec.input.at(size), "skip"), 1):
            try:
                run(tensor)
            except ModelRunError as error:
                raise ParamsError(
                    f"{told}, which the graph does not take though its height and width are open: {error.problem}",
                    "correct or remove it: many graphs take multiples of their stride alone (32, say)",
                ) from error


def refuse_fixed_batch(shape: Shape, batches: Sequence[int]) -> None:
    """Refuse batches of several images for a graph that takes one at a time.

    Args:
        shape: of the graph's image input, batch first; symbols and None are dynamic. A graph of another fixed batch takes no image
            alone, and fails wherever it is run.
        batches: `benchmark.batch`.

    Raises:
        ParamsError: naming the setting and both ways out.
    """
    several = [batch for batch in batches if batch != 1]
    if shape[0] == 1 and several:
        raise ParamsError(
            f"`benchmark.batch` has {', '.join(map(str, several))}, the graph takes one image at a time",
            "set `benchmark.batch: [1]`, or open the graph's batch: `source.dynamic_batch: true`",
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
