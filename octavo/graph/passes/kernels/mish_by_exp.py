"""Float Mish out of operators that have vector instructions."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.nodes import mish_of
from octavo.graph.passes.arithmetic import is_op
from octavo.graph.passes.node_pass import SpelledPass
from octavo.graph.passes.qdq import new_constant

__all__ = ["MishByExpPass"]

_CONSTANTS = (("one", 1), ("less_two", -2))


class MishByExpPass(SpelledPass):
    """Rewrite Mish (arXiv 1908.08681), `x * Tanh(Softplus(x))`, as `x * (1 - 2 / ((1 + Exp(x))^2 + 1))`.

    ONNX Runtime computes Softplus value by value, at 10 to 20 ns each, and the operator Mish by it. Exp and the arithmetic around
    it take 1.5 ns in all.

    1. The operator, or its three nodes as exporters write them before opset 18, nothing else reading what lies between.
    2. x is float32.

    Where Exp overflows the factor is 1, as it should be. Exact up to float rounding: of results far below zero, which are small, to
    6e-8 |x|.
    """

    opset = 1

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        nodes = [node] if is_op(node, "Mish") else mish_of(node)
        if nodes is None or not _is_float(node.inputs[0]):
            return False
        value = node.inputs[0]
        last = nodes[-1]
        one, less_two = (new_constant(model, f"{last.name}.{name}", np.array(size, np.float32)) for name, size in _CONSTANTS)
        exp = ir.node("Exp", [value], name=f"{last.name}.exp")
        more = ir.node("Add", [exp.outputs[0], one], name=f"{last.name}.more")
        square = ir.node("Mul", [more.outputs[0], more.outputs[0]], name=f"{last.name}.square")
        under = ir.node("Add", [square.outputs[0], one], name=f"{last.name}.under")
        less = ir.node("Div", [less_two, under.outputs[0]], name=f"{last.name}.less")
        factor = ir.node("Add", [less.outputs[0], one], name=f"{last.name}.factor")
        product = ir.node("Mul", [value, factor.outputs[0]], name=last.name)
        inner = [exp, more, square, under, less, factor]
        take_place(model, nodes, [*inner, product], last.outputs[0], product.outputs[0])
        for made in inner:
            made.outputs[0].name = f"{made.name}.y"
            made.outputs[0].dtype, made.outputs[0].shape = ir.DataType.FLOAT, value.shape
        return True


def _is_float(value: ir.Value) -> bool:
    return value.dtype == ir.DataType.FLOAT or is_op(value.producer(), "DequantizeLinear")
