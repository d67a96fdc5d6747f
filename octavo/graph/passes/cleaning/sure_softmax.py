"""Softmax that needs no guard against rows without any finite value."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.operators import LAYERS, MOVES
from octavo.graph.passes.arithmetic import is_op
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, pruned

__all__ = ["SureSoftmaxPass"]


class SureSoftmaxPass(NodePass):
    """Rewrite `Where(IsNaN(s), c, s)` as `s = Softmax(x)`, where nothing masks x.

    torch's exporter guards all attention so, because a row whose mask is -inf everywhere gives 0 / 0. Both nodes go through the
    largest tensors of a network, value by value.

    1. x is made of products (MatMul, Einsum, Gemm, Conv) by nodes that move values, sums, differences, products, and quotients with
       a constant. Its constants are finite, and no divisor is 0. Anything else may mask: the guard stays.
    2. Nothing but such Wheres reads the IsNaN, and they are no outputs of the graph.

    The result is the same to the last bit where x does not overflow; where it does, the row is NaN, as it is in the formula.
    """

    op_type = "IsNaN"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        guarded = node.inputs[0]
        if not is_op(guarded.producer(), "Softmax") or not _is_bare(guarded.producer().inputs[0]):
            return False
        uses = [(use.node, use.idx) for use in node.outputs[0].uses()]
        if not uses or node.outputs[0].is_graph_output():
            return False
        for reader, place in uses:
            if not is_op(reader, "Where") or place or reader.inputs[2] is not guarded or reader.outputs[0].is_graph_output():
                return False
        for reader, _ in uses:
            reader.outputs[0].replace_all_uses_with(guarded)
        pruned(model, [*(reader for reader, _ in uses), node])
        return True


def _is_bare(value: ir.Value | None) -> bool:
    """Whether a value is finite wherever its products are."""
    left, seen = [value], set()
    while left:
        value = left.pop()
        if value is None or value in seen:
            continue
        seen.add(value)
        array, node = constant_of(value), value.producer()
        if array is not None:
            if not np.isfinite(array).all():
                return False
        elif node is None or node.domain not in ("", "ai.onnx"):
            return False
        elif node.op_type == "Div":
            divisor = constant_of(node.inputs[1])
            if divisor is None or not np.all(divisor):
                return False
            left += node.inputs
        elif node.op_type in ("Add", "Mul", "Sub"):
            left += node.inputs
        elif node.op_type in MOVES:
            # The others say where values go.
            left.append(node.inputs[0])
        elif node.op_type not in LAYERS:
            return False
    return True
