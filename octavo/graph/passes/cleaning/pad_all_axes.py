"""Pad of some axes becomes one that names all of them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, forget, new_constant

__all__ = ["PadAllAxesPass"]


class PadAllAxesPass(NodePass):
    """Rewrite `Pad(x, pads, value, axes)` as `Pad(x, pads, value)`.

    Where ONNX Runtime 1.31 moves a Transpose over a Pad, as it does between integer Convs, it picks the pads of all axes from
    those that are there, and the graph fails to run ("indices element out of data bounds").

    1. The rank of `x` is known, and pads and axes are constant.
    2. Axes that are not named have no pads.
    """

    op_type = "Pad"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        value, axes = node.inputs[0], node.inputs[3] if len(node.inputs) > 3 else None
        pads, places = constant_of(node.inputs[1]), constant_of(axes)
        if value is None or value.shape is None or pads is None or places is None:
            return False
        rank = len(value.shape)
        whole = np.zeros((2, rank), np.int64)
        whole[:, places.reshape(-1) % rank] = pads.reshape(2, -1)
        before = node.inputs[1]
        node.replace_input_with(1, new_constant(model, f"{node.name}.pads", whole.reshape(-1)))
        node.resize_inputs(3)
        forget(model, before)
        forget(model, axes)
        return True
