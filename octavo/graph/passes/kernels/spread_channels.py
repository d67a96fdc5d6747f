"""Depthwise convolutions with several outputs a channel get a channel for each."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import between, constant_of, new_constant, shape_of_codes

__all__ = ["SpreadChannelsPass"]

# In time of a product of a dense 1x1 Conv what is won by a product of the depthwise one. Where it is as much the kernel for groups
# takes 2.5 to 3 times as long still: 768 channels with 3x3 weights and two outputs each, 1.27 and .47 ms; 256 of stride 2, .40 and
# .14 (host 7ca432ccf350, one thread).
_DEARER = 128
_IMAGES = 4


class SpreadChannelsPass(NodePass):
    """Rewrite a Conv whose groups have one channel and several outputs as a 1x1 Conv that repeats channels, and a depthwise one.

    ONNX Runtime's integer depthwise kernel wants one output a channel. With more it is a product apart for each group, with its
    image brought into columns: up to 14 times as long, and 1.2 to 10 times FP32's, which has a kernel for it (the expansions of
    BiSeNetV2, FastViT's downsampling, depth multipliers of Keras).

    1. Weights are int8 codes behind a DequantizeLinear, [several * groups, 1, height, width], with 2 groups or more.
    2. What the Conv reads are uint8 codes of one scale, and only a QuantizeLinear of uint8 reads its output.
    3. Repeating, `channels` products an output and pixel of its input, takes less time than is won: channels times strides are at
       most 128 times the kernel's size.

    Channels are repeated by weights of code 1 and scale 1, between codes of one scale, and the depthwise Conv is the same sums:
    integer kernels put out the same codes to the last bit.
    """

    op_type = "Conv"

    def _rewrite(self, model: ir.Model, conv: ir.Node) -> bool:
        restored = conv.inputs[1].producer()
        codes = constant_of(restored.inputs[0]) if restored is not None and restored.op_type == "DequantizeLinear" else None
        groups = conv.attributes.get_int("group", 1)
        if codes is None or codes.dtype != np.int8 or codes.ndim != _IMAGES or groups == 1 or codes.shape[1] != 1:
            return False
        found, outputs = between(conv), codes.shape[0]
        strides = conv.attributes.get_ints("strides", (1, 1))
        if found is None or outputs == groups or groups * prod(strides) > _DEARER * prod(codes.shape[2:]):
            return False
        name, read = f"{conv.name}.spread", conv.inputs[0]
        ones = new_constant(model, f"{name}.codes", _spreading(groups, outputs // groups))
        pair = [new_constant(model, f"{name}.{what}", array) for what, array in (("scale", np.float32(1)), ("zero", np.int8(0)))]
        weights = _named(ir.node("DequantizeLinear", [ones, *pair], name=f"{name}.DQ"), f"{name}.weights")
        repeated = _named(ir.node("Conv", [read, weights.outputs[0]], {"kernel_shape": [1, 1]}, name=name), f"{name}.out")
        same = list(found[0].node.inputs[1:])
        written = _named(ir.node("QuantizeLinear", [repeated.outputs[0], *same], name=f"{name}.Q"), f"{name}.out.code")
        again = _named(ir.node("DequantizeLinear", [written.outputs[0], *same], name=f"{name}.out.DQ"), f"{name}.out.read")
        shape = shape_of_codes(found[0].codes)
        written.outputs[0].dtype = ir.DataType.UINT8
        written.outputs[0].shape = None if shape is None else ir.Shape([shape[0], outputs, *shape[2:]])
        depthwise = ir.node(
            "Conv", [again.outputs[0], *conv.inputs[1:]], dict(conv.attributes) | {"group": outputs}, name=conv.name
        )
        take_place(model, [conv], [weights, repeated, written, again, depthwise], conv.outputs[0], depthwise.outputs[0])
        return True


def _spreading(channels: int, times: int) -> np.ndarray:
    """Weights of a 1x1 Conv that puts each channel out `times` times in a row, int8 [channels * times, channels, 1, 1]."""
    return np.repeat(np.eye(channels, dtype=np.int8), times, axis=0)[..., None, None]


def _named(node: ir.Node, name: str) -> ir.Node:
    node.outputs[0].name = name
    return node
