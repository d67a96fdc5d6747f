"""Tokens written as rows before a linear layer instead of behind it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.nodes import only_reader
from octavo.graph.passes.arithmetic import is_op
from octavo.graph.passes.folding import bypass, is_private
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, new_constant

__all__ = ["RowsFirstPass"]


class RowsFirstPass(NodePass):
    """Rewrite `BatchNormalization(Reshape(MatMul(x, W), [-1, n]))` with the Reshape before the MatMul, so that the layer takes the
    norm in (`FoldBatchNormPass`).

    Networks of tokens flatten them for torch's BatchNorm1d behind each linear layer (LeViT). Between the two the norm is float, and
    so is every activation and sum behind it.

    1. W is a constant float32 matrix with n columns, and x has its rows along its last axis.
    2. The Reshape (or Flatten) makes a matrix of n columns, and nothing else reads it or what the MatMul puts out.

    The result is the same to the last bit. The MatMul's output takes the name of what the Reshape put out.
    """

    op_type = "BatchNormalization"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        rows = node.inputs[0]
        flat = rows.producer()
        flattens = is_op(flat, "Reshape") or is_op(flat, "Flatten")
        product = flat.inputs[0].producer() if flattens and only_reader(rows) is node else None
        if not is_op(product, "MatMul") or not is_private(model, flat.inputs[0]):
            return False
        value, weights = product.inputs[0], constant_of(product.inputs[1])
        if weights is None or weights.ndim != 2 or weights.dtype != np.float32 or value.shape is None or rows.shape is None:
            return False
        length, width = weights.shape
        if len(value.shape) < 2 or value.shape[-1] != length or len(rows.shape) != 2 or rows.shape[1] != width:
            return False
        sizes = new_constant(model, f"{flat.name}.sizes", np.array([-1, length], np.int64))
        first = ir.node("Reshape", [value, sizes], name=f"{flat.name}.first")
        first.outputs[0].name = f"{rows.name}.first"
        first.outputs[0].dtype, first.outputs[0].shape = value.dtype, ir.Shape([rows.shape[0], length])
        model.graph.insert_before(product, first)
        product.replace_input_with(0, first.outputs[0])
        product.outputs[0].shape = rows.shape
        bypass(model, flat, product.outputs[0])
        return True
