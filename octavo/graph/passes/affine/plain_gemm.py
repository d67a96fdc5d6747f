"""Gemm's factors go into its constants, and its first input is turned by a node of its own."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.arithmetic import is_op
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import forget, new_constant

__all__ = ["PlainGemmPass"]


class PlainGemmPass(NodePass):
    """Rewrite `alpha A' B + beta C` of constant B and C as `A' (alpha B) + (beta C)`, and A' (`transA`) as a Transpose of A.

    Integer kernels have neither factor, and take A as it is; nor does a norm or factor behind such a layer fold into it.

    1. B, and C where there is one and beta is not 1, are float32 constants; other users keep theirs. C goes where beta is 0.
    2. A is a float32 activation; a Transpose that has turned it before goes where nothing else reads that.

    The node keeps its name. Exact but for a rounding of each weight by alpha, each bias by beta.
    """

    op_type = "Gemm"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        alpha, beta = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
        turned = node.attributes.get_int("transA", 0)
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        scaled = [(1, alpha), (2, beta)] if bias is not None else [(1, alpha)]
        scaled = [(place, factor) for place, factor in scaled if factor != 1.0]
        if not (scaled or turned) or not all(_is_constant(node.inputs[place]) for place in {1, *(place for place, _ in scaled)}):
            return False
        if node.inputs[0] is None or node.inputs[0].dtype != ir.DataType.FLOAT or _is_constant(node.inputs[0]):
            return False
        for place, factor in scaled:
            before, name = node.inputs[place], f"{node.name}.{'weights' if place == 1 else 'bias'}"
            values = ir.convenience.get_const_tensor(before).numpy().astype(np.float64) * factor
            made = new_constant(model, name, values.astype(np.float32)) if factor or place == 1 else None
            node.replace_input_with(place, made)
            forget(model, before)
        if turned:
            _turn(model, node)
        for name in ("alpha", "beta", "transA"):
            node.attributes.pop(name, None)
        return True


def _turn(model: ir.Model, node: ir.Node) -> None:
    """Put a Transpose before a node's first input, or take one away."""
    value = node.inputs[0]
    before = value.producer()
    if is_op(before, "Transpose"):
        node.replace_input_with(0, before.inputs[0])
        if not value.uses() and not value.is_graph_output():
            model.graph.remove(before, safe=True)
        return
    turn = ir.node("Transpose", [value], {"perm": [1, 0]}, name=f"{node.name}.turned")
    turn.outputs[0].name, turn.outputs[0].type = f"{node.name}.turned", value.type
    turn.outputs[0].shape = ir.Shape(list(value.shape)[::-1]) if value.shape is not None else None
    model.graph.insert_before(node, turn)
    node.replace_input_with(0, turn.outputs[0])


def _is_constant(value: ir.Value | None) -> bool:
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return tensor is not None and tensor.dtype == ir.DataType.FLOAT
