"""Activations and norms behind a Concat go before it, for a runtime whose layers take in what stands behind them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.nodes import cut_behind, is_taken_in, mish_of, only_reader, silu_of
from octavo.graph.operators import CURVES
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, new_constant, pruned

__all__ = ["BendBeforeConcatPass"]

# Inputs of operators that may hold a number for each channel.
_BY_CHANNEL = {"BatchNormalization": range(1, 5), "PRelu": range(1, 2)}


class BendBeforeConcatPass(NodePass):
    """Rewrite `PRelu(BatchNormalization(Concat(a, b)))` as a Concat of the same of `a` and of `b`, and so with other activations.

    OpenVINO's layers take in any activation and the Q behind it: they write codes then, and the Concat copies these. Behind the
    Concat, a norm or activation keeps it in float, and OpenVINO brings what it puts out to channels first and back (CGNet 82 to
    54 ms, one thread of host de9c4589ef5e).

    1. What moves is all that reads the Concat, and bends each value by itself: BatchNormalization, PRelu, Relu, Clip, LeakyRelu,
       Sigmoid and other curves, SiLU and Mish as they are spelled out. Parameters are constant; where they differ by channel, the
       Concat is along axis 1 and its parts have known numbers of channels.
    2. A layer makes one of the parts (`is_taken_in`): else one for all parts is as good.
    3. What stands behind that follows, until something does not fit.

    The Concat's output takes the name of what came last, and what goes before it new ones. The same values.
    """

    op_type = "Concat"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        modified = False
        while any(map(is_taken_in, node.inputs)) and (nodes := _behind(node)):
            for place, part in enumerate(_behind_parts(model, node, nodes)):
                node.replace_input_with(place, part)
            last, joined = nodes[-1].outputs[0], node.outputs[0]
            name, last.name = last.name, f"{last.name}.old"
            ir.convenience.replace_all_uses_with(last, joined, replace_graph_outputs=True)
            pruned(model, nodes[::-1])
            joined.name, modified = name, True
        return modified


def _behind(concat: ir.Node) -> list[ir.Node]:
    """What can go before a Concat, in topological order."""
    nodes = _bend(concat.outputs[0])
    if any(node.graph is not concat.graph or node.domain not in ("", "ai.onnx") for node in nodes):
        return []
    sizes = [constant_of(node.inputs[index]) for node in nodes for index in _BY_CHANNEL.get(node.op_type, ())]
    if any(numbers is None for numbers in sizes):
        return []
    if all(numbers.size == 1 for numbers in sizes):
        return nodes
    rank = len(concat.outputs[0].shape or ())
    parts = concat.attributes["axis"].as_int() in (1, 1 - rank) and None not in map(_channels, concat.inputs)
    return nodes if parts and all(_axis(node, rank) is not None for node in nodes) else []


def _bend(value: ir.Value) -> list[ir.Node]:
    """The nodes that bend each value of a tensor by itself, where nothing else reads it."""
    node = only_reader(value)
    if node is None:
        heads = list(dict.fromkeys(use.node for use in value.uses()))
        spelled = next((found for head in heads if (found := _spelled(head))), [])
        return spelled if set(heads) <= set(spelled) and not value.is_graph_output() else []
    if node.op_type == "BatchNormalization":
        plain = not node.attributes.get_int("training_mode", 0) and not any(list(other.uses()) for other in node.outputs[1:])
        return [node] if plain and node.inputs[0] is value else []
    known = node.op_type in CURVES or (node.op_type == "PRelu" and node.inputs[0] is value) or node is cut_behind(value.producer())
    return [node] if known else []


def _spelled(head: ir.Node) -> list[ir.Node]:
    product = silu_of(head)
    return [head, product] if product is not None else list(mish_of(head) or ())


def _behind_parts(model: ir.Model, concat: ir.Node, nodes: list[ir.Node]) -> list[ir.Value]:
    """What each part of a Concat is behind copies of the nodes, each with the part's own numbers."""
    rank, start, ends = len(concat.outputs[0].shape or ()), 0, []
    for place, part in enumerate(concat.inputs):
        made, stop = {concat.outputs[0]: part}, start + (_channels(part) or 0)
        for node in nodes:
            reads = [made.get(value, value) for value in node.inputs]
            for index in _BY_CHANNEL.get(node.op_type, ()):
                numbers = constant_of(reads[index])
                if numbers.size > 1:
                    own = np.take(numbers, range(start, stop), _axis(node, rank))
                    reads[index] = new_constant(model, f"{reads[index].name}.part{place}", own)
            copy = ir.node(node.op_type, reads, node.attributes, name=f"{node.name}.part{place}")
            value = copy.outputs[0]
            value.name, value.dtype, value.shape = f"{node.outputs[0].name}.part{place}", part.dtype, part.shape
            model.graph.insert_before(concat, copy)
            made[node.outputs[0]] = value
        ends.append(made[nodes[-1].outputs[0]])
        start = stop
    return ends


def _axis(node: ir.Node, rank: int) -> int | None:
    """That of channels in what a node has a number for each of; None where its numbers differ along another."""
    if node.op_type != "PRelu":
        return 0
    slopes = constant_of(node.inputs[1])
    axis = slopes.ndim - rank + 1
    return axis if axis >= 0 and slopes.shape[axis] == slopes.size else None


def _channels(part: ir.Value) -> int | None:
    count = part.shape[1] if part.shape is not None and len(part.shape) > 1 else None
    return count if isinstance(count, int) else None
