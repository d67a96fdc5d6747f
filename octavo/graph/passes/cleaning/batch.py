"""Make a fixed batch dimension symbolic."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.errors import SourceError
from octavo.graph.passes.cleaning.resize_all_axes import factors_of, resizes_each_axis
from octavo.graph.passes.node_pass import GraphPass
from octavo.graph.passes.qdq import new_constant
from octavo.graph.passes.shapes import InferShapesPass

__all__ = ["BATCH", "DynamicBatchPass"]

BATCH = "batch"
# Resize takes sizes for some axes only (its `axes` attribute) from this opset on.
RESIZE_AXES = 18


class DynamicBatchPass(GraphPass):
    """Make dimension 0 of the graph's inputs and outputs the symbol `batch`, and repair literals that fix it inside.

    The batch size of the file, b, is dimension 0 of the image input.

    1. Every graph input and output of rank >= 1 whose dimension 0 is b gets `batch` there. Other inputs keep their shape.
    2. An output whose dimension 0 is another number has no batch dimension: an error, because two images' results could not
       be told apart.
    3. A Reshape to a constant shape that begins with the literal b: where the data's dimension 0 is b too it becomes 0 (copy
       that dimension), else -1 unless the shape has a -1 already. Both mean the same at batch b. Where b is more than 1 and all
       sizes are known, further literals may hold it (attention by areas or heads: b images of n parts as b * n): leading
       dimensions that stay become 0, and of the others one becomes -1: the first where the data has b there, else one that is
       b, else the first, if it is a multiple of b.
    4. A Resize to constant sizes [b, c, ...] of data [b, c, ...] gets scales where these make the same sizes; else, from opset 18
       on, sizes for the other axes only.
    5. Shapes inside the graph are inferred before, as few exporters state them and rules 3 and 4 read them, and anew behind.
    6. Not acted on: a model whose image input has a symbolic dimension 0 already; a Reshape with `allowzero`; a shape that is
       computed. A literal b can hide elsewhere (Expand, Slice, a constant that is added), so the caller runs the result at
       batch 1 and at batch 2 and compares.

    Args:
        image: the image input.

    Raises:
        SourceError: rule 2, or the image input has no known dimension 0.
    """

    def __init__(self, image: ir.Value) -> None:
        super().__init__()
        self.image = image

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Edit the model."""
        if not self.image.shape:
            raise SourceError(
                f"input {self.image.name!r} has no known shape, so its batch dimension is unknown",
                "set `source.dynamic_batch: false`",
            )
        size = self.image.shape[0]
        if not isinstance(size, int):
            return ir.passes.PassResult(model, False)
        for output in model.graph.outputs:
            first = _dimension_0(output)
            if output.shape is not None and (len(output.shape) == 0 or (first is not None and first != size)):
                raise SourceError(
                    f"output {output.name!r} of shape {output.shape} has no batch dimension, so the batch cannot be made dynamic",
                    "set `source.dynamic_batch: false`",
                )
        InferShapesPass()(model)
        opset = model.opset_imports.get("", 0)
        for node in model.graph:
            if node.domain == "" and node.op_type == "Reshape":
                _free_reshape(model, node, size)
            elif node.domain == "" and node.op_type == "Resize":
                _free_resize(model, node, size, by_axes=opset >= RESIZE_AXES)
        for value in (*model.graph.inputs, *model.graph.outputs):
            if _dimension_0(value) == size:
                value.shape = ir.Shape([BATCH, *list(value.shape)[1:]])
        outputs = {id(value) for value in model.graph.outputs}
        for node in ir.traversal.RecursiveGraphIterator(model.graph):
            for value in node.outputs:
                if id(value) not in outputs:
                    value.shape = None  # says b still
        InferShapesPass()(model)
        return ir.passes.PassResult(model, True)


def _dimension_0(value: ir.Value | None) -> int | None:
    if value is None or value.shape is None or len(value.shape) == 0 or not isinstance(value.shape[0], int):
        return None
    return value.shape[0]


def _constant(value: ir.Value | None) -> np.ndarray | None:
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return None if tensor is None else tensor.numpy()


def _free_reshape(model: ir.Model, node: ir.Node, size: int) -> None:
    shape = _constant(node.inputs[1])
    if shape is None or len(shape) == 0 or ("allowzero" in node.attributes and node.attributes["allowzero"].as_int()):
        return  # nothing literal to repair, or 0 means an empty dimension
    data, made = (_sizes(value) for value in (node.inputs[0], node.outputs[0]))
    if size > 1 and data is not None and made is not None:
        free = _freed(data, made, size)
    elif shape[0] != size:
        return
    elif _dimension_0(node.inputs[0]) == size:
        free = [0, *shape[1:]]
    elif -1 not in shape:
        free = [-1, *shape[1:]]
    else:
        return  # two unknowns in one shape
    node.replace_input_with(1, new_constant(model, f"{node.outputs[0].name}/shape", np.array(free, np.int64)))


def _freed(data: list[int], made: list[int], size: int) -> list[int]:
    """A shape that makes `made` of `data` for b = `size` images, and for any other number what these would make."""
    same = 0
    while same < min(len(data), len(made)) and data[same] == made[same]:
        same += 1
    free = [0] * same + made[same:]
    alone = same < len(data) and data[same] == size  # else it is merged with others, and may come apart here
    open_at = same if alone else next((place for place in range(same, len(made)) if made[place] == size), same)
    if open_at < len(made) and made[open_at] % size == 0:
        free[open_at] = -1
    return free


def _sizes(value: ir.Value | None) -> list[int] | None:
    """All dimensions; None where one is unknown, open or 0."""
    if value is None or value.shape is None or not all(isinstance(side, int) and side > 0 for side in value.shape):
        return None
    return list(value.shape)


def _free_resize(model: ir.Model, node: ir.Node, size: int, *, by_axes: bool) -> None:
    sizes = _constant(node.inputs[3]) if len(node.inputs) > 3 else None
    data = node.inputs[0]
    if sizes is None or "axes" in node.attributes or data is None or data.shape is None or len(data.shape) != len(sizes):
        return
    if len(sizes) < 3 or sizes[0] != size or list(data.shape)[:2] != list(sizes[:2]) or not resizes_each_axis(node):
        return  # resizes channels, or the data's own batch is unknown, or the batch would count
    factors = factors_of(list(data.shape), sizes.tolist())
    if factors is not None:
        node.replace_input_with(2, new_constant(model, f"{node.outputs[0].name}/scales", factors))
        node.resize_inputs(3)
    elif by_axes:
        node.attributes.add(ir.AttrInt64s("axes", list(range(2, len(sizes)))))
        node.replace_input_with(1, None)
        node.replace_input_with(3, new_constant(model, f"{node.outputs[0].name}/sizes", np.array(sizes[2:], np.int64)))
