"""What an output's values can be, told by the nodes that produce them: shares of 1, or the numbers of so many classes."""

from __future__ import annotations

import onnx_ir as ir

from octavo.graph.nodes import origin
from octavo.graph.operators import JOINS, MOVES
from octavo.graph.passes.qdq import number_of

__all__ = ["classes_told_apart", "in_unit", "is_chosen", "shares_of"]

_TRUTHS = frozenset({"And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or", "Xor"})
_SHARES = _TRUTHS | {"HardSigmoid", "Hardmax", "Sigmoid", "Softmax"}
# What comes out of these lies where their first input lies ...
_KEEPS = MOVES | {"Cast", "CastLike"}
_WITHIN = _KEEPS | frozenset(
    {"AveragePool", "Dropout", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMean", "ReduceMin", "Relu"}
    | {"Upsample"}
)
# ... and of these where all their inputs lie; a product of shares is one.
_TOGETHER = JOINS | frozenset({"Max", "Mean", "Min", "Mul"})


def in_unit(value: ir.Value) -> bool:
    """Whether the graph lets a tensor's values lie in 0..1 alone, whatever its weights and the image are."""
    return shares_of(value) is not None


def shares_of(value: ir.Value) -> frozenset[str] | None:
    """The operators that make a tensor's values lie in 0..1 (none of a constant's); None where the graph lets others be."""
    left, seen, makers = [value], set(), set()
    while left:
        value = left.pop()
        if value in seen:
            continue
        seen.add(value)
        inputs = _lies_with(value)
        if inputs is None:
            return None
        left += inputs
        node = value.producer()
        if not inputs and node is not None:
            makers.add(node.op_type)
    return frozenset(makers)


def _lies_with(value: ir.Value) -> list[ir.Value] | None:
    """The tensors that must lie in 0..1 for one to lie there; None where nothing is known of it."""
    constant = ir.convenience.get_const_tensor(value)
    if constant is not None:
        values = constant.numpy()
        return [] if values.dtype.kind in "biuf" and values.min(initial=0) >= 0 and values.max(initial=0) <= 1 else None
    node = value.producer()
    if node is None or node.domain not in ("", "ai.onnx"):
        return None
    present = [one for one in node.inputs if one is not None]
    if node.op_type in _SHARES or (node.op_type == "Clip" and _bounds(node) == (0, 1)):
        return []
    if node.op_type in _WITHIN or (node.op_type == "Resize" and node.attributes.get_string("mode", "nearest") != "cubic"):
        return present[:1]
    if node.op_type == "Pad":
        # The padding's value is the third input.
        return [one for one in (node.inputs[0], *node.inputs[2:3]) if one is not None]
    if node.op_type in _TOGETHER:
        return present
    if node.op_type == "Where":
        return present[1:]
    if node.op_type == "Sub" and number_of(node.inputs[0]) == 1:
        return present[1:]
    return None


def classes_told_apart(value: ir.Value) -> int | None:
    """How many classes a tensor of whole numbers tells apart: the channels that an ArgMax chose among; None where it is of none."""
    node = _maker(value)
    if node is None or node.op_type not in ("ArgMax", *_TRUTHS):
        return None
    if node.op_type in _TRUTHS:
        return 2
    shape, axis = node.inputs[0].shape, node.attributes.get_int("axis", 0)
    size = None if shape is None or not -len(shape) <= axis < len(shape) else shape[axis]
    return size if isinstance(size, int) else None


def is_chosen(value: ir.Value) -> bool:
    """Whether a tensor holds no more than choices: whole numbers, or what ArgMax and comparisons make, as floats too."""
    node = _maker(value)
    whole = value.dtype is not None and not value.dtype.is_floating_point()
    return whole or (node is not None and node.op_type in {"ArgMax", "ArgMin"} | _TRUTHS)


def _maker(value: ir.Value) -> ir.Node | None:
    """The node that makes what a tensor holds, before it was moved or written in another type."""
    source = origin(value, _KEEPS)
    return source.producer() if source is not None else None


def _bounds(node: ir.Node) -> tuple[float | None, float | None]:
    low, high = (number_of(node.inputs[place]) if len(node.inputs) > place else None for place in (1, 2))
    return low, high
