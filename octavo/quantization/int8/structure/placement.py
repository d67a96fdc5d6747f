"""Which units can be INT8, by structure.

1. Conv, Gemm and MatMul with constant weights: this is where integer kernels pay.
2. Units that carry or combine quantized values on (Add, Concat, pools, activations, reshapes), where *every* float input comes
   from an INT8 unit or is a graph input: the value has its scale already, and no island of Q/DQ arises. A float activation on the
   rows of an INT8 layer (`rows`) counts as that layer.
3. The tail stays float: whatever no weights follow. That is box decoding, softmax, the resizing of logits and the Concat of boxes
   and scores, which one scale for both ruins (onnxruntime #14233), recognised by where it stands and not by its name.
4. What has no integer kernel in ONNX Runtime stays float, and so does what `keep_float` names and what rule 2 then no longer
   reaches.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from octavo.graph.nodes import is_pointwise
from octavo.quantization.decisions import Decision
from octavo.quantization.int8.structure.refusals import interpolates, no_kernel, out_of_reach, unfit
from octavo.quantization.int8.structure.rows import row_activations
from octavo.quantization.int8.structure.units import (
    CARRIERS,
    COMBINERS,
    COMPOSED,
    Unit,
    is_last_weighted,
    is_map,
    pooled,
    readers,
)

__all__ = ["decisions_of", "map_heads", "pixel_heads", "place"]

WHY = {
    "linear": "integer kernel",
    "silu": "SiLU as integer Sigmoid and Mul",
    "prelu": "PRelu as integer depthwise Conv and Max",
    "hard_swish": "HardSwish as integer Add and Mul",
    "hard_sigmoid": "HardSigmoid as integer Add",
    "affine": "factor and shift as integer Add",
}


def place(units: list[Unit], kept: Mapping[str, str], given: Mapping[str, str] | None = None) -> dict[Unit, str]:
    """Decide for every unit.

    Args:
        units: of one graph, in topological order.
        kept: node name to the `keep_float` pattern that names it.
        given: nodes given back to float for another reason: node name to it.

    Returns:
        Unit to the reason why it stays float; an INT8 unit has the reason "".
    """
    leads = is_last_weighted(units)
    named = {name: f"keep_float: {pattern}" for name, pattern in kept.items()}
    named |= {name: reason or "given back" for name, reason in (given or {}).items()}
    makers = {value: unit for unit in units for value in unit.outputs}
    makers |= {value: layer for unit, layer in row_activations(units).items() for value in unit.outputs}
    reasons: dict[Unit, str] = {}
    for unit in units:
        reasons[unit] = _refusal(unit, leads, makers, reasons, named)
    return reasons


def map_heads(units: list[Unit]) -> dict[str, str]:
    """Last layers that should stay float: Convs whose output is a map (boxes, scores, masks) that nothing multiplies any more.

    One position of it decides, and 8 bits for the logarithm of a box's width are a step of 2 %: on YOLOv5n rounding these three
    outputs alone costs 1.5 % of AP, at 30 dB. A MatMul's or Gemm's output is written in float anyway; a map that is only averaged
    (features, pooled) has no position that decides.

    Returns:
        Node name to reason; none where the network has no other layers.
    """
    leads = is_last_weighted(units)
    linear = [unit for unit in units if unit.kind == "linear"]
    found = [unit for unit in linear if leads[unit] and unit.main.op_type == "Conv" and is_map(pooled(unit.outputs[0]))]
    if len(found) == len(linear):
        return {}
    reason = "its output is a map in which single positions decide"
    return {unit.main.name: reason for unit in found if not unit.writes_float}


def pixel_heads(units: list[Unit]) -> set[Unit]:
    """Last layers that put out maps and are 1x1: as a product of matrices over pixels their integer kernel writes float.

    What `map_heads` keeps in float is the output; int8 weights cost next to nothing there. ONNX Runtime's integer convolutions
    write codes only, its integer Gemm (QGemm) writes float where no Q stands behind it. A head that is resized stays a float Conv:
    in the blocked layout that this leaves behind, ONNX Runtime interpolates in half the time (CGNet, 1.5 ms instead of 3.1).

    Args:
        units: of one graph; what a Relu or Clip follows stays as it is.
    """
    leads = is_last_weighted(units)
    found = [unit for unit in units if leads.get(unit) and len(unit.nodes) == 1 and is_pointwise(unit.main)]
    found = [unit for unit in found if all(reader.op_type != "Resize" for reader in readers(unit.outputs[0]))]
    return {
        unit
        for unit in found
        if is_map(pooled(unit.outputs[0])) and unit.inputs and unit.inputs[0].shape is not None and len(unit.inputs[0].shape) == 4
    }


def decisions_of(reasons: Mapping[Unit, str]) -> list[Decision]:
    """A record for every node of every unit."""
    bare = {layer for unit, layer in row_activations(reasons).items() if reasons[unit]}
    return [
        Decision(node.name or "", node.op_type, "float" if reason else "int8", reason or _why(unit, bare))
        for unit, reason in reasons.items()
        for node in unit.nodes
        if node.op_type != "Constant"
    ]


def _why(unit: Unit, bare: Collection[Unit]) -> str:
    if unit.writes_float or unit in bare:
        return "integer kernel over pixels, which writes float"
    return WHY.get(unit.kind, "carries INT8 values on")


def _refusal(
    unit: Unit, leads: Mapping[Unit, bool], makers: Mapping[ir.Value, Unit], reasons: Mapping[Unit, str], named: Mapping[str, str]
) -> str:
    reason = out_of_reach(unit, leads, named)
    if reason:
        return reason
    if unit.kind not in CARRIERS | COMBINERS | COMPOSED | {"linear"}:
        return no_kernel(unit.main)
    if unit.kind == "linear":
        return ""
    for value in unit.inputs:
        if value.producer() is not None and reasons[makers[value]]:
            return f"its input comes from {makers[value].name} ({makers[value].kind}), which is float"
    return unfit(unit) or _slow(unit)


def _slow(unit: Unit) -> str:
    """Why ONNX Runtime has no fast integer kernel for a unit that can take codes; "" where it has."""
    if interpolates(unit):
        return "interpolation has no fast integer kernel"
    if unit.kind in ("MaxPool", "AveragePool", "GlobalAveragePool", "prelu") and len(unit.inputs[0].shape or ()) != 4:
        return "integer kernels of this op are for images"
    return ""
