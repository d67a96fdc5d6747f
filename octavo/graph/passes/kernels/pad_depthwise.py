"""Depthwise convolutions get a whole number of the channels that their kernels take at once."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.nodes import silu_of
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, forget, new_constant

__all__ = ["PadDepthwisePass"]

# Channels that ONNX Runtime's integer depthwise kernel takes at once; what is left over goes one by one. Its blocked layout for
# float has blocks of as many, and a depthwise Conv of another number of channels stays outside of it.
_AT_ONCE = 16
_BIAS, _IMAGES = 2, 4
# At most this share of the channels is added: the convolutions on both sides grow as well.
_SHARE = 1 / 6
# Ops on one tensor of codes or floats that do the same to every element.
_ELEMENTWISE = frozenset({"QuantizeLinear", "DequantizeLinear", "HardSwish", "LeakyRelu", "Relu", "Clip", "Max", "Min", "Sigmoid"})


class PadDepthwisePass(NodePass):
    """Add channels of zero weights between a dense Conv, a depthwise Conv behind it and the next dense Conv, up to 16 at once.

    ONNX Runtime's integer depthwise kernel takes 16 channels at once and what is left over one by one: 58 channels (ShuffleNetV2)
    take 1.8 times as long as 64. In float they are worse off: outside the blocked layout, with whatever stands beside them. The
    dense kernels' tiles are filled up to 16 outputs anyway.

    1. All three Convs have constant weights, float32 or int8 of zero point 0, and a bias like them or none; the dense ones have
       one group.
    2. The channels are no multiple of 16, and filling up adds at most a sixth.
    3. Between them stand only ops on single elements, each with one reader and scalar constants, or SiLU, and no output of the
       graph.

    The added channels meet zero weights in the last Conv, so that the result is the same to the last bit.
    """

    op_type = "Conv"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        width = _channels(node)
        added = -width % _AT_ONCE if width else 0
        if not added or added > width * _SHARE:
            return False
        before, first = _walk(node, forwards=False)
        after, last = _walk(node, forwards=True)
        if first is None or last is None or _group(first) != 1 or _group(last) != 1:
            return False
        _pad(model, first, 0, added)
        _pad(model, node, 0, added)
        _pad(model, last, 1, added)
        node.attributes["group"] = ir.AttrInt64("group", width + added)
        for value in (*before, *after):
            if value.shape is not None:
                value.shape = ir.Shape([value.shape[0], width + added, *value.shape[2:]])
        return True


def _group(conv: ir.Node) -> int:
    return conv.attributes["group"].as_int() if "group" in conv.attributes else 1


def _channels(node: ir.Node) -> int:
    """The channels of a depthwise Conv; 0 for anything else."""
    shape = _weights_shape(node)
    if shape is None or shape[0] != _group(node) or shape[1] != 1 or shape[0] == 1:
        return 0
    return shape[0]


def _weights_shape(node: ir.Node) -> tuple[int, ...] | None:
    """The shape of a Conv's weights where rule 1 holds."""
    if node.op_type != "Conv" or node.domain not in ("", "ai.onnx"):
        return None
    kinds = [np.int8, np.int32]
    weights = constant_of(node.inputs[1])
    if weights is not None:
        bias = node.inputs[2] if len(node.inputs) > _BIAS else None
        plain = weights.dtype == np.float32 and weights.ndim == _IMAGES and (bias is None or constant_of(bias) is not None)
        return weights.shape if plain else None
    for place, value in enumerate(node.inputs[1:]):
        restored = value.producer() if value is not None else None
        if restored is None or restored.op_type != "DequantizeLinear" or len(restored.inputs) < 3 or len(value.uses()) != 1:
            return None
        codes, scale, zero = (constant_of(part) for part in restored.inputs)
        if codes is None or scale is None or zero is None or zero.any() or codes.dtype != kinds[place]:
            return None
        if scale.size > 1 and restored.attributes.get_int("axis", 1) != 0:
            return None
    codes = constant_of(node.inputs[1].producer().inputs[0])
    return codes.shape if codes.ndim == _IMAGES else None


def _walk(conv: ir.Node, *, forwards: bool) -> tuple[list[ir.Value], ir.Node | None]:
    """The values up to the next Conv that rule 1 holds for, and that Conv; None where rule 3 does not hold."""
    values = []
    value, bent = conv.outputs[0] if forwards else conv.inputs[0], False
    while True:
        if value.is_graph_output():
            return values, None
        gate, product = _silu(value, forwards=forwards)
        if product is not None:
            values += [value, gate]
            value, bent = product, not forwards
            continue
        uses = list(value.uses())
        # What SiLU is made of has two readers.
        if len(uses) != 1 and not bent:
            return values, None
        values.append(value)
        bent = False
        node = uses[0].node if forwards else value.producer()
        if node is not None and node.op_type == "Conv":
            dense = _weights_shape(node) is not None and (not forwards or uses[0].idx == 0)
            return values, node if dense else None
        if node is None or node.op_type not in _ELEMENTWISE or len(node.outputs) != 1:
            return values, None
        data = [part for part in node.inputs if part is not None and constant_of(part) is None]
        constants = [constant_of(part) for part in node.inputs if part is not None and part not in data]
        if len(data) != 1 or any(constant.size != 1 for constant in constants):
            return values, None
        value = node.outputs[0] if forwards else data[0]


def _silu(value: ir.Value, *, forwards: bool) -> tuple[ir.Value | None, ir.Value | None]:
    """Sigmoid and product of the SiLU that alone reads a value; backwards, Sigmoid and input of the SiLU that makes it."""
    maker = value.producer()
    around = [use.node for use in value.uses()] if forwards else [part.producer() for part in (maker.inputs if maker else ())]
    for gate in around:
        product = silu_of(gate) if gate is not None else None
        if product is None or (not forwards and product is not maker):
            continue
        source, made = gate.inputs[0], product.outputs[0]
        alone = {use.node for use in source.uses()} == {product, gate} and not source.is_graph_output()
        if alone and (forwards or len(value.uses()) == 1):
            return gate.outputs[0], made if forwards else source
    return None, None


def _pad(model: ir.Model, conv: ir.Node, axis: int, added: int) -> None:
    """Zero weights for more outputs (axis 0) or inputs (axis 1)."""
    for index in range(1, 3 if axis == 0 else 2):
        value = conv.inputs[index] if index < len(conv.inputs) else None
        array = constant_of(value)
        if array is not None:
            widths = [(0, added if dimension == axis else 0) for dimension in range(array.ndim)]
            conv.replace_input_with(index, new_constant(model, f"{value.name}.padded", np.pad(array, widths)))
            forget(model, value)
            continue
        if value is None:
            continue
        restored = value.producer()
        for place, part in enumerate(restored.inputs):
            array = constant_of(part)
            if (place and array.size == 1) or (place and axis == 1):
                continue  # one for all, or one an output
            widths = [(0, added if dimension == axis else 0) for dimension in range(array.ndim)]
            wider = np.pad(array, widths, mode="edge" if place == 1 else "constant")
            restored.replace_input_with(place, new_constant(model, f"{part.name}.padded", wider))
            forget(model, part)
        if value.shape is not None:
            value.shape = restored.inputs[0].shape
