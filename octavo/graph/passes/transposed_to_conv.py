"""A ConvTranspose whose windows do not overlap becomes a 1x1 Conv and a DepthToSpace."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from octavo.graph.nodes import cut_behind
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, forget, new_constant

__all__ = ["TransposedToConvPass"]

# Settings with which every pixel becomes a block of its own.
_PLAIN = {"auto_pad": "NOTSET", "dilations": {1}, "group": 1, "output_padding": {0}, "pads": {0}}


class TransposedToConvPass(NodePass):
    """Rewrite a ConvTranspose as Conv and DepthToSpace, and a Relu or Clip behind it as one behind the Conv.

    ONNX Runtime has no integer ConvTranspose. In a U-Net each stands between integer layers, in float, with a Q and a DQ.

    1. Kernel and strides are the same, one number for height and width; no pads, groups or dilations, no given output size.
    2. Weights and bias are constant, and x is 4-D.

    The Conv keeps the node's name, the DepthToSpace puts out the tensor of the node's name. Exact up to the order of sums.

    Args:
        kept: names of nodes that are left alone.
    """

    op_type = "ConvTranspose"

    def __init__(self, kept: Collection[str] = ()) -> None:
        super().__init__()
        self.kept = kept

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        weights, bias = constant_of(node.inputs[1]), constant_of(node.inputs[2]) if len(node.inputs) > 2 else None
        value, made = node.inputs[0], node.outputs[0]
        side = _block(node, weights)
        if node.name in self.kept or side is None or value.shape is None or (bias is None and len(node.inputs) > 2):
            return False
        depth, channels = weights.shape[:2]
        # Channels of DepthToSpace: row and column within the block, then the channel.
        matrix = weights.transpose(2, 3, 1, 0).reshape(side * side * channels, depth, 1, 1)
        reads = [value, new_constant(model, f"{node.name}.of_blocks", matrix)]
        if bias is not None:
            reads.append(new_constant(model, f"{node.name}.bias_of_blocks", np.tile(bias, side * side)))
        conv = ir.node("Conv", reads, {"kernel_shape": [1, 1]}, name=node.name)
        deep = conv.outputs[0]
        batch, _, height, width = value.shape
        deep.name, deep.dtype, deep.shape = f"{made.name}.blocks", made.dtype, ir.Shape([batch, len(matrix), height, width])
        nodes, end, cut = [conv], node, cut_behind(node)
        if cut is not None and cut.name not in self.kept:
            nodes.append(ir.node(cut.op_type, [deep, *cut.inputs[1:]], cut.attributes, name=cut.name))
            deep, end = nodes[-1].outputs[0], cut
            deep.name, deep.dtype, deep.shape = f"{cut.outputs[0].name}.blocks", made.dtype, conv.outputs[0].shape
        nodes.append(ir.node("DepthToSpace", [deep], {"blocksize": side, "mode": "DCR"}, name=f"{node.name}.space"))
        old, new, before = end.outputs[0], nodes[-1].outputs[0], list(node.inputs[1:])
        new.dtype, new.shape, name = old.dtype, old.shape, old.name
        ir.convenience.replace_nodes_and_values(model.graph, end, [end] + [node] * (end is not node), nodes, [old], [new])
        new.name = name
        for one in before:
            forget(model, one)
        return True


def _block(node: ir.Node, weights: np.ndarray | None) -> int | None:
    """The side of the block that each pixel becomes; None where blocks overlap, are cut, or are not known."""
    if weights is None or weights.dtype != np.float32 or weights.ndim != 4 or weights.shape[2] != weights.shape[3]:
        return None
    settings = {name: attribute.value for name, attribute in node.attributes.items()}
    side = weights.shape[2]
    found = {name: set(value) if isinstance(value, (list, tuple)) else value for name, value in settings.items()}
    plain = all(found.get(name, wanted) == wanted for name, wanted in _PLAIN.items())
    return side if plain and "output_shape" not in settings and side > 1 and found.get("strides") == {side} else None
