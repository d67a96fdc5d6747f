"""Differences and quotients between layers become sums and products, which have integer kernels."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.nodes import leads_to
from octavo.graph.operators import WEIGHTED
from octavo.graph.passes.arithmetic import is_op, number, replace_last
from octavo.graph.passes.folding import foldable
from octavo.graph.passes.node_pass import SparingPass
from octavo.graph.passes.qdq import constant_of, forget, new_constant

__all__ = ["SubToAddPass"]

# Axes of a tensor of images.
_IMAGES = 4
# What computes on codes, and layers of images: what stands around a difference that shall.
_INTEGER = frozenset({"Conv", "ConvTranspose", "BatchNormalization", "AveragePool", "GlobalAveragePool", "MaxPool"})
_INTEGER |= {"Add", "Concat", "DepthToSpace", "Div", "Mul", "Pad", "Resize", "Slice", "Split", "Sub"}
_INTEGER |= {"Clip", "HardSigmoid", "HardSwish", "LeakyRelu", "PRelu", "Relu", "Sigmoid", "Tanh"}


class SubToAddPass(SparingPass):
    """Rewrite `x - y` as `x + (-y)`, `c - x` as a 1x1 depthwise Conv, `x - c` as `x + (-c)` and `x / c` as `x * (1 / c)`.

    ONNX Runtime has no integer Sub and Div, and all that is added to them or gated by them is float behind a Q and DQ (`1 - gate`;
    details, `x - AveragePool(x)`; differences of two images' features).

    1. The result are float32 images [n, channels, height, width] before layers: box decoding and other tails stay.
    2. What makes x and y and all that reads the result have integer forms: the deviations that a norm squares stay as they are.
    3. c is one finite number, and so is 1 / c.
    4. The sign of y goes into the Conv that alone makes it (`FoldScalePass`), or is a 1x1 depthwise Conv of weights -1: y, and
       the x of `c - x`, has known channels.

    The result keeps the name of the node's output; -y is a tensor that statistics do not know. Exact, but for the rounding of
    1 / c.

    Args:
        kept: names of nodes that are left alone.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite in place; `modified` says whether a node changed."""
        modified = False
        for node in list(model.graph):
            if (is_op(node, "Sub") or is_op(node, "Div")) and node.name not in self.kept and _is_inside(node):
                modified |= _rewritten(model, node)
        return ir.passes.PassResult(model, modified)


def _rewritten(model: ir.Model, node: ir.Node) -> bool:
    first, second = node.inputs
    factor, shift = number(first), number(second)
    if shift is not None and constant_of(first) is None:
        with np.errstate(divide="ignore", over="ignore"):
            other = -np.float32(shift) if node.op_type == "Sub" else 1 / np.float32(shift)
        if not np.isfinite(other):
            return False
        new = ir.node(
            _KINDS[node.op_type], [first, new_constant(model, f"{node.name}.constant", np.asarray(other))], name=node.name
        )
    elif node.op_type == "Div" or not _is_image(second) or not isinstance(second.shape[1], int):
        return False
    elif factor is not None and np.isfinite(factor):
        new = _negative(model, second, node.name, factor)
    elif constant_of(first) is None and constant_of(second) is None and _is_image(first):
        new = ir.node("Add", [first, _turned(model, node, second)], name=node.name)
    else:
        return False
    read = list(node.inputs)
    replace_last(model, node, new)
    for value in read:
        forget(model, value)
    return True


_KINDS = {"Div": "Mul", "Sub": "Add"}


def _is_inside(node: ir.Node) -> bool:
    """Whether integers can stand all around a node, and layers behind it."""
    made = node.outputs[0]
    makers = [value.producer() for value in node.inputs if constant_of(value) is None]
    beside = [maker.op_type if maker is not None else "" for maker in makers] + [use.node.op_type for use in made.uses()]
    once = len(list(made.uses())) == len({use.node for use in made.uses()})
    return _is_image(made) and once and _INTEGER.issuperset(beside) and leads_to(node, WEIGHTED - {"MatMul"})


def _is_image(value: ir.Value) -> bool:
    return value.dtype == ir.DataType.FLOAT and value.shape is not None and len(value.shape) == _IMAGES


def _negative(model: ir.Model, value: ir.Value, name: str | None, shift: float = 0.0) -> ir.Node:
    """`shift - value` as a Conv of each channel alone."""
    channels = value.shape[1]
    reads = [value, new_constant(model, f"{name}.weights", np.full((channels, 1, 1, 1), -1, np.float32))]
    if shift:
        reads.append(new_constant(model, f"{name}.shift", np.full(channels, shift, np.float32)))
    return ir.node("Conv", reads, {"group": channels, "kernel_shape": [1, 1]}, name=name)


def _turned(model: ir.Model, node: ir.Node, value: ir.Value) -> ir.Value:
    """-value, by a node before this one."""
    name = f"{node.name}.negative"
    if foldable(model, value):
        turned = ir.node("Mul", [value, new_constant(model, f"{name}.sign", np.asarray(np.float32(-1)))], name=name)
    else:
        turned = _negative(model, value, name)
    made = turned.outputs[0]
    made.name, made.dtype, made.shape = f"{name}.out", value.dtype, value.shape
    model.graph.insert_before(node, turned)
    return made
