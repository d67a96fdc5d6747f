"""A float DepthToSpace behind pixels of all channels as moves of these pixels."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.passes.arithmetic import is_op
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import new_constant, pruned

__all__ = ["PixelsToSpacePass"]

_FIRST = [0, 3, 1, 2]
# With 3 channels both take as long, with 2 the last Transpose moves too little at a time.
_LEAST = 4


class PixelsToSpacePass(NodePass):
    """Rewrite `DepthToSpace(Transpose(x))`, x float with channels last, as Reshape, Transpose, Reshape and Transpose.

    So masks leave a ConvTranspose whose windows do not overlap, which is a product over pixels and a DepthToSpace
    (`TransposedToConvPass`, `heads.pixel_heads`). ONNX Runtime's DepthToSpace moves value by value. A row of a block is one run of
    values in x, and channels go first once, at the end.

    1. The DepthToSpace's mode is DCR: channels of a pixel of the block lie together. The Transpose takes channels first, and
       nobody else reads it.
    2. x has known channels, height and width, the result 4 channels or more.

    The result is the same to the last bit.
    """

    op_type = "DepthToSpace"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        first = node.inputs[0].producer()
        if not is_op(first, "Transpose") or list(first.attributes.get_ints("perm", ())) != _FIRST:
            return False
        if node.attributes.get_string("mode", "DCR") != "DCR" or first.outputs[0].is_graph_output():
            return False
        pixels, deep = first.inputs[0], first.outputs[0]
        if len(list(deep.uses())) > 1 or deep.dtype != ir.DataType.FLOAT or deep.shape is None or len(deep.shape) != len(_FIRST):
            return False
        side = node.attributes["blocksize"].as_int()
        sizes = [deep.shape[axis] for axis in (1, 2, 3)]
        if not all(isinstance(size, int) for size in sizes) or sizes[0] < _LEAST * side**2:
            return False
        depth, height, width = sizes
        old, made = node.outputs[0], []

        def step(op_type: str, inputs: list[ir.Value], **attributes: object) -> ir.Value:
            made.append(ir.node(op_type, inputs, attributes, name=f"{node.name}.pixels{len(made)}"))
            value = made[-1].outputs[0]
            value.name, value.dtype = f"{made[-1].name}.out", ir.DataType.FLOAT
            return value

        def sized(value: ir.Value, kind: str, *numbers: int) -> ir.Value:
            return step("Reshape", [value, new_constant(model, f"{node.name}.{kind}", np.array([-1, *numbers], np.int64))])

        rows = step("Transpose", [sized(pixels, "blocks", width, side, depth // side)], perm=[0, 2, 1, 3])
        image = sized(rows, "image", height * side, width * side, depth // side**2)
        step("Transpose", [image], perm=_FIRST).shape = old.shape
        take_place(model, [node], made, old, made[-1].outputs[0])
        pruned(model, [first])
        return True
