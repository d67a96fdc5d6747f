"""A PRelu that no layer takes in, as the larger of two products, for a runtime that has it in channels first alone."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.nodes import is_taken_in
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, forget, new_constant

__all__ = ["PReluToMaxPass"]


class PReluToMaxPass(NodePass):
    """Rewrite `PRelu(x, s)` as `Max(x, s x)` for slopes of at most 1.

    OpenVINO computes a PRelu by itself in channels first, and brings all around it there and back; Mul and Max it computes as the
    values lie (CGNet 53.7 to 50.9 ms, one thread of host de9c4589ef5e).

    1. Slopes are constant, float32 and finite, one a channel or one in all; x is a tensor of four axes.
    2. No layer takes the PRelu in (`is_taken_in`): there it costs nothing as it is.

    The same values.
    """

    op_type = "PRelu"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        value, slopes = node.inputs[0], constant_of(node.inputs[1])
        if is_taken_in(value) or value.shape is None or len(value.shape) != 4 or slopes is None or slopes.dtype != np.float32:
            return False
        by_channel = slopes.ndim in (3, 4) and slopes.shape[-3] == slopes.size
        if not (slopes.size == 1 or by_channel) or not (slopes <= 1).all() or not np.isfinite(slopes).all():
            return False
        own = new_constant(model, f"{node.name}.slopes", slopes.reshape(1, -1, 1, 1))
        below = ir.node("Mul", [value, own], name=f"{node.name}.below")
        below.outputs[0].name, below.outputs[0].dtype, below.outputs[0].shape = below.name, value.dtype, value.shape
        larger = ir.node("Max", [value, below.outputs[0]], name=node.name)
        old = node.inputs[1]
        take_place(model, [node], [below, larger], node.outputs[0], larger.outputs[0])
        forget(model, old)
        return True
