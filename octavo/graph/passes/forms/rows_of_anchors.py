"""Heads of anchors (YOLOv3 to v7), whose channels are taken apart, made to put out rows as they are wanted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.passes.forms.anchor_heads import AnchorHead, anchor_head
from octavo.graph.passes.node_pass import GraphPass
from octavo.graph.passes.qdq import constant_of, new_constant, pruned
from octavo.graph.passes.shapes import InferShapesPass

__all__ = ["RowsOfAnchorsPass"]


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
            heads = [anchor_head(value, last) for value in last.inputs]
            found = [head for head in heads if head is not None]
            if found and len(found) == len(heads) and len({head.kind for head in found}) == 1 and self._may(found):
                _rewrite(model, last, found)
                changed = True
        if changed:
            InferShapesPass()(model)
        return ir.passes.PassResult(model, changed)

    def _may(self, heads: Sequence[AnchorHead]) -> bool:
        return all(head.conv.name not in self.apart for head in heads)


def _rewrite(model: ir.Model, last: ir.Node, heads: Sequence[AnchorHead]) -> None:
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

    def __init__(self, model: ir.Model, head: AnchorHead) -> None:
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
