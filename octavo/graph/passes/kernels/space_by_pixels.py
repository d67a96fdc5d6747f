"""DepthToSpace of uint8 codes as moves of whole pixels."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import Quantized, between, new_constant, pruned, shape_of_codes

__all__ = ["SpaceByPixelsPass"]

_LAST, _FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


class SpaceByPixelsPass(NodePass):
    """Rewrite `Q(DepthToSpace(DQ(x)))` as Transpose, Reshape, Transpose, Reshape, Transpose of the codes.

    ONNX Runtime's DepthToSpace wants channels first, and moves byte by byte. With channels last a row of a block is one run of
    bytes. The outer Transposes vanish where integer kernels stand on both sides, because that is their layout.

    1. Q and DQ have the same uint8 scale and zero point; nobody else reads the DepthToSpace.
    2. Its mode is DCR: channels of a pixel of the block lie together.
    3. x is 4-D with known channels, height and width.

    The result is the same to the last bit.
    """

    op_type = "DepthToSpace"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        found = between(node) if node.attributes.get_string("mode", "DCR") == "DCR" else None
        shape = shape_of_codes(found[0].codes) if found is not None and found[0].is_alike(found[1]) else None
        if shape is None or len(shape) != 4 or not all(isinstance(size, int) for size in shape[1:]):
            return False
        _by_pixels(model, node, *found, shape[1:])
        return True


def _by_pixels(model: ir.Model, node: ir.Node, before: Quantized, after: ir.Node, sizes: list[int]) -> None:
    channels, height, width = sizes
    side = node.attributes["blocksize"].as_int()
    row = channels // side
    made: list[ir.Node] = []

    def step(op_type: str, inputs: list[ir.Value], **attributes: object) -> ir.Value:
        made.append(ir.node(op_type, inputs, attributes, name=f"{node.name}.pixels{len(made)}"))
        value = made[-1].outputs[0]
        value.name, value.dtype = f"{made[-1].name}.out", ir.DataType.UINT8
        return value

    def constant(kind: str, *numbers: int) -> ir.Value:
        # 0 copies the batch's size.
        return new_constant(model, f"{node.name}.{kind}", np.array([0, *numbers], np.int64))

    pixels = step("Transpose", [before.codes], perm=_LAST)
    rows = step("Transpose", [step("Reshape", [pixels, constant("blocks", height, width, side, row)])], perm=[0, 1, 3, 2, 4])
    image = step("Reshape", [rows, constant("image", height * side, width * side, row // side)])
    value = step("Transpose", [image], perm=_FIRST)
    old = after.outputs[0]
    name, old.name = old.name, f"{old.name}.old"
    value.shape = old.shape
    ir.convenience.replace_nodes_and_values(model.graph, after, [after], made, [old], [value])
    value.name = name
    pruned(model, [node, before.node])
