"""Channels of an image that are taken apart, each scaled and shifted on its own, and joined again go into the Conv behind them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.folding import AFFINE, affine_of, is_private
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, forget, new_constant, number_of, pruned

__all__ = ["ChannelsApartPass"]

_IMAGES = 4


class ChannelsApartPass(NodePass):
    """Rewrite `Conv(Concat(a0 x[:, 0] + b0, a1 x[:, 1] + b1, ...), w)` as `Conv(x, w')`.

    torchvision's Inception changes the normalisation so (`transform_input`, as its published weights want it): three times Gather,
    Unsqueeze, Mul and Add ahead of the first layer, all of them float.

    1. The Concat (axis 1) has all channels of one 4-D tensor in their order: by Gather with one index, and Unsqueeze where that is
       a number, or by Slice.
    2. Factors and shifts are `Mul`, `Div`, `Add` and `Sub` with finite float32 constants of one value.
    3. Only the Conv reads the Concat. It has constant weights and bias and one group, and pads nothing: it would pad zeros that are
       not shifted (GoogLeNet's does).
    4. What others read, too, stays for them.

    Exact up to float rounding.
    """

    op_type = "Concat"

    def _rewrite(self, model: ir.Model, concat: ir.Node) -> bool:
        if concat.attributes["axis"].as_int() not in (1, 1 - _IMAGES):
            return False
        parts = [_part(value) for value in concat.inputs]
        if any(part is None for part in parts):
            return False
        image = parts[0][0]
        if any(part[0] is not image for part in parts) or [part[1] for part in parts] != list(range(image.shape[1])):
            return False
        scale, shift = (np.array([part[place] for part in parts]) for place in (2, 3))
        made, read = concat.outputs[0], _behind(concat, image)
        conv = next((use.node for use in made.uses()), None)
        if not is_private(model, made) or not _takes_in(conv):
            return False
        _into(model, conv, image, scale, shift)
        pruned(model, read)
        return True


def _part(value: ir.Value | None) -> tuple[ir.Value, int, float, float] | None:
    """Of one channel of a tensor, scaled and shifted: the tensor, which channel, the factor and the shift."""
    scale, shift = 1.0, 0.0
    while value is not None and (node := value.producer()) is not None and node.op_type in AFFINE:
        found = next((place for place in (0, 1) if affine_of(node, place, 1, _IMAGES) is not None), None)
        if found is None:
            return None
        (gain,), (offset,) = affine_of(node, found, 1, _IMAGES)
        value, scale, shift = node.inputs[found], scale * gain, shift + scale * offset
    taken = _taken(value.producer() if value is not None else None)
    return None if taken is None else (*taken, float(scale), float(shift))


def _taken(node: ir.Node | None) -> tuple[ir.Value, int] | None:
    """A tensor, and which of its channels a node takes out of it as an image of one channel."""
    if node is None or node.domain not in ("", "ai.onnx"):
        return None
    kept = True
    if node.op_type == "Unsqueeze":
        gather = node.inputs[0].producer()
        if number_of(node.inputs[1]) not in (1, 1 - _IMAGES) or gather is None or gather.op_type != "Gather":
            return None
        node, kept = gather, False
    image = node.inputs[0] if node.inputs else None
    if image is None or image.shape is None or len(image.shape) != _IMAGES or not isinstance(image.shape[1], int):
        return None
    channels = image.shape[1]
    if node.op_type == "Gather" and "axis" in node.attributes and node.attributes["axis"].as_int() in (1, 1 - _IMAGES):
        index = constant_of(node.inputs[1])
        if index is not None and index.ndim == kept and index.size == 1:
            return image, int(index.reshape(())) % channels
    if node.op_type == "Slice" and kept and len(node.inputs) > 3:
        start, end, axis = (number_of(one) for one in node.inputs[1:4])
        step = number_of(node.inputs[4]) if len(node.inputs) > 4 else 1
        if None not in (start, end) and axis in (1, 1 - _IMAGES) and step == 1 and 0 <= start < channels and end == start + 1:
            return image, int(start)
    return None


def _behind(concat: ir.Node, image: ir.Value) -> list[ir.Node]:
    """The Concat and what makes its parts of the image, each before what it reads."""
    found = {concat: None}
    ahead = [concat]
    for node in ahead:
        makers = [value.producer() for value in node.inputs if value is not None and value is not image]
        ahead += [maker for maker in makers if maker is not None and maker not in found]
        found |= dict.fromkeys(ahead)
    return list(found)


def _takes_in(conv: ir.Node | None) -> bool:
    if conv is None or conv.op_type != "Conv" or conv.domain not in ("", "ai.onnx"):
        return False
    settings = {name: attribute.value for name, attribute in conv.attributes.items()}
    unpadded = not any(settings.get("pads") or ()) and settings.get("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    constant = all(constant_of(value) is not None for value in conv.inputs[1:] if value is not None)
    return unpadded and settings.get("group", 1) == 1 and constant


def _into(model: ir.Model, conv: ir.Node, image: ir.Value, scale: np.ndarray, shift: np.ndarray) -> None:
    weights = constant_of(conv.inputs[1]).astype(np.float64)
    bias = constant_of(conv.inputs[2]) if len(conv.inputs) > 2 else None
    moved = np.einsum("oihw,i->o", weights, shift) + (0 if bias is None else bias.astype(np.float64))
    before = conv.inputs[1:]
    conv.replace_input_with(0, image)
    conv.replace_input_with(
        1, new_constant(model, f"{conv.name}.scaled_weights", (weights * scale.reshape(1, -1, 1, 1)).astype(np.float32))
    )
    conv.resize_inputs(3)
    conv.replace_input_with(2, new_constant(model, f"{conv.name}.scaled_bias", moved.astype(np.float32)))
    for value in before:
        forget(model, value)
