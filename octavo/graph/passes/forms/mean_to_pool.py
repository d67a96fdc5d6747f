"""Mean and maximum over all spatial axes become pools, for which integer kernels exist."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.nodes import leads_to, only_reader
from octavo.graph.operators import WEIGHTED
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import forget, new_constant

__all__ = ["GlobalMaxPass", "MaxToPoolPass", "MeanToPoolPass"]

# Axes of a tensor of images.
_IMAGES = 4


class MeanToPoolPass(NodePass):
    """Rewrite `ReduceMean(x, axes)` as `GlobalAveragePool(x)`, with a Squeeze behind it where the mean dropped its axes.

    1. `x` has a known rank r >= 3 and float32 values.
    2. The axes are constant and are exactly 2 .. r-1 (negative ones counted from the end).
    3. The node is left alone where axes are missing, computed, or cover batch or channels: that is another mean.
    4. Means of one axis after another (`x.mean(3).mean(2)`) are one mean, where each is all that reads the one before and both
       drop their axes, or both keep them.
    """

    op_type = "ReduceMean"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        found = _spatial(node)
        if found is None or not self._serves(found[-1]):
            return False
        last = found[-1]
        value, old, read = node.inputs[0], last.outputs[0], [other for one in found for other in one.inputs]
        keeps = _keeps(last)
        rank = len(value.shape)
        pool = self._pool(value, last.name)
        if pool is None:
            return False
        pooled = pool.outputs[0]
        pooled.dtype = ir.DataType.FLOAT
        pooled.shape = ir.Shape([*value.shape[:2], *([1] * (rank - 2))])
        added, new = [pool], pooled
        if not keeps:
            axes = new_constant(model, f"{last.name}.axes", np.arange(2, rank))
            squeeze = ir.node("Squeeze", [pooled, axes], name=f"{last.name}.squeeze")
            pooled.name = f"{old.name}.pooled"
            added.append(squeeze)
            new = squeeze.outputs[0]
            new.dtype = ir.DataType.FLOAT
            new.shape = ir.Shape(value.shape[:2])
        take_place(model, found[::-1], added, old, new)
        for other in read:
            forget(model, other)
        return True

    def _serves(self, last: ir.Node) -> bool:  # noqa: ARG002
        return True

    def _pool(self, value: ir.Value, name: str | None) -> ir.Node | None:
        return ir.node("GlobalAveragePool", [value], name=name)


class MaxToPoolPass(MeanToPoolPass):
    """Rewrite `ReduceMax(x, axes)` as a MaxPool over the whole of each channel.

    It has no integer kernel, and GlobalMaxPool none either: what a gate of maxima multiplies is float then. A MaxPool is read off
    codes as they lie between integer layers.

    1. As for means; x are images [n, channels, height, width] of known height and width.
    2. A layer comes behind: tails stay as they are.

    The same values.
    """

    op_type = "ReduceMax"

    def _serves(self, last: ir.Node) -> bool:
        return leads_to(last, WEIGHTED)

    def _pool(self, value: ir.Value, name: str | None) -> ir.Node | None:
        return _whole(value, name)


class GlobalMaxPass(NodePass):
    """Rewrite `GlobalMaxPool(x)` as such a MaxPool, by the same rules."""

    op_type = "GlobalMaxPool"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        pool = _whole(node.inputs[0], node.name) if leads_to(node, WEIGHTED) else None
        if pool is not None:
            take_place(model, [node], [pool], node.outputs[0], pool.outputs[0])
        return pool is not None


def _whole(value: ir.Value, name: str | None) -> ir.Node | None:
    """The MaxPool of all pixels of images of known size before a layer."""
    if value.dtype != ir.DataType.FLOAT or value.shape is None or len(value.shape) != _IMAGES:
        return None
    sizes = list(value.shape)[2:]
    if not all(isinstance(size, int) for size in sizes):
        return None
    return ir.node("MaxPool", [value], {"kernel_shape": sizes}, name=name)


def _axes(node: ir.Node) -> list[int] | None:
    if "axes" in node.attributes:
        return list(node.attributes["axes"].as_ints())
    if len(node.inputs) < 2 or node.inputs[1] is None:
        return None
    constant = ir.convenience.get_const_tensor(node.inputs[1])
    return None if constant is None else [int(axis) for axis in constant.numpy().ravel()]


def _keeps(node: ir.Node) -> int:
    return node.attributes["keepdims"].as_int() if "keepdims" in node.attributes else 1


def _spatial(node: ir.Node) -> list[ir.Node] | None:
    """The ReduceMeans, from `node` on, that together are the mean over all spatial axes; None where there are none."""
    value = node.inputs[0]
    if value is None or value.shape is None or value.dtype != ir.DataType.FLOAT:
        return None
    rank, keeps = len(value.shape), _keeps(node)
    left, found = list(range(rank)), [node]
    while (gone := _axes(found[-1])) is not None:
        places = left if not keeps else list(range(rank))
        gone = {places[axis % len(places)] for axis in gone}
        if not gone or not gone <= set(left):
            return None
        left = [axis for axis in left if axis not in gone]
        if left == [0, 1]:
            return found if rank > 2 else None
        reader = only_reader(found[-1].outputs[0])
        if left[:2] != [0, 1] or reader is None or reader.graph is not node.graph:
            return None
        if reader.op_type != node.op_type or reader.domain != node.domain or _keeps(reader) != keeps:
            return None
        found.append(reader)
    return None
