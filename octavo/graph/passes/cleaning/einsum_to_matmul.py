"""Einsum of two tensors as the product of matrices that it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, forget, new_constant

__all__ = ["EinsumToMatMulPass"]


@dataclass(frozen=True)
class _Product:
    """`left, right -> out` by letters: both have `batch`, what is summed over, and letters of their own."""

    left: str
    right: str
    out: str
    batch: str
    summed: str
    rows: str
    columns: str


class EinsumToMatMulPass(NodePass):
    """Rewrite `Einsum("bhik,bhjk->bhij", x, y)` as MatMul, with a Transpose where axes stand otherwise and a Reshape where several
    are one side of the matrix.

    ONNX Runtime takes no scale and no Transpose into an Einsum as it does into a MatMul. With constant weights it is a linear layer
    that no rule for layers sees, and that stays float.

    1. Two operands, and an explicit output, without ellipsis and without a letter twice in one of them. Each letter is one of:
       in both and in the output; in both and summed over; in one and in the output. There is one at least of the second kind, and
       of the third for each operand.
    2. Axes that are summed over have known sizes, the same in both.
    3. Several axes become one where at most one of their sizes is open.

    The MatMul keeps the Einsum's name, the last node the name of its output. Exact up to float rounding.
    """

    op_type = "Einsum"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        found = _read(node)
        if found is None:
            return False
        product, (left, right) = found
        sizes = dict(zip(product.left + product.right, [*left.shape, *right.shape], strict=True))
        if any(left.shape[product.left.index(one)] != sizes[one] or not isinstance(sizes[one], int) for one in product.summed):
            return False
        # A matrix that is one for all serves rows of any number of axes.
        apart = not product.batch and len(product.summed) == 1
        left_groups = [
            *(product.batch + product.rows if apart else product.batch),
            *([] if apart else [product.rows]),
            product.summed,
        ]
        right_groups = [*product.batch, product.summed, product.columns]
        made = [*left_groups[:-1], product.columns]
        if any(_joined(groups, sizes) is None for groups in (left_groups, right_groups)) or _parted(made, sizes) is None:
            return False
        nodes: list[ir.Node] = []
        operands = [
            _arranged(model, nodes, f"{node.name}.{side}", value, letters=letters, groups=groups, sizes=sizes)
            for side, value, letters, groups in (
                ("left", left, product.left, left_groups),
                ("right", right, product.right, right_groups),
            )
        ]
        nodes.append(ir.node("MatMul", operands, name=node.name))
        value = nodes[-1].outputs[0]
        if any(len(group) > 1 for group in made):
            shape = new_constant(model, f"{node.name}.parts", np.array(_parted(made, sizes), np.int64))
            nodes.append(ir.node("Reshape", [value, shape], name=f"{node.name}.parted"))
        value, order = nodes[-1].outputs[0], "".join(made)
        if order != product.out:
            perm = [order.index(one) for one in product.out]
            nodes.append(ir.node("Transpose", [value], {"perm": perm}, name=f"{node.name}.ordered"))
        read = list(node.inputs)
        for one in nodes:
            one.outputs[0].dtype = node.outputs[0].dtype
        take_place(model, [node], nodes, node.outputs[0], nodes[-1].outputs[0])
        for one in read:
            forget(model, one)
        return True


def _read(node: ir.Node) -> tuple[_Product, tuple[ir.Value, ir.Value]] | None:
    """The product and its operands, the one first whose own letters come first in the output."""
    terms, arrow, out = node.attributes.get_string("equation").replace(" ", "").partition("->")
    parts = terms.split(",")
    if not arrow or len(parts) != 2 or not all(part.isalpha() and len(set(part)) == len(part) for part in (*parts, out)):
        return None
    if any(value.shape is None or len(value.shape) != len(part) for value, part in zip(node.inputs, parts, strict=True)):
        return None
    first, second = parts
    shared = set(first) & set(second)
    if set(out) - {*first, *second} or ((set(first) ^ set(second)) - set(out)):
        return None
    own = [[one for one in out if one in part and one not in shared] for part in parts]
    summed = "".join(one for one in first if one in shared and one not in out)
    if not summed or not all(own):
        return None
    batch = "".join(one for one in out if one in shared)
    operands = list(zip(parts, node.inputs, own, strict=True))
    if out.index(own[1][0]) < out.index(own[0][0]):
        operands.reverse()
    # Weights multiply from the right.
    if not batch and constant_of(operands[0][1]) is not None and constant_of(operands[1][1]) is None:
        operands.reverse()
    (left, value, rows), (right, other, columns) = operands
    return _Product(left, right, out, batch, summed, "".join(rows), "".join(columns)), (value, other)


def _joined(groups: Sequence[str], sizes: dict[str, int | ir.SymbolicDim]) -> list[int] | None:
    """The shape that makes one axis of each group, as Reshape reads it: 0 copies; None where more than one size is open."""
    shape, moved = [], False
    for group in groups:
        known = all(isinstance(sizes[one], int) for one in group)
        shape.append(0 if len(group) == 1 and not moved else math.prod(sizes[one] for one in group) if known else -1)
        moved |= len(group) > 1
    return shape if shape.count(-1) < 2 else None


def _parted(groups: Sequence[str], sizes: dict[str, int | ir.SymbolicDim]) -> list[int] | None:
    """The shape that makes each letter an axis again."""
    shape, moved = [], False
    for group in groups:
        moved |= len(group) > 1
        shape += [sizes[one] if isinstance(sizes[one], int) and moved else -1 if moved else 0 for one in group]
    return shape if shape.count(-1) < 2 else None


def _arranged(
    model: ir.Model,
    nodes: list[ir.Node],
    name: str,
    value: ir.Value,
    *,
    letters: str,
    groups: Sequence[str],
    sizes: dict[str, int | ir.SymbolicDim],
) -> ir.Value:
    """An operand with its axes in the order of groups, each of which is one axis; what that takes is added to `nodes`."""
    perm = [letters.index(one) for one in "".join(groups)]
    shape = _joined(groups, sizes) if any(len(group) > 1 for group in groups) else None
    array = constant_of(value)
    if array is not None:
        array = array.transpose(perm)
        if shape is not None:
            array = array.reshape([math.prod(sizes[one] for one in group) for group in groups])
        return new_constant(model, f"{name}.weights", array)
    if perm != list(range(len(perm))):
        nodes.append(ir.node("Transpose", [value], {"perm": perm}, name=f"{name}.ordered"))
        value = nodes[-1].outputs[0]
    if shape is not None:
        nodes.append(
            ir.node("Reshape", [value, new_constant(model, f"{name}.sizes", np.array(shape, np.int64))], name=f"{name}.joined")
        )
        value = nodes[-1].outputs[0]
    return value
