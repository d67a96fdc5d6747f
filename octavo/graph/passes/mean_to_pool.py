"""ReduceMean over all spatial axes becomes GlobalAveragePool, for which integer kernels exist."""

from __future__ import annotations

import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import forget

__all__ = ["MeanToPoolPass"]


class MeanToPoolPass(NodePass):
    """Rewrite `ReduceMean(x, axes)` as `GlobalAveragePool(x)`, with a Squeeze behind it where the mean dropped its axes.

    1. `x` has a known rank r >= 3 and float32 values.
    2. The axes are constant and are exactly 2 .. r-1 (negative ones counted from the end).
    3. The node is left alone where axes are missing, computed, or cover batch or channels: that is another mean.
    """

    op_type = "ReduceMean"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        if not _is_spatial(node):
            return False
        value, old, read = node.inputs[0], node.outputs[0], list(node.inputs)
        keeps = node.attributes["keepdims"].as_int() if "keepdims" in node.attributes else 1
        rank = len(value.shape)
        pool = ir.node("GlobalAveragePool", [value], name=node.name)
        pooled = pool.outputs[0]
        pooled.dtype = ir.DataType.FLOAT
        pooled.shape = ir.Shape([*value.shape[:2], *([1] * (rank - 2))])
        added, new = [pool], pooled
        if not keeps:
            axes = ir.Value(name=f"{node.name}.axes", const_value=ir.tensor(list(range(2, rank)), dtype=ir.DataType.INT64))
            axes.dtype, axes.shape = ir.DataType.INT64, ir.Shape([rank - 2])
            model.graph.register_initializer(axes)
            squeeze = ir.node("Squeeze", [pooled, axes], name=f"{node.name}.squeeze")
            pooled.name = f"{old.name}.pooled"
            added.append(squeeze)
            new = squeeze.outputs[0]
            new.dtype = ir.DataType.FLOAT
            new.shape = ir.Shape(value.shape[:2])
        # The tensor keeps its name: statistics are found by it.
        name, new.name = old.name, None
        ir.convenience.replace_nodes_and_values(model.graph, node, [node], added, [old], [new])
        new.name = name
        for other in read:
            forget(model, other)
        return True


def _axes(node: ir.Node) -> list[int] | None:
    if "axes" in node.attributes:
        return list(node.attributes["axes"].as_ints())
    if len(node.inputs) < 2 or node.inputs[1] is None:
        return None
    constant = ir.convenience.get_const_tensor(node.inputs[1])
    return None if constant is None else [int(axis) for axis in constant.numpy().ravel()]


def _is_spatial(node: ir.Node) -> bool:
    value, axes = node.inputs[0], _axes(node)
    if value is None or value.shape is None or value.dtype != ir.DataType.FLOAT or axes is None:
        return False
    rank = len(value.shape)
    return rank >= 3 and sorted(axis % rank for axis in axes) == list(range(2, rank))
