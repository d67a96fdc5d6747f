"""Which decoders of anchors (YOLOv3 to v7) a graph has: each scale's layer, how its channels are taken apart and joined."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.graph.nodes import is_pointwise, only_reader
from octavo.graph.passes.qdq import constant_of

__all__ = ["AnchorHead", "anchor_head"]

# One image in, one out, element by element.
_EACH = frozenset({"HardSigmoid", "Sigmoid", "Tanh"})
# Columns from which on a product of matrices of their own costs less than moving them.
_WIDE = 16


@dataclass(frozen=True)
class AnchorHead:
    """The decoder of one scale.

    Attributes:
        conv: its layer.
        moves: the Reshape and the Transpose behind it.
        each: functions of one element, in their order.
        cuts: the Split, or the Slices.
        parts: (first column, number of columns, value) of each part, in order.
        join, rows: the Concat of the parts and the Reshape behind it.
        scores: which of the parts they are.
        sizes: anchors, columns, height, width.
    """

    conv: ir.Node
    moves: tuple[ir.Node, ...]
    each: tuple[ir.Node, ...]
    cuts: tuple[ir.Node, ...]
    parts: tuple[tuple[int, int, ir.Value], ...]
    join: ir.Node
    rows: ir.Node
    scores: int
    sizes: tuple[int, int, int, int]

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal where two heads' rows can be put together part by part."""
        widths = tuple(value.shape[-1] for value in self.join.inputs)
        return widths, self.place, tuple(node.op_type for node in self.each), tuple(str(node.attributes) for node in self.each)

    @property
    def place(self) -> int:
        """Which input of the Concat the scores are."""
        return list(self.join.inputs).index(self.parts[self.scores][2])


def _axis(node: ir.Node, rank: int) -> int:
    return node.attributes["axis"].as_int() % rank if "axis" in node.attributes else 0


def _known(value: ir.Value | None, rank: int) -> list[int] | None:
    """All dimensions but the first."""
    if value is None or value.shape is None or len(value.shape) != rank:
        return None
    sizes = list(value.shape)[1:]
    return [int(size) for size in sizes] if all(isinstance(size, int) for size in sizes) else None


def anchor_head(value: ir.Value | None, last: ir.Node) -> AnchorHead | None:
    """The head whose rows an input of a Concat is; None where it is no such."""
    rows = value.producer() if value is not None else None
    known = _known(value, 3)
    if (
        rows is None
        or rows.op_type != "Reshape"
        or known is None
        or only_reader(rows.outputs[0]) is not last
        or _axis(last, 3) != 1
    ):
        return None
    join = rows.inputs[0].producer()
    joined = _known(rows.inputs[0], 5)
    if (
        join is None
        or join.op_type != "Concat"
        or joined is None
        or _axis(join, 5) != 4
        or only_reader(join.outputs[0]) is not rows
    ):
        return None
    anchors, height, width, columns = joined
    if known != [anchors * height * width, columns] or any(_known(part, 5) is None for part in join.inputs):
        return None
    for part in join.inputs:
        head = _from_part(part, join, rows, (anchors, columns, height, width))
        if head is not None:
            return head
    return None


def _from_part(part: ir.Value, join: ir.Node, rows: ir.Node, sizes: tuple[int, int, int, int]) -> AnchorHead | None:
    """The head one part of which goes to the Concat untouched."""
    cut = part.producer()
    if cut is None or cut.op_type not in ("Split", "Slice") or only_reader(part) is not join:
        return None
    whole = cut.inputs[0]
    parts, cuts = _parts(whole)
    widest = max(parts, key=lambda each: each[1], default=None)
    if widest is None or widest[2] is not part or widest[1] < _WIDE or len(parts) < 2:
        return None
    each: list[ir.Node] = []
    node = whole.producer()
    while node is not None and node.op_type in _EACH and (not each or only_reader(node.outputs[0]) is each[0]):
        each.insert(0, node)
        node = node.inputs[0].producer()
    moves = _moves(node, each[0] if each else None, sizes)
    if moves is None:
        return None
    conv, *between = moves
    return AnchorHead(conv, tuple(between), tuple(each), cuts, tuple(parts), join, rows, parts.index(widest), sizes)


def _moves(node: ir.Node | None, behind: ir.Node | None, sizes: tuple[int, int, int, int]) -> tuple[ir.Node, ...] | None:
    """(Conv, Reshape, Transpose) where this Transpose is the last of them, with nothing else reading what is between."""
    anchors, columns, height, width = sizes
    if node is None or node.op_type != "Transpose" or list(node.attributes["perm"].as_ints()) != [0, 1, 3, 4, 2]:
        return None
    if behind is not None and only_reader(node.outputs[0]) is not behind:
        return None
    shape = node.inputs[0].producer()
    if shape is None or shape.op_type != "Reshape" or _known(node.inputs[0], 5) != [anchors, columns, height, width]:
        return None
    conv = shape.inputs[0].producer()
    if conv is None or conv.op_type != "Conv" or _known(shape.inputs[0], 4) != [anchors * columns, height, width]:
        return None
    if only_reader(shape.outputs[0]) is not node or only_reader(conv.outputs[0]) is not shape or not _multiplies_pixels(conv):
        return None
    return conv, shape, node


def _multiplies_pixels(conv: ir.Node) -> bool:
    """Whether a Conv is 1x1, of constant weights and bias."""
    bias = conv.inputs[2] if len(conv.inputs) > 2 else None
    constants = constant_of(conv.inputs[1]) is not None and (bias is None or constant_of(bias) is not None)
    return constants and is_pointwise(conv)


def _parts(whole: ir.Value) -> tuple[list[tuple[int, int, ir.Value]], tuple[ir.Node, ...]]:
    """The parts that a tensor is cut into along its last axis, and by what; none where they are not side by side and all of it."""
    sizes = _known(whole, 5)
    nodes = tuple(dict.fromkeys(use.node for use in whole.uses()))
    if sizes is None or whole.is_graph_output() or not nodes or any(node.inputs[0] is not whole for node in nodes):
        return [], ()
    found: list[tuple[int, int, ir.Value]] = []
    for node in nodes:
        cut = list(_cut(node))
        if not cut or any(value.is_graph_output() for _, _, value in cut):
            return [], ()
        found += cut
    found.sort(key=lambda part: part[0])
    ends = [0, *(start + size for start, size, _ in found)]
    if not found or [start for start, _, _ in found] != ends[:-1] or ends[-1] != sizes[-1]:
        return [], ()
    return found, nodes


def _cut(node: ir.Node) -> Iterator[tuple[int, int, ir.Value]]:
    if node.op_type == "Split" and _axis(node, 5) == 4:
        widths = [value.shape[-1] if value.shape is not None else None for value in node.outputs]
        if all(isinstance(width, int) for width in widths):
            starts = np.cumsum([0, *widths]).tolist()
            yield from zip(starts, widths, node.outputs, strict=False)
    elif node.op_type == "Slice":
        bounds = [constant_of(value) for value in node.inputs[1:]]
        if len(bounds) < 3 or any(bound is None or bound.size != 1 for bound in bounds):
            return
        start, _, axis, *step = (int(bound.item()) for bound in bounds)
        width = node.outputs[0].shape[-1] if node.outputs[0].shape is not None else None
        if axis % 5 == 4 and step in ([], [1]) and start >= 0 and isinstance(width, int):
            yield start, width, node.outputs[0]
