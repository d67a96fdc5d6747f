"""Which units can be INT8, by structure.

1. Conv, Gemm and MatMul with constant weights: this is where integer kernels pay.
2. Units that carry or combine quantized values on (Add, Concat, pools, activations, reshapes), where *every* float input comes
   from an INT8 unit or is a graph input: the value has its scale already, and no island of Q/DQ arises. A float activation on the
   rows of an INT8 layer (`rows`) counts as that layer. Where a map that was made larger in float joins one that is INT8, or what is
   repeated along it (a gate a channel or a pixel), it is rounded there: all that comes behind would be float for its sake. And
   of a Concat of float values that layers alone read the parts are rounded instead: the same codes, a quarter of the bytes.
3. The tail stays float: whatever no weights follow. That is box decoding, softmax, the resizing of logits and the Concat of boxes
   and scores, which one scale for both ruins (onnxruntime #14233), recognised by where it stands and not by its name.
4. What has no integer kernel in ONNX Runtime stays float, and so does what `keep_float` names and what rule 2 then no longer
   reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cache

import onnx_ir as ir

from octavo.quantization.decisions import Decision
from octavo.quantization.int8.structure.heads import is_last_weighted
from octavo.quantization.int8.structure.refusals import cuts_out, interpolates, no_kernel, out_of_reach, unfit
from octavo.quantization.int8.structure.rows import row_activations
from octavo.quantization.int8.structure.units import CARRIERS, COMBINERS, COMPOSED, CUTS, EXTREMES, Unit

__all__ = ["decisions_of", "place"]

WHY = {
    "linear": "integer kernel",
    "silu": "SiLU as integer Sigmoid and Mul",
    "prelu": "PRelu as integer depthwise Conv and Max",
    "hard_swish": "HardSwish as integer Add and Mul",
    "hard_sigmoid": "HardSigmoid as integer Add",
    "affine": "factor and shift as integer Add",
    "curve": "looked up in a table of codes",
    "Clip": "Clip as Max and Min of codes",
    "Relu": "Relu as Max of codes",
    "Tanh": "Tanh as integer Sigmoid",
}

# What has no fast integer kernel and makes a map larger, which another that is INT8 joins.
_UPSAMPLES = frozenset({"ConvTranspose", "Resize"})
_JOINS = frozenset({"Add", "Concat", "Mul"})


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
    layers = {unit.main for unit in units if unit.kind == "linear" and not out_of_reach(unit, leads, named)}
    # What is float whatever is given back.
    fixed = cache(lambda: {unit for unit, reason in place(units, kept).items() if reason} if given else set(units))
    reasons: dict[Unit, str] = {}
    larger: set[Unit] = set()
    for unit in units:
        reasons[unit] = out_of_reach(unit, leads, named)
        if not reasons[unit] and not _in_parts(unit, makers, reasons, fixed, layers):
            reasons[unit] = _refusal(unit, makers, reasons, larger)
        if reasons[unit] and _made_larger(unit, makers, larger):
            larger.add(unit)
    return reasons


def decisions_of(reasons: Mapping[Unit, str], wide: Collection[str] = ()) -> list[Decision]:
    """A record for every node of every unit.

    Args:
        reasons: each unit, and why it stays float ("" for INT8).
        wide: names of the tensors that have 16-bit codes: no kernel takes 8-bit ones beside them.
    """
    bare = {layer for unit, layer in row_activations(reasons).items() if reasons[unit]}
    read = {value for unit, reason in reasons.items() if not reason for value in unit.inputs}
    found = []
    for unit, reason in reasons.items():
        around = any(value.name in wide for value in (*unit.inputs, *unit.inner, *unit.outputs))
        precision = "float" if reason else "16-bit" if around else "int8"
        why = reason or (_wide_why(unit) if around else _why(unit, bare))
        found += [Decision(node.name or "", node.op_type, precision, why) for node in unit.nodes if node.op_type != "Constant"]
        if precision == "int8" and unit.is_product and len(unit.nodes) > 1 and read.isdisjoint(unit.outputs):
            found[-1] = replace(found[-1], precision="float", reason="cuts what its layer puts out in float")
    return found


def _wide_why(unit: Unit) -> str:
    weights = " beside int8 weights" if unit.kind == "linear" else ""
    return f"bits16: 16-bit codes{weights}, which ONNX Runtime's CPU computes with in float"


def _why(unit: Unit, bare: Collection[Unit]) -> str:
    if unit.writes_float or unit in bare:
        return "integer kernel over pixels, which writes float"
    return WHY.get(unit.kind, "carries INT8 values on")


def _refusal(unit: Unit, makers: Mapping[ir.Value, Unit], reasons: Mapping[Unit, str], larger: Collection[Unit]) -> str:
    if unit.kind not in CARRIERS | COMBINERS | COMPOSED | CUTS | EXTREMES | {"linear"}:
        return no_kernel(unit.main)
    if unit.kind == "linear":
        return ""
    floats = {value: makers[value] for value in unit.inputs if value.producer() is not None and reasons[makers[value]]}
    joins = unit.kind in _JOINS and len(floats) < len(unit.inputs)
    for value, maker in floats.items():
        if not (joins and (maker in larger or _repeats(unit, value))):
            return f"its input comes from {maker.name} ({maker.kind}), which is float"
    return unfit(unit) or _unserved(unit)


def _in_parts(
    unit: Unit,
    makers: Mapping[ir.Value, Unit],
    reasons: Mapping[Unit, str],
    fixed: Callable[[], set[Unit]],
    layers: set[ir.Node],
) -> bool:
    """Whether a Concat's parts are all float anyway, and its readers all layers: as many values to round, before it or behind."""
    if unit.kind != "Concat" or unfit(unit) or not all(value in makers and reasons[makers[value]] for value in unit.inputs):
        return False
    readers = [use.node for use in unit.outputs[0].uses()]
    if not readers or unit.outputs[0].is_graph_output():
        return False
    return layers.issuperset(readers) and fixed().issuperset(makers[value] for value in unit.inputs)


def _made_larger(unit: Unit, makers: Mapping[ir.Value, Unit], larger: Collection[Unit]) -> bool:
    """Whether a float unit makes a map larger, or carries on what was made larger in float (`g * up(y)` where g is float)."""
    return unit.kind in _UPSAMPLES or (unit.kind in COMBINERS | CUTS and any(makers.get(value) in larger for value in unit.inputs))


def _repeats(unit: Unit, value: ir.Value) -> bool:
    """Whether an Add or Mul repeats a value along what it makes: a gate a channel or a pixel, or what global context adds."""
    shape, along = value.shape, unit.outputs[0].shape
    if unit.kind not in ("Add", "Mul") or shape is None or along is None:
        return False
    sizes = [1] * (len(along) - len(shape)) + list(shape)
    return any(size == 1 != full for size, full in zip(sizes, along, strict=True))


def _unserved(unit: Unit) -> str:
    """Why ONNX Runtime has no fast integer kernel, or no right one, for a unit that can take codes; "" where it has."""
    if interpolates(unit):
        return "interpolation has no fast integer kernel"
    if cuts_out(unit):
        return "cutting a region out has no integer kernel"
    if unit.kind in ("MaxPool", "AveragePool", "GlobalAveragePool", "prelu") and len(unit.inputs[0].shape or ()) != 4:
        return "integer kernels of this op are for images"
    if unit.kind == "AveragePool" and all(unit.main.attributes.get_int(name, 0) for name in ("ceil_mode", "count_include_pad")):
        return "its integer kernel divides by another number where a window reaches beyond the padding"
    return ""
