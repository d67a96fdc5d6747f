"""Convolutions of one tensor whose sum is taken are one convolution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.arithmetic import is_op, replace_last
from octavo.graph.passes.folding import is_private
from octavo.graph.passes.node_pass import SparingPass
from octavo.graph.passes.qdq import constant_of, new_constant

__all__ = ["ParallelConvsPass"]

# Noise-to-signal ratio that rounding the sum's weights may make (35 dB), or else how many times what rounding both makes. Normal
# weights have 41 dB, a 3x3 layer and a 1x1 one as they are mostly drawn 36, with an identity's norm as it is drawn 28.
_LOUD, _LOUDER = 3e-4, 2.0
_STEPS = 127


class ParallelConvsPass(SparingPass):
    """Rewrite `Conv(x) + Conv(x)` and `Conv(x) - Conv(x)` as one Conv of the sum, or difference, of their weights.

    Networks that are trained with branches and run with their sum (RepVGG, MobileOne, FastViT, the encoders of RT-DETR and D-FINE)
    are exported as trained as often as not. As they stand each branch is a layer with a rounding of its own, and so is each sum.

    1. Both read one tensor, have constant float32 weights and biases, and only the sum reads what they put out.
    2. Strides are the same, both have as many outputs, and their windows lie on the same pixels: what pads make of a row's length
       is the same, with `auto_pad` NOTSET and no dilations. The smaller kernel's taps lie within the larger window, beside zeros.
    3. Groups are the same, or those of one divide those of the other, which has zeros beside its blocks then. The sum has no more
       weights than both: a 1x1 layer and a depthwise 3x3 one stay two.
    4. Rounded to int8, a scale a channel, the sum's weights are close to what they were (`_LOUD`), or as close as those of both. An
       identity's 1 among weights of .05 would leave these a dozen codes (RepVGG, whose INT8 is known for it: Chu et al., "Make
       RepVGG Greater Again", 2022).
    5. A node that stays float by name keeps its form.

    The Conv has the name of the sum and of what that put out. Exact up to float rounding.

    Args:
        kept: names of nodes that are left alone.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite in place; `modified` says whether there was a sum."""
        # Three branches are two sums: the first one is a Conv by the time that the second is looked at.
        found = [self._merged(model, node) for node in list(model.graph) if is_op(node, "Add") or is_op(node, "Sub")]
        return ir.passes.PassResult(model, any(found))

    def _concerns(self, model: ir.Model) -> bool:
        return any(is_op(node, "Add") or is_op(node, "Sub") for node in model.graph)

    def _merged(self, model: ir.Model, node: ir.Node) -> bool:
        one, other = (_Conv.of(model, value) for value in node.inputs)
        if one is None or other is None or not one.fits(other):
            return False
        if any(each.name in self.kept for each in (node, one.node, other.node)):
            return False
        groups = min(one.groups, other.groups)
        start = np.maximum(one.before, other.before)
        size = np.maximum(one.size + start - one.before, other.size + start - other.before)
        first, second = (conv.spread(groups, start, size) for conv in (one, other))
        sign = -1 if node.op_type == "Sub" else 1
        sums = {"weights": first + sign * second, "bias": one.bias + sign * other.bias}
        larger = first.size > one.weights.size + other.weights.size
        if larger or not _is_close(sums["weights"], first, second):
            return False
        settings = {
            "kernel_shape": size.tolist(),
            "strides": one.strides.tolist(),
            "pads": [*start.tolist(), *(one.surplus + size - start).tolist()],
            "group": groups,
        }
        operands = [new_constant(model, f"{node.name}.{what}", array.astype(np.float32)) for what, array in sums.items()]
        replace_last(model, node, ir.node("Conv", [one.node.inputs[0], *operands], settings, name=node.name))
        return True


@dataclass(frozen=True, eq=False)
class _Conv:
    """A Conv whose only reader is a sum.

    Attributes:
        node: the Conv.
        weights: float64 [outputs, inputs / groups, ...].
        bias: float64 [outputs].
        groups: of channels.
        strides, before: of each axis of the image the step, and how far its first window reaches beyond the image.
        surplus: of each axis what both pads have beyond the kernel: with the strides it tells how many windows there are.
    """

    node: ir.Node
    weights: np.ndarray
    bias: np.ndarray
    groups: int
    strides: np.ndarray
    before: np.ndarray
    surplus: np.ndarray

    @classmethod
    def of(cls, model: ir.Model, value: ir.Value | None) -> _Conv | None:
        """What makes a value that one node alone reads; None where it is no Conv that can be merged."""
        node = value.producer() if is_private(model, value) else None
        if not is_op(node, "Conv") or node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
            return None
        weights, bias = (constant_of(node.inputs[place]) if len(node.inputs) > place else None for place in (1, 2))
        has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
        if weights is None or weights.dtype != np.float32 or (has_bias and bias is None):
            return None
        axes = weights.ndim - 2
        if set(node.attributes.get_ints("dilations", (1,) * axes)) != {1}:
            return None
        pads = np.array(node.attributes.get_ints("pads", (0,) * 2 * axes))
        size = np.array(weights.shape[2:])
        return cls(
            node,
            weights.astype(np.float64),
            np.zeros(len(weights)) if bias is None else bias.astype(np.float64),
            node.attributes.get_int("group", 1),
            np.array(node.attributes.get_ints("strides", (1,) * axes)),
            pads[:axes],
            pads[:axes] + pads[axes:] - size,
        )

    @property
    def size(self) -> np.ndarray:
        """Of the kernel, axis by axis."""
        return np.array(self.weights.shape[2:])

    def fits(self, other: _Conv) -> bool:
        """Whether both look at the same pixels of one tensor, and put out as many channels."""
        return (
            self.node is not other.node
            and self.node.inputs[0] is other.node.inputs[0]
            and len(self.weights) == len(other.weights)
            and np.array_equal(self.strides, other.strides)
            and np.array_equal(self.surplus, other.surplus)
            and max(self.groups, other.groups) % min(self.groups, other.groups) == 0
        )

    def spread(self, groups: int, before: np.ndarray, size: np.ndarray) -> np.ndarray:
        """The weights in a window of this size that begins so far before the image, with as many groups or fewer."""
        outputs, inputs = self.weights.shape[:2]
        times = self.groups // groups
        wide = np.zeros((outputs, inputs * times, *size))
        inside = tuple(slice(start, start + length) for start, length in zip(before - self.before, self.size, strict=True))
        # Each block of outputs reads one of `times` blocks of what its new group has.
        blocks = np.arange(outputs) // (outputs // self.groups) % times
        for block in range(times):
            mine = blocks == block
            wide[(mine, slice(block * inputs, (block + 1) * inputs), *inside)] = self.weights[mine]
        return wide


def _is_close(whole: np.ndarray, *parts: np.ndarray) -> bool:
    """Whether weights may be rounded in place of those that they are the sum of."""
    noise = _noise(whole)
    return noise <= _LOUD * float((whole**2).sum()) or noise <= _LOUDER * sum(map(_noise, parts))


def _noise(weights: np.ndarray) -> float:
    """The square error of weights that are rounded to codes of one step a channel, as predicted; a zero has a code of its own."""
    rows = np.abs(weights.reshape(len(weights), -1))
    return float(((rows.max(axis=1) / _STEPS) ** 2 * (rows > 0).sum(axis=1)).sum()) / 12
