"""Heads of anchors (YOLOv3 to v7), whose channels are taken apart, made to put out rows as they are wanted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.nodes import is_pointwise, only_reader
from octavo.graph.passes.node_pass import GraphPass
from octavo.graph.passes.qdq import constant_of, new_constant, pruned
from octavo.graph.passes.shapes import InferShapesPass

__all__ = ["RowsOfAnchorsPass"]

# One image in, one out, element by element.
_EACH = frozenset({"HardSigmoid", "Sigmoid", "Tanh"})
# Columns from which on a product of matrices of their own costs less than moving them.
_WIDE = 16


class RowsOfAnchorsPass(GraphPass):
    """Rewrite a decoder of anchors so that boxes and scores come from convolutions of their own, and scores are never transposed.

    Such a decoder is, for each scale, `Conv 1x1 -> Reshape [n, A, K, H, W] -> Transpose (0, 1, 3, 4, 2) -> Sigmoid -> Split` of K
    columns; some parts are computed with (boxes), one is not (scores); `Concat -> Reshape [n, A H W, K]` puts them together, and a
    last Concat the scales. Nearly all that is moved in it are scores: they pass through memory five times. Boxes and scores share
    the layer, and so its precision, which a tenth of its channels needs.

    1. The scores get a Conv for each anchor, whose pixels are rows already, and the other columns one together. The scores of all
       scales meet in one Concat, and boxes come to them in the last one.
    2. All sizes but the batch are known, the parts lie side by side and are all of the columns, and the scores are the widest part,
       of 16 columns or more, which only the Concat reads.
    3. All that the last Concat joins are such heads, alike in order and number of columns.
    4. A head whose Conv is one of `apart` stays, and with it the heads that it is joined with.

    Names of the new convolutions begin with the old one's and a point. Exact: each output has the same products, in the same order.
    """

    def __init__(self, apart: Collection[str] = ()) -> None:
        super().__init__()
        self.apart = apart

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite in place; `modified` says whether a decoder changed."""
        changed = False
        for last in [node for node in model.graph if node.op_type == "Concat"]:
            heads = [_head(value, last) for value in last.inputs]
            found = [head for head in heads if head is not None]
            if found and len(found) == len(heads) and len({head.kind for head in found}) == 1 and self._may(found):
                _rewrite(model, last, found)
                changed = True
        if changed:
            InferShapesPass()(model)
        return ir.passes.PassResult(model, changed)

    def _may(self, heads: Sequence[_Head]) -> bool:
        return all(head.conv.name not in self.apart for head in heads)


@dataclass(frozen=True)
class _Head:
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


def _head(value: ir.Value | None, last: ir.Node) -> _Head | None:
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


def _from_part(part: ir.Value, join: ir.Node, rows: ir.Node, sizes: tuple[int, int, int, int]) -> _Head | None:
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
    return _Head(conv, tuple(between), tuple(each), cuts, tuple(parts), join, rows, parts.index(widest), sizes)


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


def _rewrite(model: ir.Model, last: ir.Node, heads: Sequence[_Head]) -> None:
    makers = [_Made(model, head) for head in heads]
    scores = [rows for made in makers for rows in made.scores()]
    place = heads[0].place
    sides = [side for side in (slice(0, place), slice(place + 1, None)) if list(heads[0].join.inputs)[side]]
    others: list[list[ir.Value]] = [[] for _ in sides]
    for made, head in zip(makers, heads, strict=True):
        made.others()
        # What is computed of them, now from their own Conv.
        for rows, side in zip(others, sides, strict=True):
            parts = list(head.join.inputs)[side]
            value = made.before(head.rows, "Concat", parts, {"axis": 4}, "boxes") if len(parts) > 1 else parts[0]
            rows.append(made.reshaped(value, [0, -1, sum(int(part.shape[-1]) for part in parts)], head.rows))
    first = makers[0]
    joined = first.before(last, "Concat", scores, {"axis": 1}, "scores")
    columns = [first.before(last, "Concat", rows, {"axis": 1}, "rows") if len(rows) > 1 else rows[0] for rows in others]
    columns.insert(int(place > 0), joined)
    whole = ir.node("Concat", columns, {"axis": 2}, name=last.name)
    take_place(model, [last], [whole], last.outputs[0], whole.outputs[0])
    for head in heads:
        pruned(model, [head.rows, head.join, *head.cuts, *reversed(head.each), *reversed(head.moves), head.conv])


class _Made:
    """What takes the place of a head; every node's name begins with the Conv's and a point."""

    def __init__(self, model: ir.Model, head: _Head) -> None:
        self.model, self.head = model, head
        self.number = 0

    def scores(self) -> list[ir.Value]:
        """Rows [n, H W, scores] of each anchor."""
        (anchors, columns, _, _), (first, count, _) = self.head.sizes, self.head.parts[self.head.scores]
        behind, found = self.head.moves[0], []
        for anchor in range(anchors):
            begin = anchor * columns + first
            value = self._pixels(np.arange(begin, begin + count), f"scores{anchor}")
            value = self.reshaped(value, [0, -1, count], behind)
            # Here and not behind the Concat: what a core has just written it finds in its cache.
            for node in self.head.each:
                value = self.before(behind, node.op_type, [value], node.attributes, "score")
            found.append(value)
        return found

    def others(self) -> None:
        """The other parts, to whoever read them."""
        head, behind = self.head, self.head.moves[0]
        anchors, columns, height, width = head.sizes
        kept = [part for place, part in enumerate(head.parts) if place != head.scores]
        taken = np.array([start + column for start, size, _ in kept for column in range(size)])
        value = self._pixels((np.arange(anchors)[:, None] * columns + taken).reshape(-1), "boxes")
        value = self.reshaped(value, [0, -1, anchors, len(taken)], behind)
        value = self.before(behind, "Transpose", [value], {"perm": [0, 2, 1, 3]}, "anchors")
        value = self.reshaped(value, [0, anchors, height, width, len(taken)], behind)
        for node in head.each:
            value = self.before(behind, node.op_type, [value], node.attributes, "each")
        values = [value]
        if len(kept) > 1:
            sizes = new_constant(self.model, f"{head.conv.name}.parts", np.array([size for _, size, _ in kept], np.int64))
            split = ir.node("Split", [value, sizes], {"axis": 4}, num_outputs=len(kept), name=self._name("split"))
            self.model.graph.insert_before(behind, split)
            values = list(split.outputs)
        for number, (new, (_, _, was)) in enumerate(zip(values, kept, strict=True)):
            new.name = f"{head.conv.name}.part{number}"
            new.dtype, new.shape = was.dtype, was.shape
            ir.convenience.replace_all_uses_with(was, new)

    def _pixels(self, channels: np.ndarray, what: str) -> ir.Value:
        """[n, H, W, channels] of some of the Conv's channels."""
        conv, behind = self.head.conv, self.head.moves[0]
        arrays = [constant_of(value)[channels] for value in list(conv.inputs)[1:] if value is not None]
        inputs = [new_constant(self.model, f"{conv.name}.{what}.{place}", array) for place, array in enumerate(arrays)]
        node = ir.node("Conv", [conv.inputs[0], *inputs], dict(conv.attributes), name=f"{conv.name}.{what}")
        node.outputs[0].name, node.outputs[0].dtype = f"{node.name}.out", ir.DataType.FLOAT
        self.model.graph.insert_before(behind, node)
        return self.before(behind, "Transpose", [node.outputs[0]], {"perm": [0, 2, 3, 1]}, f"{what}.last")

    def reshaped(self, value: ir.Value, shape: list[int], behind: ir.Node) -> ir.Value:
        """The value in another shape; `behind` is the node that this is put before."""
        target = new_constant(self.model, f"{self._name('shape')}", np.array(shape, np.int64))
        return self.before(behind, "Reshape", [value, target], {}, "rows")

    def before(
        self, place: ir.Node, op_type: str, inputs: Sequence[ir.Value], attributes: Mapping[str, Any], what: str
    ) -> ir.Value:
        """Put a node before another; its output."""
        node = ir.node(op_type, list(inputs), dict(attributes), name=self._name(what))
        node.outputs[0].name, node.outputs[0].dtype = f"{node.name}.out", ir.DataType.FLOAT
        self.model.graph.insert_before(place, node)
        return node.outputs[0]

    def _name(self, what: str) -> str:
        self.number += 1
        return f"{self.head.conv.name}.{what}.{self.number}"
