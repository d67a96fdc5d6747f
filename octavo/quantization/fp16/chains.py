"""Patterns over several nodes that are better in float32: scores, boxes at their places or moved apart by class, index arithmetic,
guarded divisors, moves between such nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

import onnx_ir as ir

from octavo.graph.operators import JOINS, LAYERS, MOVES
from octavo.graph.selection import finds_peaks, tells_places
from octavo.quantization.fp16.schema import is_control_flow, is_float

__all__ = ["decoded", "guarded", "index_chains", "moved_apart", "plain_moves", "scores"]

# Integers of 8 bits are exact in float16, their sums are not.
SHORT = {ir.DataType.BOOL, ir.DataType.INT8, ir.DataType.UINT8}
SUMS = frozenset({"CumSum", "ReduceSum"})
INTEGERS = {ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64}
# Between an epsilon and the division that it is for.
ROOTS = frozenset({"Expand", "Identity", "Pow", "Reshape", "Sqrt", "Unsqueeze"})
DIVISIONS = frozenset({"Div", "Log", "Reciprocal"})
# What only moves values.
_MOVING = MOVES | JOINS
# What ends between 0 and 1, and what chooses by it.
SCORES = frozenset({"HardSigmoid", "Sigmoid", "Softmax"})
CHOICES = frozenset({"NonMaxSuppression", "TopK"})
# The way of scores: the best of a place's classes, or of neighbouring places, is one of them.
_PASSING = _MOVING | {"MaxPool", "ReduceMax"}


class Planned(Protocol):
    """What is read of a node's plan."""

    inputs: tuple[bool, ...]
    as_it_comes: bool

    @property
    def half(self) -> bool:
        """Whether any slot is float16."""
        ...


def index_chains(graph: ir.Graph, *, keep_io: bool) -> list[ir.Node]:
    """Nodes that compute integers in float32: sizes for a Resize, places from a TopK, counts of pixels.

    1. It starts at a Cast from an integer wider than 8 bits, or from any other that is summed.
    2. It runs on through nodes whose every non-constant float input is in the chain; a layer with weights ends it.
    3. It counts only if it comes back to integers (a Cast) or to a size that must be float32 (`scales` of Resize), or reaches a
       graph output that stays float32 (`keep_io`), straight or through nodes that only move values; these are in it, too.
    """
    moving = _moving_to_outputs(graph) if keep_io else set()
    begun: dict[ir.Node, None] = {}
    for node in graph:
        if _starts(node) or _continues(node, begun):
            begun[node] = None
    arrived: set[ir.Node] = set()
    for node in reversed(list(begun)):
        for output in node.outputs:
            if keep_io and output.is_graph_output() and is_float(output):
                arrived.add(node)
            for use in output.uses():
                if use.node in arrived or use.node in moving or _ends(use.node, use.idx):
                    arrived.add(node)
    for node in graph:
        if node in moving and any(value is not None and value.producer() in arrived for value in node.inputs):
            arrived.add(node)
    return [node for node in graph if node in arrived]


def _moving_to_outputs(graph: ir.Graph) -> set[ir.Node]:
    """Nodes that only move values, and from which others like them lead to a graph output."""
    found: set[ir.Node] = set()
    for node in reversed(list(graph)):
        if node.op_type in _MOVING and any(
            output.is_graph_output() or any(use.node in found for use in output.uses()) for output in node.outputs
        ):
            found.add(node)
    return found


def guarded(graph: ir.Graph, guards: Iterable[ir.Node]) -> dict[ir.Node, ir.Node]:
    """Nodes from an epsilon to the division that it guards: `x / max(norm, 1e-12)`, `x / sqrt(variance + 1e-8)`.

    The guard alone in float32 is no help: cast to float16 behind it, the divisor would be zero again.

    Args:
        guards: Add, Max or Clip with a lone constant that float16 cannot hold.

    Returns:
        Node to its guard, in the graph's order.
    """
    behind = {guard: guard for guard in guards}
    found: dict[ir.Node, ir.Node] = {}
    for node in graph:
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            if producer in behind and node.op_type in ROOTS | DIVISIONS:
                found[node] = behind[producer]
                if node.op_type in ROOTS:
                    behind[node] = behind[producer]
    return found


def scores(graph: ir.Graph, *, keep_io: bool) -> list[ir.Node]:
    """Nodes that make the scores which the graph puts out or chooses by, and all that only moves these scores on their way.

    Float16 has steps of 0.0005 below 1. Scores of what a network is sure of lie within few of them, become equal, and which of two
    boxes suppresses the other is no longer the better one's right (AP of a face detector against its own boxes in float32, on a
    GPU: 0.93). The logits before have no such end, and these nodes take next to no time.

    1. A Sigmoid, HardSigmoid or Softmax, if a way through nodes that only move values, take the largest of them, or leave the peaks
       among them, leads from it to a graph output that stays float32 (`keep_io`), to a NonMaxSuppression or a TopK that says where
       values stand, or to what tells where they are the largest of their neighbours: two of them that became equal are two peaks.
    2. The nodes on that way; what else is joined to the scores there (boxes) is cast before.
    """
    arriving: set[ir.Node] = set()
    made: dict[ir.Node, None] = {}
    passing = _PASSING | SCORES
    for node in reversed(list(graph)):
        if (node.op_type in CHOICES and tells_places(node)) or finds_peaks(node):
            arriving.add(node)
        elif (node.op_type in passing or _leaves_peaks(node)) and any(
            (keep_io and output.is_graph_output()) or any(use.node in arriving for use in output.uses()) for output in node.outputs
        ):
            (made.setdefault if node.op_type in SCORES else arriving.add)(node)
    for node in graph:
        if node in arriving and any(value is not None and value.producer() in made for value in node.inputs):
            made[node] = None
    return list(made)


def _leaves_peaks(node: ir.Node) -> bool:
    """Whether a node takes values as they are where they are the largest of their neighbours, and zero elsewhere."""
    if node.op_type not in ("Mul", "Where"):
        return False
    before = [value.producer() for value in node.inputs if value is not None]
    before += [
        each.inputs[0].producer() for each in before if each is not None and each.op_type == "Cast" and each.inputs[0] is not None
    ]
    return any(each is not None and finds_peaks(each) for each in before)


def decoded(graph: ir.Graph, *, keep_io: bool) -> list[ir.Node]:
    """Nodes that bring what a network says of a place to where the place is, and all behind them: boxes, points, landmarks.

    Float16 has eleven bits, and most of them tell the place: at 600 pixels its steps are half a pixel, however small the box, and
    in shares of the image a 2048th. Corners are rounded each by itself, so that which of two boxes suppresses the other changes
    where cells next to each other see one object (a detector of blood cells kept .94 of its boxes at 288x384, .999 so). How far
    corners are from the place is exact to a share of itself before.

    1. It starts at an Add or Sub of what layers of weights say and a value that differs from place to place and that no image
       changes (grids, anchors: constants, or made of sizes alone), with no layer behind it. What is added right behind a layer is
       its bias.
    2. A way leads from it to a graph output that stays float32 (`keep_io`) or to a NonMaxSuppression.
    3. The nodes on that way.
    """
    fixed: set[ir.Node] = set()
    said: set[ir.Node] = set()
    for node in graph:
        if node.op_type in ("Shape", "Size") or all(_is_fixed(value, fixed) for value in node.inputs):
            fixed.add(node)
        elif node.op_type in LAYERS or any(value is not None and value.producer() in said for value in node.inputs):
            said.add(node)
    arriving: set[ir.Node] = set()
    layered: set[ir.Node] = set()
    for node in reversed(list(graph)):
        uses = [use.node for output in node.outputs for use in output.uses()]
        if any(use in layered or use.op_type in LAYERS for use in uses):
            layered.add(node)
        elif node.op_type == "NonMaxSuppression" or any(
            (keep_io and output.is_graph_output() and is_float(output)) or not arriving.isdisjoint(uses) for output in node.outputs
        ):
            arriving.add(node)
    made: dict[ir.Node, None] = {}
    for node in graph:
        if node not in arriving or node in fixed or is_control_flow(node):
            continue
        if (node in said and _brings_to_places(node, fixed)) or any(
            is_float(value) and value.producer() in made for value in node.inputs
        ):
            made[node] = None
    return list(made)


def _is_fixed(value: ir.Value | None, fixed: Collection[ir.Node]) -> bool:
    return value is None or value.const_value is not None or value.producer() in fixed


def _brings_to_places(node: ir.Node, fixed: Collection[ir.Node]) -> bool:
    if node.op_type not in ("Add", "Sub"):
        return False
    places = [value for value in node.inputs if _is_fixed(value, fixed)]
    others = [value for value in node.inputs if not _is_fixed(value, fixed)]
    if len(places) != 1 or (others[0].producer() is not None and others[0].producer().op_type in LAYERS):
        return False
    shape = places[0].shape
    return shape is None or shape.is_dynamic() or any(side != 1 for side in shape.numpy())


def moved_apart(graph: ir.Graph) -> list[ir.Node]:
    """Nodes that move the boxes of different classes apart, so that one suppression serves all, up to that suppression.

    YOLOv7's `--end2end` adds 640 times the class to boxes in pixels, ultralytics' `nms=True` an 80th of it to boxes of 0 to 1/80.
    Float16 has ten bits behind the first: of class 79's they tell the class, and boxes have steps of 32 pixels, or a 25th of the
    image, by which near ones become one box and others' overlap is chance.

    1. An Add of a value that comes from whole numbers (a Cast) through Mul and nodes that only move values to another value that
       is computed, if a way through nodes that only move values leads from it to the boxes of a NonMaxSuppression.
    2. The nodes on both ways.
    """
    read: set[ir.Value] = set()
    ways: list[ir.Node] = []
    made: dict[ir.Node, None] = {}
    for node in reversed(list(graph)):
        if node.op_type == "NonMaxSuppression" and node.inputs[0] is not None:
            read.add(node.inputs[0])
        elif read.isdisjoint(node.outputs):
            continue
        elif node.op_type in _MOVING:
            read.update(value for value in node.inputs if value is not None and is_float(value))
            ways.append(node)
        elif node.op_type == "Add" and all(value is not None and value.producer() is not None for value in node.inputs):
            offsets = [way for value in node.inputs if (way := _from_whole_numbers(value))]
            if len(offsets) == 1:
                made |= dict.fromkeys([node, *offsets[0]])
    for node in reversed(ways):
        if any(value is not None and value.producer() in made for value in node.inputs):
            made[node] = None
    return list(made)


def _from_whole_numbers(value: ir.Value | None) -> list[ir.Node]:
    """The nodes that lead from a Cast of integers to a value, the Cast included; empty where none does."""
    node = None if value is None else value.producer()
    if node is None:
        return []
    if node.op_type == "Cast":
        return [node] if node.inputs[0] is not None and node.inputs[0].dtype in INTEGERS | SHORT else []
    if node.op_type not in _MOVING | {"Mul"}:
        return []
    before = [way for each in node.inputs if is_float(each) and (way := _from_whole_numbers(each))]
    return [node, *before[0]] if len(before) == 1 else []


def plain_moves(graph: ir.Graph, plan: Mapping[ir.Node, Planned], *, keep_io: bool) -> list[ir.Node]:
    """Nodes that only move values, all of them from float32 nodes to float32 nodes.

    In float16 they would cost two casts and the digits, and compute nothing. It is the largest set of moves whose float inputs all
    come from float32 nodes, graph inputs or the set, and whose outputs all go to float32 slots or the set.
    """
    moves = {node: None for node in graph if node.op_type in _MOVING and node in plan and plan[node].half}

    def gives_float(value: ir.Value | None) -> bool:
        if not is_float(value):
            return True
        producer = value.producer()
        if producer is None:
            return keep_io or not value.is_graph_input()
        return producer in moves or not plan[producer].half

    def takes_float(value: ir.Value) -> bool:
        if value.is_graph_output() and not keep_io:
            return False
        return all(
            use.node in moves or use.node not in plan or plan[use.node].as_it_comes or not plan[use.node].inputs[use.idx]
            for use in value.uses()
        )

    while True:
        kept = {n: None for n in moves if all(map(gives_float, n.inputs)) and all(map(takes_float, n.outputs))}
        if len(kept) == len(moves):
            return list(moves)
        moves = kept


def _starts(node: ir.Node) -> bool:
    if node.op_type != "Cast" or node.inputs[0] is None or not is_float(node.outputs[0]):
        return False
    kind = node.inputs[0].dtype
    return kind in INTEGERS or (kind in SHORT and any(use.node.op_type in SUMS for use in node.outputs[0].uses()))


def _continues(node: ir.Node, begun: Mapping[ir.Node, None]) -> bool:
    if node.op_type in LAYERS or is_control_flow(node) or not any(is_float(value) for value in node.outputs):
        return False
    data = [value for value in node.inputs if is_float(value) and not value.is_initializer()]
    return bool(data) and all(value.producer() in begun for value in data)


def _ends(node: ir.Node, place: int) -> bool:
    if node.op_type == "Cast":
        return node.outputs[0].dtype in INTEGERS
    return (node.op_type == "Resize" and place == 2) or node.op_type in ("Range", "Upsample")
