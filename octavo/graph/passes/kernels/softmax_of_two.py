"""A Softmax of two values, as a Sigmoid of their difference."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.passes.kernels.softmax_by_exp import float_axis
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import new_constant

__all__ = ["SoftmaxOfTwoPass"]

_APART = np.array([[1, -1], [-1, 1]], np.float32)


class SoftmaxOfTwoPass(NodePass):
    """Rewrite `Softmax(x)` along a last axis of two values as `Sigmoid(x M)`, M having 1 and -1.

    ONNX Runtime computes row by row, whatever a row's length. Detectors that tell one class from background (faces: 4420 rows of
    two) spend 112 us on that, and 33 us on this (AMD Zen 4, 2 threads).

    1. The tensor has two axes or more, and the axis is the last one.
    2. No QuantizeLinear reads it from codes: that would be an integer Softmax.

    Exact up to float rounding.
    """

    op_type = "Softmax"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        value, old = node.inputs[0], node.outputs[0]
        axis = float_axis(node)
        # Of one axis alone there are no rows.
        if not axis or axis != len(value.shape) - 1 or value.shape[-1] != len(_APART):
            return False
        apart = ir.node("MatMul", [value, new_constant(model, f"{node.name}.signs", _APART)], name=f"{node.name}.apart")
        share = ir.node("Sigmoid", [apart.outputs[0]], name=node.name)
        take_place(model, [node], [apart, share], old, share.outputs[0])
        apart.outputs[0].name, apart.outputs[0].dtype, apart.outputs[0].shape = f"{apart.name}.y", ir.DataType.FLOAT, old.shape
        return True
