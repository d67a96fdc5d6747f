"""A tensor and its own product with a gate are one product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.nodes import only_reader
from octavo.graph.passes.arithmetic import is_op
from octavo.graph.passes.folding import is_private
from octavo.graph.passes.node_pass import SparingPass, SpelledPass
from octavo.graph.passes.qdq import constant_of, forget, new_constant

__all__ = ["GatedSumPass"]

# Along an axis of fewer places than this a gate is not small beside what it multiplies.
_LEAST = 4


@dataclass(frozen=True)
class _Gated:
    """`value * gates[0] * gates[1] * ... + value + rest[0] + rest[1] + ...`, and the nodes that compute it, the last one first."""

    value: ir.Value
    gates: list[ir.Value]
    rest: list[ir.Value]
    nodes: list[ir.Node]


class GatedSumPass(SparingPass, SpelledPass):
    """Rewrite `x * g + x` as `x * (g + 1)`, g one number for many places of x, and `x * g * h + b + x` as `x * (g * h + 1) + b`.

    So are the global response norm of ConvNeXt V2 (arXiv 2301.00808), with a factor and shift a channel, on the widest maps there
    are, and gates with a shortcut around them (BiSeNet's fusion). Of passes over all values, each a kernel, one is left, or two.

    1. x is float32 and no constant. The gates are of its size or 1 along each axis, and of 1 along an axis where x has 4 places or
       more, or nobody knows how many.
    2. Nobody else reads sums and products in between.
    3. Where b is a constant for each place of the last axis, and linear layers of tokens alone read the sum (MatMul and Add with
       constants), their biases take it. Otherwise it is added behind the product.
    4. A node that stays float by name keeps its form.

    The last node keeps its name and, where no bias took b, that of its output; what holds other values than before has a new name.
    Exact up to float rounding.

    Args:
        kept: names of nodes that are left alone.
    """

    opset = 7

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        found = self._gated(model, node) if is_op(node, "Add") else None
        if found is None or any(one.name in self.kept for one in found.nodes):
            return False
        made: list[ir.Node] = []

        def step(op_type: str, inputs: Sequence[ir.Value], kind: str, like: ir.Shape | None) -> ir.Value:
            made.append(ir.node(op_type, inputs, name=f"{node.name}.{kind}"))
            value = made[-1].outputs[0]
            value.name, value.dtype, value.shape = f"{made[-1].name}.out", ir.DataType.FLOAT, like
            return value

        gate, shape = found.gates[0], found.value.shape
        for other in found.gates[1:]:
            gate = step("Mul", [gate, other], f"gate{len(made)}", _broadcast(gate, other, shape))
        one = new_constant(model, f"{node.name}.one", np.float32(1))
        result = step("Mul", [found.value, step("Add", [gate, one], "gate_and_one", gate.shape)], "gated", shape)
        shifted = len(found.rest) == 1 and _taken_in(model, node, found.rest[0])
        for place, term in enumerate([] if shifted else found.rest):
            result = step("Add", [result, term], f"sum{place}", shape)
        made[-1].name = node.name
        take_place(model, found.nodes, made, node.outputs[0], result)
        if shifted:
            result.name = f"{result.name}.unshifted"
            forget(model, found.rest[0])
        return True

    def _gated(self, model: ir.Model, last: ir.Node) -> _Gated | None:
        sums, terms = _flat(model, last)
        for product in terms:
            if not is_op(product.producer(), "Mul") or not is_private(model, product):
                continue
            products, factors = _flat(model, product.producer())
            for value in (term for term in terms if term is not product):
                gates = [factor for factor in factors if factor is not value]
                if len(gates) == len(factors) - 1 and _repeat(gates, value):
                    rest = [term for term in terms if term is not product and term is not value]
                    if len(rest) == len(terms) - 2:
                        return _Gated(value, sorted(gates, key=lambda gate: constant_of(gate) is not None), rest, sums + products)
        return None


def _flat(model: ir.Model, last: ir.Node) -> tuple[list[ir.Node], list[ir.Value]]:
    """The nodes of one sum or product of several tensors, the last one first, and these tensors."""
    nodes, values = [last], []
    for value in last.inputs:
        if is_op(value.producer(), last.op_type) and is_private(model, value):
            inner = _flat(model, value.producer())
            nodes += inner[0]
            values += inner[1]
        else:
            values.append(value)
    return nodes, values


def _repeat(gates: Sequence[ir.Value], value: ir.Value) -> bool:
    """Whether all gates together are small beside a value, and broadcast to it."""
    if value.dtype != ir.DataType.FLOAT or value.shape is None or constant_of(value) is not None:
        return False
    wide = list(value.shape)
    spread = [True] * len(wide)
    for gate in gates:
        if gate.shape is None or len(gate.shape) > len(wide):
            return False
        sizes = [1] * (len(wide) - len(gate.shape)) + list(gate.shape)
        if any(size not in (1, full) for size, full in zip(sizes, wide, strict=True)):
            return False
        spread = [one and size == 1 for one, size in zip(spread, sizes, strict=True)]
    # The first axis is that of images.
    rows = zip(spread[1:], wide[1:], strict=True)
    return any(one and (not isinstance(full, int) or full >= _LEAST) for one, full in rows)


def _broadcast(one: ir.Value, other: ir.Value, wide: ir.Shape) -> ir.Shape:
    """The shape of two gates' product, each of its axes 1 or that of what they are for."""
    rank = max(len(one.shape), len(other.shape))
    padded = [[1] * (rank - len(value.shape)) + list(value.shape) for value in (one, other)]
    axes = zip(*padded, list(wide)[len(wide) - rank :], strict=True)
    return ir.Shape([1 if first == second == 1 else full for first, second, full in axes])


def _taken_in(model: ir.Model, last: ir.Node, shift: ir.Value) -> bool:
    """Whether the linear layers that read a sum have biases to take its shift; they have it then."""
    array, made = constant_of(shift), last.outputs[0]
    layers = [(use.node, use.idx) for use in made.uses()]
    if array is None or array.dtype != np.float32 or array.shape[-1:] != (array.size,) or made.is_graph_output() or not layers:
        return False
    sums = [_bias_of(layer, array.size) if place == 0 else None for layer, place in layers]
    if any(found is None for found in sums):
        return False
    for (layer, _), (sum_, place) in zip(layers, sums, strict=True):
        old = sum_.inputs[place]
        bias = constant_of(old).reshape(-1) + array.reshape(-1).astype(np.float64) @ constant_of(layer.inputs[1]).astype(np.float64)
        sum_.replace_input_with(place, new_constant(model, f"{old.name}.shifted", bias.astype(np.float32)))
        forget(model, old)
        layer.outputs[0].name = f"{layer.outputs[0].name}.unshifted"
    return True


def _bias_of(layer: ir.Node, channels: int) -> tuple[ir.Node, int] | None:
    """The Add that alone reads a MatMul of tokens with constant weights, and the place of its constant bias."""
    weights = constant_of(layer.inputs[1]) if is_op(layer, "MatMul") else None
    sum_ = only_reader(layer.outputs[0]) if weights is not None else None
    if not is_op(sum_, "Add") or weights.ndim != 2 or weights.shape[0] != channels:
        return None
    for place in (0, 1):
        bias = constant_of(sum_.inputs[place])
        if bias is not None and bias.shape == (weights.shape[1],) and bias.dtype == np.float32:
            return sum_, place
    return None
