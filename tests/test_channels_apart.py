"""ChannelsApartPass: the same values from the Conv alone, and the graphs that it must leave alone."""

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run, statistics_of

from octavo.graph.passes.affine.channels_apart import ChannelsApartPass
from octavo.params.grammar import Int8
from octavo.quantization.int8 import Images, quantize_static

GENERATOR = np.random.default_rng(5)
SCALES, SHIFTS = (0.458, 0.448, 0.45), (-0.03, -0.088, -0.188)


def normal(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def apart(order=(0, 1, 2), *, slices: bool = False, **conv) -> ir.Model:
    """`transform_input` as torchvision's exporters write it, or with Slices, and a Conv behind it."""
    tensors = {"w": normal(8, 3, 3, 3), "b": normal(8), "one": np.array([1])}
    nodes = []
    for place in order:
        tensors |= {f"a{place}": np.float32(SCALES[place]), f"b{place}": np.float32(SHIFTS[place])}
        if slices:
            tensors |= {f"from{place}": np.array([place]), f"to{place}": np.array([place + 1])}
            nodes.append(oh.make_node("Slice", ["x", f"from{place}", f"to{place}", "one"], [f"u{place}"], f"u{place}"))
        else:
            tensors[f"i{place}"] = np.int64(place)
            nodes.append(oh.make_node("Gather", ["x", f"i{place}"], [f"g{place}"], f"g{place}", axis=1))
            nodes.append(oh.make_node("Unsqueeze", [f"g{place}", "one"], [f"u{place}"], f"u{place}"))
        nodes.append(oh.make_node("Mul", [f"u{place}", f"a{place}"], [f"m{place}"], f"m{place}"))
        nodes.append(oh.make_node("Add", [f"b{place}", f"m{place}"], [f"s{place}"], f"s{place}"))
    nodes.append(oh.make_node("Concat", [f"s{place}" for place in order], ["all"], "all", axis=1))
    nodes.append(oh.make_node("Conv", ["all", "w", "b"], ["c"], "conv", **conv))
    nodes.append(oh.make_node("Relu", ["c"], ["y"], "relu"))
    return network(nodes, tensors, ["y"], inputs={"x": [1, 3, 9, 9]})


@pytest.mark.parametrize("slices", [False, True])
def test_the_conv_alone_is_left(slices):
    model, image = apart(slices=slices, strides=[2, 2]), normal(1, 3, 9, 9)
    before = run(model, {"x": image}, optimization="off")["y"]
    assert ChannelsApartPass()(model).modified
    assert [node.op_type for node in model.graph] == ["Conv", "Relu"]
    np.testing.assert_allclose(run(model, {"x": image}, optimization="off")["y"], before, rtol=1e-5, atol=1e-5)
    assert set(model.graph.initializers) == {value.name for node in model.graph for value in node.inputs if value.is_initializer()}


@pytest.mark.parametrize(
    ("order", "conv"), [((0, 1, 2), {"pads": [1, 1, 1, 1]}), ((0, 1, 2), {"auto_pad": "SAME_UPPER"}), ((2, 1, 0), {})]
)
def test_zeros_around_the_image_and_another_order_are_left_alone(order, conv):
    model = apart(order, **conv)
    assert not ChannelsApartPass()(model).modified
    assert len(model.graph) == 15


def test_no_float_node_is_left_before_the_first_layer():
    """13 of them stood there."""
    model = apart(strides=[2, 2])
    feeds = [{"x": normal(1, 3, 9, 9)} for _ in range(6)]
    result = quantize_static(
        model, statistics_of(model, feeds[:4]), Int8(placement="all", float_heads=False), Images(feeds[:4], feeds[4:])
    )
    assert {decision.precision for decision in result.decisions} == {"int8"}
    expected, got = (run(one, feeds[5], optimization="all")["y"] for one in (model, result.model))
    assert 10 * np.log10((expected**2).sum() / ((expected - got) ** 2).sum()) > 30
