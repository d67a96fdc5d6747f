"""The bias behind an integer MatMul, kept from making a float Gemm of the two."""

from __future__ import annotations

import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, new_constant

__all__ = ["BiasApartPass"]

# ONNX Runtime takes a bias of one or two dimensions.
_TAKEN = 2
_ZERO = 2


class BiasApartPass(NodePass):
    """Give the constant of `Add(MatMul(x, w), bias)` three dimensions where x and w are restored codes of 8 bits.

    ONNX Runtime 1.31 joins a MatMul and the Add of a vector in a Gemm (MatMulAddFusion) before it looks for Q/DQ, and a Gemm with a
    float bias has no integer kernel: linear layers as torch exports them ran in float, their weights restored at every run. Apart,
    the product is a MatMulIntegerToFloat.

    1. x has three dimensions or more: the sum then has the shape that it had.
    2. The product has no other reader, or there would be no fusion.
    3. x has codes of 8 bits, uint8 or int8: of 16 bits there is no integer product, and the float Gemm is the fastest.

    The values are the same.
    """

    op_type = "Add"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        for place in (0, 1):
            product, bias = node.inputs[1 - place].producer() if node.inputs[1 - place] is not None else None, node.inputs[place]
            array = constant_of(bias)
            if array is None or array.ndim > _TAKEN or product is None or product.op_type != "MatMul":
                continue
            weights = product.inputs[1].producer()
            shape = product.outputs[0].shape
            if not _is_of_8_bits(product.inputs[0]) or weights is None or weights.op_type != "DequantizeLinear":
                continue
            if shape is None or len(shape) <= _TAKEN:
                continue
            wide = array.reshape(*[1] * (_TAKEN + 1 - array.ndim), *array.shape)
            node.replace_input_with(place, new_constant(model, f"{bias.name}.apart", wide))
            return True
        return False


def _is_of_8_bits(value: ir.Value | None) -> bool:
    """Whether a DequantizeLinear of 8-bit codes that are computed makes a tensor."""
    node = value.producer() if value is not None else None
    if node is None or node.op_type != "DequantizeLinear" or constant_of(node.inputs[0]) is not None:
        return False
    zero = constant_of(node.inputs[2]) if len(node.inputs) > _ZERO else None
    return zero is not None and zero.dtype.itemsize == 1
