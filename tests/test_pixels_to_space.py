"""PixelsToSpacePass: masks leave a product over pixels by moves of whole pixels, and what must stay a DepthToSpace."""

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network, run, statistics_of
from hypothesis import given, settings
from hypothesis import strategies as st
from quantized import held_to_the_bit

from octavo.graph.passes.kernels.pixels_to_space import PixelsToSpacePass
from octavo.params.grammar import Int8
from octavo.quantization.int8 import Images, quantize_static

FIRST = [0, 3, 1, 2]


def tail(shape: list, side: int = 2, *, perm: list[int] = FIRST, mode: str = "DCR", twice: bool = False) -> ir.Model:
    nodes = [
        oh.make_node("Transpose", ["x"], ["t"], "first", perm=perm),
        oh.make_node("DepthToSpace", ["t"], ["y"], "space", blocksize=side, mode=mode),
    ]
    if twice:
        nodes.append(oh.make_node("Relu", ["t"], ["z"], "other"))
    return network(nodes, {}, ["y", *["z"] * twice], inputs={"x": shape})


@settings(max_examples=30, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)),
    channels=st.integers(4, 7),
    side=st.integers(2, 4),
    batch=st.sampled_from([1, "n"]),
)
def test_the_same_bits(sizes, channels, side, batch):
    many, height, width = sizes
    many = many if batch == "n" else 1
    model = tail([batch, height, width, channels * side**2], side)
    image = np.random.default_rng(1).standard_normal((many, height, width, channels * side**2)).astype(np.float32)
    held_to_the_bit(PixelsToSpacePass(), model, image)
    assert [node.op_type for node in model.graph] == ["Reshape", "Transpose", "Reshape", "Transpose"]
    assert model.graph.outputs[0].name == "y"


@pytest.mark.parametrize(
    "model",
    [
        tail([1, 4, 6, 12]),
        tail([1, 4, 6, 16], mode="CRD"),
        tail([1, 16, 6, 4], perm=[0, 1, 2, 3]),
        tail([1, "h", 6, 16]),
        tail([1, 4, 6, 16], twice=True),
    ],
    ids=["three channels", "other order", "channels first", "open height", "two readers"],
)
def test_what_stays(model):
    assert not PixelsToSpacePass()(model).modified


def test_masks_behind_a_transposed_convolution():
    generator = np.random.default_rng(3)
    tensors = {"stem": he(generator, 16, 3, 3, 3), "up": he(generator, 16, 6, 2, 2)}
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["c"], "c", pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["c"], ["r"], "r"),
        oh.make_node("ConvTranspose", ["r", "up"], ["y"], "up", strides=[2, 2]),
    ]
    model = network(nodes, tensors, ["y"], inputs={"x": [1, 3, 16, 16]})
    feeds = [{"x": generator.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(8)]
    recipe = Int8(method="minmax", placement="all", repair=False)
    result = quantize_static(model, statistics_of(model, feeds), recipe, Images(feeds[:4], feeds[4:])).model
    assert "DepthToSpace" not in {node.op_type for node in result.graph}
    wanted, got = run(model, feeds[5])["y"], run(result, feeds[5])["y"]
    assert np.abs(wanted - got).max() < 0.1 * np.abs(wanted).max()
