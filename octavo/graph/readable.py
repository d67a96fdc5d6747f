"""Any ONNX file's graph in the form that questions about its layers are asked of; what it computes is not touched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
from onnx_ir.passes import common

from octavo.graph.logs import captured_logs
from octavo.graph.passes.cleaning.carried_shapes import CarriedShapesPass
from octavo.graph.passes.cleaning.fold_constants import FoldConstantsPass
from octavo.graph.passes.cleaning.node_names import NodeNamesPass
from octavo.graph.passes.shapes import InferShapesPass

__all__ = ["Shape", "readable", "shapes_at", "sized"]

# None for a size that is not known.
Shape = tuple[int | None, ...]


def readable(model: ir.Model) -> ir.Model:
    """A copy in which functions are inlined, constants are initializers and no inputs, and every node has a name of its own.

    Types are inferred where the file states none. Other than `octavo.graph.clean.clean` it converts, folds and checks nothing:
    what the file says of precision stays there.
    """
    copy = model.clone()  # shares the tensors
    with captured_logs():
        common.RemoveInitializersFromInputsPass()(copy)
        common.InlinePass()(copy)
        CarriedShapesPass()(copy)
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(copy)
        NodeNamesPass()(copy)
        if any(value.dtype is None for node in copy.graph for value in node.outputs if value.name):
            InferShapesPass()(copy)
    return copy


def shapes_at(model: ir.Model, inputs: Mapping[str, Sequence[int]]) -> dict[str, Shape]:
    """Shapes of tensors when inputs have these sizes, as far as inference tells.

    What an exporter computes from sizes (`Shape`, `Gather`, `Reshape`) is computed, so that a file of dynamic shapes serves too.

    Args:
        model: as `readable` gives it; it is not changed.
        inputs: input to its sizes; others keep what the file says.
    """
    copy = model.clone()
    for value in copy.graph.inputs:
        if value.name in inputs:
            value.shape = ir.Shape(list(inputs[value.name]))
    for value in (value for node in copy.graph for value in node.outputs):
        # A symbol that the file states would stand in the way of the number. Of other domains inference knows nothing.
        if value.shape is not None and not all(isinstance(size, int) for size in value.shape):
            value.shape = None
    InferShapesPass()(copy)
    FoldConstantsPass()(copy)
    InferShapesPass()(copy)
    return {
        value.name: tuple(size if isinstance(size, int) else None for size in value.shape)
        for value in (*copy.graph.inputs, *copy.graph.initializers.values(), *(one for node in copy.graph for one in node.outputs))
        if value.name and value.shape is not None
    }


def sized(model: ir.Model, inputs: Mapping[str, Sequence[int]]) -> ir.Model:
    """The same nodes for inputs of these sizes, with the shapes that follow from them; what depends on values stays open.

    Args:
        model: names of nodes and tensors are its own, types are known; it is not changed.
        inputs: input to its sizes.

    Returns:
        A copy that shares the weights.
    """
    known, copy = shapes_at(model, inputs), model.clone()
    for value in copy.graph.inputs:
        if value.name in inputs:
            value.shape = ir.Shape(list(inputs[value.name]))
    for value in (value for node in copy.graph for value in node.outputs):
        found = known.get(value.name or "", (None,))
        if all(isinstance(size, int) for size in found):
            value.shape = ir.Shape(found)
    return copy
