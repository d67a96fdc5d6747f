"""Arithmetic on sizes: what a graph makes of `Shape`, computed with Python's numbers and not with tensors.

Sizes are numpy arrays of objects: an int, a bool or a float each, or torch's symbol for one (`torch.SymInt`), which is how a batch
of any size stays open in `torch.export`. A tensor in their place would make the shape depend on data, which cannot be traced.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from octavo.sources.onnx_operators.node import Node, Unsupported

__all__ = ["ON_SIZES", "READS_SHAPE", "as_tensor", "backwards", "sizes"]

Sizes = np.ndarray

# Of these the output is sizes whatever the input is.
READS_SHAPE = frozenset({"Shape", "Size"})


def sizes(values: Any) -> Sizes:
    """Sizes from a number, a sequence or an array of numbers."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    return np.array(values, dtype=object)


def as_tensor(values: Sizes, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The same as a tensor, for the place where sizes meet data."""
    flat = values.reshape(-1).tolist()
    if not any(isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) for value in flat):
        return torch.tensor(values.tolist(), dtype=dtype, device=device)
    scalars = [torch.scalar_tensor(value, dtype=dtype, device=device) for value in flat]
    return torch.stack(scalars).reshape(values.shape)


def _rounded(node: Node) -> Callable[[Any], Any]:
    """Numbers as the graph's float32 holds them: 10 x 0.7 is 7 there, and less in float64, which a Floor makes 6."""
    if node.node.outputs[0].dtype == ir.DataType.DOUBLE:
        return lambda value: value
    return lambda value: float(np.float32(value)) if isinstance(value, float) else value


def _each(function: Callable[..., Any], arguments: int) -> Callable[[Node], Callable[..., Sizes]]:
    """A function of numbers for each element, broadcast."""

    def build(node: Node) -> Callable[..., Sizes]:
        rounded = _rounded(node)
        broadcast = np.frompyfunc(lambda *values: rounded(function(*values)), arguments, 1)
        return lambda *values: np.asarray(broadcast(*values), dtype=object)

    return build


def _of_all(function: Callable[[Any, Any], Any]) -> Callable[[Node], Callable[..., Sizes]]:
    """A function of two numbers over any number of inputs."""
    broadcast = np.frompyfunc(function, 2, 1)
    return lambda node: lambda *values: np.asarray(reduce(broadcast, values), dtype=object)  # noqa: ARG005


def _quotient(first: Any, second: Any) -> Any:
    """ONNX divides integers as C does, towards zero."""
    if isinstance(first, float | torch.SymFloat) or isinstance(second, float | torch.SymFloat):
        return first / second
    return first // second if (first >= 0) == (second > 0) else -(-first // second)


def _shape(node: Node) -> Callable[[Any], Sizes]:
    # As Python's slices, and so are the bounds that lie outside.
    start, end = node.int("start", 0), node.int("end", np.iinfo(np.int64).max)
    return lambda value: sizes(list(value.shape)[start:end])


def _size(node: Node) -> Callable[[Any], Sizes]:  # noqa: ARG001
    return lambda value: sizes(reduce(operator.mul, value.shape, 1))


def _cast(node: Node) -> Callable[[Sizes], Sizes]:
    to = ir.DataType(node.int("to", ir.DataType.INT64.value))
    if to == ir.DataType.BOOL:
        return lambda value: np.asarray(np.frompyfunc(bool, 1, 1)(value), dtype=object)
    convert = torch.sym_float if to.is_floating_point() else torch.sym_int
    return lambda value: np.asarray(np.frompyfunc(convert, 1, 1)(value), dtype=object)


def _gather(node: Node) -> Callable[[Sizes, Sizes], Sizes]:
    axis = node.int("axis", 0)
    return lambda value, places: sizes(np.take(value, places.astype(np.int64), axis=axis))


def _concat(node: Node) -> Callable[..., Sizes]:
    return partial(_joined, node.int("axis", 0))


def _joined(axis: int, *values: Sizes) -> Sizes:
    return np.concatenate(values, axis=axis)


def _axes(node: Node, given: Sizes | None) -> tuple[int, ...] | None:
    axes = node.ints("axes") if given is None else given.reshape(-1).tolist()
    return None if axes is None else tuple(axes)


def _unsqueeze(node: Node) -> Callable[..., Sizes]:
    return lambda value, axes=None: np.expand_dims(value, _axes(node, axes))


def _squeeze(node: Node) -> Callable[..., Sizes]:
    return lambda value, axes=None: np.squeeze(value, _axes(node, axes))


def backwards(start: int, end: int, step: int, length: int) -> range:
    """Places on an axis of `length` that a Slice with a negative step takes; its bounds may lie outside."""
    first = min(max(start + length if start < 0 else start, 0), length - 1)
    return range(first, min(max(end + length if end < 0 else end, -1), length - 1), step)


def _slice(node: Node) -> Callable[..., Sizes]:  # noqa: ARG001
    def run(value: Sizes, starts: Sizes, ends: Sizes, axes: Sizes | None = None, steps: Sizes | None = None) -> Sizes:
        for place, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            axis = place if axes is None else axes[place]
            length, step = value.shape[axis], 1 if steps is None else steps[place]
            places = range(length)[start:end:step] if step > 0 else backwards(start, end, step, length)
            value = np.take(value, list(places), axis=axis)
        return value

    return run


def _reshape(node: Node) -> Callable[[Sizes, Sizes], Sizes]:
    if node.int("allowzero", 0):
        raise Unsupported("a Reshape of sizes with `allowzero`")
    return lambda value, shape: value.reshape(
        [value.shape[place] if size == 0 else size for place, size in enumerate(shape.tolist())]
    )


def _reduce(function: Callable[[Any, Any], Any]) -> Callable[[Node], Callable[..., Sizes]]:
    def build(node: Node) -> Callable[..., Sizes]:
        keep = bool(node.int("keepdims", 1))
        broadcast = np.frompyfunc(function, 2, 1)

        def run(value: Sizes, axes: Sizes | None = None) -> Sizes:
            chosen = _axes(node, axes) or tuple(range(value.ndim))
            for axis in sorted((axis % value.ndim for axis in chosen), reverse=True):
                value = np.asarray(broadcast.reduce(value, axis=axis, keepdims=keep), dtype=object)
            return value

        return run

    return build


def _split(node: Node) -> Callable[..., list[Sizes]]:
    axis, count = node.int("axis", 0), len(node.node.outputs)

    def run(value: Sizes, lengths: Sizes | None = None) -> list[Sizes]:
        if lengths is None:
            length = -(-value.shape[axis] // count)
            ends: Sequence[int] = [length * place for place in range(1, count)]
        else:
            ends = np.cumsum(lengths.astype(np.int64))[:-1].tolist()
        return np.split(value, ends, axis=axis)

    return run


# Operator -> from the node to a function from sizes (and constants) to sizes. What is not here makes a tensor of its sizes.
ON_SIZES: dict[str, Callable[[Node], Callable[..., Any]]] = {
    "Shape": _shape,
    "Size": _size,
    "Cast": _cast,
    "Gather": _gather,
    "Concat": _concat,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Slice": _slice,
    "Reshape": _reshape,
    "Split": _split,
    "Identity": lambda node: lambda value: value,  # noqa: ARG005
    "Add": _each(operator.add, 2),
    "Sub": _each(operator.sub, 2),
    "Mul": _each(operator.mul, 2),
    "Div": _each(_quotient, 2),
    "Mod": _each(operator.mod, 2),
    "Neg": _each(operator.neg, 1),
    "Abs": _each(abs, 1),
    "Floor": _each(lambda value: torch.sym_float(math.floor(value)), 1),
    "Ceil": _each(lambda value: torch.sym_float(math.ceil(value)), 1),
    "Min": _of_all(torch.sym_min),
    "Max": _of_all(torch.sym_max),
    # Symbols are compared, not what they stand for: `batch == -1` is false for every batch.
    "Equal": _each(lambda first, second: bool(first == second), 2),
    "Less": _each(lambda first, second: bool(first < second), 2),
    "LessOrEqual": _each(lambda first, second: bool(first <= second), 2),
    "Greater": _each(lambda first, second: bool(first > second), 2),
    "GreaterOrEqual": _each(lambda first, second: bool(first >= second), 2),
    "Not": _each(operator.not_, 1),
    "And": _each(lambda first, second: bool(first and second), 2),
    "Or": _each(lambda first, second: bool(first or second), 2),
    "Where": _each(lambda condition, first, second: first if condition else second, 3),
    "ReduceProd": _reduce(operator.mul),
    "ReduceSum": _reduce(operator.add),
    "ReduceMax": _reduce(torch.sym_max),
    "ReduceMin": _reduce(torch.sym_min),
}
