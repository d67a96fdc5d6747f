"""1x1 Convs in INT8 whose activation stays float, on the rows that the integer kernel then writes.

Between a Conv and what reads its SiLU lie three roundings: of what the Conv puts out, of the Sigmoid, and of the product. ONNX
Runtime's integer convolutions write codes only; the same product of matrices as a Gemm over pixels (QGemm) writes float, on which
SiLU is one float kernel (QuickGelu). One rounding is left, of what the next layer reads, and none where that is float. It takes
about as long as SiLU on codes, by a table and a product (docs/int8-forms.md). Gelu, which has no integer form, computes there
wherever its layer is INT8.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from octavo.graph.nodes import is_pointwise
from octavo.quantization.int8.structure.heads import heads_of
from octavo.quantization.int8.structure.units import Unit, readers

__all__ = ["activated", "joined", "placed_by_time", "row_activations"]

# Kinds of units whose nodes bend each value by itself and have no integer form.
_FLOAT = frozenset({"Gelu"})
# And those that have one, which rounds in between.
_BENDS = _FLOAT | {"hard_swish", "silu"}


def activated(units: Sequence[Unit]) -> list[Unit]:
    """The same units, with `activation` where a 1x1 Conv over images has one that may compute on its rows.

    None where the Conv is a head: the network is judged by what it puts out, which would not be there.
    """
    by_node = {node: unit for unit in units for node in unit.nodes}
    heads = set(heads_of(units))
    return [unit if heads & set(unit.outputs) else replace(unit, activation=_activation(unit, by_node)) for unit in units]


def _activation(unit: Unit, by_node: Mapping[ir.Node, Unit]) -> tuple[ir.Node, ...]:
    if unit.kind != "linear" or len(unit.nodes) != 1 or unit.writes_float or not is_pointwise(unit.main):
        return ()
    (value,) = unit.outputs
    source = unit.main.inputs[0]
    behind = {by_node.get(node) for node in readers(value)}
    if value.is_graph_output() or len(behind) != 1 or source.shape is None or len(source.shape) != 4:
        return ()
    (reader,) = behind
    return reader.nodes if reader is not None and reader.kind in _BENDS else ()


def row_activations(units: Iterable[Unit]) -> dict[Unit, Unit]:
    """Activations that may compute on the rows of a layer, each with that layer."""
    units = list(units)
    by_node = {node: unit for unit in units for node in unit.nodes}
    return {by_node[unit.activation[0]]: unit for unit in units if unit.activation and unit.activation[0] in by_node}


def placed_by_time(units: Iterable[Unit], candidates: Collection[Unit]) -> dict[Unit, Unit]:
    """Of `row_activations`, those where time decides: the layer can be INT8, and the activation, too, or it has no integer form.

    Args:
        units: all of a graph's.
        candidates: the units that can be INT8.
    """
    pairs = row_activations(units)
    return {unit: layer for unit, layer in pairs.items() if layer in candidates and (unit in candidates or unit.kind in _FLOAT)}


def joined(layer: Unit, activation: Unit) -> Unit:
    """Both as one unit, whose kernels put out float."""
    return Unit(layer.name, "linear", (*layer.nodes, *activation.nodes), layer.inputs, activation.outputs, (), writes_float=True)
