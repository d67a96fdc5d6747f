"""What `quantize_static` would do with a graph, as far as that is decided before any image is seen.

Rules decide which nodes can be INT8 at all. Measurement decides the rest, and can only take nodes away: `later` says what.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.calibration.statistics import Statistics
from octavo.errors import QuantizationError
from octavo.graph.inspect import check_float
from octavo.graph.io import copied, weight_bytes
from octavo.graph.passes.kernels.conv_on_columns import columns_of
from octavo.params.grammar import Int8
from octavo.quantization.decisions import Decision
from octavo.quantization.int8.begun import begin
from octavo.quantization.int8.choice import WAY_OUT
from octavo.quantization.int8.draft import Draft
from octavo.quantization.int8.noise.fidelity import fidelity_of
from octavo.quantization.int8.numbers.weights import bias_of, channel_axis, weights_of
from octavo.quantization.int8.record import decided
from octavo.quantization.int8.structure.targets import target_of
from octavo.quantization.int8.structure.units import Unit
from octavo.quantization.int8.writing.packed import TWICE, pack_constants

__all__ = ["Forecast", "forecast"]

# Bytes beside a channel's codes, and beside its bias: a float32 scale. Zero points are there once.
_BESIDE_WEIGHTS, _BESIDE_BIAS = 4, 4
# Bytes of a channel's bias, int32 or float32.
_BIAS = 4


@dataclass(frozen=True)
class Forecast:
    """INT8 before measurement.

    Attributes:
        decisions: for every node, as a manifest would have them if nothing measured spoke against it.
        weight_bytes: of all constants of the file, scales of weights included.
        layers: how many layers of weights would be INT8.
        later: what is decided by measurement, in words.
    """

    decisions: list[Decision]
    weight_bytes: int
    layers: int
    later: list[str]


def forecast(model: ir.Model, recipe: Int8) -> Forecast:
    """Plan INT8 by the rules alone.

    Args:
        model: FP32 as `export` writes it.
        recipe: the `int8:` block.

    Raises:
        QuantizationError: as `quantize_static`: the graph is quantized already, or nothing of it can be quantized.
    """
    check_float(model, QuantizationError)
    begun = begin(model, recipe)
    # Without statistics a draft knows no range; places follow from the graph alone.
    reasons = Draft(begun.ready, Statistics({}), recipe, begun.kept).placed()
    layers = [unit for unit, reason in reasons.items() if unit.kind == "linear" and not reason]
    if not layers:
        raise QuantizationError("no node of this graph can be quantized", WAY_OUT)
    packed = copied(begun.complete)
    if target_of(recipe.target).layout == "kernels":
        pack_constants(packed, {*begun.kept, *(unit.main.name for unit in layers)})
    size = weight_bytes(packed) + _saved(layers, recipe)
    later = _later(recipe, fidelity_of(begun.heads, recipe.effort) if recipe.fidelity == "auto" else recipe.fidelity)
    return Forecast(decided(model, reasons, begun.choosers), size, len(layers), later)


def _saved(layers: list[Unit], recipe: Int8) -> int:
    """By how many bytes constants grow (they shrink, that is) when these layers' weights become codes."""
    change = 0
    int8 = {unit.main for unit in layers}
    target = target_of(recipe.target)
    kernels = target.layout == "kernels"
    on_columns = kernels and not target.signed
    # What several layers read goes once, and its codes are there once where the writer finds equal ones.
    gone: set[ir.Value] = set()
    coded: set[tuple[ir.Value, int, int]] = set()
    for unit in layers:
        node = unit.main
        weights, axis = weights_of(node), channel_axis(node)
        channels = weights.shape[axis] if recipe.per_channel else 1
        image = unit.inputs[0].shape if on_columns and node.op_type == "Conv" else None
        columns = columns_of(node, list(image), weights.shape) if image is not None else None
        # A stem that puts out several columns at a time has weights for each of them.
        times = columns.count if columns is not None else 1
        size = weights.size if columns is None else columns.weights(weights).size
        same = (node.inputs[1], axis, size)
        if same not in coded or not kernels or size < TWICE:
            change += size + channels * times * _BESIDE_WEIGHTS
            coded.add(same)
        if bias_of(node) is not None:
            # Steps are of the layer's own input: each has codes of its own, or a float copy where biases stay float.
            change += int(np.size(bias_of(node))) * times * (_BIAS + _BESIDE_BIAS * kernels)
        for value in node.inputs[1:]:
            if value is not None and value not in gone and all(use.node in int8 for use in value.uses()):
                change -= value.const_value.nbytes
                gone.add(value)
    return change


def _later(recipe: Int8, bound: float) -> list[str]:
    """What of the forecast a measurement may change."""
    words = []
    if recipe.placement == "measured" and target_of(recipe.target).runs_here:
        words.append(
            "`placement: measured`: what measures faster in float on the machine that quantizes, borders included, stays float"
        )
    elif recipe.table is not None:
        words.append(f"`placement: {recipe.placement}`: what is faster in float by that table stays float")
    else:
        words.append("what is estimated to be faster in float, borders included, stays float")
    if recipe.repair:
        words.append(f"`repair: true`: layers go back to float until the heads keep {bound:g} dB SQNR on held-out images")
    words.append("layers that stay float for their speed may keep int8 weights in the file")
    if recipe.method == "auto":
        words.append("`method: auto`: how ranges are cut")
    return words
