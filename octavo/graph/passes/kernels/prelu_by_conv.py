"""Float PRelu out of ops that know the layout of fast convolutions."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import codes_of_input, constant_of, forget, new_constant, shape_of_codes

__all__ = ["PReluByConvPass"]


class PReluByConvPass(NodePass):
    """Rewrite `PRelu(x, s)` as s x + (1 - s) Relu(x), the products by depthwise 1x1 Convs; as LeakyRelu where all slopes are one.

    ONNX Runtime's PRelu branches at each element (up to 5 ns) and knows no blocked layout, so that its neighbours' results are
    reordered before and behind it. Relu, depthwise Conv and the Add that fuses into it keep the layout.

    1. x is 4-D float32; s is constant and has one value a channel, or one in all.
    2. Slopes that differ by row or column, computed slopes, and other ranks are left alone.

    Exact up to the rounding of one product and one sum.
    """

    op_type = "PRelu"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        value, slopes = node.inputs[0], constant_of(node.inputs[1])
        if slopes is None or slopes.dtype != np.float32:
            return False
        found = [slopes.size == 1, slopes.ndim in (3, 4) and slopes.shape[-3] == slopes.size]
        shape = _shape(value)
        if not any(found) or shape is None or len(shape) != 4:
            return False
        vector = slopes.reshape(-1)
        if (vector == vector[0]).all():
            made = [ir.node("LeakyRelu", [value], {"alpha": float(vector[0])}, name=node.name)]
        else:
            above = _named(ir.node("Relu", [value], name=f"{node.name}.above"))
            below = _depthwise(model, value, vector, f"{node.name}.slope")
            rest = _depthwise(model, above.outputs[0], np.float32(1) - vector, f"{node.name}.rest")
            made = [above, below, rest, ir.node("Add", [below.outputs[0], rest.outputs[0]], name=node.name)]
        constant = node.inputs[1]
        take_place(model, [node], made, node.outputs[0], made[-1].outputs[0])
        forget(model, constant)
        return True


def _depthwise(model: ir.Model, value: ir.Value, factors: np.ndarray, name: str) -> ir.Node:
    weights = new_constant(model, f"{name}.weights", factors.reshape(-1, 1, 1, 1))
    return _named(ir.node("Conv", [value, weights], {"group": factors.size, "kernel_shape": [1, 1]}, name=name))


def _named(node: ir.Node) -> ir.Node:
    node.outputs[0].name = f"{node.name}.out"
    return node


def _shape(value: ir.Value) -> list[object] | None:
    if value.shape is not None:
        return list(value.shape)
    codes = codes_of_input(value)
    return shape_of_codes(codes.codes) if codes is not None else None
