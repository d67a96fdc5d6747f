"""What every INT8 quantization begins with, before anything is known of the graph's values."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from octavo.errors import QuantizationError
from octavo.graph.custom_ops.names import operator
from octavo.graph.passes.affine.fold_scale import FoldScalePass
from octavo.graph.passes.affine.gated_sum import GatedSumPass
from octavo.graph.passes.affine.sub_to_add import SubToAddPass
from octavo.graph.passes.forms.groups_to_instances import GroupsToInstancesPass
from octavo.graph.passes.forms.mean_to_pool import GlobalMaxPass, MaxToPoolPass
from octavo.graph.passes.forms.pool_behind_conv import PoolBehindConvPass
from octavo.graph.passes.forms.rows_of_anchors import RowsOfAnchorsPass
from octavo.graph.passes.forms.sum_of_parts import SumOfPartsPass
from octavo.graph.passes.forms.transposed_to_conv import TransposedToConvPass
from octavo.graph.passes.kernels.pad_depthwise import PadDepthwisePass
from octavo.graph.passes.kernels.tail_of_pixels import TailOfPixelsPass
from octavo.graph.prepared import prepared
from octavo.graph.selection import choosing, held
from octavo.params.grammar import Int8
from octavo.quantization.int8.choice import WAY_OUT
from octavo.quantization.int8.structure.carried import carried
from octavo.quantization.int8.structure.heads import heads_of, last_of
from octavo.quantization.int8.structure.targets import target_of
from octavo.quantization.int8.structure.units import units_of
from octavo.quantization.select import select

__all__ = ["Begun", "begin"]

# The opset that brought 16-bit QuantizeLinear.
_SIXTEEN_BITS = 21


@dataclass(frozen=True)
class Begun:
    """A graph as it is quantized, before anything is known of its values.

    Attributes:
        complete: FP32 in the form that integer kernels exist for.
        choosers: nodes that choose among values before layers (RT-DETR's queries, Faster R-CNN's regions).
        ready: `complete` on FP32's choices: with one row in another place all that layers behind put out would count as noise.
        heads: the tensors behind the last weights.
        last: those of them that lead to no other weights.
        kept: node name to the pattern of `keep_float` that names it.
    """

    complete: ir.Model
    choosers: list[str]
    ready: ir.Model
    heads: list[ir.Value]
    last: list[ir.Value]
    kept: dict[str, str]


def begin(model: ir.Model, recipe: Int8, *, observes: bool = True) -> Begun:
    """What every quantization begins with; `octavo.quantization.int8.forecast` asks no more.

    Args:
        model: FP32; it is not changed.
        recipe: the `int8:` block.
        observes: there are images to observe tensors on that exact rewriting makes, and the statistics do not know.

    Raises:
        QuantizationError: no node has weights to quantize, `keep_float` names nothing, or a graph with bodies of custom operators
            cannot have what is asked for: the opset of `bits16`, or `format: qoperator`.
    """
    opset = model.opset_imports.get("") or 0
    if recipe.bits16 and model.functions and opset < _SIXTEEN_BITS:
        raise QuantizationError(
            f"`int8.bits16` needs opset {_SIXTEEN_BITS}; this graph has {opset}, and a graph with bodies of custom ops stays there",
            f"set `source.opset: {_SIXTEEN_BITS}`",
        )
    called = [node for node in ir.traversal.RecursiveGraphIterator(model.graph) if node.op_identifier() in model.functions]
    if recipe.format == "qoperator" and called:
        raise QuantizationError(
            f"`int8.format: qoperator` is the graph as ONNX Runtime fuses it, which has the body of the custom operator "
            f"{operator(called[0])!r} in place of node {called[0].name!r}",
            "set `int8.format: qdq`, which ONNX Runtime fuses in the same way while it loads it",
        )
    kept = select(recipe.keep_float, ((node.name or "", node.op_type) for node in model.graph))
    target = target_of(recipe.target)
    kernels = target.layout == "kernels"
    least = _SIXTEEN_BITS if recipe.bits16 else 0
    complete = prepared(model, least, depthwise_norms=kernels, fuses=target.fuses, merges=True, kept=kept)
    kept = carried(model, complete, kept)
    if kernels:
        # What ONNX Runtime's kernels gain by; no other runtime was seen to.
        if observes:
            SumOfPartsPass(kept)(complete)
            GatedSumPass(kept)(complete)
            SubToAddPass(kept)(complete)
            FoldScalePass()(complete)
            PoolBehindConvPass(kept)(complete)
        GroupsToInstancesPass()(complete)
        TransposedToConvPass(kept)(complete)
        MaxToPoolPass()(complete)
        GlobalMaxPass()(complete)
        PadDepthwisePass()(complete)
        if recipe.float_heads:
            RowsOfAnchorsPass(kept)(complete)
    if target.channels_last:
        TailOfPixelsPass(convs=True)(complete)
    choosers = choosing(complete, before_layers=True)
    ready = held(complete, choosers) if choosers else complete
    units = units_of(ready)
    heads = heads_of(units)
    if not heads:
        raise QuantizationError("no node of this graph has weights to quantize", WAY_OUT)
    return Begun(complete, choosers, ready, heads, last_of(units), kept)
