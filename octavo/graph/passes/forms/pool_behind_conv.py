"""A mean over neighbours goes behind the 1x1 Conv that reads it, where fewer channels are left."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from octavo.graph.nodes import is_pointwise, only_reader
from octavo.graph.passes.forms.count_values import pads_explicitly
from octavo.graph.passes.node_pass import NodePass, SparingPass
from octavo.graph.passes.qdq import constant_of, new_constant

__all__ = ["PoolBehindConvPass"]


class PoolBehindConvPass(SparingPass, NodePass):
    """Rewrite `Conv(AveragePool(x))` as `AveragePool(Conv(x))`, or where the pool counts its padding as a depthwise Conv.

    In Inception's modules a pool of 192 to 2048 channels stands before a Conv that leaves 32 to 192 of them. ONNX Runtime's integer
    kernel takes 10 to 20 ns an element for means without padding, so that they are float between a DQ and a Q of all channels.

    1. The pool has stride 1 and rounds no size up; the Conv is 1x1 of stride 1, has constant weights and bias, alone reads the pool
       and leaves fewer channels than it reads.
    2. A mean of values that are there leaves a bias as it is. With zeros for padding the bias comes behind the mean: the pool is a
       depthwise Conv then, whose weights are all one share, with the bias and whatever follows the Conv.

    Both nodes keep their names, and the last puts out the Conv's tensor. Exact up to float rounding.

    Args:
        kept: names of nodes that are left alone.
    """

    op_type = "AveragePool"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        conv, value = only_reader(node.outputs[0]), node.inputs[0]
        if (
            conv is None
            or not {conv.name, node.name}.isdisjoint(self.kept)
            or not _leaves_fewer(conv, node)
            or not _keeps_sizes(node)
        ):
            return False
        made, biases = conv.outputs[0], list(conv.inputs[2:])
        counts = node.attributes.get_int("count_include_pad", 0) and pads_explicitly(node)
        if counts and node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
            return False
        first = ir.node("Conv", [value, conv.inputs[1], *([] if counts else biases)], conv.attributes, name=conv.name)
        whole = first.outputs[0]
        whole.name, whole.dtype = f"{made.name}.whole", made.dtype
        whole.shape = (
            None if value.shape is None or made.shape is None else ir.Shape([made.shape[0], made.shape[1], *value.shape[2:]])
        )
        if counts:
            last = _as_depthwise(model, node, whole, biases, conv.inputs[1].shape[0])
        else:
            last = ir.node("AveragePool", [whole], node.attributes, name=node.name)
        new, name = last.outputs[0], made.name
        new.dtype, new.shape = made.dtype, made.shape
        ir.convenience.replace_nodes_and_values(model.graph, conv, [conv, node], [first, last], [made], [new])
        new.name = name
        return True


def _as_depthwise(model: ir.Model, pool: ir.Node, value: ir.Value, biases: list[ir.Value | None], channels: int) -> ir.Node:
    """A depthwise Conv with the kernel and pads of a pool that divides by all of its window."""
    kernel = pool.attributes["kernel_shape"].as_ints()
    shares = np.full((channels, 1, *kernel), 1 / math.prod(kernel), np.float32)
    weights = new_constant(model, f"{pool.name}.shares", shares)
    kept = {name: pool.attributes[name] for name in ("kernel_shape", "pads", "dilations") if name in pool.attributes}
    return ir.node("Conv", [value, weights, *biases], {**kept, "group": channels}, name=pool.name)


def _leaves_fewer(conv: ir.Node, pool: ir.Node) -> bool:
    """Whether a pool's reader is a 1x1 Conv of it that makes the map less deep."""
    if not is_pointwise(conv) or conv.domain not in ("", "ai.onnx") or conv.inputs[0] is not pool.outputs[0]:
        return False
    weights = constant_of(conv.inputs[1])
    biased = len(conv.inputs) > 2 and conv.inputs[2] is not None
    return weights is not None and weights.shape[0] < weights.shape[1] and (not biased or constant_of(conv.inputs[2]) is not None)


def _keeps_sizes(pool: ir.Node) -> bool:
    rounds_up = pool.attributes.get_int("ceil_mode", 0)
    return not rounds_up and set(pool.attributes.get_ints("strides", (1,))) == {1}
