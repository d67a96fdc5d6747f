"""A sum over branches that were stacked becomes sums of images, which have integer kernels."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from octavo.graph.nodes import leads_to, only_reader
from octavo.graph.operators import WEIGHTED
from octavo.graph.passes.arithmetic import is_op, replace_last
from octavo.graph.passes.node_pass import NodePass, SparingPass
from octavo.graph.passes.qdq import constant_of, forget, new_constant

__all__ = ["SumOfPartsPass"]

# Axes of stacked images, the axis along which they are stacked, and as many sums as are worth a node each.
_STACKED, _AXIS, _MOST = 5, 1, 8


class SumOfPartsPass(SparingPass, NodePass):
    """Rewrite `ReduceSum(x, 1)` of [n, branches, channels, height, width] as `x0 + x1 + ...`, images of four axes.

    Split attention (ResNeSt) and selective kernels (SKNet) stack what two branches put out, add it for the gate, multiply it by the
    gate and add it again: ReduceSum has no integer kernel, and all of it was float.

    1. The sum is float32, over axis 1 alone, of 2 to 8 branches, drops that axis, and a layer comes behind.
    2. The branches are those that a Concat of Unsqueezes stacks; those of a Reshape that takes channels apart, by a Split of the
       channels; of a Mul that the sum alone reads, the products of the operands' branches, where both have them all; else those
       of a Split, each with a Squeeze.
    3. A node that stays float by name keeps its form.

    The last sum keeps the node's name and that of its output; the others are tensors that statistics do not know. Exact up to the
    order in which more than two are added.

    Args:
        kept: names of nodes that are left alone.
    """

    op_type = "ReduceSum"

    def __init__(self, kept: Collection[str] = ()) -> None:
        super().__init__(kept)
        # Of a stack that several sums read, its branches.
        self._known: dict[ir.Value, list[ir.Value]] = {}

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        value = node.inputs[0]
        count = _stacked(value)
        if node.name in self.kept or count is None or not _sums_branches(node) or not leads_to(node, WEIGHTED):
            return False
        read, parts = list(node.inputs), self._parts(model, value, count, node)
        total = parts[0]
        for place, part in enumerate(parts[1:-1], 1):
            total = _added(node, ir.node("Add", [total, part], name=f"{node.name}.part{place}"), total)
        replace_last(model, node, ir.node("Add", [total, parts[-1]], name=node.name))
        for one in read[1:]:
            forget(model, one)
        return True

    def _parts(self, model: ir.Model, value: ir.Value, count: int, before: ir.Node) -> list[ir.Value]:
        """The branches of a stack, each an image, made before a node where they are not there."""
        if value not in self._known:
            maker = value.producer()
            self._known[value] = (
                _unstacked(maker, count)
                or self._products(model, maker, count, before)
                or _of_channels(model, value, count, before)
                or _split(model, value, count, before)
            )
        return self._known[value]

    def _products(self, model: ir.Model, maker: ir.Node | None, count: int, before: ir.Node) -> list[ir.Value] | None:
        if not is_op(maker, "Mul") or maker.name in self.kept or only_reader(maker.outputs[0]) is not before:
            return None
        if any(_stacked(value) != count or constant_of(value) is not None for value in maker.inputs):
            return None
        operands = [self._parts(model, value, count, before) for value in maker.inputs]
        like = ir.Shape([size for axis, size in enumerate(maker.outputs[0].shape) if axis != _AXIS])
        return [
            _added(before, ir.node("Mul", list(pair), name=f"{maker.name}.part{place}"), like)
            for place, pair in enumerate(zip(*operands, strict=True))
        ]


def _stacked(value: ir.Value | None) -> int | None:
    """How many branches a float32 tensor of five axes stacks; None where that is not known, or they are too many."""
    if value is None or value.dtype != ir.DataType.FLOAT or value.shape is None or len(value.shape) != _STACKED:
        return None
    count = value.shape[_AXIS]
    return count if isinstance(count, int) and 1 < count <= _MOST else None


def _sums_branches(node: ir.Node) -> bool:
    axes = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    alone = axes is not None and (axes.reshape(-1) % _STACKED).tolist() == [_AXIS]
    return alone and node.attributes.get_int("keepdims", 1) == 0


def _unstacked(maker: ir.Node | None, count: int) -> list[ir.Value] | None:
    """What a Concat of Unsqueezes stacks."""
    if not is_op(maker, "Concat") or maker.attributes["axis"].as_int() % _STACKED != _AXIS or len(maker.inputs) != count:
        return None
    added = [value.producer() for value in maker.inputs]
    for one in added:
        axes = constant_of(one.inputs[1]) if is_op(one, "Unsqueeze") else None
        if axes is None or (axes.reshape(-1) % _STACKED).tolist() != [_AXIS]:
            return None
    return [one.inputs[0] for one in added]


def _of_channels(model: ir.Model, value: ir.Value, count: int, before: ir.Node) -> list[ir.Value] | None:
    """Parts of the channels that a Reshape takes apart."""
    maker, shape = value.producer(), list(value.shape)
    source = maker.inputs[0] if is_op(maker, "Reshape") else None
    channels = shape[_AXIS + 1]
    if source is None or source.shape is None or not isinstance(channels, int) or not all(map(_is_known, shape)):
        return None
    if list(source.shape) != [shape[0], count * channels, *shape[_AXIS + 2 :]]:
        return None
    like = ir.Shape([shape[0], *shape[_AXIS + 1 :]])
    return _parted(model, source, count, like, before)


def _is_known(size: int | ir.SymbolicDim) -> bool:
    return isinstance(size, int) or size.value is not None


def _split(model: ir.Model, value: ir.Value, count: int, before: ir.Node) -> list[ir.Value]:
    """Parts of a stack as it is."""
    shape, name = list(value.shape), f"{value.name}.parts"
    parts = _parted(model, value, count, ir.Shape([shape[0], 1, *shape[_AXIS + 1 :]]), before)
    axes = new_constant(model, f"{name}.axes", np.array([_AXIS]))
    like = ir.Shape([shape[0], *shape[_AXIS + 1 :]])
    return [
        _added(before, ir.node("Squeeze", [part, axes], name=f"{name}.squeeze{place}"), like) for place, part in enumerate(parts)
    ]


def _parted(model: ir.Model, value: ir.Value, count: int, like: ir.Shape, before: ir.Node) -> list[ir.Value]:
    """The parts of a tensor, all of one shape, that a Split makes."""
    name = f"{value.name}.parts"
    sizes = new_constant(model, f"{name}.sizes", np.full(count, like[_AXIS]))
    split = ir.node("Split", [value, sizes], {"axis": _AXIS}, num_outputs=count, name=name)
    for place, part in enumerate(split.outputs):
        part.name, part.dtype, part.shape = f"{name}.out{place}", ir.DataType.FLOAT, like.copy()
    before.graph.insert_before(before, split)
    return list(split.outputs)


def _added(before: ir.Node, node: ir.Node, like: ir.Value | ir.Shape) -> ir.Value:
    """What a node puts out that stands before another one now, with a name and a shape."""
    made = node.outputs[0]
    shape = like.shape if isinstance(like, ir.Value) else like
    made.name, made.dtype, made.shape = f"{node.name}.out", ir.DataType.FLOAT, None if shape is None else shape.copy()
    before.graph.insert_before(before, node)
    return made
