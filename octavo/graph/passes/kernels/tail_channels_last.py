"""Tails that end with channels last, computed with channels last from the heads on."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.passes.node_pass import GraphPass
from octavo.graph.passes.qdq import constant_of, new_constant, pruned

__all__ = ["TailChannelsLastPass"]

# Orders that bring channels last, and those that bring them first, by rank.
_LAST = {2: [1, 0], 3: [0, 2, 1], 4: [0, 2, 3, 1]}
_FIRST = {2: [1, 0], 3: [0, 2, 1], 4: [0, 3, 1, 2]}
# Ops that bend each value by itself, whatever stands beside it.
_EACH = frozenset(
    {"Clip", "Elu", "Exp", "HardSigmoid", "HardSwish", "LeakyRelu", "Neg", "Relu", "Sigmoid", "Softplus", "Sqrt", "Tanh"}
)
_WITH_NUMBER = frozenset({"Add", "Div", "Mul", "Sub"})
_BATCH_AND_CHANNELS = 2


class TailChannelsLastPass(GraphPass):
    """Rewrite what stands before `Transpose` nodes that bring channels last, so that it has them last.

    Detectors put out rows of boxes and scores: YOLOX concatenates boxes and scores of three heads as [N, 85, H, W], lays them in
    one row, and turns all of it to [N, places, 85] at the end; NanoDet does so with each head. Behind a Gemm over pixels the values
    lie like this already, and ONNX Runtime brings what a float Conv puts out into this order as quickly as into the other.

    1. Nodes between: those that bend each value by itself, sums and products with one number, Concat, Split, and a Reshape that
       lays the places of [N, C, H, W] in a row, [N, C, H W], or [C, H W] of one image. Nobody else reads what they put out.
    2. Behind the batch every size is known.
    3. What is read from elsewhere gets a Transpose, but where it came from one that brought channels first. The graph is left alone
       where these move more values than the Transposes that go; what a Conv puts out counts for nothing.

    The values are the same.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite in place; `modified` says whether a node changed."""
        sinks = [node for node in model.graph if _brings(node, _LAST)]
        moved = _between(model, sinks)
        # Of three sizes one order brings channels last and first: a Transpose that a moved node reads goes with what is behind it.
        sinks = [sink for sink in sinks if moved.isdisjoint(use.node for use in sink.outputs[0].uses())]
        moved = _between(model, sinks)
        sinks = [sink for sink in sinks if sink.inputs[0].producer() in moved]
        if not sinks or not _pays(moved, sinks):
            return ir.passes.PassResult(model, False)
        last: dict[ir.Value, ir.Value] = {}
        firsts: list[ir.Node] = []
        before = [node for node in model.graph if node in moved]
        for node in before:
            for value in _data(node):
                if value not in last:
                    last[value] = _channels_last(model, value, node, firsts)
            _rewritten(model, node, last)
        for sink in sinks:
            old, new = sink.outputs[0], last[sink.inputs[0]]
            take_place(model, [sink], [], old, new)
        pruned(model, [*reversed(before), *firsts])
        return ir.passes.PassResult(model, True)


def _brings(node: ir.Node | None, orders: dict[int, list[int]]) -> bool:
    """Whether a node is a Transpose of a float tensor of known sizes by one of these orders."""
    if node is None or node.op_type != "Transpose" or node.domain not in ("", "ai.onnx") or "perm" not in node.attributes:
        return False
    perm = list(node.attributes["perm"].as_ints())
    return orders.get(len(perm)) == perm and _known(node.outputs[0]) and node.outputs[0].dtype == ir.DataType.FLOAT


def _known(value: ir.Value) -> bool:
    """Whether all sizes behind the batch are known; of two sizes, both."""
    if value.shape is None or len(value.shape) not in _LAST:
        return False
    sizes = list(value.shape)
    return all(isinstance(size, int) for size in (sizes if len(sizes) == _BATCH_AND_CHANNELS else sizes[1:]))


def _between(model: ir.Model, sinks: list[ir.Node]) -> set[ir.Node]:
    """The nodes before sinks that can have channels last, and that only such nodes and sinks read."""
    found: set[ir.Node] = set()
    ahead = list(sinks)
    while ahead:
        for value in _data(ahead.pop()):
            node = value.producer()
            if node is not None and node not in found and _movable(node):
                found.add(node)
                ahead.append(node)
    inside = found | set(sinks)
    for node in reversed([node for node in model.graph if node in found]):
        read = [use.node for value in node.outputs for use in value.uses()]
        if any(value.is_graph_output() for value in node.outputs) or not inside.issuperset(read):
            inside.remove(node)
    return inside - set(sinks)


def _data(node: ir.Node) -> list[ir.Value]:
    """What a node reads that is no constant."""
    return [value for value in node.inputs if value is not None and constant_of(value) is None]


def _movable(node: ir.Node) -> bool:
    if node.domain not in ("", "ai.onnx") or not all(_known(value) for value in (*_data(node), *node.outputs)):
        return False
    if any(value.dtype != ir.DataType.FLOAT for value in node.outputs):
        return False
    if node.op_type in _EACH:
        return len(_data(node)) == 1
    if node.op_type in _WITH_NUMBER:
        numbers = [array for value in node.inputs if (array := constant_of(value)) is not None]
        return len(numbers) == 1 and numbers[0].size == 1 and numbers[0].ndim <= len(node.outputs[0].shape)
    if node.op_type == "Concat":
        return len(_data(node)) == len(node.inputs) and _axis(node) is not None
    if node.op_type == "Split":
        return len(_data(node)) == 1 and _axis(node) is not None
    return node.op_type == "Reshape" and constant_of(node.inputs[1]) is not None and _lays_in_a_row(node)


def _axis(node: ir.Node) -> int | None:
    """The axis of a Concat or Split, where it is not that of the batch."""
    rank = len(node.outputs[0].shape)
    axis = (node.attributes["axis"].as_int() if "axis" in node.attributes else 0) % rank
    return None if axis == 0 and rank > _BATCH_AND_CHANNELS else axis


def _lays_in_a_row(node: ir.Node) -> bool:
    before, after = list(node.inputs[0].shape), list(node.outputs[0].shape)
    if len(before) < len(_FIRST[3]) or len(after) >= len(before):
        return False
    row = [before[1], math.prod(before[2:])]
    return after == [before[0], *row] or (after == row and before[0] == 1)


def _pays(moved: set[ir.Node], sinks: list[ir.Node]) -> bool:
    inside = moved | set(sinks)
    gone = sum(_size(sink.inputs[0]) for sink in sinks)
    added = 0
    for value in dict.fromkeys(value for node in moved for value in _data(node)):
        maker = value.producer()
        if maker in moved:
            continue
        if not _brings(maker, _FIRST):
            added += 0 if maker is not None and maker.op_type == "Conv" else _size(value)
        elif inside.issuperset(use.node for use in value.uses()) and not value.is_graph_output():
            gone += _size(value)
    return added < gone


def _size(value: ir.Value) -> int:
    return math.prod(size for size in value.shape if isinstance(size, int))


def _channels_last(model: ir.Model, value: ir.Value, reader: ir.Node, firsts: list[ir.Node]) -> ir.Value:
    """The same values with channels last, in front of their first reader."""
    maker = value.producer()
    if _brings(maker, _FIRST):
        firsts.append(maker)
        return maker.inputs[0]
    order = _LAST[len(value.shape)]
    node = ir.node("Transpose", [value], {"perm": order}, name=f"{value.name}.channels_last")
    model.graph.insert_before(reader, node)
    return _named(node.outputs[0], f"{value.name}.channels_last", [value.shape[axis] for axis in order])


def _named(value: ir.Value, name: str, sizes: list[object]) -> ir.Value:
    value.name, value.shape, value.dtype = name, ir.Shape(sizes), ir.DataType.FLOAT
    return value


def _rewritten(model: ir.Model, node: ir.Node, last: dict[ir.Value, ir.Value]) -> None:
    """Put a node of the same name before another one, that reads and puts out channels last."""
    reads = [last.get(value, value) for value in node.inputs]
    settings = dict(node.attributes)
    if node.op_type in ("Concat", "Split"):
        rank = len(node.outputs[0].shape)
        settings["axis"] = ir.AttrInt64("axis", _LAST[rank].index(_axis(node)))
    elif node.op_type == "Reshape":
        sizes = [node.outputs[0].shape[axis] for axis in _LAST[len(node.outputs[0].shape)]]
        shape = [-1, *sizes[1:]] if len(sizes) > _BATCH_AND_CHANNELS else sizes
        reads = [reads[0], new_constant(model, f"{node.name}.channels_last.sizes", np.array(shape, np.int64))]
    made = ir.Node("", node.op_type, reads, list(settings.values()), num_outputs=len(node.outputs), name=node.name)
    model.graph.insert_before(node, made)
    for old, new in zip(node.outputs, made.outputs, strict=True):
        last[old] = _named(new, f"{old.name}.channels_last", [old.shape[axis] for axis in _LAST[len(old.shape)]])
