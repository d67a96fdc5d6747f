"""A graph of open sizes as it is for inputs of one size: the shapes of all tensors that follow from theirs are known then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from octavo.graph.passes.fold_constants import FoldConstantsPass
from octavo.graph.passes.shapes import InferShapesPass

__all__ = ["sized"]

# Rounds of inferring shapes and computing what depends on them alone: exporters' arithmetic on sizes takes one or two.
_ROUNDS = 4


def sized(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> ir.Model:
    """The same nodes, with known shapes.

    Args:
        model: shapes inferred as far as open inputs let; it is not changed.
        shapes: of inputs, by name.

    Returns:
        A copy that shares the weights. What depends on values (how many boxes are found) stays open.
    """
    result = _given(model, shapes)
    # Nodes that compute sizes are folded to see what they come to, in another copy: no tensor shall be missing.
    found = _given(model, shapes)
    for value in (*(value for node in found.graph for value in node.outputs), *found.graph.outputs):
        if not _is_fixed(value):
            value.shape = None
    for _ in range(_ROUNDS):
        InferShapesPass()(found)
        if not FoldConstantsPass()(found).modified:
            break
    known = {value.name: value.shape for node in found.graph for value in node.outputs if _is_fixed(value)}
    for node in result.graph:
        for value in node.outputs:
            if value.name in known and not _is_fixed(value):
                value.shape = ir.Shape(known[value.name])
    return result


def _given(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> ir.Model:
    copy = model.clone()
    for value in copy.graph.inputs:
        if value.name in shapes:
            value.shape = ir.Shape(shapes[value.name])
    return copy


def _is_fixed(value: ir.Value) -> bool:
    return value.shape is not None and all(isinstance(size, int) for size in value.shape)
