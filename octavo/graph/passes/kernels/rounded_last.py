"""Float maps that integer layers read: brought to channels last before they are rounded, where that is no work."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, new_constant

__all__ = ["RoundedLastPass"]

_FIRST, _LAST = [0, 3, 1, 2], [0, 2, 3, 1]
_IMAGE, _CHANNELS = 4, 1
# Channels of a block of ONNX Runtime's float layout (AVX-512); half as many with AVX2.
_BLOCK = 16
# What is computed in that layout, value by value.
_EACH = frozenset({"Clip", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Tanh"})
_PAIRS = frozenset({"Add", "Mul"})
_ZERO = 2


class RoundedLastPass(NodePass):
    """Rewrite `Q(x)` of a map [N, C, H, W] as `Transpose(Reshape(Q(Flatten(Transpose(x)))))`, whose Q reads rows of channels.

    ONNX Runtime's integer layers have channels last, and bring codes there by a Transpose of bytes. With two threads this takes
    longer than with one: each writes its half of the channels of every pixel, and both halves lie in one line of the cache (64
    channels of 52x52: 12 us, 98 with two threads; 32 of 160x160: 56 and 237; AMD Zen 4, ONNX Runtime 1.31). A float Conv's
    blocks of channels it writes in either order (ReorderOutput, `channels_last`). It takes a Q back through Transpose and Reshape,
    not through Flatten.

    1. x comes out of float Convs, as it is, bent value by value, added, multiplied or laid one behind the other, all of whole
       blocks of channels; only this Q reads it. A Conv whose weights are restored codes is an integer one.
    2. Whoever reads the codes wants channels last: a Transpose that brings them there, or integer Convs behind DequantizeLinear.
    3. Behind the batch every size is known. The codes are uint8, with one scale.

    The codes are the same.
    """

    op_type = "QuantizeLinear"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        source, codes = node.inputs[0], node.outputs[0]
        if source is None or source.is_graph_output() or len(list(source.uses())) != 1 or not _is_image(source):
            return False
        scale, zero = constant_of(node.inputs[1]), constant_of(node.inputs[2]) if len(node.inputs) > _ZERO else None
        if scale is None or scale.size != 1 or zero is None or zero.dtype != np.uint8:
            return False
        uses = list(codes.uses())
        if not uses or codes.is_graph_output() or not all(map(_wants_last, (use.node for use in uses))) or not _in_blocks(source):
            return False
        channels, *places = (int(size) for size in source.shape[_CHANNELS:])
        sizes = new_constant(model, f"{codes.name}.sizes", np.array([-1, *places, channels], np.int64))
        last = ir.node("Transpose", [source], {"perm": _LAST}, name=f"{node.name}.last")
        rows = ir.node("Flatten", [last.outputs[0]], {"axis": 3}, name=f"{node.name}.rows")
        rounded = ir.node("QuantizeLinear", [rows.outputs[0], *node.inputs[1:]], name=f"{node.name}.Q")
        image = ir.node("Reshape", [rounded.outputs[0], sizes], name=f"{node.name}.image")
        first = ir.node("Transpose", [image.outputs[0]], {"perm": _FIRST}, name=f"{node.name}.first")
        made = [last, rows, rounded, image, first]
        for one in made[:-1]:
            one.outputs[0].name = f"{one.name}.y"
        for one in made[:2]:
            one.outputs[0].dtype = ir.DataType.FLOAT
        for one in made[2:]:
            one.outputs[0].dtype = ir.DataType.UINT8
        batch = source.shape[0]
        last.outputs[0].shape = image.outputs[0].shape = ir.Shape([batch, *places, channels])
        rows.outputs[0].shape = rounded.outputs[0].shape = ir.Shape([None, channels])
        ir.convenience.replace_nodes_and_values(model.graph, node, [node], made, [codes], [first.outputs[0]])
        first.outputs[0].name = codes.name
        return True


def _is_image(value: ir.Value) -> bool:
    return value.shape is not None and len(value.shape) == _IMAGE and all(isinstance(size, int) for size in value.shape[1:])


def _wants_last(node: ir.Node) -> bool:
    if node.op_type == "Transpose":
        return list(node.attributes.get_ints("perm", ())) == _LAST
    if node.op_type != "DequantizeLinear" or node.outputs[0].is_graph_output():
        return False
    uses = list(node.outputs[0].uses())
    return bool(uses) and all(use.node.op_type == "Conv" and use.idx == 0 and _is_restored(use.node) for use in uses)


def _is_restored(conv: ir.Node) -> bool:
    """Whether a Conv's weights are codes."""
    maker = conv.inputs[1].producer()
    return maker is not None and maker.op_type == "DequantizeLinear"


def _in_blocks(value: ir.Value | None) -> bool:
    """Whether ONNX Runtime has a map in blocks of channels: rule 1."""
    left, seen = [value], set[ir.Value]()
    while left:
        one = left.pop()
        if one is None or not _is_image(one) or one.shape[_CHANNELS] % _BLOCK:
            return False
        if one in seen:
            continue
        seen.add(one)
        node = one.producer()
        if node is None or node.domain not in ("", "ai.onnx"):
            return False
        if node.op_type in _EACH:
            left.append(node.inputs[0])
        elif node.op_type in _PAIRS or (node.op_type == "Concat" and node.attributes["axis"].as_int() == _CHANNELS):
            left.extend(node.inputs)
        elif node.op_type != "Conv" or _is_restored(node):
            return False
    return True
