"""What a graph does to pixels before its first layer: scaling and normalisation that an exporter left inside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.graph.operators import VIEWS
from octavo.graph.passes.qdq import constant_of

__all__ = ["Inside", "inside"]

# Behind these a pixel still has its own channels, in their order; of a Slice that turns them, `_turns` knows.
_MOVES = (VIEWS - {"Flatten"}) | {"Cast", "Pad", "Resize", "Slice", "Transpose"}
# The mean of a photo's pixels is near 120, or .47; a graph that subtracts such a mean takes such pixels.
_RAW, _SHARES = (40.0, 200.0), (0.2, 0.8)
# A graph that divides by more than this takes whole levels: standard deviations of shares are below 1, of levels near 60.
_WIDE = 20.0


@dataclass(frozen=True)
class Inside:
    """y = factor * x + offset, a number a channel, as the graph begins.

    Attributes:
        factor, offset: float64, 1 or 3 numbers.
        nodes: what does it, for a comment.
        pixels: what the input must hold then: `0..255`, `0..1`, or "" where the numbers do not tell.
        bgr: the means subtracted fall in the order of blue, green and red, as ImageNet's do.
    """

    factor: np.ndarray
    offset: np.ndarray
    nodes: tuple[str, ...]

    @property
    def pixels(self) -> str:
        """By the level that becomes 0, and by what one unit becomes."""
        if not np.all(self.factor > 0):
            return ""
        zero = float(np.mean(-self.offset / self.factor))
        if _RAW[0] <= zero <= _RAW[1] or 1 / float(np.mean(self.factor)) > _WIDE:
            return "0..255"
        return "0..1" if _SHARES[0] <= zero <= _SHARES[1] else ""

    @property
    def bgr(self) -> bool:
        """Whether the means rise: ImageNet's fall from red to blue."""
        zero = -self.offset / self.factor
        return zero.size == 3 and bool(zero[0] < zero[1] < zero[2])


def inside(image: ir.Value) -> Inside | None:
    """Follow the image to the first layer; None where nothing scales or shifts it on the way.

    Args:
        image: the graph input; constants are initializers.
    """
    factor, offset = np.ones(1), np.zeros(1)
    nodes: list[str] = []
    value, turned = image, False
    while True:
        readers = list({use.node: None for use in value.uses()})
        if len(readers) != 1 or readers[0].inputs[0] is None:
            break
        node = readers[0]
        if node.inputs[0] is value and (node.op_type in _MOVES or _turns(node)):
            turned ^= _turns(node)
            value = node.outputs[0]
            continue
        step = _step(node, value)
        if step is None:
            break
        # A number a channel, of channels as the image has them.
        by, plus = (numbers[::-1] if turned else numbers for numbers in step)
        factor, offset = by * factor, by * offset + plus
        nodes.append(f"{node.op_type} {node.name}")
        value = node.outputs[0]
    return Inside(factor, offset, tuple(nodes)) if nodes else None


def _turns(node: ir.Node) -> bool:
    """Whether a Slice or a Gather brings three channels into the opposite order, as from RGB to BGR."""
    shape = node.inputs[0].shape
    constants = [constant_of(one) for one in node.inputs[1:]]
    if shape is None or any(one is None for one in constants):
        return False
    axes = []
    if node.op_type == "Gather" and constants[0].reshape(-1).tolist() == [2, 1, 0]:
        axes = [node.attributes.get_int("axis", 0)]
    elif node.op_type == "Slice" and len(constants) == 4:
        axes = constants[2].reshape(-1)[constants[3].reshape(-1) == -1]
    return any(shape[int(axis)] == 3 for axis in axes)


def _step(node: ir.Node, value: ir.Value) -> tuple[np.ndarray, np.ndarray] | None:
    """(factor, offset) of one node; None for what is no scaling by constants."""
    if node.op_type == "BatchNormalization":
        scale, bias, mean, variance = (constant_of(one) for one in node.inputs[1:5])
        if any(one is None for one in (scale, bias, mean, variance)):
            return None
        epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
        factor = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
        return factor, bias - mean * factor
    if node.op_type not in ("Add", "Div", "Mul", "Sub"):
        return None
    place = 1 if node.inputs[0] is value else 0
    constant = constant_of(node.inputs[place])
    # Whatever is larger than a number a channel is no normalisation.
    if constant is None or constant.size not in (1, 3) or (place == 0 and node.op_type in ("Div", "Sub")):
        return None
    numbers = constant.astype(np.float64).reshape(-1)
    one, none = np.ones(1), np.zeros(1)
    if node.op_type == "Div":
        return (1 / numbers, none) if np.all(numbers) else None
    return {"Add": (one, numbers), "Mul": (numbers, none), "Sub": (one, -numbers)}[node.op_type]
