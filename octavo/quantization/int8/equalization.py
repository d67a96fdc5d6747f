"""Cross-layer equalization: channels that one scale serves badly are brought to the same size, and the next layer takes it back.

A tensor has one uint8 scale, its channels often differ by orders of magnitude. Where a layer's output goes, through nothing but
Relu, ReLU6, LeakyRelu or PRelu, into convolutions, channel c can be multiplied by s_c in the layer's weights and bias and
divided by s_c in the next ones' weights, which have a scale for each output channel: free for depthwise convolutions, and a
trade between activations' and weights' rounding otherwise (Nagel et al., "Data-Free Quantization Through Weight Equalization and
Bias Correction", 2019; there weights are equalized, here measured activations are).

ReLU6 is not homogeneous. A channel that reaches half the bound keeps its size, the others grow until they reach that, so that the
same bound clips nothing that was not clipped before on the calibration images, and little on others.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.calibration.statistics import Statistics
from octavo.quantization.int8.units import Unit, is_depthwise, readers
from octavo.quantization.int8.weights import bias_of, weights_of

__all__ = ["equalize"]

# Growth of a channel; beyond it there is hardly anything in the channel but noise.
LIMIT = 256.0
# Of a Clip's bound: how near a grown channel may come. What other images make of it beyond the bound is cut off: half of it is room
# (MobileNetV2's float network changed by 41 dB on other images with .98, by 56 with .5, and lost nothing in INT8).
_MISS = 0.5
_HOMOGENEOUS = frozenset({"LeakyRelu", "prelu"})


def equalize(model: ir.Model, units: list[Unit], int8: set[Unit], statistics: Statistics, dense: float = 0.5) -> list[str]:
    """Scale channels in place.

    Args:
        model: FP32; weights and biases are replaced.
        units: all its units.
        int8: those that become INT8; only tensors between them are scaled.
        statistics: with per-channel extremes.
        dense: the exponent of the growth where a reader is no depthwise convolution.

    Returns:
        The tensors whose values changed: their statistics hold no longer.
    """
    reading = {node: unit for unit in units for node in unit.nodes}
    outputs = {id(value) for value in model.graph.outputs}
    changed: list[str] = []
    for unit in units:
        if unit not in int8 or unit.main.op_type != "Conv":
            continue
        chain = _chain(unit, reading, int8, outputs)
        if chain is None:
            continue
        tensors, consumers = chain
        growth = _growth(unit, tensors, consumers, statistics, dense)
        if growth is None:
            continue
        _multiply(model, unit.main, growth)
        for consumer in consumers:
            _divide(model, consumer.main, growth)
        changed += [value.name for value in tensors]
    return changed


def _chain(
    unit: Unit, reading: dict[ir.Node, Unit], int8: set[Unit], outputs: set[int]
) -> tuple[list[ir.Value], list[Unit]] | None:
    """The tensors from a layer to the convolutions that read it, or None where something else does."""
    tensors = [unit.outputs[0]]
    while True:
        value = tensors[-1]
        found = [reading.get(node) for node in readers(value)]
        if id(value) in outputs or not found or any(reader is None or reader not in int8 for reader in found):
            return None
        if len(found) == 1 and found[0].kind in _HOMOGENEOUS:
            tensors.append(found[0].outputs[0])
            continue
        if all(reader.kind == "linear" and reader.main.op_type == "Conv" for reader in found):
            return tensors, found
        return None


def _growth(unit: Unit, tensors: list[ir.Value], consumers: list[Unit], statistics: Statistics, dense: float) -> np.ndarray | None:
    tensor = statistics.tensors.get(tensors[-1].name or "")
    if tensor is None or tensor.channel_high is None or len(tensor.channel_high) != weights_of(unit.main).shape[0]:
        return None
    low, high = np.asarray(tensor.channel_low, np.float64), np.asarray(tensor.channel_high, np.float64)
    size = np.maximum(np.abs(low), np.abs(high))
    largest = size.max(initial=0.0)
    if largest <= 0:
        return None
    exponent = 1.0 if all(is_depthwise(consumer.main) for consumer in consumers) else dense
    alive = size > largest * 1e-6
    growth = np.where(alive, (largest / np.where(alive, size, 1.0)) ** exponent, 1.0)
    growth = np.minimum(growth, LIMIT)
    bound = _bound(unit)
    if bound is not None:
        growth = np.minimum(growth, np.maximum(1.0, _MISS * bound / np.maximum(high, 1e-30)))
    # Powers of two would lose nothing in float; any factor is as exact in int8, whose scales are arbitrary.
    return growth.astype(np.float32) if (growth > 1.01).any() else None


def _bound(unit: Unit) -> float | None:
    node = unit.nodes[-1]
    if node.op_type != "Clip" or len(node.inputs) < 3 or node.inputs[2] is None:
        return None
    return float(ir.convenience.get_const_tensor(node.inputs[2]).numpy())


def _multiply(model: ir.Model, node: ir.Node, growth: np.ndarray) -> None:
    weights = weights_of(node)
    _replace(model, node, 1, weights * growth.reshape(-1, *[1] * (weights.ndim - 1)))
    bias = bias_of(node)
    if bias is not None:
        _replace(model, node, 2, bias * growth)


def _divide(model: ir.Model, node: ir.Node, growth: np.ndarray) -> None:
    weights = weights_of(node)
    groups = node.attributes["group"].as_int() if "group" in node.attributes else 1
    inner = weights.shape[1]
    per_group = growth.reshape(groups, inner)
    rows = np.repeat(per_group, weights.shape[0] // groups, axis=0)
    _replace(model, node, 1, weights / rows.reshape(weights.shape[0], inner, *[1] * (weights.ndim - 2)))


def _replace(model: ir.Model, node: ir.Node, place: int, values: np.ndarray) -> None:
    name = f"{node.name}.{'weights' if place == 1 else 'bias'}.equalized"
    while name in model.graph.initializers:
        name += "+"
    value = ir.Value(name=name, const_value=ir.tensor(values.astype(np.float32), name=name))
    value.dtype, value.shape = ir.DataType.FLOAT, ir.Shape(values.shape)
    model.graph.register_initializer(value)
    node.replace_input_with(place, value)
