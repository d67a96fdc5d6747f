"""Resize of some axes becomes one that names all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, forget, new_constant

__all__ = ["ResizeAllAxesPass", "crops", "factors_of", "resizes_each_axis"]

_REGION, _SCALES, _SIZES = 1, 2, 3


def crops(node: ir.Node) -> bool:
    """Whether a Resize cuts a region out."""
    return node.attributes.get_string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"


def resizes_each_axis(node: ir.Node) -> bool:
    """Whether a Resize takes each axis by itself and as a whole: no region is cut out, no proportions are kept."""
    return not crops(node) and _policy(node) == "stretch"


def factors_of(before: Sequence[object], after: Sequence[int]) -> np.ndarray | None:
    """The scales with which a Resize makes just these sizes of those; float32. None where a size is open, or rounding misses it.

    They are what ONNX Runtime divides by itself where it is given sizes, so that each value has the same place.
    """
    if not all(isinstance(size, int) and size > 0 for size in before):
        return None
    sizes = np.array(before, np.float32)
    factors = np.array(after, np.float32) / sizes
    return factors if np.array_equal(np.floor(sizes * factors), after) else None


class ResizeAllAxesPass(NodePass):
    """Rewrite `Resize(x, scales or sizes)` of some `axes` as one of all axes.

    Where ONNX Runtime 1.31 moves a Transpose over a Resize, as it does between integer Convs, it picks the scales or sizes of all
    axes from those that are there, and the graph fails to run ("indices element out of data bounds") or to load.

    1. The rank of `x` is known.
    2. Scales get 1 for the other axes.
    3. Constant sizes become scales where the sizes of `x` are known and the scales make the same sizes (`factors_of`): no other
       axis has to be known then, and an integer Resize by whole factors has a faster form (`UpsampleByTilePass`).
    4. Other sizes get those of the other axes, looked up while the graph runs where they are open.
    5. A region has to be constant and float32; of the other axes it is all there is. Sizes stay sizes: scales mean others there.
    6. Constant sizes that keep proportions become the one scale that they come to, where the sizes of `x` along these axes are
       known and it makes the sizes that ONNX Runtime rounds to. Others are left alone: the other axes would count.
    """

    op_type = "Resize"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        value = node.inputs[0]
        if "axes" not in node.attributes or value is None or value.shape is None:
            return False
        shape, read = list(value.shape), list(node.inputs[1:])
        axes = [axis % len(shape) for axis in node.attributes["axes"].as_ints()]
        place = _SCALES if _is_given(node.inputs[_SCALES]) else _SIZES
        given = node.inputs[place]
        asked = constant_of(given)
        region = constant_of(node.inputs[_REGION]) if crops(node) else None
        if crops(node) and (
            region is None or region.dtype != np.float32 or region.size != 2 * len(axes) or _policy(node) != "stretch"
        ):
            return False
        if _policy(node) != "stretch" and place == _SIZES:
            factor = _proportion(node, [shape[axis] for axis in axes], asked)
            if factor is None:
                return False
            place, asked = _SCALES, np.full(len(axes), factor)
        elif place == _SIZES and asked is not None and region is None:
            factors = factors_of([shape[axis] for axis in axes], asked.tolist())
            place, asked = (_SIZES, asked) if factors is None else (_SCALES, factors)
        numbers: list[object] = [1.0] * len(shape) if place == _SCALES else shape
        for index, axis in enumerate(axes):
            numbers[axis] = given if asked is None else asked[index]
        dtype = ir.DataType.FLOAT if place == _SCALES else ir.DataType.INT64
        if any(isinstance(number, (ir.Value, ir.SymbolicDim)) for number in numbers):
            whole = _computed(model, node, numbers, axes, dtype)
        else:
            whole = new_constant(model, f"{node.name}.whole", np.array(numbers, dtype.numpy()))
        node.resize_inputs(1)
        node.resize_inputs(place + 1)
        node.replace_input_with(place, whole)
        if region is not None:
            ends = np.repeat(np.array([0, 1], np.float32), len(shape))
            ends[[*axes, *(len(shape) + axis for axis in axes)]] = region.reshape(-1)
            node.replace_input_with(_REGION, new_constant(model, f"{node.name}.region", ends))
        node.attributes.pop("axes")
        node.attributes.pop("keep_aspect_ratio_policy", None)
        for old in read:
            forget(model, old)
        return True


def _policy(node: ir.Node) -> str:
    return node.attributes.get_string("keep_aspect_ratio_policy", "stretch")


def _proportion(node: ir.Node, before: Sequence[object], asked: np.ndarray | None) -> np.float32 | None:
    """The scale of all axes that keeps proportions; None where a size is open, or it makes other sizes than they are rounded to."""
    if asked is None or not all(isinstance(size, int) and size > 0 for size in before):
        return None
    sizes = np.array(before, np.float32)
    factors = np.array(asked, np.float32) / sizes
    factor = factors.min() if _policy(node) == "not_larger" else factors.max()
    return factor if np.array_equal(np.floor(sizes * factor), np.floor(sizes * factor + np.float32(0.5))) else None


def _is_given(value: ir.Value | None) -> bool:
    constant = constant_of(value)
    return value is not None and (constant is None or constant.size > 0)


def _computed(model: ir.Model, node: ir.Node, numbers: list[object], axes: list[int], dtype: ir.DataType) -> ir.Value:
    """Numbers of all axes as one tensor: of an axis that is open what its size is, of one that is computed its place there."""

    def step(kind: str, op_type: str, inputs: list[ir.Value], length: int, **attributes: int) -> ir.Value:
        made = ir.node(op_type, inputs, attributes, name=f"{node.name}.{kind}")
        value = made.outputs[0]
        value.name, value.dtype, value.shape = f"{made.name}.out", dtype, ir.Shape([length])
        model.graph.insert_before(node, made)
        return value

    parts = []
    for axis, number in enumerate(numbers):
        if isinstance(number, ir.Value):
            index = new_constant(model, f"{node.name}.place{axis}", np.array([axes.index(axis)]))
            parts.append(step(f"asked{axis}", "Gather", [number, index], 1, axis=0))
        elif isinstance(number, ir.SymbolicDim):
            parts.append(step(f"ahead{axis}", "Shape", [node.inputs[0]], 1, start=axis, end=axis + 1))
        else:
            parts.append(new_constant(model, f"{node.name}.known{axis}", np.array([number], dtype.numpy())))
    return step("whole", "Concat", parts, len(numbers), axis=0)
