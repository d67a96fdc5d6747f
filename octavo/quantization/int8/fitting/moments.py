"""Second moments of what a layer's weights meet: each kernel position's values of an input, as rows of numbers.

From an integer input (codes minus zero point) the moments are whole numbers: no order, partition or number of threads shows in
them. float32 multiplies twice as fast as float64 and holds whole numbers up to 2^24: products of as many rows as cannot exceed that
are exact in it. int32 takes their sums, in half of float64's memory, which takes over where they may not fit (16-bit codes).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from threading import Lock

import numpy as np
import onnx_ir as ir

from octavo.quantization.int8.numbers.weights import channel_axis, weights_of

__all__ = ["Moments", "as_rows", "as_weights", "moment_bytes", "rows_of", "rows_read"]

# Rows wait until they are this share of the columns, so that what waits is little beside the products: of a few rows (3x3 positions
# of 512 channels and 3x3 weights) it takes longer to add the products, 170 MB, than to multiply.
_AT_ONCE = 8
# Rows of moments that are worked on at once: 130 MB are what 4032 columns (3x3 positions of 448 channels) have.
_STRIPE = 64
# The same where products are made: what is added lies in the processor's cache. They are symmetric, and made and held from the
# diagonal on.
_PRODUCTS = 512
# Sums of whole numbers up to this are exact in float32, and up to that in int32.
_EXACT, _WHOLE = 1 << 24, (1 << 31) - 1


class Moments:
    """Mean and covariance of a layer's input rows, per group; images are added one by one, by any thread.

    Args:
        groups, columns: of the layer (`as_rows`).

    Attributes:
        count: rows so far, of each group.
    """

    def __init__(self, groups: int, columns: int) -> None:
        self.count = 0
        self._sum = np.zeros((groups, columns))
        # One block, which goes back to the system when it is let go: stripes by themselves are small enough to stay in the heap.
        self._products = _cut(np.zeros(moment_bytes(groups, columns) // 4, np.int32), groups, columns)
        # No sum of products is larger.
        self._most = 0.0
        self._waiting: list[np.ndarray] = []
        self._lock = Lock()

    def add(self, rows: np.ndarray) -> None:
        """Take in an image's rows, (groups, rows, columns), float32, whole numbers."""
        with self._lock:
            self.count += rows.shape[1]
            self._waiting.append(rows)
            several = self._taken() if sum(one.shape[1] for one in self._waiting) * _AT_ONCE >= rows.shape[2] else None
        if several is not None:
            self._multiply(several)

    def _taken(self) -> np.ndarray:
        several = np.concatenate(self._waiting, axis=1) if len(self._waiting) > 1 else self._waiting[0]
        self._waiting = []
        return several

    def _multiply(self, rows: np.ndarray) -> None:
        # Any two numbers' product is at most this.
        most = max(1.0, -float(rows.min(initial=0.0)), float(rows.max(initial=0.0))) ** 2
        count = int(_EXACT // most)
        with self._lock:
            self._most += most * rows.shape[1]
            if self._most > _WHOLE and self._products[0].dtype == np.int32:
                self._products = [one.astype(np.float64) for one in self._products]
        if not count:  # 16-bit codes
            rows, count = rows.astype(np.float64), rows.shape[1]
        for place, start in enumerate(range(0, rows.shape[2], _PRODUCTS)):
            stripe = slice(start, start + _PRODUCTS)
            for few in _few(rows, count):
                products = few[..., stripe].transpose(0, 2, 1) @ few[..., start:]
                with self._lock:
                    self._products[place] += products.astype(self._products[place].dtype, copy=False)
        with self._lock:
            self._sum += rows.sum(axis=1, dtype=np.float64)

    def _settle(self) -> None:
        """Take in what waits, once all images were added."""
        if self._waiting:
            self._multiply(self._taken())

    @property
    def mean(self) -> np.ndarray:
        """(groups, columns)."""
        self._settle()
        return self._sum / max(1, self.count)

    def taken(self, *, about_mean: bool) -> np.ndarray:
        """Moments about the mean or about zero, (groups, columns, columns) float64: to be had once, the sums are gone then."""
        mean, size = self.mean, self._sum.shape[1]
        moments = np.empty((*self._sum.shape, size))
        for start in range(0, size, _PRODUCTS):
            stop = start + _PRODUCTS
            np.divide(self._products[start // _PRODUCTS], max(1, self.count), out=moments[:, start:stop, start:])
            moments[:, stop:, start:stop] = moments[:, start:stop, stop:].swapaxes(1, 2)
        self._products = []
        if about_mean:
            for start in range(0, size, _STRIPE):
                stripe = slice(start, start + _STRIPE)
                moments[:, stripe] -= mean[:, stripe, None] * mean[:, None, :]
        return moments


def moment_bytes(groups: int, columns: int) -> int:
    """What `Moments` hold of a layer with so many groups and columns."""
    return sum(np.dtype(np.int32).itemsize * math.prod(shape) for shape in _stripes(groups, columns))


def _stripes(groups: int, columns: int) -> list[tuple[int, int, int]]:
    """Shapes of the products that are held: rows from the diagonal on."""
    return [(groups, min(_PRODUCTS, columns - start), columns - start) for start in range(0, columns, _PRODUCTS)]


def _cut(block: np.ndarray, groups: int, columns: int) -> list[np.ndarray]:
    """The stripes of a vector that holds all of them."""
    shapes = _stripes(groups, columns)
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(block, ends[:-1]), shapes, strict=True)]


def _few(rows: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """Some rows at a time."""
    for start in range(0, rows.shape[1], count):
        yield rows[:, start : start + count]


def as_weights(node: ir.Node, rows: np.ndarray) -> np.ndarray:
    """(groups, rows, columns) back in the shape of a layer's weights; the inverse of `as_rows`."""
    shape = weights_of(node).shape
    if node.op_type == "Conv":
        return rows.reshape(shape)
    return rows[0] if channel_axis(node) == 0 else rows[0].T


def as_rows(node: ir.Node, weights: np.ndarray) -> np.ndarray:
    """A layer's weights as (groups, rows, columns): a row is an output channel, a column what `rows_of` has there."""
    if node.op_type == "Conv":
        groups = _groups(node)
        return weights.reshape(groups, weights.shape[0] // groups, -1)
    return (weights if channel_axis(node) == 0 else weights.T)[None]


def rows_read(node: ir.Node) -> Hashable:
    """What tells the rows of two layers of one input apart: equal where `rows_of` gives both the same."""
    if node.op_type != "Conv":
        return node.op_type
    names = ("strides", "dilations", "pads", "auto_pad", "group")
    return node.op_type, weights_of(node).shape[2:], *(str(node.attributes.get(name)) for name in names)


def rows_of(node: ir.Node, values: np.ndarray, most: int, turn: int = 0) -> np.ndarray:
    """What each output position of a layer multiplies with its weights.

    Args:
        node: a Conv, Gemm or MatMul.
        values: its input, zero where padding is.
        most: output positions at most; evenly spread ones are taken where there are more, at least one of each image of a batch.
        turn: begins the spread at another position, so that images do not all show the same ones.

    Returns:
        (groups, positions, columns), of the input's dtype.
    """
    if node.op_type != "Conv":
        rows = values.reshape(-1, values.shape[-1])
        return rows[_spread(len(rows), most, turn)][None]
    kernel = weights_of(node).shape[2:]
    strides, dilations = (_ints(node, name, [1] * len(kernel)) for name in ("strides", "dilations"))
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    padded = np.pad(values, [(0, 0), (0, 0), *_padding(node, values.shape[2:], spans, strides)])
    inside = padded.shape[2:]
    sizes = [(size - span) // step + 1 for size, span, step in zip(inside, spans, strides, strict=True)]
    # Of a batch (what stands in each box of an image) from each as many.
    places = np.unravel_index(_spread(int(np.prod(sizes)), -(-most // max(1, len(values))), turn), sizes)
    within = np.unravel_index(np.arange(int(np.prod(kernel))), tuple(kernel))
    starts, offsets = (
        np.ravel_multi_index([at * by for at, by in zip(axes, steps, strict=True)], inside)
        for axes, steps in ((places, strides), (within, dilations))
    )
    # (images, channels, positions, kernel): images of a batch count as positions.
    taken = padded.reshape(*padded.shape[:2], int(np.prod(inside))).take(starts[:, None] + offsets, axis=2)
    images, channels, positions = taken.shape[:3]
    groups = _groups(node)
    taken = taken.reshape(images, groups, channels // groups, positions, len(offsets))
    # Sizes by name: an image without boxes has none of them.
    columns = channels // groups * len(offsets)
    return np.ascontiguousarray(taken.transpose(1, 0, 3, 2, 4)).reshape(groups, images * positions, columns)


def _spread(count: int, most: int, turn: int) -> np.ndarray:
    step = max(1, -(-count // most))
    return np.arange(turn % step, count, step) if step > 1 else np.arange(count)


def _groups(node: ir.Node) -> int:
    return node.attributes["group"].as_int() if "group" in node.attributes else 1


def _ints(node: ir.Node, name: str, default: list[int]) -> list[int]:
    return list(node.attributes[name].as_ints()) if name in node.attributes else default


def _padding(node: ir.Node, sizes: tuple[int, ...], spans: list[int], strides: list[int]) -> list[tuple[int, int]]:
    how = node.attributes["auto_pad"].as_string() if "auto_pad" in node.attributes else "NOTSET"
    if how == "VALID":
        return [(0, 0)] * len(spans)
    if how.startswith("SAME"):
        whole = [
            max(0, (-(-size // step) - 1) * step + span - size) for size, span, step in zip(sizes, spans, strides, strict=True)
        ]
        less, more = [total // 2 for total in whole], [total - total // 2 for total in whole]
        return list(zip(*((less, more) if how == "SAME_UPPER" else (more, less)), strict=True))
    pads = _ints(node, "pads", [0] * (2 * len(spans)))
    return list(zip(pads[: len(spans)], pads[len(spans) :], strict=True))
