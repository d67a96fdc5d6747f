"""What exporters before opset 17 spell out becomes LayerNormalization."""

from __future__ import annotations

from collections.abc import Iterator
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
    """`(value - mean) / sqrt(variance + epsilon)` over these axes."""

    value: ir.Value
    axes: tuple[int, ...]
    epsilon: float


class LayerNormPass(SpelledPass):
    """Rewrite `(x - mean) / sqrt(mean of squares + epsilon) * scale + bias` as LayerNormalization (arXiv 1607.06450).

    ONNX Runtime makes one kernel of the nine nodes where they stand in a float graph; between Q and DQ it does not, as with Gelu
    (`GeluPass`). What Keras 3 writes (rule 2) it knows nowhere, nor norms over the channels of images.

    1. Means go over the last axes, all of them to the end, or over the channels of `[n, channels, ...]` alone, and keep their place
       (`keepdims`); the rank of x is known, and the sizes of these axes. tf2onnx writes those of tokens as GlobalAveragePool.
    2. The square is Pow(d, 2) or Mul(d, d), the division a Div or a Mul with the Reciprocal; the difference d may be there twice.
       The scale may be multiplied with the Reciprocal first (Flax); with f for that product, `x f + (bias - mean f)` is Keras 3's.
    3. Scale and bias are float32 constants with a value for each place of the normalized axes.
    4. What lies between is read by nothing else, or at most the mean and the difference are; a model below opset 17 is left alone.
    5. Channels stand last between two Transposes: ConvNeXt's own LayerNorm, SAM's LayerNorm2d, what tf2onnx makes of Keras'. Means
       over axis 1 and passes over all values for each operator take 1.6 to 3.6 times as long (docs/int8-forms.md).

    The result keeps the last node's name and that of its output. Exact up to float rounding.

    Args:
        channels: without, means over the channels of images stay: for runtimes on which rule 5 was not measured.
    """

    # The first that has it.
    opset = 17

    def __init__(self, channels: bool = True) -> None:
        super().__init__()
        self.channels = channels

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        if not is_op(node, "Add"):
            return False
        for found, *arrays in _spelled(model, node):
            shape = list(found.value.shape)
            sizes = [shape[axis] for axis in found.axes]
            if len(node.outputs[0].shape or ()) != len(shape) or not all(isinstance(size, int) for size in sizes):
                continue
            wanted = [size if axis in found.axes else 1 for axis, size in enumerate(shape)]
            last = found.axes[-1] == len(shape) - 1
            if not all(_is_of(array, wanted) for array in arrays) or not (last or self.channels):
                continue
            named = zip(("scale", "bias"), arrays, strict=True)
            constants = [new_constant(model, f"{node.name}.{name}", array.reshape(sizes)) for name, array in named]
            (_write if last else _write_channels_last)(model, node, found, constants)
            return True
        return False


def _write(model: ir.Model, node: ir.Node, found: _Normed, constants: list[ir.Value]) -> None:
    settings = {"axis": found.axes[0], "epsilon": found.epsilon}
    replace_last(model, node, ir.node("LayerNormalization", [found.value, *constants], settings, name=node.name))


def _write_channels_last(model: ir.Model, node: ir.Node, found: _Normed, constants: list[ir.Value]) -> None:
    shape = list(found.value.shape)
    last = len(shape) - 1
    ahead = ir.node("Transpose", [found.value], {"perm": [0, *range(2, last + 1), 1]}, name=f"{node.name}.channels_last")
    settings = {"axis": last, "epsilon": found.epsilon}
    norm = ir.node("LayerNormalization", [ahead.outputs[0], *constants], settings, name=f"{node.name}.norm")
    for one in (ahead, norm):
        out = one.outputs[0]
        out.name, out.dtype, out.shape = f"{one.name}.out", found.value.dtype, ir.Shape([shape[0], *shape[2:], shape[1]])
    model.graph.insert_before(node, [ahead, norm])
    replace_last(model, node, ir.node("Transpose", [norm.outputs[0]], {"perm": [0, last, *range(1, last)]}, name=node.name))


def _is_of(array: np.ndarray, wanted: list[int]) -> bool:
    """Whether a constant has a value for each place of the normalized axes, and none for others."""
    return array.ndim <= len(wanted) and [1] * (len(wanted) - array.ndim) + list(array.shape) == wanted


def _spelled(model: ir.Model, node: ir.Node) -> Iterator[tuple[_Normed, np.ndarray, np.ndarray]]:
    """What a sum may be: the normalized value, its scale and its bias."""
    for product, bias in _with_constant(node):
        if is_op(product.producer(), "Mul") and is_private(model, product):
            for found, scale in _scaled(model, product.producer()):
                yield found, scale, bias
    for place in (0, 1):
        yield from _shifted(model, node.inputs[place], node.inputs[1 - place])


def _scaled(model: ir.Model, node: ir.Node) -> Iterator[tuple[_Normed, np.ndarray]]:
    """The normalized value and its scale, in a product that has the scale behind or before the difference."""
    for quotient, scale in _with_constant(node):
        found = _normed(model, quotient)
        if found is not None:
            yield found, scale
    for place in (0, 1):
        difference, factor = node.inputs[place], node.inputs[1 - place]
        for deviation, scale in _factor(model, factor) if is_private(model, factor) else ():
            found = _of(model, difference, deviation)
            if found is not None:
                yield found, scale


def _shifted(model: ir.Model, product: ir.Value, shift: ir.Value) -> Iterator[tuple[_Normed, np.ndarray, np.ndarray]]:
    """Those of `x f + (bias - mean f)`, where f is the scale divided by the deviation and nothing else reads it."""
    both = [value.producer() for value in (product, shift)]
    if not is_op(both[0], "Mul") or not is_private(model, product) or not is_private(model, shift):
        return
    for place in (0, 1):
        value, factor = both[0].inputs[place], both[0].inputs[1 - place]
        if len(list(factor.uses())) != 2 or factor.is_graph_output():
            continue
        for deviation, scale in _factor(model, factor):
            found = _by_deviation(model, deviation)
            if found is None or found.value is not value:
                continue
            for taken, bias in _bias_less(both[1]):
                if is_private(model, taken) and _is_mean_times(model, taken, factor, both[1].op_type == "Add", found):
                    yield found, scale, bias


def _factor(model: ir.Model, value: ir.Value) -> list[tuple[ir.Value, np.ndarray]]:
    """The deviation that a constant is divided by, and that."""
    node = value.producer()
    pairs = _with_constant(node) if is_op(node, "Mul") else []
    inverse = [pair for pair in pairs if is_op(pair[0].producer(), "Reciprocal") and is_private(model, pair[0])]
    return [(over.producer().inputs[0], scale) for over, scale in inverse]


def _bias_less(node: ir.Node | None) -> list[tuple[ir.Value, np.ndarray]]:
    """What a constant less something, or a constant and something that is negative, is made of."""
    if is_op(node, "Add"):
        return _with_constant(node)
    return [pair for pair in _with_constant(node) if pair[0] is node.inputs[1]] if is_op(node, "Sub") else []


def _is_mean_times(model: ir.Model, value: ir.Value, factor: ir.Value, negative: bool, found: _Normed) -> bool:
    """Whether a value is the factor times the mean of what is normalized, or times its negative."""
    node = value.producer()
    if not is_op(node, "Mul") or factor not in node.inputs:
        return False
    mean = next((one for one in node.inputs if one is not factor), None)
    if negative:
        if mean is None or not is_op(mean.producer(), "Neg") or not is_private(model, mean):
            return False
        mean = mean.producer().inputs[0]
    return mean is not None and _mean_of(mean) == (found.value, found.axes)


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
    found = _by_deviation(model, deviation)
    return found if found is not None and _less_mean(difference) == (found.value, found.axes) else None


def _by_deviation(model: ir.Model, deviation: ir.Value) -> _Normed | None:
    """What is normalized by the root of its mean square distance from its mean."""
    root = deviation.producer()
    sum_ = root.inputs[0].producer() if is_op(root, "Sqrt") and is_private(model, root.inputs[0]) else None
    if not is_op(sum_, "Add") or not is_private(model, deviation):
        return None
    for place in (0, 1):
        epsilon, variance = number(sum_.inputs[1 - place]), sum_.inputs[place]
        mean = _mean_of(variance)
        if epsilon is None or mean is None or not is_private(model, variance):
            continue
        square, axes = mean
        value = squared(square) if is_private(model, square) else None
        less = _less_mean(value) if value is not None else None
        if less is not None and less[1] == axes:
            return _Normed(less[0], axes, epsilon)
    return None


def _less_mean(difference: ir.Value) -> tuple[ir.Value, tuple[int, ...]] | None:
    """(x, axes) of x less its mean over these axes."""
    node = difference.producer()
    mean = _mean_of(node.inputs[1]) if is_op(node, "Sub") else None
    return mean if mean is not None and mean[0] is node.inputs[0] else None


def _mean_of(value: ir.Value) -> tuple[ir.Value, tuple[int, ...]] | None:
    """(x, axes) of a mean of x that keeps their places: over all axes to the last, or over the channels of images alone."""
    node = value.producer()
    if is_op(node, "GlobalAveragePool") and node.inputs[0].shape is not None:
        return node.inputs[0], tuple(range(2, len(node.inputs[0].shape)))
    if not is_op(node, "ReduceMean") or node.inputs[0].shape is None:
        return None
    given = node.attributes.get("axes")
    axes = given.as_ints() if given is not None else constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    kept = node.attributes.get("keepdims")
    if axes is None or (kept is not None and not kept.as_int()):
        return None
    rank = len(node.inputs[0].shape)
    places = tuple(sorted(int(axis) % rank for axis in axes))
    last = places == tuple(range(places[0], rank)) if places else False
    return (node.inputs[0], places) if last or places == (1,) else None
