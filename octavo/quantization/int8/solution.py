"""What PTQ finds with everything INT8, as numbers that do not belong to a file: where quantization-aware training starts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from octavo.calibration.statistics import Statistics
from octavo.graph.prepared import prepared
from octavo.params.grammar import Int8
from octavo.quantization.int8.choice import chosen_way
from octavo.quantization.int8.draft import Draft
from octavo.quantization.int8.noise.fidelity import fidelity_of
from octavo.quantization.int8.noise.head_judge import HeadJudge
from octavo.quantization.int8.noise.judge import db_of
from octavo.quantization.int8.numbers.weights import bias_of, channel_axis, weights_of
from octavo.quantization.int8.static import Images
from octavo.quantization.int8.structure.heads import heads_of, is_map, last_of
from octavo.quantization.int8.structure.units import units_of
from octavo.quantization.int8.ways import Way

__all__ = ["GrownLayer", "RoundedLayer", "Solution", "all_int8"]


@dataclass(frozen=True)
class RoundedLayer:
    """A layer's weights as PTQ rounds them.

    Attributes:
        weight: FP32's, of the ONNX graph.
        rounded: what its codes stand for, of the same shape; all are whole multiples of `scale`.
        scale: float32, one for each output channel, or one in all.
        axis: the output channel axis.
        bias_shift: what the corrected bias has more than FP32's, one for each output channel.
    """

    weight: np.ndarray
    rounded: np.ndarray
    scale: np.ndarray
    axis: int
    bias_shift: np.ndarray


@dataclass(frozen=True, eq=False)
class GrownLayer:
    """A layer whose channels PTQ brought to one size.

    Attributes:
        weight: FP32's before, of the ONNX graph.
        axis: the output channel axis.
        made: growth of each output channel, float32, or None.
        read: growth of each input channel, which the weights take back, or None.
    """

    weight: np.ndarray
    axis: int
    made: np.ndarray | None
    read: np.ndarray | None


@dataclass(frozen=True)
class Solution:
    """All of them.

    Attributes:
        model: what the rest is of: the prepared graph, its channels equalized where that measures better.
        layers: of each weighted layer that can be INT8.
        ranges: tensor name to (low, high) that uint8 codes span.
        grown: the layers that equalizing changed.
        label: the way that measured best.
        db: SQNR at the heads on held-out images, everything INT8.
    """

    model: ir.Model
    layers: list[RoundedLayer] = field(default_factory=list)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    grown: list[GrownLayer] = field(default_factory=list)
    label: str = ""
    db: float = 0.0


def all_int8(model: ir.Model, statistics: Statistics, recipe: Int8, images: Images, *, equalize: bool = True) -> Solution:
    """Choose ranges and roundings as `quantize_static` does, with no layer given back to float.

    Args:
        model: FP32, as for `quantize_static`.
        statistics: of the calibration images.
        recipe: the `int8:` block; for the CPU's kernels, whatever target it names.
        images: to choose by.
        equalize: channels may be equalized: what is found is another network's then, `Solution.model`.

    Raises:
        QuantizationError: nothing can be quantized.
    """
    recipe = recipe.model_copy(update={"target": "cpu", "format": "qdq", "keep_float": (), "float_heads": False, "bits16": ()})
    ready = prepared(model, 0)
    units = units_of(ready)
    heads, last = heads_of(units), last_of(units)
    judge = None
    if images.held_out:
        judge = HeadJudge(ready, [value.name for value in heads], images.held_out, together=images.together)

    def make(way: Way) -> Draft:
        return Draft(ready, statistics, way.recipe, (), images.calibration, by_channel=False)

    bound = recipe.fidelity if recipe.fidelity != "auto" else fidelity_of(last, recipe.effort)
    chosen = chosen_way(make, recipe, judge, any(map(is_map, last)), bound, equalize=equalize)
    layers, growth = [], chosen.draft.growth
    grown = [
        GrownLayer(
            weights_of(unit.main), channel_axis(unit.main), growth.get(unit.outputs[0].name), growth.get(unit.inputs[0].name)
        )
        for unit in units
        if unit.kind == "linear" and not growth.keys().isdisjoint((unit.outputs[0].name, unit.inputs[0].name))
    ]
    for unit in chosen.plan.int8:
        codes = chosen.plan.codes.get(unit.main.name)
        if codes is None:
            continue
        before = bias_of(unit.main)
        shift = np.zeros(codes.codes.shape[codes.axis]) if codes.bias is None else codes.bias - (0 if before is None else before)
        layers.append(RoundedLayer(weights_of(unit.main), codes.restored, codes.scale, codes.axis, np.asarray(shift)))
    ranges = {
        name: tuple(float((end - float(chosen.zero_point)) * float(chosen.scale)) for end in (0, 255))
        for name, chosen in chosen.plan.scales.items()
        if not chosen.by_channel
    }
    return Solution(chosen.draft.model, layers, ranges, grown, chosen.label, db_of(chosen.noise))
