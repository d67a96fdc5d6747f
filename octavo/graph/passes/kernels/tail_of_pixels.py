"""Decoding that wants channels last behind a layer that puts them out so, without the way through channels first."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, new_constant, pruned

__all__ = ["TailOfPixelsPass"]

_FIRST, _LAST = [0, 3, 1, 2], [0, 2, 3, 1]


class TailOfPixelsPass(NodePass):
    """Rewrite `Transpose(Reshape(Transpose(x)))` of pixels [N, H, W, C] so that x is not moved to [N, C, H, W] first.

    Detectors read their heads so: YOLOv5 as [N, a, c, H, W] brought to [N, a, H, W, c], others as [N, C, H W] to [N, H W, C].
    Behind a Gemm over pixels the values lie as the latter wants them, and as the former wants them but for its anchors.

    1. The first Transpose brings [N, H, W, C] to [N, C, H, W]; only the Reshape reads it, and only the last Transpose that one.
    2. Behind the batch every size is known. The Reshape's sizes are those of parts of C, then those of parts of H W.
    3. The last Transpose is left where its order is another one than that of pixels.
    4. With `convs`, a Conv may stand in the place of the first Transpose.

    The values are the same.

    Args:
        convs: for a runtime whose Convs put out channels last, where bringing them last is no work: OpenVINO (YOLOv5n 13.8 to
            12.7 ms, host 7ca432ccf350).
    """

    op_type = "Transpose"

    def __init__(self, convs: bool = False) -> None:
        super().__init__()
        self.convs = convs

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        reshape = _alone(node.inputs[0], "Reshape")
        first = self._before(reshape) if reshape is not None else None
        if first is None or "perm" not in node.attributes:
            return False
        perm = list(node.attributes["perm"].as_ints())
        image, parted = first.outputs[0].shape, reshape.outputs[0].shape
        known = image is not None and parted is not None and all(isinstance(size, int) for size in (*image[1:], *parted[1:]))
        if not known or perm[0] != 0 or constant_of(reshape.inputs[1]) is None:
            return False
        sizes = [int(size) for size in parted[1:]]
        if math.prod(sizes) != math.prod(image[1:]):
            return False
        parts = next((count for count in reversed(range(1, len(sizes))) if math.prod(sizes[:count]) == image[1]), None)
        if parts is None:
            return False
        channels, places = sizes[:parts], sizes[parts:]
        order = [0, *(1 + len(places) + axis for axis in range(parts)), *(1 + axis for axis in range(len(places)))]
        moved = [order[axis] for axis in perm]
        shape = new_constant(model, f"{reshape.name}.sizes", np.array([-1, *places, *channels], np.int64))
        pixels, before = first.inputs[0], []
        if first.op_type == "Conv":
            before = [ir.node("Transpose", [first.outputs[0]], {"perm": _LAST}, name=f"{reshape.name}.pixels")]
            pixels = before[0].outputs[0]
            pixels.name, pixels.dtype = f"{reshape.name}.pixels", ir.DataType.FLOAT
            pixels.shape = ir.Shape([image[axis] for axis in _LAST])
        made = [ir.node("Reshape", [pixels, shape], name=reshape.name)]
        if moved != sorted(moved):
            made[0].outputs[0].name = f"{reshape.name}.parted"
            made[0].outputs[0].dtype = ir.DataType.FLOAT
            made.append(ir.node("Transpose", [made[0].outputs[0]], {"perm": moved}, name=node.name))
        take_place(model, [node], [*before, *made], node.outputs[0], made[-1].outputs[0])
        pruned(model, [reshape, first])
        return True

    def _before(self, reshape: ir.Node) -> ir.Node | None:
        """What puts out the image whose channels the Reshape parts: rule 1, or 4."""
        first = _alone(reshape.inputs[0], "Transpose")
        if first is not None and "perm" in first.attributes and list(first.attributes["perm"].as_ints()) == _FIRST:
            return first
        return _alone(reshape.inputs[0], "Conv") if self.convs else None


def _alone(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """The node of this type that makes a value which one node reads."""
    node = value.producer() if value is not None else None
    if node is None or node.op_type != op_type or len(list(value.uses())) != 1 or value.is_graph_output():
        return None
    return node
