"""A variance that is written as a difference of two means becomes the mean of squared deviations."""

from __future__ import annotations

import onnx_ir as ir

from octavo.graph.nodes import only_reader
from octavo.graph.passes.arithmetic import is_op, number, replace_last
from octavo.graph.passes.node_pass import SpelledPass
from octavo.graph.passes.qdq import constant_of

__all__ = ["VariancePass", "squared"]


class VariancePass(SpelledPass):
    """Rewrite `mean(x * x) - mean(x) * mean(x)` as `mean(d * d)` of `d = x - mean(x)`.

    Flax computes it so (`use_fast_variance`), and TensorFlow did. With x, its square and both means of 8 bits nothing is left of
    the difference: all in INT8 an instance norm had .3 dB so, and 27 by its deviations, which are left in float. Over the last axes
    it is part of a LayerNormalization then (`LayerNormPass`).

    1. Both means are `ReduceMean` of one x, over the same constant axes, which keep their places.
    2. Squares are `Mul(x, x)` or `Pow(x, 2)`; x is float32.
    3. A Relu, or a Max with 0, that alone reads the difference goes: what a float variance has below zero is rounding.

    The result keeps the name of the last node's output; deviations that the graph has already are read, not made again. Exact up to
    float rounding, which is less.
    """

    opset = 13

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        if not is_op(node, "Sub"):
            return False
        whole, mean = squared(node.inputs[1]), node.inputs[0].producer()
        value = squared(mean.inputs[0]) if is_op(mean, "ReduceMean") else None
        average = whole.producer() if whole is not None else None
        if value is None or value.dtype != ir.DataType.FLOAT or not is_op(average, "ReduceMean") or average.inputs[0] is not value:
            return False
        axes = _axes(mean)
        if axes is None or axes != _axes(average):
            return False
        last = _not_negative(node)
        difference = next((use.node for use in value.uses() if _is_less(use.node, value, whole)), None)
        made = []
        if difference is None or not _before(model, difference, node):
            difference = ir.node("Sub", [value, whole], name=f"{node.name}.deviation")
            made.append(difference)
        square = ir.node("Mul", [difference.outputs[0], difference.outputs[0]], name=f"{node.name}.square")
        for one in (*made, square):
            out = one.outputs[0]
            out.name, out.dtype, out.shape = f"{one.name}.out", value.dtype, value.shape
        model.graph.insert_before(node, [*made, square])
        settings = {name: attribute.value for name, attribute in mean.attributes.items()}
        replace_last(model, last, ir.node("ReduceMean", [square.outputs[0], *mean.inputs[1:]], settings, name=node.name))
        return True


def squared(value: ir.Value) -> ir.Value | None:
    """What a value is the square of."""
    node = value.producer()
    if is_op(node, "Pow") and number(node.inputs[1]) == 2:
        return node.inputs[0]
    return node.inputs[0] if is_op(node, "Mul") and node.inputs[0] is node.inputs[1] else None


def _axes(mean: ir.Node) -> list[int] | None:
    """The axes that a ReduceMean goes over, where these are constant and keep their places."""
    given = mean.attributes.get("axes")
    axes = given.as_ints() if given is not None else constant_of(mean.inputs[1]) if len(mean.inputs) > 1 else None
    return [int(axis) for axis in axes] if axes is not None and mean.attributes.get_int("keepdims", 1) else None


def _is_less(node: ir.Node, value: ir.Value, mean: ir.Value) -> bool:
    return is_op(node, "Sub") and node.inputs[0] is value and node.inputs[1] is mean


def _before(model: ir.Model, one: ir.Node, other: ir.Node) -> bool:
    """Whether a node stands before another in the graph."""
    return next(node for node in model.graph if node is one or node is other) is one


def _not_negative(node: ir.Node) -> ir.Node:
    """What alone reads a difference and cuts off what is negative; without, the difference itself."""
    reader = only_reader(node.outputs[0])
    if is_op(reader, "Relu"):
        return reader
    is_cut = is_op(reader, "Max") and len(reader.inputs) == 2 and any(number(value) == 0 for value in reader.inputs)
    return reader if is_cut else node
