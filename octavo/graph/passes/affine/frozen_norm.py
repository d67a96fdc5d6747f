"""Factors and shifts of channels that stand behind no Conv become the BatchNormalization that they were."""

from __future__ import annotations

from itertools import chain

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.arithmetic import replace_last
from octavo.graph.passes.folding import AFFINE, affine_of, foldable, is_private
from octavo.graph.passes.node_pass import SpelledPass
from octavo.graph.passes.qdq import forget, new_constant

__all__ = ["BENDS", "FrozenNormPass", "is_read_by_layer"]

# Axes of a tensor of images.
_IMAGES = 4
_LAYERS = frozenset({"Conv", "ConvTranspose", "GlobalAveragePool"})
# What bends or pools what layers put out.
BENDS = frozenset(
    {
        *("Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "PRelu", "Relu", "Selu", "Sigmoid"),
        *("AveragePool", "Concat", "MaxPool"),
    }
)
# What may stand between a norm and the layer that it is for.
_BETWEEN = BENDS | {"Dropout", "Identity", "Mul", "Pad", "Split"}


class FrozenNormPass(SpelledPass):
    """Make one BatchNormalization of a chain of `Mul`, `Div`, `Add` and `Sub` with constants.

    Networks that normalise ahead of their layers (ResNet v2, DenseNet) have norms behind a sum or a Concat; frozen, they are
    exported as products and sums. Left alone, these are float between integer layers, and the sums that they read with them.

    1. Each constant is finite float32, has one value or one a channel, and is not divided; nobody else reads what stands between.
    2. Together they multiply channels by different numbers and add to them: one factor and shift for all has an integer form. Or
       they only shift channels by different numbers, behind an activation or a pool: what `FoldScalePass` leaves of a norm there.
    3. They read images [n, channels, ...] that a node makes: what prepares the graph's own image stays float.
    4. A layer reads the result, through activations and pools at most, or it is averaged: box decoding is no norm.
    5. What folds into a Conv before is left to that (`FoldScalePass`).

    The result keeps the name of the last node's output. Exact up to float rounding.
    """

    opset = 9

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        made, spelled = node.outputs[0], []
        if node.op_type not in AFFINE or made.shape is None or len(made.shape) != _IMAGES or not is_read_by_layer(made):
            return False
        channels, value = made.shape[1], made
        if not isinstance(channels, int):
            return False
        scale, shift = np.ones(channels), np.zeros(channels)
        while not spelled or is_private(model, value):
            found = _read(value, channels)
            if found is None:
                break
            spelled.append(value.producer())
            value, gain, offset = found
            scale, shift = scale * gain, shift + scale * offset
        maker = value.producer()
        if maker is None or foldable(model, value) or not ((np.ptp(scale) > 0 and shift.any()) or _shifts(maker, shift)):
            return False
        numbers = {"gain": scale, "shift": shift, "mean": np.zeros(channels), "variance": np.ones(channels)}
        constants = [new_constant(model, f"{node.name}.{name}", array.astype(np.float32)) for name, array in numbers.items()]
        read = list(chain.from_iterable(one.inputs for one in spelled))
        replace_last(model, node, ir.node("BatchNormalization", [value, *constants], {"epsilon": 0.0}, name=node.name))
        for one in read:
            forget(model, one)
        return True


def _shifts(maker: ir.Node, shift: np.ndarray) -> bool:
    """Whether channels that a node bends or pools are shifted by different numbers."""
    return np.ptp(shift) > 0 and maker.op_type in BENDS


def _read(value: ir.Value, channels: int) -> tuple[ir.Value, np.ndarray, np.ndarray] | None:
    """Of a value that is a factor or shift of channels of another: that one, the factors and the shifts."""
    node = value.producer()
    if node is None or node.op_type not in AFFINE or node.domain not in ("", "ai.onnx"):
        return None
    for place, read in enumerate(node.inputs):
        if read.shape is not None and len(read.shape) == _IMAGES and read.shape[1] == channels:
            affine = affine_of(node, place, channels, _IMAGES)
            if affine is not None:
                return read, *affine
    return None


def is_read_by_layer(value: ir.Value) -> bool:
    """Whether a layer reads a value, through activations and pools at most."""
    ahead = [value]
    for one in ahead:
        for node in {use.node: None for use in one.uses()}:
            if node.op_type in _LAYERS:
                return True
            ahead += [made for made in node.outputs if node.op_type in _BETWEEN and made not in ahead]
    return False
