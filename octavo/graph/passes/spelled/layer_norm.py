"""What exporters before opset 17 spell out becomes LayerNormalization."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.arithmetic import is_op, number, replace_last
from octavo.graph.passes.folding import is_private
from octavo.graph.passes.node_pass import SpelledPass
from octavo.graph.passes.qdq import constant_of, new_constant
from octavo.graph.passes.spelled.variance import squared

__all__ = ["LayerNormPass"]


@dataclass(frozen=True)
class _Normed:
    """`(value - mean) / sqrt(variance + epsilon)` over the axes from `axis` on."""

    value: ir.Value
    axis: int
    epsilon: float


class LayerNormPass(SpelledPass):
    """Rewrite `(x - mean) / sqrt(mean of squares + epsilon) * scale + bias` as LayerNormalization (arXiv 1607.06450).

    ONNX Runtime makes one kernel of the nine nodes where they stand in a float graph; between Q and DQ it does not, as with Gelu
    (`GeluPass`).

    1. Means go over the last axes, all of them to the end, and keep their place (`keepdims`); the rank of x is known, and the
       sizes of these axes.
    2. The square is Pow(d, 2) or Mul(d, d), the division a Div or a Mul with the Reciprocal; the difference d may be there twice.
    3. Scale and bias are float32 constants with a value for each place of the normalized axes.
    4. What lies between is read by nothing else, or at most the mean and the difference are; a model below opset 17 is left alone.

    The result keeps the last node's name and that of its output. Exact up to float rounding.
    """

    # The first that has it.
    opset = 17

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        if not is_op(node, "Add"):
            return False
        for product, bias in _with_constant(node):
            if not is_op(product.producer(), "Mul") or not is_private(model, product):
                continue
            for quotient, scale in _with_constant(product.producer()):
                found = _normed(model, quotient)
                if found is None or len(node.outputs[0].shape or ()) != len(found.value.shape):
                    continue
                sizes = list(found.value.shape)[found.axis :]
                if not all(isinstance(size, int) and _is_of(array, found.axis, sizes) for size in sizes for array in (scale, bias)):
                    continue
                parts = {"scale": scale, "bias": bias}
                constants = [new_constant(model, f"{node.name}.{name}", array.reshape(sizes)) for name, array in parts.items()]
                settings = {"axis": found.axis, "epsilon": found.epsilon}
                replace_last(model, node, ir.node("LayerNormalization", [found.value, *constants], settings, name=node.name))
                return True
        return False


def _is_of(array: np.ndarray, axis: int, sizes: list[int]) -> bool:
    """Whether a constant has a value for each place of the axes from `axis` on, and none for others."""
    rank = axis + len(sizes)
    return array.ndim <= rank and [1] * (rank - array.ndim) + list(array.shape) == [1] * axis + sizes


def _with_constant(node: ir.Node) -> list[tuple[ir.Value, np.ndarray]]:
    """A node of two inputs, where one is a float32 constant: the other and that."""
    pairs = [(node.inputs[place], constant_of(node.inputs[1 - place])) for place in (0, 1)]
    return [(value, array) for value, array in pairs if array is not None and array.dtype == np.float32]


def _normed(model: ir.Model, quotient: ir.Value) -> _Normed | None:
    node = quotient.producer()
    if not is_private(model, quotient):
        return None
    if is_op(node, "Div"):
        pairs = [(node.inputs[0], node.inputs[1])]
    elif is_op(node, "Mul"):
        pairs = [
            (node.inputs[place], over.producer().inputs[0])
            for place, over in ((0, node.inputs[1]), (1, node.inputs[0]))
            if is_op(over.producer(), "Reciprocal") and is_private(model, over)
        ]
    else:
        return None
    return next((found for pair in pairs if (found := _of(model, *pair)) is not None), None)


def _of(model: ir.Model, difference: ir.Value, deviation: ir.Value) -> _Normed | None:
    """What is normalized, where `difference` is x less its mean and `deviation` the root of its mean square."""
    root = deviation.producer()
    sum_ = root.inputs[0].producer() if is_op(root, "Sqrt") and is_private(model, root.inputs[0]) else None
    if not is_op(sum_, "Add") or not is_private(model, deviation):
        return None
    value = _less_mean(difference)
    for place in (0, 1):
        epsilon, variance = number(sum_.inputs[1 - place]), sum_.inputs[place]
        axis = _mean_from(variance)
        if epsilon is None or axis is None or value is None or not is_private(model, variance):
            continue
        squared = _squared(model, variance.producer().inputs[0])
        if squared is not None and value == _less_mean(squared) and value[1] == axis:
            return _Normed(value[0], axis, epsilon)
    return None


def _less_mean(difference: ir.Value) -> tuple[ir.Value, int] | None:
    """(x, axis) of x less its mean over the axes from that one on."""
    node = difference.producer()
    if not is_op(node, "Sub") or not is_op(node.inputs[1].producer(), "ReduceMean"):
        return None
    axis = _mean_from(node.inputs[1])
    value = node.inputs[0]
    return (value, axis) if axis is not None and node.inputs[1].producer().inputs[0] is value else None


def _squared(model: ir.Model, value: ir.Value) -> ir.Value | None:
    return squared(value) if is_private(model, value) else None


def _mean_from(value: ir.Value) -> int | None:
    """The first of the axes that a ReduceMean goes over, where these are all from it to the last, and their places are kept."""
    node = value.producer()
    if not is_op(node, "ReduceMean") or node.inputs[0].shape is None:
        return None
    given = node.attributes.get("axes")
    axes = given.as_ints() if given is not None else constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    kept = node.attributes.get("keepdims")
    if axes is None or (kept is not None and not kept.as_int()):
        return None
    rank = len(node.inputs[0].shape)
    places = sorted(int(axis) % rank for axis in axes)
    return places[0] if places and places == list(range(places[0], rank)) else None
