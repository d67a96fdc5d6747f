"""A HardSigmoid behind a layer becomes a Clip, whose work a Q's saturation does for nothing."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.passes.folding import channels_of, foldable, into
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import new_constant
from octavo.graph.passes.spelled.hard_swish import hard_sigmoid_of

__all__ = ["HardSigmoidToClipPass"]


class HardSigmoidToClipPass(NodePass):
    """Rewrite `HardSigmoid(layer(x))` as `Clip(layer'(x), 0, 1)`, layer' putting out `alpha y + beta`.

    It is the gate of squeeze-and-excitation blocks (MobileNetV3, PP-LCNet).

    1. The layer (Conv, ConvTranspose, Gemm or MatMul of vectors) has constant weights, and nobody else reads its output.

    The Clip keeps the name of the HardSigmoid's output; the layer's output, whose values change, gets a new one. Exact up to float
    rounding.
    """

    op_type = "HardSigmoid"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        value = node.inputs[0]
        if not foldable(model, value):
            return False
        layer = value.producer()
        alpha, beta = hard_sigmoid_of(node)
        ones = np.ones(channels_of(layer))
        into(model, layer, alpha * ones, beta * ones)
        value.name = f"{value.name}.scaled"
        bounds = [new_constant(model, f"{node.name}.{what}", np.float32(bound)) for what, bound in (("low", 0), ("high", 1))]
        clip = ir.node("Clip", [value, *bounds], name=node.name)
        take_place(model, [node], [clip], node.outputs[0], clip.outputs[0])
        return True
