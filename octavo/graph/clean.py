"""Bring any exporter's graph into the one shape that the rest of the library works on."""

from __future__ import annotations

from collections import Counter

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from octavo.errors import SourceError
from octavo.graph.inspect import check_ranks
from octavo.graph.logs import captured_logs
from octavo.graph.passes.cleaning.carried_shapes import CarriedShapesPass
from octavo.graph.passes.cleaning.einsum_to_matmul import EinsumToMatMulPass
from octavo.graph.passes.cleaning.fold_constants import FoldConstantsPass
from octavo.graph.passes.cleaning.fold_pad import FoldPadPass
from octavo.graph.passes.cleaning.grid_type import GridTypePass
from octavo.graph.passes.cleaning.half_pixel_nearest import HalfPixelNearestPass
from octavo.graph.passes.cleaning.known_sizes import KnownSizesPass
from octavo.graph.passes.cleaning.no_identities import NoIdentitiesPass
from octavo.graph.passes.cleaning.no_idle_moves import NoIdleMovesPass
from octavo.graph.passes.cleaning.no_mask import NoMaskPass
from octavo.graph.passes.cleaning.no_unused import NoUnusedPass
from octavo.graph.passes.cleaning.node_names import NodeNamesPass
from octavo.graph.passes.cleaning.opset_up import OpsetUpPass, ir_version_for
from octavo.graph.passes.cleaning.pad_apart import PadApartPass
from octavo.graph.passes.cleaning.pick_part import PickPartPass
from octavo.graph.passes.cleaning.same_order import SameOrderPass
from octavo.graph.passes.cleaning.scatter_rows import ScatterRowsPass
from octavo.graph.passes.cleaning.sum_apart import SumApartPass
from octavo.graph.passes.cleaning.sure_softmax import SureSoftmaxPass
from octavo.graph.passes.cleaning.swapped_axes import SwappedAxesPass
from octavo.graph.passes.cleaning.whole_windows import WholeWindowsPass
from octavo.graph.passes.cleaning.zero_tiny_weights import ZeroTinyWeightsPass
from octavo.graph.passes.shapes import InferShapesPass
from octavo.graph.valid import check_valid

__all__ = ["clean"]

# The opset from which on GroupNormalization has scales of channels. That of 18 to 20, of groups, is deprecated: ONNX Runtime runs
# it, and ONNX' checker refuses it.
GROUPS_BY_CHANNEL = 21


def clean(model: ir.Model, opset: int) -> list[str]:
    """Edit the model in place, without changing what it computes, so that afterwards:

    1. its opset is at least `opset` (21 where there is GroupNormalization), and its IR version one that this opset needs;
    2. its inputs are what a caller feeds: no initializer is among them;
    3. its constants are initializers, its functions inlined, and what is computed from constants or known sizes alone is computed;
       no Identity, no Dropout and no unused node is left but those that outputs need, no part of a Concat is made that nobody takes
       out of it again, nothing is laid in a row and taken up in the order that it had, and attention has no mask that hides nothing
       and no guard against one;
    4. every node has a name of its own;
    5. no Pad stands before a Conv or MaxPool that can pad itself, and ONNX Runtime moves none into a MaxPool that cannot, nor a sum
       into a Conv that the graph puts out;
    6. no weight is so small that float32 results do not depend on it, which makes some CPUs ten times as slow;
    7. shapes are inferred, and none is believed that the file states inside a loop's body;
    8. no Einsum is left that a product of matrices computes;
    9. no nearest Resize has the coordinates that ONNX took back at opset 13;
    10. no GridSample has a float64 grid beside a float32 image;
    11. no pool's shape counts a window that begins behind the image, which nothing makes;
    12. it passes the ONNX checker (`check_valid`).

    Returns:
        What was changed, one plain line each; empty when nothing was.

    Raises:
        SourceError: the opset conversion fails, an output lost its name, or the model is not valid ONNX.
    """
    notes = []
    outputs = [value.name for value in model.graph.outputs]
    listed = sum(value.is_initializer() for value in model.graph.inputs)
    if common.RemoveInitializersFromInputsPass()(model).modified:
        notes.append(f"{listed} initializers were listed among the inputs; they are constants now")
    opset = _needed(model, opset)
    # The IR allows initializers that are no inputs from version 4 on, so this comes before any check of the model.
    model.ir_version = max(model.ir_version, ir_version_for(model, opset))
    functions = len(model.functions)
    if common.InlinePass()(model).modified:
        notes.append(f"{functions} model-local functions inlined")
    CarriedShapesPass()(model)
    # Before the conversion: its C++ side gets the graph without large initializers, but with every Constant node.
    constants = _count(model, "Constant")
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    before = model.opset_imports.get("")
    names = Counter(node.name or "" for node in ir.traversal.RecursiveGraphIterator(model.graph))
    if OpsetUpPass(opset)(model).modified:
        notes.append(f"opset converted from {before} to {opset}")
    notes += _noted(model, HalfPixelNearestPass(), "nearest Resizes of TensorFlow's coordinates written as half-pixel ones")
    notes += _noted(
        model, WholeWindowsPass(), "pools whose last window begins behind the image round down: nothing makes that window"
    )
    if constants > _count(model, "Constant"):
        notes.append(f"{constants - _count(model, 'Constant')} Constant nodes became initializers")
    # Before folding, which gives nodes without a name one that says nothing; what it adds is named in its turn.
    named = NodeNamesPass()(model).modified or "" in names or max(names.values(), default=0) > 1
    nodes = _count(model)
    # Folding would make a copy of the weights that torch's exporter gives further layers by Identity.
    NoIdentitiesPass()(model)
    notes += _folded(model)
    with captured_logs():
        NoIdentitiesPass()(model)
        NoUnusedPass()(model)
        common.RemoveUnusedOpsetsPass()(model)
    if _count(model) < nodes:
        notes.append(f"{nodes - _count(model)} constant, unused or Identity nodes removed")
    if NodeNamesPass()(model).modified or named:
        notes.append("nodes without a name of their own were named")
    pads = _count(model, "Pad")
    for edit in (FoldPadPass(), PadApartPass(), SumApartPass()):
        edit(model)
    if pads > _count(model, "Pad"):
        notes.append(f"{pads - _count(model, 'Pad')} Pad nodes folded into the Conv or MaxPool behind them")
    tiny = ZeroTinyWeightsPass()
    if tiny(model).modified:
        notes.append(
            f"{tiny.count} weights too small for any result to depend on set to zero: subnormal numbers are slow on some CPUs"
        )
    shapes = InferShapesPass()
    shapes(model)
    if shapes.problem:
        notes.append(f"some shapes stay unknown: {shapes.problem}")
    notes += _noted(model, GridTypePass(), "float64 grids of GridSample cast to float32: ONNX Runtime samples one type only")
    _check(model, outputs)
    return notes


def _folded(model: ir.Model) -> list[str]:
    """Fold what is constant, and edit what can be told then; a note where folding stopped early."""
    folding = FoldConstantsPass()
    # Branches that folding has dropped read nothing. Sizes that the exporter left out (torch's, of keys that are turned with the
    # batch open) tell what repeats nothing, and sizes that are constants now tell of more shapes; what contradicts itself is told
    # of at the end.
    known = (folding, NoUnusedPass(), InferShapesPass())
    for edit in known:
        edit(model)
    while KnownSizesPass()(model).modified:
        for edit in known:
            edit(model)
    # A mask is gone before the guard against it is looked at.
    exact = (
        PickPartPass(),
        SameOrderPass(),
        ScatterRowsPass(),
        NoIdleMovesPass(),
        EinsumToMatMulPass(),
        SwappedAxesPass(),
        NoMaskPass(),
        SureSoftmaxPass(),
    )
    for edit in exact:
        edit(model)
    return [f"constant folding stopped early: {folding.problem}"] if folding.problem else []


def _noted(model: ir.Model, edit: ir.passes.InPlacePass, note: str) -> list[str]:
    """Edit; the note where something changed."""
    return [note] if edit(model).modified else []


def _check(model: ir.Model, outputs: list[str | None]) -> None:
    """Refuse a graph that is not valid, or whose outputs are not called `outputs`."""
    if [value.name for value in model.graph.outputs] != outputs:
        raise SourceError(f"the outputs {outputs} cannot all be kept apart in the cleaned graph", "export it with fewer outputs")
    check_ranks(model)
    try:
        check_valid(model)
    except onnx.checker.ValidationError as error:
        raise SourceError(f"the graph is not valid ONNX: {str(error).strip().splitlines()[0]}", "export it again") from error


def _needed(model: ir.Model, opset: int) -> int:
    """`opset`, or more where ONNX no longer takes what stands in the graph."""
    bodies = (model.graph, *model.functions.values())
    grouped = any(node.op_type == "GroupNormalization" for body in bodies for node in ir.traversal.RecursiveGraphIterator(body))
    return max(opset, GROUPS_BY_CHANNEL) if grouped else opset


def _count(model: ir.Model, op_type: str | None = None) -> int:
    return sum(op_type in (None, node.op_type) for node in ir.traversal.RecursiveGraphIterator(model.graph))
