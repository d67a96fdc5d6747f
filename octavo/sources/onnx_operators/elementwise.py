"""Functions of each element, activations, and reductions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from octavo.sources.onnx_operators.node import Builder, Call, Node, Unsupported

__all__ = ["ELEMENTWISE"]


def _plain(function: Callable[..., Any]) -> Builder:
    """All inputs, no attribute."""
    return lambda node: Call(function)  # noqa: ARG005


def _module(make: Callable[..., nn.Module], **attributes: tuple[str, float]) -> Builder:
    """A module with arguments from float attributes: argument -> (attribute, default)."""
    return lambda node: Call(make(**{key: node.float(name, default) for key, (name, default) in attributes.items()}))


def _scalar_first(function: Callable[[Any, Any], Any], scalar: float, value: torch.Tensor) -> torch.Tensor:
    return function(scalar, value)


def _scalar_last(function: Callable[[Any, Any], Any], scalar: float, value: torch.Tensor) -> torch.Tensor:
    return function(value, scalar)


def _binary(function: Callable[[Any, Any], Any]) -> Builder:
    """Two operands. A constant of one element is a number, as it was in the source that the graph was exported from."""

    def build(node: Node) -> Call:
        for place in (0, 1):
            constant = node.constant(place)
            other = node.node.inputs[1 - place]
            if constant is None or constant.size != 1 or not np.issubdtype(constant.dtype, np.floating) or other.shape is None:
                continue
            if constant.ndim <= len(other.shape):
                run = partial(_scalar_last if place else _scalar_first, function, node.scalar(place))
                return Call(run, (1 - place,))
        return Call(function)

    return build


def _quotient(first: Any, second: Any) -> torch.Tensor:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor) and not first.is_floating_point():
        return torch.div(first, second, rounding_mode="trunc")
    return first / second


def _power(base: Any, exponent: Any) -> torch.Tensor:
    power = base**exponent
    return power.to(base.dtype) if isinstance(base, torch.Tensor) and power.dtype != base.dtype else power


def _of_all(function: Callable[[Any, Any], Any]) -> Builder:
    return lambda node: Call(lambda *values: reduce(function, values))  # noqa: ARG005


def _mean_of_all(node: Node) -> Call:  # noqa: ARG001
    return Call(lambda *values: reduce(operator.add, values) / len(values))


def _mod(node: Node) -> Call:
    return Call(torch.fmod if node.int("fmod", 0) else torch.remainder)


def _softmax(make: type[nn.Module], node: Node) -> Call:
    return Call(make(dim=node.int("axis", -1)))


def _gelu(node: Node) -> Call:
    return Call(nn.GELU(approximate=node.string("approximate", "none")))


def _hard_sigmoid(node: Node) -> Call:
    alpha, beta = node.float("alpha", 0.2), node.float("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return Call(nn.Hardsigmoid())
    return Call(lambda value: torch.clamp(value * alpha + beta, 0, 1))


def _clip(node: Node) -> Call:
    bounds = [node.scalar(place) if node.has(place) else None for place in (1, 2)]
    if any(node.has(place) and bounds[place - 1] is None for place in (1, 2)):
        return Call(_clamp, (0, 1, 2))
    low, high = bounds
    if node.node.inputs[0].dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16, None):
        return Call(partial(torch.clamp, min=low, max=high), (0,)) if (low, high) != (None, None) else Call(nn.Identity(), (0,))
    low, high = (None if bound is None or np.isinf(bound) or abs(bound) >= np.finfo(np.float32).max else bound for bound in bounds)
    if (low, high) == (0, 6):
        return Call(nn.ReLU6(), (0,))
    if (low, high) == (0, None):
        return Call(nn.ReLU(), (0,))
    if low is not None and high is not None and low < high:
        return Call(nn.Hardtanh(low, high), (0,))
    return Call(nn.Identity() if (low, high) == (None, None) else partial(torch.clamp, min=low, max=high), (0,))


def _clamp(value: torch.Tensor, low: torch.Tensor | None = None, high: torch.Tensor | None = None) -> torch.Tensor:
    return value if low is None and high is None else torch.clamp(value, low, high)


def _cast(node: Node) -> Call:
    dtype = node.dtype("to", ir.DataType.FLOAT)
    return Call(lambda value: value.to(dtype))


def _is_inf(node: Node) -> Call:
    if not node.int("detect_positive", 1) or not node.int("detect_negative", 1):
        raise Unsupported("infinities of one sign alone")
    return Call(torch.isinf)


def _shrink(node: Node) -> Call:
    edge, bias = node.float("lambd", 0.5), node.float("bias", 0.0)
    return Call(
        lambda value: torch.where(value < -edge, value + bias, torch.where(value > edge, value - bias, torch.zeros_like(value)))
    )


def _product(value: torch.Tensor, axes: Sequence[int], keep: bool) -> torch.Tensor:
    for axis in sorted((axis % value.dim() for axis in axes), reverse=True):
        value = torch.prod(value, axis, keepdim=keep)
    return value


def _norm(value: torch.Tensor, axes: Sequence[int], keep: bool) -> torch.Tensor:
    return torch.linalg.vector_norm(value, 2, axes, keepdim=keep)


def _sum(value: torch.Tensor, axes: Sequence[int], keep: bool) -> torch.Tensor:
    return torch.sum(value, axes, keepdim=keep, dtype=value.dtype)


def _mean(value: torch.Tensor, axes: Sequence[int], keep: bool) -> torch.Tensor:
    # An image's mean as the pooling that it is: quantizers know that one.
    if value.dim() == 4 and sorted(axis % 4 for axis in axes) == [2, 3]:
        pooled = F.adaptive_avg_pool2d(value, 1)
        return pooled if keep else pooled.flatten(1)
    return torch.mean(value, axes, keepdim=keep)


def _reduce(function: Callable[[torch.Tensor, Sequence[int], bool], torch.Tensor]) -> Builder:
    """Over axes that an attribute (before opset 18) or an input gives, or over all."""

    def build(node: Node) -> Call:
        keep, stays, given = bool(node.int("keepdims", 1)), bool(node.int("noop_with_empty_axes", 0)), node.ints("axes")
        if stays and not given and not node.has(1):
            raise Unsupported("a reduction over no axis")

        def run(value: torch.Tensor, axes: np.ndarray | None = None) -> torch.Tensor:
            chosen = given if axes is None else axes.reshape(-1).tolist()
            return function(value, chosen or list(range(value.dim())), keep)

        return Call(run)

    return build


def _arg(function: Callable[..., torch.Tensor], node: Node) -> Call:
    if node.int("select_last_index", 0):
        raise Unsupported("the last of equal values")
    return Call(partial(function, dim=node.int("axis", 0), keepdim=bool(node.int("keepdims", 1))))


def _top_k(node: Node) -> Call:
    options = {"dim": node.int("axis", -1), "largest": bool(node.int("largest", 1)), "sorted": bool(node.int("sorted", 1))}
    return Call(lambda value, count: tuple(torch.topk(value, count.reshape(-1)[0], **options)))


def _cum_sum(node: Node) -> Call:
    exclusive, backwards = node.int("exclusive", 0), node.int("reverse", 0)

    def run(value: torch.Tensor, axis: np.ndarray) -> torch.Tensor:
        along = int(axis.reshape(-1)[0])
        total = value.flip(along) if backwards else value
        total = torch.cumsum(total, along, dtype=value.dtype)
        total = total.flip(along) if backwards else total
        return total - value if exclusive else total

    return Call(run)


def _lp_normal(node: Node) -> Call:
    return Call(partial(F.normalize, p=node.int("p", 2), dim=node.int("axis", -1), eps=0.0))


def _response_normal(node: Node) -> Call:
    size, alpha, beta, bias = node.int("size", 1), node.float("alpha", 1e-4), node.float("beta", 0.75), node.float("bias", 1.0)
    if size % 2 == 0:
        raise Unsupported("an even number of channels")
    return Call(nn.LocalResponseNorm(size, alpha, beta, bias))


def _einsum(node: Node) -> Call:
    return Call(partial(torch.einsum, node.string("equation", "")))


ELEMENTWISE: dict[str, Builder] = {
    **{
        name: _plain(function)
        for name, function in {
            "Abs": torch.abs,
            "Acos": torch.acos,
            "And": torch.logical_and,
            "Asin": torch.asin,
            "Atan": torch.atan,
            "CastLike": lambda value, like: value.to(like.dtype),
            "Ceil": torch.ceil,
            "Cos": torch.cos,
            "Cosh": torch.cosh,
            "Equal": torch.eq,
            "Erf": torch.erf,
            "Exp": torch.exp,
            "Floor": torch.floor,
            "Greater": torch.gt,
            "GreaterOrEqual": torch.ge,
            "IsNaN": torch.isnan,
            "Less": torch.lt,
            "LessOrEqual": torch.le,
            "Log": torch.log,
            "Neg": torch.neg,
            "Not": torch.logical_not,
            "Or": torch.logical_or,
            "Reciprocal": torch.reciprocal,
            "Round": torch.round,
            "Sign": torch.sign,
            "Sin": torch.sin,
            "Sinh": torch.sinh,
            "Sqrt": torch.sqrt,
            "Tan": torch.tan,
            "Where": torch.where,
            "Xor": torch.logical_xor,
        }.items()
    },
    "Add": _binary(operator.add),
    "Sub": _binary(operator.sub),
    "Mul": _binary(operator.mul),
    "Div": _binary(_quotient),
    "Pow": _binary(_power),
    "Mod": _mod,
    "Max": _of_all(torch.maximum),
    "Min": _of_all(torch.minimum),
    "Sum": _of_all(operator.add),
    "Mean": _mean_of_all,
    "Celu": _module(nn.CELU, alpha=("alpha", 1.0)),
    "Clip": _clip,
    "Dropout": lambda node: Call(nn.Identity(), (0,)),  # noqa: ARG005
    "Elu": _module(nn.ELU, alpha=("alpha", 1.0)),
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _module(nn.Hardswish),
    "Identity": _module(nn.Identity),
    "IsInf": _is_inf,
    "LeakyRelu": _module(nn.LeakyReLU, negative_slope=("alpha", 0.01)),
    "LogSoftmax": partial(_softmax, nn.LogSoftmax),
    "Mish": _module(nn.Mish),
    "Relu": _module(nn.ReLU),
    "Selu": _module(nn.SELU),
    "Shrink": _shrink,
    "Sigmoid": _module(nn.Sigmoid),
    "Softmax": partial(_softmax, nn.Softmax),
    "Softplus": _module(nn.Softplus),
    "Softsign": _module(nn.Softsign),
    "Tanh": _module(nn.Tanh),
    "ThresholdedRelu": lambda node: Call(nn.Threshold(node.float("alpha", 1.0), 0.0)),
    "Cast": _cast,
    "ReduceL1": _reduce(lambda value, axes, keep: _sum(value.abs(), axes, keep)),
    "ReduceL2": _reduce(_norm),
    "ReduceLogSum": _reduce(lambda value, axes, keep: _sum(value, axes, keep).log()),
    "ReduceLogSumExp": _reduce(torch.logsumexp),
    "ReduceMax": _reduce(torch.amax),
    "ReduceMean": _reduce(_mean),
    "ReduceMin": _reduce(torch.amin),
    "ReduceProd": _reduce(_product),
    "ReduceSum": _reduce(_sum),
    "ReduceSumSquare": _reduce(lambda value, axes, keep: _sum(value * value, axes, keep)),
    "ArgMax": partial(_arg, torch.argmax),
    "ArgMin": partial(_arg, torch.argmin),
    "TopK": _top_k,
    "CumSum": _cum_sum,
    "LpNormalization": _lp_normal,
    "LRN": _response_normal,
    "Einsum": _einsum,
}
