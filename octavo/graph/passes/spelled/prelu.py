"""What exporters spell out with Relu, Abs, Max and products becomes PRelu or LeakyRelu again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.arithmetic import is_op, number, replace_last
from octavo.graph.passes.folding import is_private
from octavo.graph.passes.node_pass import SpelledPass
from octavo.graph.passes.qdq import constant_of, forget, new_constant

__all__ = ["PReluPass"]

# Constants are written with six digits or more.
_CLOSE = 1e-5


@dataclass(frozen=True)
class _Bent:
    """`above * value` where a value is positive, `below * value` where it is negative; factors in float64, of whatever shapes.

    `value` is None for zero, which is that of any; `constants` went into the factors.
    """

    value: ir.Value | None
    above: np.ndarray
    below: np.ndarray
    constants: tuple[ir.Value | None, ...] = ()


_NOTHING = _Bent(None, np.zeros(()), np.zeros(()))
# What operators of two inputs do to the factors: of a negative value the larger product is that of the smaller factor.
_JOINS = {
    "Add": (np.add, np.add),
    "Sub": (np.subtract, np.subtract),
    "Max": (np.maximum, np.minimum),
    "Min": (np.minimum, np.maximum),
}


class PReluPass(SpelledPass):
    """Rewrite what is x where x is positive and s x where it is negative as PRelu (a slope a channel) or LeakyRelu (one slope).

    - `Max(x, s x)` with s <= 1, `Min(x, s x)` with s >= 1 (TensorFlow);
    - `Relu(x) - a Relu(-x)` (Keras), `Relu(x) + a Min(x, 0)`, `Relu(x) + a (x - Abs(x)) / 2` (tf2onnx, MXNet);
    - any other sum, difference, product with constants, Relu, Neg, Abs, Max or Min of x that comes to the same.

    ONNX Runtime runs such nodes one by one; INT8 has a form for PRelu (`octavo.quantization.int8.writing.coded_forms`) and
    QLinearLeakyRelu.

    1. Constants are float32 scalars or one a channel, axis 1, and x has the shape of the result; slopes may lie on any side of 0.
    2. Nothing but what is rewritten reads what lies between; x itself is read more than once.
    3. Where all slopes are zero, or x that of a Relu, it is a Relu.
    4. A model below opset 11 is left alone.

    The result keeps the last node's name and that of its output. Exact up to float rounding.
    """

    # The first with Clip's bounds as inputs; PRelu's slopes broadcast from one side since 9.
    opset = 11

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        found = _made(model, node) if node.op_type in (*_JOINS, "Mul", "Div") else None
        if found is None or found.value is None or not _fits(found, node.outputs[0]):
            return False
        slopes = found.below.astype(np.float32)
        if not slopes.any() or is_op(found.value.producer(), "Relu"):
            made = ir.node("Relu", [found.value], name=node.name)
        elif slopes.size == 1:
            made = ir.node("LeakyRelu", [found.value], {"alpha": float(slopes.reshape(()))}, name=node.name)
        else:
            rank = len(found.value.shape)
            array = new_constant(model, f"{node.name}.slopes", slopes.reshape(-1, *[1] * (rank - 2)))
            made = ir.node("PRelu", [found.value, array], name=node.name)
        replace_last(model, node, made)
        for value in found.constants:
            forget(model, value)
        return True


def _fits(found: _Bent, made: ir.Value) -> bool:
    """Whether a value is kept where it is positive and bent where it is negative, channel by channel."""
    shape = found.value.shape
    if found.value.dtype != ir.DataType.FLOAT or shape is None or made.shape is None or list(shape) != list(made.shape):
        return False
    same = [np.allclose(factor, 1, rtol=0, atol=_CLOSE) for factor in (found.above, found.below)]
    if same != [True, False] or not np.isfinite(found.below).all():
        return False
    sizes = [1] * (len(shape) - found.below.ndim) + list(found.below.shape)
    return found.below.size == 1 or (len(shape) > 1 and shape[1] == found.below.size == sizes[1])


def _bent(model: ir.Model, value: ir.Value | None) -> _Bent | None:
    """A value as a function of what more than one node reads; None where it is none of these."""
    if value is None:
        return None
    if number(value) == 0:
        return replace(_NOTHING, constants=(value,))
    if is_private(model, value):
        return _made(model, value.producer()) if value.producer() is not None else None
    return _Bent(value, np.ones(()), np.ones(()))


def _made(model: ir.Model, node: ir.Node) -> _Bent | None:
    """What a node makes."""
    if is_op(node, "Mul") or is_op(node, "Div"):
        return _scaled(model, node)
    if not any(is_op(node, op_type) for op_type in (*_JOINS, "Abs", "Clip", "Neg", "Relu")):
        return None
    reads, bounds = (node.inputs[:1], node.inputs[1:]) if node.op_type == "Clip" else (node.inputs, ())
    parts = [_bent(model, value) for value in reads]
    if any(part is None for part in parts):
        return None
    if node.op_type in _JOINS:
        return _joined(node.op_type, *parts) if len(parts) == 2 else None
    part = parts[0]
    if node.op_type == "Neg":
        return _joined("Sub", _NOTHING, part)
    if node.op_type == "Abs":
        return _joined("Max", part, _joined("Sub", _NOTHING, part))
    side = {(0, np.inf): "Max", (-np.inf, 0): "Min"}.get((0, np.inf) if node.op_type == "Relu" else _bounds(node))
    return None if side is None else _joined(side, part, replace(_NOTHING, constants=tuple(bounds)))


def _joined(op_type: str, first: _Bent, second: _Bent) -> _Bent | None:
    values = [part.value for part in (first, second) if part.value is not None]
    if len(set(values)) != 1:
        return None
    above, below = _JOINS[op_type]
    constants = (*first.constants, *second.constants)
    return _Bent(values[0], above(first.above, second.above), below(first.below, second.below), constants)


def _scaled(model: ir.Model, node: ir.Node) -> _Bent | None:
    """A product with constants, or a quotient by such."""
    for place in (0, 1) if node.op_type == "Mul" else (0,):
        factor = constant_of(node.inputs[1 - place])
        if factor is None or factor.dtype != np.float32 or constant_of(node.inputs[place]) is not None:
            continue
        found = _bent(model, node.inputs[place])
        if found is None or (node.op_type == "Div" and not factor.all()):
            return None
        by = factor.astype(np.float64) if node.op_type == "Mul" else 1 / factor.astype(np.float64)
        return _Bent(found.value, found.above * by, found.below * by, (*found.constants, node.inputs[1 - place]))
    return None


def _bounds(node: ir.Node) -> tuple[float | None, float | None]:
    """Those of a Clip; None for one that is not constant."""
    low, high = (*node.inputs[1:3], None, None)[:2]
    return -np.inf if low is None else number(low), np.inf if high is None else number(high)
