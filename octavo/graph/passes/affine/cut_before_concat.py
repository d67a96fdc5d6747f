"""A Relu or Clip behind a Concat goes before it, where layers take it in."""

from __future__ import annotations

import onnx_ir as ir

from octavo.graph.nodes import TAKES_CUT, cut_behind
from octavo.graph.passes.folding import bypass, is_private
from octavo.graph.passes.node_pass import NodePass

__all__ = ["CutBeforeConcatPass"]


class CutBeforeConcatPass(NodePass):
    """Rewrite `Relu(Concat(a, b))` as `Concat(Relu(a), Relu(b))`, and so with Clip.

    A layer takes a Relu in at no cost, in float and in INT8, where its codes then need not tell what lies below zero. Networks that
    make an image smaller by a Conv beside a pool (ERFNet, ENet, ShuffleNet) have it behind the Concat of both.

    1. The Relu or Clip alone reads the Concat, and a Clip's bounds are constant.
    2. A layer or an Add makes one of the parts, and nothing else reads that: else one node for all parts is as good.

    The Concat's output takes the name of the Relu's, and what is cut before it a new one. The same values.
    """

    op_type = "Concat"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        cut = cut_behind(node)
        if cut is None or not any(_is_taken_in(model, part) for part in node.inputs):
            return False
        for place, part in enumerate(node.inputs):
            name = f"{cut.name}.part{place}"
            one = ir.node(cut.op_type, [part, *cut.inputs[1:]], cut.attributes, name=name)
            made = one.outputs[0]
            made.name, made.dtype, made.shape = f"{cut.outputs[0].name}.part{place}", part.dtype, part.shape
            model.graph.insert_before(node, one)
            node.replace_input_with(place, made)
        bypass(model, cut, node.outputs[0])
        return True


def _is_taken_in(model: ir.Model, part: ir.Value | None) -> bool:
    return is_private(model, part) and part.producer() is not None and part.producer().op_type in TAKES_CUT
