"""DepthToSpace and SpaceToDepth of uint8 codes as moves of whole pixels."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import Quantized, between, new_constant, pruned, shape_of_codes

__all__ = ["SpaceByPixelsPass"]

_LAST, _FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


class SpaceByPixelsPass(NodePass):
    """Rewrite `Q(DepthToSpace(DQ(x)))` as Transpose, Reshape, Transpose, Reshape, Transpose of the codes, and so SpaceToDepth.

    ONNX Runtime's DepthToSpace wants channels first, and moves byte by byte. With channels last a row of a block is one run of
    bytes. The outer Transposes vanish where integer kernels stand on both sides, because that is their layout. A SpaceToDepth
    between DQ and Q it leaves in float (1.31).

    1. Q and DQ have the same uint8 scale and zero point; nobody else reads the node.
    2. A DepthToSpace's mode is DCR: channels of a pixel of the block lie together. In SpaceToDepth they always do.
    3. x is 4-D with known channels, height and width. With other shapes a SpaceToDepth moves codes as it is.

    The result is the same to the last bit.
    """

    op_type = "DepthToSpace"

    def _is_offered(self, node: ir.Node) -> bool:
        return node.op_type in ("DepthToSpace", "SpaceToDepth") and node.domain in ("", "ai.onnx")

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        found = between(node) if node.attributes.get_string("mode", "DCR") == "DCR" else None
        if found is None or not found[0].is_alike(found[1]):
            return False
        shape = shape_of_codes(found[0].codes)
        if shape is not None and len(shape) == 4 and all(isinstance(size, int) for size in shape[1:]):
            _by_pixels(model, node, *found, shape[1:])
        elif node.op_type == "SpaceToDepth":
            made = ir.node("SpaceToDepth", [found[0].codes], node.attributes, name=f"{node.name}.codes")
            _in_place(model, node, *found, [made])
        else:
            return False
        return True


def _by_pixels(model: ir.Model, node: ir.Node, before: Quantized, after: ir.Node, sizes: list[int]) -> None:
    channels, height, width = sizes
    side = node.attributes["blocksize"].as_int()
    if node.op_type == "SpaceToDepth":
        # The same moves the other way round.
        down, right = height // side, width // side
        blocks, image = (down, side, right, side * channels), (down, right, side**2 * channels)
    else:
        blocks, image = (height, width, side, channels // side), (height * side, width * side, channels // side**2)
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
    rows = step("Transpose", [step("Reshape", [pixels, constant("blocks", *blocks)])], perm=[0, 1, 3, 2, 4])
    step("Transpose", [step("Reshape", [rows, constant("image", *image)])], perm=_FIRST)
    _in_place(model, node, before, after, made)


def _in_place(model: ir.Model, node: ir.Node, before: Quantized, after: ir.Node, made: list[ir.Node]) -> None:
    """Put nodes where one stood with its DQ and Q."""
    old, value = after.outputs[0], made[-1].outputs[0]
    value.shape, value.dtype = old.shape, old.dtype
    take_place(model, [after], made, old, value)
    pruned(model, [node, before.node])
