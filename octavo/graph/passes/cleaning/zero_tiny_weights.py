"""Weights too small to matter, which cost a CPU more than all others."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

__all__ = ["TINY", "ZeroTinyWeightsPass"]

# Its square is a normal float32 still, four times the smallest: what is left multiplies without underflow.
TINY = 2.0**-62
# Of the largest value of a tensor: what is less is lost in the rounding of any sum with it (24 bits), by 16 bits more.
_BESIDE = 2.0**-40
_NORMAL = float(np.finfo(np.float32).tiny)

# Which inputs are factors and summands of a linear operator. The variance of a batch norm is neither.
_WEIGHTS = {
    "BatchNormalization": (1, 2, 3),
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "Gemm": (0, 1, 2),
    "MatMul": (0, 1),
    "PRelu": (1,),
}
# A single number of these may keep a divisor or a logarithm from zero.
_CHANNELS = {"Add": (0, 1), "Mul": (0, 1)}


class ZeroTinyWeightsPass(ir.passes.InPlacePass):
    """Set weights to zero that no result of float32 arithmetic depends on.

    Weight decay shrinks what a network does not use to subnormal numbers (below 2^-126), and products of such weights and channels
    go on as subnormal activations. Intel's CPUs take a hundred cycles and more for an operation on one; ONNX Runtime computes with
    them unless `session.set_denormal_as_zero` is set, for the whole process, before its first session.

    1. The initializer is float32 and read only as a weight, bias, slope, or batch norm's scale, shift and mean; by Add and Mul
       where it has more than one element.
    2. A value goes to zero where it is subnormal, or below `TINY` and below 2^-40 of the largest of its tensor.

    A tensor that is small throughout, but normal, keeps its values: whoever scaled it so may scale back. One of subnormal values
    alone becomes zero, as on hardware that flushes them.

    Attributes:
        count: how many values the last call set to zero.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite in place; `modified` says whether a value changed."""
        self.count = 0
        graphs = {id(node.graph): node.graph for node in ir.traversal.RecursiveGraphIterator(model.graph)} | {0: model.graph}
        for value in {id(value): value for graph in graphs.values() for value in graph.initializers.values()}.values():
            self._zero(value)
        return ir.passes.PassResult(model, bool(self.count))

    def _zero(self, value: ir.Value) -> None:
        tensor, uses = value.const_value, list(value.uses())
        if tensor is None or tensor.dtype != ir.DataType.FLOAT or value.is_graph_input() or value.is_graph_output():
            return
        if not uses or not all(_is_weight(use, tensor.size) for use in uses):
            return
        numbers = tensor.numpy()
        sizes = np.abs(numbers)
        most = float(sizes.max(initial=0.0))
        tiny = (sizes < max(_NORMAL, min(TINY, _BESIDE * most))) & (sizes > 0)
        if tiny.any():
            self.count += int(tiny.sum())
            value.const_value = ir.tensor(np.where(tiny, np.float32(0), numbers), name=value.name)


def _is_weight(use: Any, size: int) -> bool:
    if use.node.domain not in ("", "ai.onnx"):
        return False
    return use.idx in _WEIGHTS.get(use.node.op_type, ()) or (size > 1 and use.idx in _CHANNELS.get(use.node.op_type, ()))
