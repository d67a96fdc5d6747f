"""Values that are laid in a row and taken up again in the order that they had."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from octavo.graph.nodes import origin
from octavo.graph.passes.arithmetic import is_op
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, pruned

__all__ = ["SameOrderPass"]


class SameOrderPass(NodePass):
    """Rewrite `Gather(Reshape(x, [-1]), i)` as `x`, where i are the numbers from 0 on in x's shape.

    torch says how a tensor lies in memory by `as_strided`, which its exporter writes so: a global average pool does behind layers
    that lie channels last (`module.to(memory_format=torch.channels_last)`). It moves nothing, and a gate of squeeze and excitation
    would be an island of float for it.

    1. The indices are constant and of x's shape; or, where x's first size is open, the sum of constants, which count within a row,
       and of rows' numbers times the values in a row, as many as x has by the name of that size.
    2. Gather works on the axis that Reshape leaves.
    3. An output of the graph keeps its node.

    The result is the same to the last bit.
    """

    op_type = "Gather"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        laid = node.inputs[0].producer() if node.inputs[0] is not None else None
        if not is_op(laid, "Reshape") or node.outputs[0].is_graph_output() or node.attributes.get_int("axis", 0) not in (0, -1):
            return False
        source, sizes = laid.inputs[0], constant_of(laid.inputs[1])
        if sizes is None or sizes.size != 1 or source.shape is None or not len(source.shape):
            return False
        first, *rest = source.shape
        if not all(isinstance(size, int) for size in rest) or not _count(node.inputs[1], first, rest):
            return False
        node.outputs[0].replace_all_uses_with(source)
        # What the indices are computed of goes with all that nobody reads.
        pruned(model, [node, laid])
        return True


def _count(indices: ir.Value, first: int | ir.SymbolicDim, rest: list[int]) -> bool:
    """Whether indices are the numbers from 0 on in this shape."""
    known = constant_of(indices)
    if known is not None:
        return isinstance(first, int) and _in_order(known, [first, *rest])
    open_ones, within = _terms(indices)
    return len(open_ones) == 1 and _in_order(within, [1, *rest]) and _are_rows(open_ones[0], first, rest)


def _terms(value: ir.Value) -> tuple[list[ir.Value], np.ndarray]:
    """The terms of a sum that are no constants, and the sum of those that are."""
    known, total = constant_of(value), value.producer()
    if known is not None:
        return [], known
    if not is_op(total, "Add"):
        return [value], np.int64(0)
    (one, first), (other, second) = map(_terms, total.inputs)
    return one + other, first + second


def _in_order(numbers: np.ndarray, shape: list[int]) -> bool:
    return list(numbers.shape) == shape and bool((numbers.reshape(-1) == np.arange(numbers.size)).all())


def _are_rows(rows: ir.Value, first: int | ir.SymbolicDim, rest: list[int]) -> bool:
    """Whether each row has the number of its first value: 0 and on by the values in a row, along the first of as many axes."""
    if rows.shape is None or list(rows.shape)[1:] != [1] * len(rest):
        return False
    product = origin(rows, ("Unsqueeze",))
    product = product.producer() if product is not None else None
    if not is_op(product, "Mul"):
        return False
    steps = [constant_of(value) for value in product.inputs]
    counted = [value.producer() for value, step in zip(product.inputs, steps, strict=True) if step is None]
    step = next((step for step in steps if step is not None), None)
    if step is None or step.size != 1 or int(step.reshape(())) != math.prod(rest) or len(counted) != 1:
        return False
    if not is_op(counted[0], "Range"):
        return False
    start, limit, delta = counted[0].inputs
    ends = [constant_of(start), constant_of(delta)]
    if any(end is None for end in ends) or [int(end.reshape(())) for end in ends] != [0, 1]:
        return False
    return _size_asked(limit) == first


def _size_asked(value: ir.Value) -> ir.SymbolicDim | None:
    """The named open size that a number is: of a tensor's first axis."""
    number = origin(value, ("Squeeze", "Cast"))
    asks = number.producer() if number is not None else None
    if is_op(asks, "Gather"):
        places = constant_of(asks.inputs[1])
        if places is None or places.size != 1 or int(places.reshape(())) != 0:
            return None
        asks = asks.inputs[0].producer()
    elif is_op(asks, "Shape") and asks.attributes.get_int("end", -1) != 1:
        return None
    if not is_op(asks, "Shape") or asks.attributes.get_int("start", 0) != 0 or not asks.inputs[0].shape:
        return None
    size = asks.inputs[0].shape[0]
    return size if isinstance(size, ir.SymbolicDim) and size.value is not None else None
