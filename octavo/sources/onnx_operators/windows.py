"""Windows that slide over an image: their padding, and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from octavo.sources.onnx_operators.node import Builder, Call, Node, Unsupported

__all__ = ["POOLS", "pads_of"]

MAX_POOL = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
AVERAGE_POOL = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
MAX_OF = (F.max_pool1d, F.max_pool2d, F.max_pool3d)
AVERAGE_OF = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)
GLOBAL_AVERAGE = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
GLOBAL_MAX = (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)


def pads_of(node: Node, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> tuple[list[int], list[int]]:
    """Padding at the start and at the end of each spatial axis.

    Raises:
        Unsupported: `auto_pad` depends on the image's size, which is not known.
    """
    spatial, auto = len(kernel), node.string("auto_pad", "NOTSET")
    if auto == "VALID":
        return [0] * spatial, [0] * spatial
    if auto == "NOTSET":
        pads = node.ints("pads", [0] * 2 * spatial)
        return pads[:spatial], pads[spatial:]
    sizes = (node.shape(0) or [None] * (spatial + 2))[2:]
    totals = []
    for size, length, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        if size is None and stride > 1:
            raise Unsupported(f"`auto_pad` {auto} with an image of unknown size")
        reach = (length - 1) * dilation + 1
        totals.append(max((-(-(size or 1) // stride) - 1) * stride + reach - (size or 1), 0))
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return (small, large) if auto == "SAME_UPPER" else (large, small)


@dataclass(frozen=True)
class Window:
    """Each list has one number a spatial axis; `ceil` counts a last window that only begins inside."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    begin: list[int]
    end: list[int]
    ceil: bool

    def fits_torch(self) -> bool:
        """Whether torch's pooling pads like this: the same at both ends, half a window at most."""
        return self.begin == self.end and all(2 * pad <= length for pad, length in zip(self.begin, self.kernel, strict=True))

    def behind(self, image: torch.Tensor) -> list[int]:
        """Padding at the end of each axis of [N, C, ...] with which the last window ends exactly there; it may be negative."""
        found = []
        for place, length in enumerate(self.kernel):
            reach, stride, size = (length - 1) * self.dilations[place] + 1, self.strides[place], image.shape[2 + place]
            room = size + self.begin[place] + self.end[place] - reach
            count = -(-room // stride) + 1 if self.ceil else room // stride + 1
            # A window that begins in the padding at the end does not count.
            if self.ceil and (count - 1) * stride >= size + self.begin[place]:
                count -= 1
            found.append((count - 1) * stride + reach - size - self.begin[place])
        return found


def _window(node: Node) -> Window:
    kernel = node.ints("kernel_shape")
    if kernel is None or not 1 <= len(kernel) <= 3:
        raise Unsupported(f"its window has {len(kernel or ())} axes")
    ones = [1] * len(kernel)
    strides, dilations = node.ints("strides", ones), node.ints("dilations", ones)
    return Window(kernel, strides, dilations, *pads_of(node, kernel, strides, dilations), bool(node.int("ceil_mode", 0)))


def max_pool(node: Node) -> Call:
    """MaxPool."""
    if node.wants(1):
        raise Unsupported("the places of its maxima are read")
    window = _window(node)
    if not window.fits_torch():
        return Call(partial(_max_of, window))
    return Call(_torch_pool(MAX_POOL, window, dilation=tuple(window.dilations), ceil_mode=window.ceil))


def average_pool(node: Node) -> Call:
    """AveragePool."""
    window, counted = _window(node), bool(node.int("count_include_pad", 0))
    if max(window.dilations) > 1:
        raise Unsupported("an average over a dilated window")
    if not window.fits_torch():
        return Call(partial(_average_of, window, counted))
    # Without padding both ways of counting are the same; torch's default is the one that others look for.
    return Call(_torch_pool(AVERAGE_POOL, window, ceil_mode=window.ceil, count_include_pad=counted or not any(window.begin)))


def _torch_pool(modules: Sequence[type[nn.Module]], window: Window, **options: Any) -> nn.Module:
    sides = (tuple(numbers) for numbers in (window.kernel, window.strides, window.begin))
    return modules[len(window.kernel) - 1](*sides, **options)


def _around(begin: Sequence[int], end: Sequence[int]) -> list[int]:
    """As F.pad takes it: the last axis first."""
    return [length for pair in reversed(list(zip(begin, end, strict=True))) for length in pair]


def _max_of(window: Window, image: torch.Tensor) -> torch.Tensor:
    padded = F.pad(image, _around(window.begin, window.behind(image)), value=float("-inf"))
    return MAX_OF[len(window.kernel) - 1](padded, window.kernel, window.strides, 0, window.dilations)


def _average_of(window: Window, counted: bool, image: torch.Tensor) -> torch.Tensor:
    behind, average = window.behind(image), AVERAGE_OF[len(window.kernel) - 1]
    inside = torch.ones((1, 1, *image.shape[2:]), dtype=image.dtype, device=image.device)
    # What counts: the image, its padding where that counts too, and never what lies behind the padding.
    inside = F.pad(inside, _around(window.begin, window.end), value=float(counted))
    inside = F.pad(inside, _around([0] * len(behind), [new - old for new, old in zip(behind, window.end, strict=True)]))
    total = average(F.pad(image, _around(window.begin, behind)), window.kernel, window.strides)
    return total / average(inside, window.kernel, window.strides)


def _global(modules: Sequence[type[nn.Module]], node: Node) -> Call:
    spatial = node.rank() - 2
    if not 1 <= spatial <= len(modules):
        raise Unsupported(f"it has {spatial} spatial axes")
    return Call(modules[spatial - 1](1))


POOLS: dict[str, Builder] = {
    "AveragePool": average_pool,
    "GlobalAveragePool": partial(_global, GLOBAL_AVERAGE),
    "GlobalMaxPool": partial(_global, GLOBAL_MAX),
    "MaxPool": max_pool,
}
