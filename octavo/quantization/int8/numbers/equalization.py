"""Cross-layer equalization: channels that one scale serves badly are brought towards one size, and the next layers take it back.

A tensor has one uint8 scale, its channels often differ by orders of magnitude. A channel of size r in a tensor whose largest has
size R grows by (R / r) ** e, in the weights and the bias of the layers that make it, and shrinks again in the weights of those that
read it (`streams.py` tells which those are). These have a scale for each *output* channel: free for depthwise convolutions, and a
trade between activations' and weights' rounding otherwise, which e decides (Nagel et al., "Data-Free Quantization Through Weight
Equalization and Bias Correction", 2019; there weights are equalized, here measured activations are).

ReLU6 is not homogeneous. A channel that reaches half the bound keeps its size, the others grow until they reach that, so that the
same bound clips nothing that was not clipped before on the calibration images, and little on others.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from octavo.calibration.statistics import Statistics
from octavo.graph.passes.qdq import new_constant, number_of
from octavo.quantization.int8.numbers.weights import bias_of, channel_axis, weights_of
from octavo.quantization.int8.structure.streams import Stream, streams_of
from octavo.quantization.int8.structure.units import Unit, readers

__all__ = ["equalize", "spared"]

# Growth of a channel; beyond it there is hardly anything in the channel but noise.
LIMIT = 256.0
# Channels this much smaller than the largest are dead.
_DEAD = 1e-6
# Of a Clip's bound: how near a grown channel may come. What other images make of it beyond the bound is cut off: half of it is room
# (MobileNetV2's float network changed by 41 dB on other images with .98, by 56 with .5, and lost nothing in INT8).
_MISS = 0.5
# Of a tensor's range: how near a grown channel may come, on calibration images.
_ROOM = 0.8
# Growth that is worth other weights.
_WORTH = 1.01


def equalize(model: ir.Model, units: list[Unit], statistics: Statistics, exponents: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Scale channels in place.

    Args:
        model: FP32; weights and biases are replaced.
        units: all its units.
        statistics: with per-channel extremes.
        exponents: e, from 0 to 1, by a stream's name; streams that are not named stay as they are.

    Returns:
        The tensors whose values changed, with the growth of each channel, float32.
    """
    changed: dict[str, np.ndarray] = {}
    for stream in streams_of(model, units):
        growth = _growth(stream, units, statistics, exponents.get(stream.name, 0.0))
        if growth is None:
            continue
        # The last one is for channels that stay.
        growth = np.append(growth, np.float32(1))
        for unit in stream.makers:
            _multiply(model, unit.main, growth[stream.tensors[unit.outputs[0]]])
        for unit in stream.takers:
            _divide(model, unit.main, growth[stream.tensors[unit.inputs[0]]])
        for value, factors in stream.tensors.items():
            changed[value.name or ""] = changed.get(value.name or "", np.float32(1)) * growth[factors]
    return changed


def spared(stream: Stream, units: list[Unit], statistics: Statistics, exponent: float) -> float:
    """The share of its tensors' rounding that a stream is spared by an exponent, each of their channels counted alike: 0 where none
    of its own grows. Others of a Concat are rounded as they were.
    """
    growth = _growth(stream, units, statistics, exponent)
    if growth is None:
        return 0.0
    share = np.append(1 - np.square(growth, dtype=np.float64) ** -1.0, 0.0)
    return float(np.mean(np.concatenate([share[factors] for factors in stream.tensors.values()])))


def _growth(stream: Stream, units: list[Unit], statistics: Statistics, exponent: float) -> np.ndarray | None:
    """Of each factor, float32; None where nothing grows."""
    sizes = {value: size for value in stream.tensors if (size := _size(value, stream, statistics)) is not None}
    if not sizes or exponent <= 0:
        return None
    growth = np.full(stream.factors + 1, np.inf)
    for value, size in sizes.items():
        largest = size.max()
        alive = size > largest * _DEAD
        room = np.where(alive, np.maximum(1.0, _ROOM * _span(value, sizes) / np.where(alive, size, 1.0)), np.inf)
        np.minimum.at(growth, stream.tensors[value], room**exponent)
    growth = np.where(np.isfinite(growth), np.minimum(growth, LIMIT), 1.0)
    for unit in units:
        bound, value = _bound(unit), unit.outputs[0]
        if bound is not None and value in sizes:
            high = np.asarray(statistics.tensors[value.name or ""].channel_high, np.float64)
            np.minimum.at(growth, stream.tensors[value], np.maximum(1.0, _MISS * bound / np.maximum(high, 1e-30)))
    growth = growth[:-1]
    # Powers of two would lose nothing in float; any factor is as exact in int8, whose scales are arbitrary.
    return growth.astype(np.float32) if (growth > _WORTH).any() else None


def _size(value: ir.Value, stream: Stream, statistics: Statistics) -> np.ndarray | None:
    """The largest absolute value of each channel."""
    tensor = statistics.tensors.get(value.name or "")
    if tensor is None or tensor.channel_high is None or len(tensor.channel_high) != len(stream.tensors[value]):
        return None
    return np.maximum(np.abs(tensor.channel_low), np.abs(tensor.channel_high)).astype(np.float64)


def _span(value: ir.Value, sizes: Mapping[ir.Value, np.ndarray]) -> float:
    """The largest value that a tensor's scale has to serve: what only a Concat reads shares its output's."""
    behind = {reader.outputs[0] for reader in readers(value) if reader.op_type == "Concat"}
    shared = [sizes[other].max() for other in behind if other in sizes and len(list(readers(value))) == 1]
    return max(sizes[value].max(), *shared) if shared else float(sizes[value].max())


def _bound(unit: Unit) -> float | None:
    node = unit.nodes[-1]
    return number_of(node.inputs[2]) if node.op_type == "Clip" and len(node.inputs) > 2 else None


def _multiply(model: ir.Model, node: ir.Node, growth: np.ndarray) -> None:
    weights, axis = weights_of(node), channel_axis(node)
    shape = [1] * weights.ndim
    shape[axis] = -1
    _replace(model, node, 1, weights * growth.reshape(shape))
    bias = bias_of(node)
    if bias is not None:
        _replace(model, node, 2, bias * growth)


def _divide(model: ir.Model, node: ir.Node, growth: np.ndarray) -> None:
    weights = weights_of(node)
    if node.op_type != "Conv":
        _replace(model, node, 1, weights / (growth[None] if channel_axis(node) == 0 else growth[:, None]))
        return
    groups = node.attributes["group"].as_int() if "group" in node.attributes else 1
    inner = weights.shape[1]
    per_group = growth.reshape(groups, inner)
    rows = np.repeat(per_group, weights.shape[0] // groups, axis=0)
    _replace(model, node, 1, weights / rows.reshape(weights.shape[0], inner, *[1] * (weights.ndim - 2)))


def _replace(model: ir.Model, node: ir.Node, place: int, values: np.ndarray) -> None:
    name = f"{node.name}.{'weights' if place == 1 else 'bias'}.equalized"
    node.replace_input_with(place, new_constant(model, name, values.astype(np.float32)))
