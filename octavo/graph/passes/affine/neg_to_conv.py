"""Neg before layers becomes a depthwise Conv."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.affine.frozen_norm import is_read_by_layer
from octavo.graph.passes.arithmetic import replace_last
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import new_constant

__all__ = ["NegToConvPass"]


class NegToConvPass(NodePass):
    """Rewrite `Neg(x)` as a 1x1 depthwise Conv of weights -1.

    Neg has no integer kernel, and with it all of `Relu(Concat(x, -x))` is float (CReLU, arXiv 1603.05201; FaceBoxes), which stands
    where maps are largest.

    1. x are float32 images [n, channels, height, width] of known channels, that a node makes.
    2. A layer reads the result, through activations, pools and Concat at most: box decoding stays as it is.

    The result keeps the name of the Neg's output. Exact.
    """

    op_type = "Neg"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        value, made = node.inputs[0], node.outputs[0]
        if value.producer() is None or value.dtype != ir.DataType.FLOAT or value.shape is None or len(value.shape) != 4:
            return False
        channels = value.shape[1]
        if not isinstance(channels, int) or not is_read_by_layer(made):
            return False
        weights = new_constant(model, f"{node.name}.weights", np.full((channels, 1, 1, 1), -1, np.float32))
        conv = ir.node("Conv", [value, weights], {"group": channels, "kernel_shape": [1, 1]}, name=node.name)
        replace_last(model, node, conv)
        return True
