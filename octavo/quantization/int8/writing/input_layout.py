"""Q/DQ before the inputs of quantizable operators: which units are INT8 then, and which tensors are quantized.

OpenVINO and TensorRT fuse everything between a weighted operator and the next Q into that operator, its activation included. So:

1. Conv, Gemm and MatMul with constant weights are INT8.
2. Units that carry or combine values (the target's `reads`) are INT8 where INT8 units read what they put out: then integers flow
   through. It does not matter whether their inputs come from float units, as it does around ONNX Runtime's kernels.
3. Activations stay float: a Q before them would round twice and break the fusion.
4. What no weights follow stays float, as everywhere (`placement`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from octavo.quantization.int8.structure.heads import is_last_weighted
from octavo.quantization.int8.structure.refusals import interpolates, no_kernel, out_of_reach, unfit
from octavo.quantization.int8.structure.targets import Target
from octavo.quantization.int8.structure.units import CARRIERS, COMBINERS, COMPOSED, Unit, readers

__all__ = ["input_tensors", "keeps_grid", "place_inputs"]


def place_inputs(units: list[Unit], named: Mapping[str, str], target: Target) -> dict[Unit, str]:
    """Decide for every unit.

    Args:
        units: of one graph, in topological order.
        named: node name to the reason why it stays float.
        target: with layout `inputs`.

    Returns:
        Unit to the reason why it stays float, in the order of `units`; an INT8 unit has the reason "".
    """
    leads = is_last_weighted(units)
    by_node = {node: unit for unit in units for node in unit.nodes}
    reasons: dict[Unit, str] = {}
    leading: set[Unit] = set()  # to INT8 units, directly or through what keeps codes as they are
    for unit in reversed(units):
        behind = [by_node.get(reader) for value in unit.outputs for reader in readers(value)]
        if any(reader is not None and (not reasons[reader] or (keeps_grid(reader) and reader in leading)) for reader in behind):
            leading.add(unit)
        reasons[unit] = _refusal(unit, leads, named, target)
        if not reasons[unit] and unit.kind != "linear" and unit not in leading:
            reasons[unit] = "nothing that reads it is INT8"
    return {unit: reasons[unit] for unit in units}


def input_tensors(int8: Iterable[Unit], target: Target) -> list[ir.Value]:
    """The tensors whose values are codes: what INT8 units read, and what carries these values on."""
    int8 = list(int8)
    makers = {value: (place, unit) for place, unit in enumerate(int8) for value in unit.outputs}
    found: dict[ir.Value, None] = {}
    for unit in int8:
        found |= dict.fromkeys(_read(unit, makers, target))
        if keeps_grid(unit):
            found |= dict.fromkeys(unit.outputs)
    return list(found)


def keeps_grid(unit: Unit) -> bool:
    """Whether a unit's outputs are codes of the scale that all its inputs have."""
    return unit.kind in CARRIERS or unit.kind == "Concat"


def _read(unit: Unit, makers: Mapping[ir.Value, tuple[int, Unit]], target: Target) -> tuple[ir.Value, ...]:
    if unit.kind != "Add" or target.both or len(unit.inputs) < 2:
        return unit.inputs
    # Of a residual Add one input is left to the layer that makes it, the last one computed: it takes the Add in.
    products = [value for value in unit.inputs if value in makers and _is_product(value, makers[value][1])]
    if not products:
        return unit.inputs
    last = max(products, key=lambda value: makers[value][0])
    return tuple(value for value in unit.inputs if value is not last)


def _is_product(value: ir.Value, maker: Unit) -> bool:
    """Whether a tensor is what a weighted layer puts out for one reader alone."""
    return maker.kind == "linear" and len(maker.nodes) == 1 and len(list(readers(value))) == 1


def _refusal(unit: Unit, leads: Mapping[Unit, bool], named: Mapping[str, str], target: Target) -> str:
    reason = out_of_reach(unit, leads, named)
    if reason or unit.kind == "linear":
        return reason
    if unit.kind not in target.reads:
        if unit.kind in CARRIERS | COMBINERS | COMPOSED:
            return "the runtime fuses it into the layers around it"
        return no_kernel(unit.main)
    return unfit(unit) or ("interpolation leaves the codes of its input" if interpolates(unit) else "")
