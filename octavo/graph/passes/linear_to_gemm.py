"""A linear layer of vectors written as MatMul and Add becomes the Gemm that it is."""

from __future__ import annotations

import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of

__all__ = ["LinearToGemmPass"]


class LinearToGemmPass(NodePass):
    """Rewrite `Add(MatMul(x, w), bias)` as `Gemm(x, w, bias)`.

    ONNX Runtime does the same while loading, and before it looks for Q/DQ: a Gemm with a float bias has no integer kernel. As a
    Gemm from the start it gets an int32 bias, which also takes back what rounding shifts.

    1. x and w have two dimensions, and w and bias are constant float32. Tensors of more dimensions: `BiasApartPass`.
    2. The bias is a vector of one value a column.
    3. Nobody else reads the product.

    The Gemm has the MatMul's name and the Add's output.
    """

    op_type = "Add"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        for place in (0, 1):
            value, bias = node.inputs[place], node.inputs[1 - place]
            product = value.producer() if value is not None else None
            if product is None or product.op_type != "MatMul" or len(list(value.uses())) != 1 or value.is_graph_output():
                continue
            weights, shift, shape = constant_of(product.inputs[1]), constant_of(bias), product.inputs[0].shape
            if weights is None or shift is None or shape is None or len(shape) != 2 or weights.ndim != 2:
                continue
            if shift.shape != weights.shape[1:] or shift.dtype != weights.dtype or bias.dtype != ir.DataType.FLOAT:
                continue
            gemm = ir.node("Gemm", [product.inputs[0], product.inputs[1], bias], name=product.name)
            take_place(model, [product, node], [gemm], node.outputs[0], gemm.outputs[0])
            return True
        return False
