"""A convolution on interleaved slices of an image becomes one strided convolution on the image."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, forget, new_constant, pruned

__all__ = ["FocusToConvPass"]

_LAST = np.iinfo(np.int32).max
# (start, step) along height and along width.
Offsets = tuple[tuple[int, int], tuple[int, int]]


class FocusToConvPass(NodePass):
    """Rewrite `Conv(Concat(x[:, :, a::s, b::s], ...), w)` (YOLO's Focus) and `Conv(SpaceToDepth(x), w)` as `Conv(x, w')`, stride s.

    The weights of each slice go to every s-th place of a kernel s times as large, shifted by the slice's (a, b). Slices, and their
    order, are read from the graph; places that no slice takes get zero, one that several take gets their sum.

    1. x is 4-D with known channels, height and width; s >= 2 is the same down and across and divides both.
    2. Every part of the Concat (axis 1) comes from x by Slices with constant bounds that begin within one step and go to the end.
    3. Only the Conv reads the Concat or SpaceToDepth. Slices that others read too stay for them.
    4. The Conv has constant float32 weights, one group, no dilation and explicit pads.

    Exact up to the order of the sums.
    """

    op_type = "Conv"

    def _rewrite(self, model: ir.Model, conv: ir.Node) -> bool:
        value = conv.inputs[0]
        source = value.producer() if value is not None else None
        weights = constant_of(conv.inputs[1])
        if source is None or len(list(value.uses())) != 1 or value.is_graph_output() or not _plain(conv, weights):
            return False
        found = _parts(source)
        if found is None:
            return False
        image, size, places = found
        channels, *sides = list(image.shape)[1:]
        if not all(isinstance(side, int) and side % size == 0 for side in sides) or weights.shape[1] != channels * len(places):
            return False
        outputs, _, height, width = weights.shape
        wide = np.zeros((outputs, channels, height * size, width * size), np.float64)
        for index, (down, right) in enumerate(places):
            wide[:, :, down::size, right::size] += weights[:, index * channels : (index + 1) * channels]
        conv.replace_input_with(0, image)
        old = conv.inputs[1]
        conv.replace_input_with(1, new_constant(model, f"{conv.name}.whole_weights", wide.astype(np.float32)))
        forget(model, old)
        for name, factor in (("strides", [1, 1]), ("pads", [0] * 4)):
            before = conv.attributes[name].as_ints() if name in conv.attributes else factor
            conv.attributes[name] = ir.AttrInt64s(name, [size * length for length in before])
        conv.attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", list(wide.shape[2:]))
        chain = [source]
        for node in chain:
            chain.extend(maker for part in node.inputs if part is not None and (maker := part.producer()) and part is not image)
        pruned(model, list(dict.fromkeys(chain)))
        return True


def _plain(conv: ir.Node, weights: np.ndarray | None) -> bool:
    settings = {name: attribute.value for name, attribute in conv.attributes.items()}
    if weights is None or weights.dtype != np.float32 or weights.ndim != 4:
        return False
    one = settings.get("group", 1) == 1 and set(settings.get("dilations") or [1]) == {1}
    return one and settings.get("auto_pad", "NOTSET") == "NOTSET"


def _parts(node: ir.Node) -> tuple[ir.Value, int, list[tuple[int, int]]] | None:
    """The image, the step, and (down, right) of each slice in the order of the channels."""
    if node.op_type == "SpaceToDepth":
        image, size = node.inputs[0], node.attributes["blocksize"].as_int()
        places = [(down, right) for down in range(size) for right in range(size)]
        return (image, size, places) if size > 1 and _is_image(image) else None
    if node.op_type != "Concat" or node.attributes["axis"].as_int() not in (1, -3) or len(node.inputs) < 2:
        return None
    traced = [_traced(value) for value in node.inputs]
    image = traced[0][0]
    steps = {step for _, offsets in traced for _, step in offsets}
    if any(source is not image for source, _ in traced) or len(steps) != 1 or not _is_image(image):
        return None
    size = steps.pop()
    places = [(down[0], right[0]) for _, (down, right) in traced]
    if size < 2 or any(not 0 <= place < size for pair in places for place in pair):
        return None
    return image, size, places


def _is_image(value: ir.Value | None) -> bool:
    return value is not None and value.shape is not None and len(value.shape) == 4 and isinstance(value.shape[1], int)


def _traced(value: ir.Value) -> tuple[ir.Value, Offsets]:
    """The value that Slices made this one from, and where they begin and how they step."""
    offsets = [(0, 1), (0, 1)]
    node = value.producer()
    while node is not None and node.op_type == "Slice" and _is_image(node.inputs[0]):
        bounds = _bounds(node)
        if bounds is None:
            break
        for axis, (start, step) in bounds.items():
            inner_start, inner_step = offsets[axis - 2]
            offsets[axis - 2] = (start + step * inner_start, step * inner_step)
        value = node.inputs[0]
        node = value.producer()
    return value, (offsets[0], offsets[1])


def _bounds(node: ir.Node) -> dict[int, tuple[int, int]] | None:
    """(start, step) by axis, where the Slice takes the rest of height or width from there on; None for any other Slice."""
    constants = [constant_of(value) for value in node.inputs[1:]]
    if len(constants) < 3 or any(constant is None for constant in constants):
        return None
    starts, ends, axes = (constant.ravel().tolist() for constant in constants[:3])
    steps = constants[3].ravel().tolist() if len(constants) > 3 else [1] * len(starts)
    shape = list(node.inputs[0].shape)
    found = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        place = axis % len(shape)
        side = shape[place]
        whole = end >= (side if isinstance(side, int) else _LAST)
        if place < 2 or not whole or start < 0 or step < 1:
            return None
        found[place] = (int(start), int(step))
    return found
