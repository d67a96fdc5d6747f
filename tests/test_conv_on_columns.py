"""ConvOnColumnsPass: the same codes from a Conv that puts out several columns at a time, and the Convs that it must leave alone."""

from pathlib import Path

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import optimized
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from quantized import Parts, held_to_the_bit

from octavo.graph.passes.kernels.conv_on_columns import ConvOnColumnsPass


def strided(parts: Parts, code: str, shape: tuple[int, ...], *, bias: bool = False, **attributes: object) -> str:
    inputs = [parts.read(code), parts.weights("w", *shape)]
    if bias:
        parts.tensors |= {
            "b": parts.generator.integers(-9000, 9000, shape[0], np.int32),
            "b.scale": (parts.tensors["w.scale"] * parts.tensors["scale"]).astype(np.float32),
        }
        parts.nodes.append(oh.make_node("DequantizeLinear", ["b", "b.scale"], ["b.read"], "b.DQ", axis=0))
        inputs.append("b.read")
    return parts.op("Conv", inputs, "conv", **attributes)


def count_of(stride: int, channels: int) -> int:
    return {1: 4, 2: 2, 3: 2}.get(stride, 1) * (2 if channels < 3 else 1)


@settings(max_examples=80, deadline=None)
@given(
    kernel=st.tuples(st.integers(1, 7), st.integers(2, 7)),
    pads=st.lists(st.integers(0, 3), min_size=4, max_size=4),
    stride=st.integers(1, 5),
    image=st.tuples(st.integers(1, 4), st.integers(4, 11), st.integers(1, 4)),
    bias=st.booleans(),
)
def test_any_stride_kernel_and_padding_give_the_same_codes(kernel, pads, stride, image, bias):
    channels, height, blocks = image
    count = count_of(stride, channels)
    width = blocks * count * stride
    assume(height + pads[0] + pads[2] >= kernel[0] and width + pads[1] + pads[3] >= kernel[1])
    # As many columns as make whole groups: of 0 to 3 of them that would be there else, some are padded away.
    columns = (width + pads[1] + pads[3] - kernel[1]) // stride + 1
    pads[3] += -columns % count * stride
    parts = Parts([1, channels, height, width])
    code = strided(parts, "x.code", (5, channels, *kernel), bias=bias, pads=pads, strides=[stride, stride])
    model = parts.model(code)
    held_to_the_bit(ConvOnColumnsPass(), model, parts.image())
    conv = next(node for node in model.graph if node.op_type == "Conv")
    assert list(conv.attributes["strides"].as_ints()) == [stride, 1]
    assert conv.inputs[1].producer().inputs[0].shape[0] == 5 * count


@pytest.mark.parametrize(
    ("kernel", "pad", "stride", "blocks"),
    [(3, 1, 2, (2, 1, 0)), (6, 2, 2, (3, 1, 1)), (7, 3, 2, (3, 1, 1)), (4, 0, 4, (1, 0, 0)), (3, 1, 1, (3, 1, 1))],
)
def test_stems_of_common_networks(kernel, pad, stride, blocks, tmp_path: Path):
    parts = Parts(["n", 3, 16, 24])
    code = strided(parts, "x.code", (8, 3, kernel, kernel), pads=[pad] * 4, strides=[stride, stride])
    model = held_to_the_bit(ConvOnColumnsPass(), parts.model(code), parts.image())
    conv = next(node for node in model.graph if node.op_type == "Conv")
    across, before, after = blocks
    assert list(conv.attributes["kernel_shape"].as_ints()) == [kernel, across]
    assert list(conv.attributes["pads"].as_ints()) == [pad, before, pad, after]
    ran = [node.op_type for node in optimized(model, tmp_path).graph.node]
    assert ran.count("QLinearConv") == 1
    assert ran.count("Conv") == 0
    assert ran.count("Transpose") == 2, "channels last once, and first at the graph's end: between them sizes alone change"


LEFT = {
    "group": ((6, 1, 3, 3), {"group": 3, "strides": [2, 2]}),
    "dilation": ((4, 3, 3, 3), {"dilations": [2, 2], "strides": [2, 2]}),
    "one column": ((4, 3, 3, 1), {"strides": [2, 2]}),
    "odd result": ((4, 3, 3, 3), {"strides": [2, 2]}),
    "two strides": ((4, 3, 3, 3), {"strides": [2, 1]}),
    "auto_pad": ((4, 3, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    "odd side": ((4, 3, 3, 3), {"strides": [2, 2]}),
    "unknown side": ((4, 3, 3, 3), {"strides": [2, 2]}),
    "many channels": ((4, 5, 3, 3), {"strides": [2, 2]}),
}


@pytest.mark.parametrize("odd", LEFT)
def test_left_alone(odd):
    shape, attributes = LEFT[odd]
    width = {"odd side": 15, "unknown side": "w"}.get(odd, 16)
    parts = Parts([1, 5 if odd == "many channels" else 3, 16, width])
    pads = {} if odd in ("odd result", "auto_pad") else {"pads": [1, 1, 1, 1]}
    model = parts.model(strided(parts, "x.code", shape, **attributes, **pads))
    before = ir.to_proto(model).SerializeToString()
    assert not ConvOnColumnsPass()(model).modified
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
    inputs = ["x" if odd == "float image" else image, weights]
    model = parts.model(parts.op("Conv", inputs, "conv", strides=[2, 2], pads=[1, 1, 1, 1]))
    before = ir.to_proto(model).SerializeToString()
    assert not ConvOnColumnsPass()(model).modified
    assert ir.to_proto(model).SerializeToString() == before
