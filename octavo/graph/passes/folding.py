"""What passes share that take constant factors and shifts into the layer before them."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.qdq import forget, new_constant

__all__ = ["AFFINE", "affine_of", "bypass", "channels_of", "foldable", "into", "is_private"]

# Operators that multiply what they read or add to it.
AFFINE = frozenset({"Add", "Div", "Mul", "Sub"})
# Layers that take both in, and the axis of output channels in their weights; of a Gemm, `transB` tells.
_CHANNELS = {"Conv": 0, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1}


def affine_of(node: ir.Node, place: int, channels: int, rank: int) -> tuple[np.ndarray, np.ndarray] | None:
    """What a constant does to each channel of the other operand, as `scale y + shift`, both float64 [channels].

    Args:
        node: one of `AFFINE`.
        place: of the operand that holds the channels, on axis 1.
        channels: how many.
        rank: the operand's.

    Returns:
        None where the constant is not finite float32 with one value or one a channel, or is divided by the operand.
    """
    constant = ir.convenience.get_const_tensor(node.inputs[1 - place])
    if constant is None or constant.dtype != ir.DataType.FLOAT or (node.op_type == "Div" and place == 1):
        return None
    numbers = _by_channel(constant.numpy(), channels, rank)
    if numbers is None:
        return None
    ones, zeros = np.ones(channels), np.zeros(channels)
    if node.op_type in ("Div", "Mul"):
        with np.errstate(divide="ignore"):
            scale, shift = (1 / numbers if node.op_type == "Div" else numbers), zeros
    elif node.op_type == "Add":
        scale, shift = ones, numbers
    else:
        scale, shift = (ones, -numbers) if place == 0 else (-ones, numbers)
    return (scale, shift) if np.isfinite(scale).all() and np.isfinite(shift).all() else None


def _by_channel(constant: np.ndarray, channels: int, rank: int) -> np.ndarray | None:
    """float64 [channels]; None where it is one value a position, or would broadcast what it meets."""
    if constant.ndim > rank:
        return None
    shape = [1] * (rank - constant.ndim) + list(constant.shape)
    if math.prod(shape) == 1:
        return np.full(channels, constant.reshape(()), np.float64)
    if shape == [1, channels, *[1] * (rank - 2)]:
        return constant.reshape(-1).astype(np.float64)
    return None


def is_private(model: ir.Model, value: ir.Value | None) -> bool:
    """Whether one node alone reads a value."""
    return value is not None and len(list(value.uses())) == 1 and value not in model.graph.outputs


def foldable(model: ir.Model, value: ir.Value | None) -> bool:
    """Whether a value is that of a layer with constant weights and bias, and one node alone reads it.

    A MatMul is one where it multiplies vectors by a matrix, and a Gemm where it does that and adds one bias a column.
    """
    if not is_private(model, value):
        return False
    node = value.producer()
    if node is None or node.op_type not in _CHANNELS or ir.convenience.get_const_tensor(node.inputs[1]) is None:
        return False
    if node.op_type == "ConvTranspose" and node.attributes.get_int("group", 1) != 1:
        return False
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    known = bias is None or ir.convenience.get_const_tensor(bias) is not None
    return known and (node.op_type not in ("Gemm", "MatMul") or _is_linear(node))


def _is_linear(node: ir.Node) -> bool:
    rows, weights = node.inputs[0].shape, node.inputs[1].shape
    if rows is None or weights is None or len(rows) != 2 or len(weights) != 2:
        return False
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    settings = node.attributes
    plain = settings.get_float("alpha", 1.0) == settings.get_float("beta", 1.0) == 1.0 and not settings.get_int("transA", 0)
    return plain and (bias is None or all(size == 1 for size in list(bias.shape)[:-1]))


def _axis(layer: ir.Node) -> int:
    """That of output channels in a layer's weights."""
    transposed = layer.op_type == "Gemm" and layer.attributes.get_int("transB", 0)
    return 0 if transposed else _CHANNELS[layer.op_type]


def channels_of(layer: ir.Node) -> int:
    """How many channels a layer puts out that is `foldable`."""
    return ir.convenience.get_const_tensor(layer.inputs[1]).shape[_axis(layer)]


def into(model: ir.Model, layer: ir.Node, scale: np.ndarray, shift: np.ndarray) -> None:
    """Make a layer that is `foldable` put out `scale y + shift` in place of y; both float64 [channels]. A MatMul becomes a Gemm."""
    before = layer.inputs[1:]
    weights = ir.convenience.get_const_tensor(layer.inputs[1]).numpy().astype(np.float64)
    old = layer.inputs[2] if len(layer.inputs) > 2 else None
    bias = ir.convenience.get_const_tensor(old).numpy().astype(np.float64) if old is not None else np.zeros(len(scale))
    axis = _axis(layer)
    folded = weights * scale.reshape(*[1] * axis, -1, *[1] * (weights.ndim - 1 - axis))
    if layer.op_type == "MatMul":
        layer.op_type = "Gemm"
    # A layer can take in more than one; each leaves its own constant.
    if np.any(scale != 1):
        layer.replace_input_with(1, new_constant(model, f"{layer.name}.folded_weights", folded.astype(np.float32)))
    layer.resize_inputs(3)
    layer.replace_input_with(2, new_constant(model, f"{layer.name}.folded_bias", (bias * scale + shift).astype(np.float32)))
    for value in before:
        forget(model, value)


def bypass(model: ir.Model, node: ir.Node, value: ir.Value) -> None:
    """Remove a node; the value that it read takes the name and the place of what it put out."""
    old, read = node.outputs[0], list(node.inputs)
    name, old.name = old.name, f"{old.name}.old"
    ir.convenience.replace_all_uses_with(old, value, replace_graph_outputs=True)
    model.graph.remove(node, safe=True)
    for one in read:
        forget(model, one)
    value.name = name
