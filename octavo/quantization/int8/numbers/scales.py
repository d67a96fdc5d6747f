"""A scale for every tensor that INT8 units read or write: which tensors share one, and what its range must serve.

- What a carrier (MaxPool, Reshape, nearest Resize, ...) reads and writes shares one scale, and so do the input and output of PRelu
  and of a Relu or Clip that no layer takes in.
- Concat: an input that nobody else reads shares the output's scale, so that the kernel copies instead of requantizing. One that
  others read too shares it only where that costs it at most `SHARED_WIDTH` in resolution.
- Tanh has a scale of its own, with what carries its values on: its codes come out of a table that has no other.
- Of tensors that share a scale, one that `int8.ranges` speaks of gives all of them its range.
- A tensor that only an activation reads gets the range whose error *behind* the activation is least: SiLU maps a long negative tail
  to zero, and codes spent on it are lost (measured on detectors with SiLU: 8 dB).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from octavo.calibration.choice import chosen_ranges, overridden
from octavo.calibration.statistics import Statistics
from octavo.errors import CalibrationError, QuantizationError
from octavo.params.grammar import Int8
from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.structure.curves import activation_behind
from octavo.quantization.int8.structure.targets import target_of
from octavo.quantization.int8.structure.units import BOUNDED, CARRIERS, ONE_SCALE, Unit, is_depthwise, is_weighted, readers

__all__ = ["quantized_tensors", "ranges_of", "scales_of"]

SHARED_WIDTH = 2.0
# Of a head channel's extremes: how much wider its codes span, for what calibration did not see.
_HEAD_ROOM = 1.1
# Values that a channel's extremes have to be those of. An embedding has one an image: 20 photos tell nothing about the next one's
# extremes (MobileFaceNet's head alone fell to 17 dB by a scale for each channel, and keeps 42 dB with one for all).
_ENOUGH = 1024
# How much finer than what it averages a GlobalAveragePool's codes may be. Its kernel refuses more (means that are all but zero,
# behind an InstanceNormalization), and what it averages is not known so well.
_FINEST = np.float32(256)
# The same before a depthwise Conv, within the tensor's own extremes.
_DEPTHWISE_ROOM = np.float32(1.25)


def quantized_tensors(int8: Iterable[Unit]) -> list[ir.Value]:
    """The tensors between Q and DQ: what INT8 units read, write and hold inside.

    A Gemm or MatMul whose readers are float writes float: its kernels do so at no cost, and logits keep their precision. So do
    `writes_float` units, and 1x1 Convs whose `activation` is float.
    """
    int8 = list(int8)
    members = {node for unit in int8 for node in unit.nodes}
    found: dict[ir.Value, None] = {}
    for unit in int8:
        found |= dict.fromkeys([*unit.inputs, *unit.inner])
        for value in unit.outputs:
            writes_float = unit.is_product or unit.writes_float or bool(unit.activation)
            if not writes_float or any(reader in members for reader in readers(value)):
                found[value] = None
    return list(found)


def ranges_of(tensors: Iterable[ir.Value], statistics: Statistics, recipe: Int8) -> dict[str, tuple[float, float]]:
    """The range of each tensor by itself; one that no calibration image filled has none."""
    seen = [value for value in tensors if value.name in statistics.tensors and statistics.tensors[value.name].values]
    behind = {value.name: function for value in seen if (function := activation_behind(value)) is not None}
    return chosen_ranges(statistics, recipe, [value.name for value in seen], behind)


def scales_of(
    int8: list[Unit],
    tensors: list[ir.Value],
    statistics: Statistics,
    recipe: Int8,
    wide: Mapping[str, int],
    *,
    known: Mapping[str, tuple[float, float]] | None = None,
    by_channel: bool = False,
) -> dict[str, QParams]:
    """Choose scale and zero point of every quantized tensor.

    Args:
        int8: the INT8 units.
        tensors: as `quantized_tensors` gives them.
        statistics: of the calibration images.
        recipe: the `int8:` block.
        wide: tensors with more than 8 bits, by name.
        known: as `ranges_of` gives them for these tensors or more, so that plans of one draft choose them once.
        by_channel: what only depthwise Convs read has a scale for each channel, where the target can.

    Raises:
        CalibrationError: a tensor, and every tensor it shares its scale with, was never seen.
        QuantizationError: `ranges` gives two tensors that share a scale different ranges.
    """
    asked = overridden(statistics, recipe)
    own = ranges_of(tensors, statistics, recipe) if known is None else known
    ranges = {value: own.get(value.name) for value in tensors}
    given = {name for name, key in asked.items() if recipe.ranges[key].bounds is not None}
    target = target_of(recipe.target)
    symmetric = recipe.symmetric or target.symmetric
    for unit in int8:
        share = (unit.inner or unit.outputs)[0]
        if unit.kind in BOUNDED and share.name not in given:
            ranges[share] = BOUNDED[unit.kind]
            if unit.kind == "Tanh" and symmetric:
                # The same step around a middle code: int8 has as many on either side, uint8 one more below.
                ranges[share] = (-1.0, 1.0 if target.signed else 255 / 254)
    groups = _groups(int8, ranges)
    found: dict[str, QParams] = {}
    for members in groups:
        speaking = _speaking(members, asked, recipe, statistics)
        known = [ranges[value] for value in speaking or members if ranges[value] is not None]
        if not known:
            raise CalibrationError(
                f"tensor {members[0].name!r} was empty on every calibration image", "calibrate on images that make it hold values"
            )
        low, high = min(low for low, _ in known), max(high for _, high in known)
        for value in members:
            bits = wide.get(value.name, 8)
            found[value.name] = QParams.spanning(low, high, bits=bits, symmetric=symmetric, signed=target.signed and bits == 8)
    for unit in int8:
        if unit.kind == "GlobalAveragePool":
            least = found[unit.inputs[0].name].scale / _FINEST
            for value in next((group for group in groups if unit.outputs[0] in group), ()):
                found[value.name] = found[value.name].at_least(least)
    own: dict[str, QParams] = {}
    if target.layout == "inputs":
        own = _before_depthwise(int8, found, statistics, symmetric=symmetric) if by_channel and target.depthwise else {}
    elif recipe.per_channel and not symmetric:
        own = _heads(int8, found, statistics, signed=target.signed)
    return found | {name: chosen for name, chosen in own.items() if name not in wide and name not in asked}


def _speaking(members: list[ir.Value], asked: Mapping[str, str], recipe: Int8, statistics: Statistics) -> list[ir.Value]:
    """Of tensors that share a scale those whose range the recipe gives: by name, else by its first pattern.

    Args:
        members: the tensors.
        asked: as `overridden` gives it.
        recipe: the `int8:` block.
        statistics: of the calibration images.

    Raises:
        QuantizationError: two are named, with different ranges.
    """
    said = {value: asked[value.name] for value in members if value.name in asked}
    named = [key for key in said.values() if key in statistics.tensors]
    if not said:
        return []
    first = min(named or said.values(), key=list(recipe.ranges).index)
    wanted = recipe.ranges[first]
    other = next((key for key in named if recipe.ranges[key] != wanted), None)
    if other is not None:
        raise QuantizationError(
            f"`int8.ranges` gives {first!r} and {other!r} different ranges, and these tensors share one scale (a Concat, a "
            "MaxPool or a Reshape copies their codes)",
            "give both the same range, or name one of them",
        )
    return [value for value, key in said.items() if recipe.ranges[key] == wanted]


def _before_depthwise(
    int8: list[Unit], found: Mapping[str, QParams], statistics: Statistics, *, symmetric: bool
) -> dict[str, QParams]:
    """What only depthwise Convs read: they scale each channel by itself, so that a scale each costs nothing."""
    makers = {value: unit for unit in int8 for value in unit.outputs}
    reading: dict[ir.Value, list[Unit]] = {}
    for unit in int8:
        for value in unit.inputs:
            reading.setdefault(value, []).append(unit)
    chosen = {}
    for value, behind in reading.items():
        tensor = statistics.tensors.get(value.name or "")
        # Carriers and Concat keep the codes they read, and ONNX Runtime's Add and pools of integers write one scale for all.
        fused = value in makers and makers[value].kind != "linear"
        if fused or value.name not in found or not all(is_depthwise(unit.main) for unit in behind):
            continue
        if tensor is None or tensor.channel_high is None or value.shape is None or len(tensor.channel_high) != value.shape[1]:
            continue
        # Zero is the middle code, or the least one: no vector of zero points to subtract. Affine measured no better.
        signed = symmetric or float(tensor.channel_low.min()) < 0
        low = np.maximum(tensor.channel_low * _DEPTHWISE_ROOM, tensor.low)
        high = np.minimum(tensor.channel_high * _DEPTHWISE_ROOM, tensor.high)
        chosen[value.name] = QParams.per_channel(low, high, symmetric=signed, signed=signed)
    return chosen


def _heads(int8: list[Unit], found: Mapping[str, QParams], statistics: Statistics, *, signed: bool) -> dict[str, QParams]:
    """Outputs of Convs behind which no weights come, and that no INT8 unit reads: a scale for each channel.

    Others have none: with images in NHWC its DequantizeLinear takes ten times as long, and the cut of their range by the activation
    behind them is worth more.
    """
    members = {node for unit in int8 for node in unit.nodes}
    heads = {}
    for unit in int8:
        value = unit.outputs[0]
        if (
            unit.kind != "linear"
            or len(unit.nodes) > 1
            or unit.main.op_type != "Conv"
            or any(reader in members for reader in readers(value))
            or _leads_to_weights(value)
            or _multiplied(value)
        ):
            continue
        tensor = statistics.tensors.get(value.name or "")
        if value.name not in found or tensor is None or tensor.channel_high is None or tensor.channels.values < _ENOUGH:
            continue
        if value.shape is not None and len(tensor.channel_high) == value.shape[1]:
            low, high = tensor.channel_low * np.float32(_HEAD_ROOM), tensor.channel_high * np.float32(_HEAD_ROOM)
            heads[value.name] = QParams.per_channel(low, high, signed=signed)
    return heads


def _leads_to_weights(value: ir.Value) -> bool:
    seen, ahead = {value}, [value]
    while ahead:
        for reader in readers(ahead.pop()):
            if is_weighted(reader):
                return True
            ahead += [output for output in reader.outputs if output not in seen]
            seen.update(reader.outputs)
    return False


def _multiplied(value: ir.Value) -> bool:
    """Whether a MatMul reads a tensor, moved about or not: ONNX Runtime multiplies the codes, and takes one scale for all."""
    return any(
        reader.op_type == "MatMul" or (reader.op_type in CARRIERS and any(map(_multiplied, reader.outputs)))
        for reader in readers(value)
    )


def _groups(int8: list[Unit], ranges: Mapping[ir.Value, tuple[float, float] | None]) -> list[list[ir.Value]]:
    """Tensors that share a scale, as connected components."""
    parent = {value: value for value in ranges}

    def root(value: ir.Value) -> ir.Value:
        while parent[value] is not value:
            value = parent[value]
        return value

    members = {node for unit in int8 for node in unit.nodes}
    for unit in int8:
        if unit.kind in ONE_SCALE:
            for value in unit.outputs:
                parent[root(value)] = root(unit.inputs[0])
    # The integer form of Tanh asks for a scale of its own: a Concat shares it only where all that it joins have it.
    own = {root(unit.outputs[0]) for unit in int8 if unit.kind == "Tanh"}
    for unit in int8:
        if unit.kind != "Concat":
            continue
        mixed = any(root(value) not in own for value in unit.inputs)
        for value in unit.inputs:
            if mixed and root(value) in own:
                continue
            alone = sum(reader in members for reader in readers(value)) == 1
            if alone or _close(ranges[value], ranges[unit.outputs[0]]):
                parent[root(value)] = root(unit.outputs[0])
        if not mixed:
            own.add(root(unit.outputs[0]))
    groups: dict[ir.Value, list[ir.Value]] = {}
    for value in ranges:
        groups.setdefault(root(value), []).append(value)
    return list(groups.values())


def _close(one: tuple[float, float] | None, other: tuple[float, float] | None) -> bool:
    if one is None or other is None:
        return True
    return other[1] - other[0] <= SHARED_WIDTH * (one[1] - one[0])
