"""A ConvTranspose as converters leave it, with what it cuts off and makes apart in its own attributes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.nodes import only_reader
from octavo.graph.passes.arithmetic import is_op
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, forget, new_constant

__all__ = ["PlainTransposedPass"]


class PlainTransposedPass(NodePass):
    """Rewrite `Slice(ConvTranspose(x))` as one node with more `pads`, and one whose channels do not mix as one with `group`.

    Converters of TensorFlow cut a ConvTranspose of `SAME` padding with a Slice, which is no part of what ONNX Runtime makes faster.
    Upsampling with fixed bilinear weights (fully convolutional networks, EfficientPose) is written as a layer that sees all
    channels, with zeros for all but its own: 16 channels of 184x184 made larger take 11.5 ms, 4.5 so (kernel 4, stride 2, one
    thread).

    1. The node has neither `auto_pad` nor `output_shape`, and x is 4-D.
    2. Slice: it alone reads the node, its bounds are constant, its steps 1, and it cuts height and width, at their ends by
       counting from there or where the size before it is known, and by less than the kernel is long.
    3. Groups: the node has one, of as many channels in as out, two at least, and a constant kernel of float32 whose weights between
       different channels are all 0.

    The values are the same up to the order of sums, where x is finite.
    """

    op_type = "ConvTranspose"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        value = node.inputs[0]
        if value is None or value.shape is None or len(value.shape) != 4 or {"auto_pad", "output_shape"} & set(node.attributes):
            return False
        cut = only_reader(node.outputs[0])
        pads = _pads(node, cut) if is_op(cut, "Slice") else None
        weights = _apart(node)
        if pads is None and weights is None:
            return False
        attributes = dict(node.attributes)
        if pads is not None:
            attributes["pads"] = ir.AttrInt64s("pads", pads)
        if weights is not None:
            attributes["group"] = ir.AttrInt64("group", len(weights))
        end = cut if pads is not None else node
        kernel = node.inputs[1] if weights is None else new_constant(model, f"{node.name}.apart", weights)
        made = ir.Node("", "ConvTranspose", [value, kernel, *node.inputs[2:]], attributes.values(), name=node.name)
        before = [*node.inputs[1:], *end.inputs[1:]]
        take_place(model, [end] + [node] * (end is not node), [made], end.outputs[0], made.outputs[0])
        for one in before:
            forget(model, one)
        return True


def _pads(node: ir.Node, cut: ir.Node) -> list[int] | None:
    """The node's pads with what the Slice cuts off."""
    starts, ends, axes, steps = ([constant_of(one) for one in cut.inputs[1:]] + [None, None])[:4]
    if starts is None or ends is None or axes is None or (len(cut.inputs) > 4 and (steps is None or (steps != 1).any())):
        return None
    shape, kernel = node.outputs[0].shape, constant_of(node.inputs[1])
    if shape is None or kernel is None:
        return None
    pads = list(node.attributes.get_ints("pads", (0, 0, 0, 0)))
    for axis, start, end in zip(axes % 4, starts, ends, strict=True):
        behind = _behind(int(end), shape[int(axis)])
        if axis < 2 or start < 0 or behind is None or max(int(start), behind) >= kernel.shape[axis]:
            return None
        pads[axis - 2] += int(start)
        pads[axis] += behind
    return pads


def _behind(end: int, size: object) -> int | None:
    """How much is cut off an axis that is taken up to a place; None where that is not known."""
    if end < 0:
        return -end
    if isinstance(size, int):
        return max(size - end, 0)
    return 0 if end >= np.iinfo(np.int32).max else None


def _apart(node: ir.Node) -> np.ndarray | None:
    """The kernel [channels, 1, height, width] of channels that do not mix; None where they do, or are told apart already."""
    weights = constant_of(node.inputs[1])
    if weights is None or weights.dtype != np.float32 or node.attributes.get_int("group", 1) != 1:
        return None
    channels, others = weights.shape[:2]
    if channels != others or channels < 2:
        return None
    own = np.arange(channels)
    mixed = weights.copy()
    mixed[own, own] = 0
    return None if mixed.any() else weights[own, own][:, None]
