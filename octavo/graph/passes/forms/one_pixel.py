"""A map that repeats one pixel is left out where a sum or product repeats it by itself, and else made by a nearest Resize."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.nodes import leads_to
from octavo.graph.operators import WEIGHTED
from octavo.graph.passes.arithmetic import is_op
from octavo.graph.passes.cleaning.resize_all_axes import resizes_each_axis
from octavo.graph.passes.node_pass import GraphPass
from octavo.graph.passes.qdq import constant_of, forget, new_constant, pruned

__all__ = ["OnePixelPass"]

_BROADCASTS = frozenset({"Add", "Div", "Mul", "Sub"})
# Settings of a Resize for which each value is that of the pixel before it.
_REPEATS = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


class OnePixelPass(GraphPass):
    """Rewrite `Mul(x, Expand(y))` as `Mul(x, y)`, and what else makes a map of one pixel as a nearest Resize.

    Gates are written `x * y.expand_as(x)` (squeeze and excitation); DeepLab's image pooling makes a map of one pixel, by Expand or
    by a linear Resize. Neither has an integer kernel, and with them the product or Concat behind is float.

    1. A layer comes behind: tails stay as they are.
    2. An Expand goes where all that read it are sums, differences, products and quotients with a tensor of the shape that it makes,
       or one by whose Shape it expands; it adds no axes.
    3. A linear Resize of images [n, channels, 1, 1] takes the nearest pixel, which is the only one; it cuts no region out.
    4. An Expand of such images to a constant height and width becomes a nearest Resize.

    The same values, up to rounding where they were interpolated.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite in place; `modified` says whether a node changed."""
        modified = False
        for node in list(model.graph):
            if is_op(node, "Expand") and leads_to(node, WEIGHTED):
                modified |= _without(model, node) or _resized(model, node)
            elif is_op(node, "Resize") and _is_pixel(node.inputs[0]) and leads_to(node, WEIGHTED):
                modified |= _nearest(node)
        return ir.passes.PassResult(model, modified)


def _without(model: ir.Model, node: ir.Node) -> bool:
    value, made = node.inputs[0], node.outputs[0]
    uses = list(made.uses())
    if made.is_graph_output() or not uses or not all(_broadcasts(reader, 1 - place, node) for reader, place in uses):
        return False
    for reader, place in uses:
        reader.replace_input_with(place, value)
    shape = node.inputs[1].producer()
    pruned(model, [node, *[shape] * (shape is not None)])
    return True


def _broadcasts(reader: ir.Node, place: int, expand: ir.Node) -> bool:
    """Whether a reader of an Expand makes the same without it, of what it reads at `place` beside it."""
    if reader.op_type not in _BROADCASTS or reader.domain not in ("", "ai.onnx") or reader.graph is not expand.graph:
        return False
    other, value, made = reader.inputs[place], expand.inputs[0], expand.outputs[0]
    if other is made or None in (other.shape, value.shape) or len(other.shape) != len(value.shape):
        return False
    shape = expand.inputs[1].producer()
    if shape is not None and shape.op_type == "Shape" and shape.inputs[0] is other and not shape.attributes:
        return True
    if made.shape is None or len(made.shape) != len(value.shape):
        return False
    # Where nothing is repeated the other may be anything. An open size is known to be another's by its name.
    sizes = zip(value.shape, made.shape, other.shape, strict=True)
    return all(_same(after, beside) or _same(before, after) for before, after, beside in sizes)


def _same(one: int | ir.SymbolicDim, other: int | ir.SymbolicDim) -> bool:
    return one == other and (isinstance(one, int) or one.value is not None)


def _is_pixel(value: ir.Value) -> bool:
    return value.dtype == ir.DataType.FLOAT and value.shape is not None and list(value.shape)[2:] == [1, 1]


def _nearest(node: ir.Node) -> bool:
    if node.attributes.get_string("mode", "nearest") != "linear" or not resizes_each_axis(node):
        return False
    node.attributes.pop("antialias", None)
    for name, text in _REPEATS.items():
        node.attributes.add(ir.AttrString(name, text))
    return True


def _resized(model: ir.Model, node: ir.Node) -> bool:
    value, shape = node.inputs[0], node.inputs[1]
    sizes = constant_of(shape)
    if sizes is None or sizes.size != 4 or not _is_pixel(value) or min(sizes[2:]) < 1:
        return False
    # Neither batch nor channels are repeated.
    if any(size not in (1, known) for size, known in zip(sizes[:2].tolist(), value.shape, strict=False)):
        return False
    scales = new_constant(model, f"{node.name}.scales", np.array([1, 1, *sizes[2:]], np.float32))
    resize = ir.node("Resize", [value, None, scales], dict(_REPEATS), name=node.name)
    take_place(model, [node], [resize], node.outputs[0], resize.outputs[0])
    forget(model, shape)
    return True
