"""ConvOnBlocksPass: the same codes from a Conv of stride 1 on blocks of pixels, and the Convs that it must leave alone."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from graphs import optimized
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from quantized import Parts, held_to_the_bit

from octavo.graph.passes.conv_on_blocks import ConvOnBlocksPass


def strided(parts: Parts, code: str, shape: tuple[int, ...], **attributes: object) -> str:
    return parts.op("Conv", [parts.read(code), parts.weights("w", *shape)], "conv", **attributes)


@settings(max_examples=60, deadline=None)
@given(
    kernel=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    pads=st.lists(st.integers(0, 3), min_size=4, max_size=4),
    stride=st.integers(2, 4),
    image=st.tuples(st.integers(1, 4), st.integers(2, 4), st.integers(2, 4)),
)
def test_any_stride_kernel_and_padding_give_the_same_codes(kernel, pads, stride, image):
    channels, rows, columns = image
    height, width = rows * stride, columns * stride
    assume(height + pads[0] + pads[2] >= kernel[0] and width + pads[1] + pads[3] >= kernel[1])
    parts = Parts([1, channels, height, width])
    code = strided(parts, "x.code", (5, channels, *kernel), pads=pads, strides=[stride, stride])
    model = parts.model(code)
    held_to_the_bit(ConvOnBlocksPass(), model, parts.image())
    conv = next(node for node in model.graph if node.op_type == "Conv")
    assert list(conv.attributes["strides"].as_ints()) == [1, 1]


@pytest.mark.parametrize(
    ("kernel", "pad", "stride", "blocks"),
    [(3, 1, 2, (2, (1, 0))), (6, 2, 2, (3, (1, 1))), (7, 3, 2, (4, (2, 1))), (4, 0, 4, (1, (0, 0))), (2, 0, 2, (1, (0, 0)))],
)
def test_stems_of_common_networks(kernel, pad, stride, blocks, tmp_path: Path):
    parts = Parts(["n", 3, 16, 24])
    code = strided(parts, "x.code", (8, 3, kernel, kernel), pads=[pad] * 4, strides=[stride, stride])
    model = held_to_the_bit(ConvOnBlocksPass(), parts.model(code), parts.image())
    conv = next(node for node in model.graph if node.op_type == "Conv")
    length, (before, after) = blocks
    assert list(conv.attributes["kernel_shape"].as_ints()) == [length] * 2
    assert list(conv.attributes["pads"].as_ints()) == [before, before, after, after]
    ran = [node.op_type for node in optimized(model, tmp_path).graph.node]
    assert ran.count("QLinearConv") == 1
    assert ran.count("Conv") == 0


LEFT = {
    "group": ((6, 1, 3, 3), {"group": 3, "strides": [2, 2]}),
    "dilation": ((4, 3, 3, 3), {"dilations": [2, 2], "strides": [2, 2]}),
    "no stride": ((4, 3, 3, 3), {}),
    "two strides": ((4, 3, 3, 3), {"strides": [2, 1]}),
    "auto_pad": ((4, 3, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    "odd side": ((4, 3, 3, 3), {"strides": [2, 2]}),
    "unknown side": ((4, 3, 3, 3), {"strides": [2, 2]}),
    "many channels": ((4, 5, 3, 3), {"strides": [2, 2]}),
}


@pytest.mark.parametrize("odd", LEFT)
def test_left_alone(odd):
    shape, attributes = LEFT[odd]
    height = {"odd side": 15, "unknown side": "h"}.get(odd, 16)
    parts = Parts([1, 5 if odd == "many channels" else 3, height, 16])
    model = parts.model(strided(parts, "x.code", shape, **attributes))
    before = ir.to_proto(model).SerializeToString()
    assert not ConvOnBlocksPass()(model).modified
    assert ir.to_proto(model).SerializeToString() == before


@pytest.mark.parametrize("odd", ["float weights", "float image", "weights with a zero point", "uint16 codes"])
def test_left_alone_where_codes_are_others(odd):
    parts = Parts([1, 3, 16, 16])
    if odd == "uint16 codes":
        parts.tensors["zero"] = np.uint16(117)
        parts.nodes.clear()
        parts.quantize("x")
    image, weights = parts.read("x.code"), parts.weights("w", 4, 3, 3, 3)
    if odd == "float weights":
        weights = "v"
        parts.tensors["v"] = np.ones((4, 3, 3, 3), np.float32)
    if odd == "weights with a zero point":
        parts.tensors["w.zero"] += 3
    model = parts.model(parts.op("Conv", ["x" if odd == "float image" else image, weights], "conv", strides=[2, 2]))
    before = ir.to_proto(model).SerializeToString()
    assert not ConvOnBlocksPass()(model).modified
    assert ir.to_proto(model).SerializeToString() == before
