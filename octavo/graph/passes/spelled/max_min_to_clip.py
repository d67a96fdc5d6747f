"""Max and Min with constants, as exporters write ReLU, ReLU6 and clamps, become Relu or Clip again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.arithmetic import is_op, number, replace_last
from octavo.graph.passes.folding import is_private
from octavo.graph.passes.node_pass import SpelledPass
from octavo.graph.passes.qdq import forget, new_constant

__all__ = ["MaxMinToClipPass"]


@dataclass(frozen=True)
class _Bounded:
    """`Min(Max(value, low), high)`, low <= high, out of `nodes`, the last of them first."""

    value: ir.Value
    low: float = -np.inf
    high: float = np.inf
    nodes: tuple[ir.Node, ...] = ()


class MaxMinToClipPass(SpelledPass):
    """Rewrite Max and Min with constants, and Relu and Clip around them, as one Relu (0 and no upper bound) or one Clip.

    torch's exporter writes `clamp(min=0)` as a Max, TFJS and tf2onnx write Keras' ReLU6 as Relu, Min and Max. ONNX Runtime runs a
    Relu or Clip within the layer before it, and Max and Min one by one; INT8 has no form for those.

    1. Constants are float32 of one element, of no higher rank than the value, which is a float32 activation; in any order, and
       several of them.
    2. A Relu and a Clip behind one another are one, and a Clip at 0 with no upper bound is a Relu. A Relu or Clip alone stays.
    3. Nothing but what is rewritten reads what lies between; bounds of one value, or none, stay; a model below opset 11, too.

    The result keeps the last node's name and that of its output. Exact, NaN included, but for the sign of zero, and infinity where
    Clip has no bound on its side (ONNX Runtime takes float32's largest for it).
    """

    # The first with Clip's bounds as inputs.
    opset = 11

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        found = _bounded(model, node.outputs[0]) if node.outputs else None
        if found is None or not found.nodes or not found.low < found.high:
            return False
        relu = (found.low, found.high) == (0, np.inf)
        as_it_is = len(found.nodes) == 1 and (is_op(node, "Relu") or (is_op(node, "Clip") and not relu))
        if as_it_is or (found.low, found.high) == (-np.inf, np.inf):
            return False
        constants = [value for one in found.nodes for value in one.inputs if value is not found.value]
        if relu:
            made = ir.node("Relu", [found.value], name=node.name)
        else:
            pairs = (("low", found.low), ("high", found.high))
            bounds = [
                new_constant(model, f"{node.name}.{what}", np.float32(bound)) if np.isfinite(bound) else None
                for what, bound in pairs
            ]
            made = ir.node("Clip", [found.value, *(bounds if bounds[1] is not None else bounds[:1])], name=node.name)
        replace_last(model, node, made)
        for value in constants:
            forget(model, value)
        return True


def _bounded(model: ir.Model, value: ir.Value) -> _Bounded | None:
    """What a value is bounds of: itself, without any, where no node here makes it; None where that is nothing to bound."""
    node = value.producer()
    step = _step(node) if node is not None else None
    if step is None:
        return _Bounded(value)
    inner, low, high = step
    if inner.dtype != ir.DataType.FLOAT:
        return None
    before = _bounded(model, inner) if is_private(model, inner) else _Bounded(inner)
    if before is None or not _has_rank_of(inner, value):
        return None
    least, most = (min(max(bound, low), high) for bound in (before.low, before.high))
    return _Bounded(before.value, least, most, (node, *before.nodes))


def _step(node: ir.Node) -> tuple[ir.Value, float, float] | None:
    """What a node bounds, and by what; None where it does anything else."""
    if is_op(node, "Relu"):
        return node.inputs[0], 0.0, np.inf
    if is_op(node, "Clip"):
        bounds = [
            none if bound is None else number(bound)
            for bound, none in zip([*node.inputs[1:], None, None], (-np.inf, np.inf), strict=False)
        ]
        return None if None in bounds or not bounds[0] <= bounds[1] else (node.inputs[0], *bounds)
    if not is_op(node, "Max") and not is_op(node, "Min"):
        return None
    given = [(value, number(value)) for value in node.inputs]
    values, bounds = [value for value, bound in given if bound is None], [bound for _, bound in given if bound is not None]
    if len(values) != 1 or not bounds or np.isnan(bounds).any():
        return None
    return (values[0], max(bounds), np.inf) if node.op_type == "Max" else (values[0], -np.inf, min(bounds))


def _has_rank_of(value: ir.Value, made: ir.Value) -> bool:
    """Whether bounds left a value's rank as it was."""
    return value.shape is not None and made.shape is not None and len(value.shape) == len(made.shape)
