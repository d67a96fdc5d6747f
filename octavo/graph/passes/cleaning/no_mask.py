"""Masks of attention that hide nothing."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.nodes import origin
from octavo.graph.operators import MOVES
from octavo.graph.passes.arithmetic import is_op
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, pruned

__all__ = ["NoMaskPass"]


class NoMaskPass(NodePass):
    """Take out `x + m`, where m is known to be zero everywhere.

    Of attention whose mask is all true exporters keep what makes one: `Where(Expand(true), 0, -inf)`, which folding leaves while
    the batch is open, and its sum with the scores, the largest tensors of the network.

    1. m is made of constants by nodes that only move values, and by Where: of these one of its two where its condition is known to
       be all true or all false, else both have to be zero.
    2. The sum has the shape of x, its open sizes by name: m repeats nothing.
    3. An output of the graph keeps its node.

    The result is the same, but for the sign of a zero.
    """

    op_type = "Add"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        made = node.outputs[0]
        for value, mask in (node.inputs, reversed(node.inputs)):
            if _is_zero(mask) and not made.is_graph_output() and _same(value.shape, made.shape) and value.dtype == made.dtype:
                made.replace_all_uses_with(value)
                pruned(model, [node])
                return True
        return False


def _is_zero(value: ir.Value | None) -> bool:
    value = origin(value, MOVES)
    node = value.producer() if value is not None else None
    if not is_op(node, "Where"):
        array = constant_of(value)
        return array is not None and array.size > 0 and not np.any(array)
    condition, *parts = node.inputs
    told = constant_of(origin(condition, MOVES))
    if told is not None and told.size and (told.all() or not told.any()):
        parts = parts[:1] if told.all() else parts[1:]
    return all(map(_is_zero, parts))


def _same(shape: ir.Shape | None, other: ir.Shape | None) -> bool:
    """Whether both are known and equal, open sizes by their names."""
    if shape is None or other is None or len(shape) != len(other):
        return False
    return all(a == b and (isinstance(a, int) or a.value is not None) for a, b in zip(shape, other, strict=True))
