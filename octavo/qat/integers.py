"""A converted graph in the arithmetic of ONNX Runtime's integer kernels, on the CPU.

Q, DQ and float operators between them round an accumulator a little differently than integer kernels do. Where a value lies halfway
between two codes the two then disagree, such a code makes others from layer to layer, and behind fifty layers the difference is
of the size of what quantization costs, whichever of the two is right. Here accumulators are exact, and become codes by the float32
operations of MLAS in their order (onnxruntime/core/mlas/lib: quantize.cpp, qladd.cpp, qlmul.cpp, qlgavgpool.cpp; those compiled for
AVX2): equal networks give equal codes, and where codes differ there is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.nn import functional as F  # noqa: N812 - its usual name

from octavo.graph.passes.kernels.bias_codes import bias_step
from octavo.graph.passes.kernels.prelu_of_codes import slope_codes
from octavo.qat.capture import aten
from octavo.qat.quantizer import FOLDED, LAYERS, bounds_of

__all__ = ["IntegerKernels"]

decomposed = torch.ops.quantized_decomposed
_Q = decomposed.quantize_per_tensor.default
_DQ, _DQ_BY_CHANNEL = decomposed.dequantize_per_tensor.default, decomposed.dequantize_per_channel.default
# Of a ReLU6's bound: what 255 steps may reach beyond it by a rounding.
_HAIR = 1e-6


class IntegerKernels(fx.Interpreter):
    """Runs a graph as `convert_pt2e` makes it. What has no integer kernel, or has one that looks codes up, runs as it stands.

    Args:
        model: on the CPU, activations uint8.
    """

    def __init__(self, model: fx.GraphModule) -> None:
        super().__init__(model)
        # Operator to the Q that is in its kernel; and what then passes the kernel's codes on: this Q, a ReLU between the two.
        self.fused: dict[fx.Node, fx.Node] = {}
        self.passing: set[fx.Node] = set()
        for node in model.graph.nodes:
            if node.target is _Q:
                self._fuse(node)

    def run_node(self, n: fx.Node) -> Any:
        """The value of one node."""
        if n in self.passing:
            return self.env[n.args[0]]
        if n in self.fused:
            return self._codes(n, self.fused[n])
        if n.target is _Q:
            return _rounded(self.env[n.args[0]] / _scale(n), n)
        if n.target is aten.linear.default and _is_integer(n):
            # Without a Q the accumulator is restored.
            return self._accumulator(n).float() * self._step(n)
        return super().run_node(n)

    def _fuse(self, q: fx.Node) -> None:
        node, between = q.args[0], []
        if node.target in FOLDED and len(node.users) == 1 and _lets_through(node, q):
            node, between = node.args[0], [node]
        if len(node.users) == 1 and _is_integer(node) and (node.target in LAYERS or not between):
            self.fused[node] = q
            self.passing |= {q, *between}

    def _codes(self, node: fx.Node, q: fx.Node) -> torch.Tensor:
        """What the kernel of a node and the Q behind it gives."""
        out = _scale(q)
        if node.target in LAYERS:
            return _rounded(self._accumulator(node).float() * _by_channel(self._step(node) / out, node.target), q)
        if node.target is aten.prelu.default:
            return self._prelu(node, q)
        scales, centred = [_scale(each) for each in _sources(node)], [self._centred(each) for each in _sources(node)]
        if node.target is aten.add.Tensor:
            return self._sum(node, [scale / out for scale in scales], q)
        if node.target is aten.mul.Tensor:
            return _rounded((centred[0] * centred[1]).float() * (scales[0] * scales[1] / out), q)
        if node.target is aten.avg_pool2d.default:
            # A depthwise convolution (PoolByDepthwisePass).
            height, width = _pair(node.args[1])
            sums = F.avg_pool2d(centred[0], *node.args[1:4], divisor_override=1)
            return _rounded(sums.round().float() * (scales[0] * np.float32(1 / (height * width)) / out), q)
        places = centred[0].shape[2] * centred[0].shape[3]
        means = centred[0].sum((2, 3), keepdim=True).float() * (scales[0] / (out * places))
        codes = _rounded(means, q)
        return codes if codes.ndim == node.meta["val"].ndim else codes.flatten(1)

    def _sum(self, node: fx.Node, ratios: Sequence[torch.Tensor], q: fx.Node) -> torch.Tensor:
        """QLinearAdd as compiled for AVX2: each product is fused with the sum that it goes into (one rounding for both)."""
        zeros = [float(each.args[2]) for each in _sources(node)]
        total = q.args[2] - _fused(ratios[0], zeros[0], ratios[1] * zeros[1])
        for source, ratio, zero in reversed(list(zip(_sources(node), ratios, zeros, strict=True))):
            total = _fused(self._centred(source) + zero, ratio, total)
        return total.round().clamp(q.args[3], q.args[4]).to(q.args[5])

    def _prelu(self, node: fx.Node, q: fx.Node) -> torch.Tensor:
        """The larger of codes and slopes times codes (PReluOfCodesPass); where that does not hold, in float."""
        slopes = self.env[node.args[1]]
        if slopes.max() > 1 or node.args[0].args[1:3] != q.args[1:3]:
            return _rounded(F.prelu(self.env[node.args[0]], slopes) / _scale(q), q)
        codes, steps = (torch.from_numpy(each) for each in slope_codes(slopes.numpy()))
        factors, value = _scale(node.args[0]) * steps / _scale(q), self._centred(node.args[0])
        sloped = _rounded((value * codes.reshape(-1, 1, 1)).float() * factors.reshape(-1, 1, 1), q)
        return torch.maximum((value + q.args[2]).to(q.args[5]), sloped)

    def _accumulator(self, layer: fx.Node) -> torch.Tensor:
        """The exact sum of products of codes and of the bias, in float32 where that holds every partial sum, else in float64."""
        weight = self.env[layer.args[1]]
        weight = (weight / self._weight_scale(layer).reshape(-1, *[1] * (weight.ndim - 1))).round()
        most = 255 * weight.abs().double().flatten(1).sum(1)
        bias = self.env[layer.args[2]] if len(layer.args) > 2 and layer.args[2] is not None else None
        if bias is not None:
            bias = (bias.double() / self._step(layer).double()).round()
            most += bias.abs()
            bias = bias.to(_holding(most))
        value = self._centred(layer.args[0]).to(_holding(most))
        return layer.target(value, weight.to(value.dtype), bias, *layer.args[3:])

    def _centred(self, dq: fx.Node) -> torch.Tensor:
        """Codes less their zero point, float64."""
        return (self.env[dq] / _scale(dq)).round().double()

    def _step(self, layer: fx.Node) -> torch.Tensor:
        return torch.from_numpy(bias_step(_scale(layer.args[0]).numpy(), self._weight_scale(layer).numpy()))

    def _weight_scale(self, layer: fx.Node) -> torch.Tensor:
        scale = layer.args[1].args[1]
        return self.fetch_attr(scale.target).float() if isinstance(scale, fx.Node) else torch.tensor([scale])


def _scale(node: fx.Node) -> torch.Tensor:
    """Of a Q or DQ of a tensor; a float32 scalar."""
    return torch.tensor(node.args[1], dtype=torch.float32)


def _rounded(steps: torch.Tensor, q: fx.Node) -> torch.Tensor:
    """Codes of a value in steps of a Q's scale."""
    return (steps.round() + q.args[2]).clamp(q.args[3], q.args[4]).to(q.args[5])


def _fused(factor: torch.Tensor, other: torch.Tensor | float, addend: torch.Tensor) -> torch.Tensor:
    """Factor * other + addend, rounded to float32 once (the product of two float32 is exact in float64)."""
    return (factor.double() * other + addend.double()).float()


def _holding(sums: torch.Tensor) -> torch.dtype:
    """The faster type in which whole numbers up to these are exact."""
    return torch.float32 if float(sums.max()) < 2**24 else torch.float64


def _by_channel(values: torch.Tensor, layer: Any) -> torch.Tensor:
    return values if layer is aten.linear.default else values.reshape(-1, 1, 1)


def _sources(node: fx.Node) -> list[fx.Node]:
    return [each for each in node.args[:2] if isinstance(each, fx.Node)]


def _is_codes(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is _DQ and node.args[5] == torch.uint8


def _is_integer(node: fx.Node) -> bool:
    """Whether a node reads codes alone, and has a kernel of its own for them."""
    if node.target in LAYERS:
        return _is_codes(node.args[0]) and node.args[1].target in (_DQ, _DQ_BY_CHANNEL)
    if node.target in (aten.add.Tensor, aten.mul.Tensor):
        return not node.kwargs and all(_is_codes(each) for each in node.args)
    if node.target is aten.prelu.default:
        return _is_codes(node.args[0]) and node.meta["val"].ndim == 4
    return node.target in _MEANS and _is_codes(node.args[0]) and _MEANS[node.target](node)


def _lets_through(relu: fx.Node, q: fx.Node) -> bool:
    """Whether the bounds of a ReLU lie outside of what a Q's codes can say, so that the Q does its work."""
    scale, zero, least, most = q.args[1:5]
    low, high = bounds_of(relu)
    return (low is None or (least - zero) * scale >= low) and (high is None or (most - zero) * scale <= high * (1 + _HAIR))


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    values = [value] if isinstance(value, int) else list(value)
    return (values[0], values[-1])


def _is_whole(pool: fx.Node) -> bool:
    """As `PoolByDepthwisePass` wants it."""
    padding, ceil, counts, divisor = (*pool.args[3:], *(0, False, True, None)[len(pool.args[3:]) :])
    return not ceil and divisor is None and (counts or not any(_pair(padding)))


def _is_global(mean: fx.Node) -> bool:
    value = mean.args[0].meta.get("val")
    if value is None or value.ndim != 4:
        return False
    if mean.target is aten.mean.dim:
        return sorted(axis % 4 for axis in mean.args[1]) == [2, 3]
    return list(_pair(mean.args[1])) == [1, 1]


_MEANS = {aten.adaptive_avg_pool2d.default: _is_global, aten.avg_pool2d.default: _is_whole, aten.mean.dim: _is_global}
