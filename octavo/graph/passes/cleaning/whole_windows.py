"""Windows of pools that begin behind an image: ONNX Runtime makes none of them."""

from __future__ import annotations

import math

import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.shapes import InferShapesPass

__all__ = ["WholeWindowsPass"]

# From here on ONNX' own inference leaves such windows out.
_MENDED = 22


class WholeWindowsPass(NodePass):
    """Write a pool of `ceil_mode` without it, where rounding up counts a window that begins behind the image.

    In the padding there, or beyond where strides are longer than the kernel. PyTorch, ONNX Runtime and ONNX from opset 22 on leave
    such a window out; ONNX' shape inference of opsets below counts it. Sizes that a graph computes of that shape were one too large
    (a Resize to twice the size made 8x8 of 3x3, and other pixels).

    1. The spatial sizes of what it reads are known, and along one axis at least the two counts differ.
    2. Along the other axes what `ceil_mode` adds is written as padding behind, exact in MaxPool and in an AveragePool that counts
       no padding, and where the kernel is longer than it. Otherwise the pool stays.
    3. Shapes behind it, which the file may state wrongly too, are forgotten and inferred again before the next pool is looked at.

    The result is ONNX Runtime's to the last bit. Run it before anything folds sizes.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Edit the model."""
        if (model.opset_imports.get("") or 0) >= _MENDED or not any(map(self._is_offered, model.graph)):
            return ir.passes.PassResult(model, False)
        InferShapesPass()(model)
        return super().call(model)

    def _is_offered(self, node: ir.Node) -> bool:
        if node.op_type not in ("AveragePool", "LpPool", "MaxPool") or node.domain not in ("", "ai.onnx"):
            return False
        rounds_up = bool(node.attributes.get_int("ceil_mode", 0))
        return rounds_up and node.attributes.get_string("auto_pad", "NOTSET") in ("NOTSET", "VALID")

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        shape = node.inputs[0].shape
        kernel = node.attributes.get_ints("kernel_shape", ())
        axes = len(kernel)
        sizes = list(shape or ())[2:]
        if len(sizes) != axes or not all(isinstance(size, int) for size in sizes):
            return False
        strides, dilations = (node.attributes.get_ints(name, None) or [1] * axes for name in ("strides", "dilations"))
        pads = list(node.attributes.get_ints("pads", None) or [0] * 2 * axes)
        spans = [(length - 1) * step + 1 for length, step in zip(kernel, dilations, strict=True)]
        places = zip(sizes, spans, strides, pads[:axes], pads[axes:], strict=True)
        counts = [_counts(*place) for place in places]
        if all(made == counted for made, counted, _ in counts):
            return False
        rounded = [axis for axis, (made, _, whole) in enumerate(counts) if made != whole]
        for axis in rounded:
            end = (counts[axis][0] - 1) * strides[axis] + spans[axis] - sizes[axis] - pads[axis]
            if end >= kernel[axis] or node.op_type == "LpPool" or node.attributes.get_int("count_include_pad", 0):
                return False
            pads[axes + axis] = end
        for name in ("ceil_mode", "auto_pad"):
            node.attributes.pop(name, None)
        node.attributes.add(ir.AttrInt64s("pads", pads))
        _forget_behind(node)
        InferShapesPass()(model)
        return True


def _counts(size: int, span: int, stride: int, begin: int, end: int) -> tuple[int, int, int]:
    """Windows along one axis: those that are made, those that rounding up counts, and those that are whole."""
    room = size + begin + end - span
    rounded, whole = math.ceil(room / stride) + 1, room // stride + 1
    made = rounded - 1 if (rounded - 1) * stride >= size + begin else rounded
    return made, rounded, whole


def _forget_behind(node: ir.Node) -> None:
    """Forget the shapes that follow from that of a node's output; names of the graph's outputs' sizes stay."""
    ahead, seen = [node], {node}
    for one in ahead:
        for value in one.outputs:
            if not value.is_graph_output() or (value.shape is not None and value.shape.is_static()):
                value.shape = None
            fresh = dict.fromkeys(use.node for use in value.uses() if use.node not in seen)
            ahead += fresh
            seen |= fresh.keys()
