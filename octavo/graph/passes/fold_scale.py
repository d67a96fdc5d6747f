"""Constant factors and shifts of channels disappear into the Conv before them."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.folding import bypass, foldable, into

__all__ = ["FoldScalePass"]

_TYPES = ("Add", "Div", "Mul", "Sub")


class FoldScalePass(ir.passes.InPlacePass):
    """Fold `Mul`, `Div`, `Add` and `Sub` of a Conv's output and a constant that has one value, or one a channel.

    Frozen batch norms are exported so (RT-DETR, D-FINE, torchvision's detectors): left alone, each stands between an integer
    convolution and its activation as float work of its own.

    1. The Conv has constant weights, and nobody else reads its output.
    2. The constant is float32 and either operand, but not what is divided by the Conv's output.
    3. The constant is finite, and has one value or [channels, 1, ...], with ones before: one for each position is left alone.

    The result keeps the name of the node's output. Exact up to float rounding.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite in place; `modified` says whether a node went."""
        found = [_fold(model, node) for node in list(model.graph) if node.op_type in _TYPES and node.domain in ("", "ai.onnx")]
        return ir.passes.PassResult(model, any(found))


def _fold(model: ir.Model, node: ir.Node) -> bool:
    for place in (0, 1):
        value, constant = node.inputs[place], ir.convenience.get_const_tensor(node.inputs[1 - place])
        if constant is None or not foldable(model, value) or constant.dtype != ir.DataType.FLOAT:
            continue
        if node.op_type == "Div" and place == 1:
            continue
        conv = value.producer()
        weights = ir.convenience.get_const_tensor(conv.inputs[1])
        numbers = _by_channel(constant.numpy(), weights.shape[0], len(weights.shape))
        if numbers is None:
            continue
        ones, zeros = np.ones(len(numbers)), np.zeros(len(numbers))
        if node.op_type in ("Div", "Mul"):
            with np.errstate(divide="ignore"):
                scale, shift = (1 / numbers if node.op_type == "Div" else numbers), zeros
        elif node.op_type == "Add":
            scale, shift = ones, numbers
        else:
            scale, shift = (ones, -numbers) if place == 0 else (-ones, numbers)
        if np.isfinite(scale).all() and np.isfinite(shift).all():
            into(model, conv, scale, shift)
            bypass(model, node, value)
            return True
    return False


def _by_channel(constant: np.ndarray, channels: int, rank: int) -> np.ndarray | None:
    """float64 [channels]; None where it is one value a position, or would broadcast the Conv's output."""
    if constant.ndim > rank:
        return None
    shape = [1] * (rank - constant.ndim) + list(constant.shape)
    if math.prod(shape) == 1:
        return np.full(channels, constant.reshape(()), np.float64)
    if shape == [1, channels, *[1] * (rank - 2)]:
        return constant.reshape(-1).astype(np.float64)
    return None
