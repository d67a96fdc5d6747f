"""Zeros that a Concat puts beside a tensor become a Pad."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.arithmetic import is_op, replace_last
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, forget, new_constant

__all__ = ["ZerosToPadPass"]


class ZerosToPadPass(NodePass):
    """Rewrite `Concat(x, zeros)` as `Pad(x)`.

    Shortcuts of residual networks get more channels so (ENet; CIFAR's ResNets). A Pad works on codes, where zero is the zero point;
    a Concat with a constant does not, and with it all of the residual sums behind it would be float.

    1. One part is no constant, and its rank is known.
    2. All others are zeros, a constant or a ConstantOfShape, and how many of them lie along the axis is known.

    The result keeps the name of the Concat's output. The same values.
    """

    op_type = "Concat"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        zeros = [_is_zeros(part) for part in node.inputs]
        if zeros.count(False) != 1 or not any(zeros):
            return False
        place = zeros.index(False)
        value = node.inputs[place]
        if value.shape is None:
            return False
        rank = len(value.shape)
        axis = node.attributes["axis"].as_int() % rank
        sizes = [None if part.shape is None else part.shape[axis] for part in node.inputs]
        if not all(isinstance(size, int) for one, size in enumerate(sizes) if one != place):
            return False
        pads = np.zeros((2, rank), np.int64)
        pads[:, axis] = sum(sizes[:place]), sum(sizes[place + 1 :])
        read = list(node.inputs)
        padded = ir.node("Pad", [value, new_constant(model, f"{node.name}.pads", pads.reshape(-1))], name=node.name)
        replace_last(model, node, padded)
        for part in read:
            forget(model, part)
        return True


def _is_zeros(value: ir.Value | None) -> bool:
    if value is None:
        return False
    constant = constant_of(value)
    if constant is not None:
        return not np.any(constant)
    maker = value.producer()
    if not is_op(maker, "ConstantOfShape"):
        return False
    return "value" not in maker.attributes or not np.any(maker.attributes["value"].as_tensor().numpy())
