"""Activations as functions of one number: what range serves the tensor before them, and what codes make of codes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from octavo.graph.nodes import mish_of
from octavo.graph.passes.spelled.hard_swish import hard_sigmoid_of

__all__ = ["CURVES", "Curve", "activation_behind", "curve_of"]

# float32 or float64 values to those of the activation, of the same shape.
Curve = Callable[[np.ndarray], np.ndarray]

# Of SELU (arXiv 1706.02515), ONNX's defaults.
_SELU = {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}


def curve_of(node: ir.Node) -> Curve | None:
    """What a node computes of each value, for activations that no kernel of ONNX Runtime computes on codes.

    A Softplus stands for the Mish (arXiv 1908.08681) that it begins, where it is spelled out.
    """
    if node.domain not in ("", "ai.onnx"):
        return None
    if mish_of(node) is not None:
        return _mish
    made = CURVES.get(node.op_type)
    return None if made is None else made(node)


def activation_behind(value: ir.Value) -> Curve | None:
    """The function that all readers of a tensor apply to it first, or None."""
    readers = list(dict.fromkeys(use.node for use in value.uses()))
    kinds = {reader.op_type for reader in readers}
    if kinds == {"Sigmoid", "Mul"} and len(readers) == 2:
        return _silu
    if kinds == {"Sigmoid"}:
        return _sigmoid
    if kinds == {"Tanh"}:
        return np.tanh
    spelled = next((reader for reader in readers if mish_of(reader) is not None), None)
    if spelled is not None and set(readers) == {spelled, mish_of(spelled)[-1]}:
        return _mish
    if len(readers) != 1:
        return None
    (reader,) = readers
    if kinds <= {"HardSigmoid", "HardSwish"}:
        alpha, beta = hard_sigmoid_of(reader)
        factor = reader.op_type == "HardSwish"
        return lambda x: np.clip(alpha * x + beta, 0, 1) * (x if factor else 1)
    if kinds == {"LeakyRelu"}:
        slope = reader.attributes.get_float("alpha", 0.01)
        return lambda x: np.where(x < 0, slope * x, x)
    if kinds == {"PRelu"}:
        slopes = ir.convenience.get_const_tensor(reader.inputs[1])
        if slopes is None:
            return None
        slope = float(np.sqrt(np.mean(np.square(slopes.numpy(), dtype=np.float64))))
        return lambda x: np.where(x < 0, slope * x, x)
    return curve_of(reader)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(x, -80, 80)))


def _silu(x: np.ndarray) -> np.ndarray:
    return x * _sigmoid(x)


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, x)


def _mish(x: np.ndarray) -> np.ndarray:
    return x * np.tanh(_softplus(x))


def _below(x: np.ndarray) -> np.ndarray:
    """`exp(x) - 1` of what lies below 0, of all else 0."""
    return np.expm1(np.minimum(x, 0))


def _elu(node: ir.Node) -> Curve:
    alpha = node.attributes.get_float("alpha", 1.0)
    return lambda x: np.where(x < 0, alpha * _below(x), x)


def _celu(node: ir.Node) -> Curve:
    alpha = node.attributes.get_float("alpha", 1.0)
    return lambda x: np.where(x < 0, alpha * _below(x / alpha), x)


def _selu(node: ir.Node) -> Curve:
    alpha, gamma = (node.attributes.get_float(name, default) for name, default in _SELU.items())
    return lambda x: gamma * np.where(x < 0, alpha * _below(x), x)


# Operators by which codes are looked up in a table (`int8.writing.coded_forms.curve`): what makes their function of a node. Gelu is
# none of them: its kernel is as fast as the table.
CURVES: dict[str, Callable[[ir.Node], Curve]] = {
    "Celu": _celu,
    "Elu": _elu,
    "Mish": lambda _: _mish,
    "Selu": _selu,
    "Softplus": lambda _: _softplus,
    "Softsign": lambda _: lambda x: x / (1 + np.abs(x)),
}
