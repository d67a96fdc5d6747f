"""TransposedToConvPass and SpaceByPixelsPass: the same values, and integer kernels where ConvTranspose stood in float."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, optimized, run, statistics_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from quantized import Parts, held_to_the_bit

from octavo.graph.passes.forms.transposed_to_conv import TransposedToConvPass
from octavo.graph.passes.kernels.space_by_pixels import SpaceByPixelsPass
from octavo.params.grammar import Int8
from octavo.quantization.executed import executed
from octavo.quantization.int8 import quantize_static
from octavo.runtime.kernels import optimized_nodes

GENERATOR = np.random.default_rng(41)
IMAGES = [{"x": GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(4)]


def normal(*shape: int) -> np.ndarray:
    return (GENERATOR.standard_normal(shape) / 3).astype(np.float32)


@pytest.mark.parametrize("behind", ["", "Relu", "Clip"])
@pytest.mark.parametrize(("side", "biased"), [(2, True), (2, False), (4, True)])
def test_the_same_values(side, biased, behind):
    tensors = {"w": normal(3, 5, side, side), "b": normal(5), "low": np.float32(-0.1), "high": np.float32(0.3)}
    reads = ["x", "w", "b"] if biased else ["x", "w"]
    nodes = [oh.make_node("ConvTranspose", reads, ["y" if not behind else "t"], "up", strides=[side, side])]
    if behind:
        nodes.append(oh.make_node(behind, ["t", "low", "high"][: 3 if behind == "Clip" else 1], ["y"], "cut"))
    used = {name: tensors[name] for node in nodes for name in node.input if name in tensors}
    model = network(nodes, used, ["y"], inputs={"x": ["n", 3, 16, 16]})
    image = {"x": np.concatenate([feeds["x"] for feeds in IMAGES])}
    before = run(model, image)["y"]
    assert TransposedToConvPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    np.testing.assert_allclose(run(model, image)["y"], before, rtol=1e-5, atol=1e-6)
    assert [node.op_type for node in model.graph] == ["Conv", *[behind] * bool(behind), "DepthToSpace"]
    assert [node.name for node in model.graph][:-1] == ["up", "cut"][: 2 if behind else 1]
    assert len(model.graph.initializers) == len(used)
    assert not TransposedToConvPass()(model).modified


@settings(max_examples=60, deadline=None)
@given(data=st.data(), stride=st.integers(1, 4), open_sizes=st.booleans(), group=st.sampled_from([1, 3]))
def test_any_kernel_and_pads_have_the_same_values(data, stride, open_sizes, group):
    kernel, given = (data.draw(st.tuples(low, low)) for low in (st.integers(stride, 9), st.integers(2, 5)))
    added = data.draw(st.tuples(*[st.integers(0, stride - 1)] * 2))
    pads = data.draw(st.tuples(*[st.integers(0, 3)] * 4))
    made = [stride * (given[at] - 1) + kernel[at] + added[at] - pads[at] - pads[at + 2] for at in (0, 1)]
    assume(min(made) > 0)
    settings = {"strides": [stride] * 2, "pads": pads, "output_padding": added, "group": group}
    each, channels = (2, 2) if group == 1 else (1, 3)
    tensors = {"w": normal(3, each, *kernel), "b": normal(channels), "last": normal(2, channels, 1, 1)}
    nodes = [oh.make_node("ConvTranspose", ["x", "w", "b"], ["t"], "up", **settings)]
    nodes.append(oh.make_node("Conv", ["t", "last"], ["y"], "last"))
    sizes = ["n", 3, "height", "width"] if open_sizes else [1, 3, *given]
    model, image = network(nodes, tensors, ["y"], inputs={"x": sizes}), {"x": normal(1, 3, *given)}
    before = run(model, image)["y"]
    assert list(before.shape[2:]) == made
    if TransposedToConvPass()(model).modified:
        onnx.checker.check_model(ir.to_proto(model), full_check=True)
        after = run(model, image)["y"]
        assert after.shape == before.shape
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)


OVERLAP = [
    (2, {"strides": [1, 1]}),
    (2, {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    (2, {"strides": [2, 2], "output_padding": [1, 1]}),
    (2, {"strides": [2, 2], "output_shape": [32, 31]}),
    (3, {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    (3, {"strides": [2, 2], "pads": [0, 1, 1, 0]}),
    (3, {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    (3, {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    (3, {}),
    (4, {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    (5, {"strides": [2, 2], "output_shape": [32, 32]}),
    (8, {"strides": [4, 4], "pads": [2, 2, 2, 2]}),
    (9, {"strides": [2, 2], "pads": [4, 4, 4, 4], "output_padding": [1, 1]}),
]


def overlapping(side: int, settings: dict, *, layer: bool = True, sizes: tuple = (16, 16)) -> ir.Model:
    nodes = [oh.make_node("ConvTranspose", ["x", "w", "b"], ["t" if layer else "y"], "up", **settings)]
    nodes += [oh.make_node("Relu", ["t"], ["r"], "cut"), oh.make_node("Conv", ["r", "last"], ["y"], "last")] * layer
    tensors = {"w": normal(3, 5, side, side), "b": normal(5)} | ({"last": normal(4, 5, 1, 1)} if layer else {})
    return network(nodes, tensors, ["y"], inputs={"x": ["n", 3, *sizes]})


@pytest.mark.parametrize(("side", "settings"), OVERLAP, ids=str)
def test_windows_that_overlap_have_the_same_values(side, settings):
    model, image = overlapping(side, settings), {"x": normal(2, 3, 16, 16)}
    before = run(model, image)["y"]
    assert TransposedToConvPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    np.testing.assert_allclose(run(model, image)["y"], before, rtol=1e-5, atol=1e-5)
    made = [node.op_type for node in model.graph]
    assert made[:2] == ["Conv", "Relu"]
    assert made[-1] == "Conv"
    assert set(made) <= {"Conv", "Relu", "DepthToSpace", "Slice"}
    # Those that decoders have: as many products as before, or no Slice.
    if side == 4:
        assert list(model.graph[0].inputs[1].shape) == [20, 3, 2, 2]
    elif "output_padding" in settings and side == 3:
        assert "Slice" not in made
    assert [node.name for node in model.graph][:2] == ["up", "cut"]
    assert not TransposedToConvPass()(overlapping(side, settings, layer=False)).modified


def test_open_sizes():
    model, image = overlapping(4, {"strides": [2, 2], "pads": [1, 1, 1, 1]}, sizes=("h", "w")), {"x": normal(1, 3, 9, 14)}
    before = run(model, image)["y"]
    assert TransposedToConvPass()(model).modified
    np.testing.assert_allclose(run(model, image)["y"], before, rtol=1e-5, atol=1e-5)
    given = overlapping(4, {"strides": [2, 2], "auto_pad": "SAME_UPPER"}, sizes=("h", "w"))
    assert not TransposedToConvPass()(given).modified


@pytest.mark.parametrize("side", [2, 3])
def test_a_map_twice_as_large_is_not_taken_for_one_of_the_same_open_size(side):
    """ONNX Runtime gives it the memory of one that has as many channels, and sizes of the same names."""
    nodes = [
        oh.make_node("Sigmoid", ["x"], ["a"], "first"),
        oh.make_node("ConvTranspose", ["a", "w"], ["t"], "up", strides=[2, 2], pads=[1] * 4),
        oh.make_node("Conv", ["t", "last"], ["y"], "last"),
    ]
    model = network(nodes, {"w": normal(5, 5, side, side), "last": normal(4, 5, 1, 1)}, ["y"], inputs={"x": [1, 5, "h", "w"]})
    image = {"x": normal(1, 5, 9, 14)}
    before = run(model, image)["y"]
    assert TransposedToConvPass()(model).modified
    np.testing.assert_allclose(run(model, image)["y"], before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("side", "settings"),
    [
        (3, {"strides": [2, 2], "dilations": [2, 2]}),
        (3, {"strides": [2, 3]}),
        (4, {"strides": [3, 3]}),
        (2, {"strides": [4, 4]}),
        (1, {"strides": [2, 2]}),
        (3, {"strides": [1, 1], "pads": [3, 3, 3, 3]}),
    ],
    ids=str,
)
def test_other_settings_stay(side, settings):
    """Dilations, two strides, too many products with zeros, and outputs that windows do not reach."""
    assert not TransposedToConvPass()(overlapping(side, settings)).modified


def test_groups_computed_weights_and_what_is_kept_stay():
    nodes = [
        oh.make_node("ConvTranspose", ["x", "several"], ["a"], "grouped", strides=[2, 2], group=3),
        oh.make_node("Neg", ["w"], ["negative"], "neg"),
        oh.make_node("ConvTranspose", ["x", "negative"], ["b"], "computed", strides=[2, 2]),
        oh.make_node("ConvTranspose", ["x", "w"], ["c"], "kept", strides=[2, 2]),
    ]
    model = network(nodes, {"w": normal(3, 5, 2, 2), "several": normal(3, 2, 2, 2)}, ["a", "b", "c"])
    assert not TransposedToConvPass({"kept"})(model).modified


@pytest.mark.parametrize("batch", [1, "n"])
@pytest.mark.parametrize("side", [2, 3])
@pytest.mark.parametrize(
    ("op_type", "settings", "channels"), [("DepthToSpace", {"mode": "DCR"}, 36), ("SpaceToDepth", {}, 3)], ids=["depth", "space"]
)
def test_codes_are_moved_to_the_same_places(side, batch, op_type, settings, channels):
    parts = Parts([batch, channels, 6, 12])
    codes = parts.op(op_type, [parts.read("x.code")], "moved", blocksize=side, **settings)
    model = held_to_the_bit(SpaceByPixelsPass(), parts.model(codes), parts.image())
    assert {node.op_type for node in model.graph} == {"QuantizeLinear", "Transpose", "Reshape", "DequantizeLinear"}


def test_codes_of_open_sizes_go_through_a_space_to_depth(tmp_path):
    """Between DQ and Q ONNX Runtime computes it in float."""
    parts = Parts([1, 3, "h", "w"])
    model = parts.model(parts.op("SpaceToDepth", [parts.read("x.code")], "moved", blocksize=2))
    kinds = [node.op_type for node in optimized(model, tmp_path).graph.node]
    assert kinds.count("QuantizeLinear") == 2, "ONNX Runtime has a kernel of codes: the rule can go"
    image = {"x": parts.generator.standard_normal((1, 3, 4, 6)).astype(np.float32)}
    before = run(model, image)
    assert SpaceByPixelsPass()(model).modified
    assert [node.op_type for node in model.graph] == ["QuantizeLinear", "SpaceToDepth", "DequantizeLinear"]
    for name, value in run(model, image).items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize(("mode", "shape"), [("CRD", [1, 8, 6, 10]), ("DCR", [1, 8, "h", 10])])
def test_other_orders_and_open_sizes_stay(mode, shape):
    parts = Parts(shape)
    model = parts.model(parts.op("DepthToSpace", [parts.read("x.code")], "space", blocksize=2, mode=mode))
    assert not SpaceByPixelsPass()(model).modified


def decoder(kernel: int = 2, **attributes: list[int]) -> ir.Model:
    """The end of a U-Net, with a norm and Relu behind what makes the map larger."""
    tensors = {
        "stem": normal(8, 3, 3, 3),
        "deep": normal(8, 8, 3, 3),
        "up": normal(8, 6, kernel, kernel),
        "last": normal(8, 14, 3, 3),
    }
    tensors |= {
        "gain": normal(6) + 2,
        "shift": normal(6),
        "mean": normal(6),
        "variance": np.abs(normal(6)) + 1,
        "head": normal(4, 8, 1, 1),
    }
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["a"], "a", pads=[1, 1, 1, 1]),
        oh.make_node("MaxPool", ["a"], ["m"], "m", kernel_shape=[2, 2], strides=[2, 2]),
        oh.make_node("Conv", ["m", "deep"], ["b"], "b", pads=[1, 1, 1, 1]),
        oh.make_node("ConvTranspose", ["b", "up"], ["t"], "t", strides=[2, 2], **attributes),
        oh.make_node("BatchNormalization", ["t", "gain", "shift", "mean", "variance"], ["n"], "n"),
        oh.make_node("Relu", ["n"], ["r"], "r"),
        oh.make_node("Concat", ["a", "r"], ["c"], "c", axis=1),
        oh.make_node("Conv", ["c", "last"], ["d"], "d", pads=[1, 1, 1, 1]),
        oh.make_node("Conv", ["d", "head"], ["y"], "y"),
    ]
    return network(nodes, tensors, ["y"])


@pytest.mark.parametrize("keep_float", [[], ["t"]])
@pytest.mark.parametrize(("kernel", "pads", "added"), [(2, 0, 0), (3, 1, 1), (4, 1, 0)])
def test_a_decoder_is_integer_throughout(kernel, pads, added, keep_float):
    model = decoder(kernel, pads=[pads] * 4, output_padding=[added] * 2)
    made = quantize_static(model, statistics_of(model, IMAGES), Int8(placement="all", repair=False, keep_float=keep_float))
    nodes = optimized_nodes(ir.to_proto(made.model).SerializeToString())
    floats = {node.op_type for node in nodes if node.kind == "float"} - {"Reshape", "Transpose"}
    found = executed(model, made.decisions, nodes)
    assert not found.unexpected
    assert not found.unresolved
    records = {record["node"]: record for record in found.nodes}
    if keep_float:
        assert (records["t"]["precision"], records["t"]["reason"], records["t"]["runs"]) == ("float", "keep_float: t", "float")
        assert "ConvTranspose" in floats
        return
    assert not floats
    assert (records["t"]["runs"], records["t"]["kernel"]) == ("int8", "QLinearConv")
    assert found.layers == found.integer == 5
    noise = sum(np.square(run(model, feeds)["y"] - run(made.model, feeds)["y"]).sum() for feeds in IMAGES)
    assert noise < 1e-2 * sum(np.square(run(model, feeds)["y"]).sum() for feeds in IMAGES)


def test_channels_made_larger_one_by_one_are_integer():
    """As CenterNet's and DLA's upsampling, which begins as a bilinear one."""
    tensors = {"stem": normal(8, 3, 3, 3), "up": normal(8, 1, 4, 4), "head": normal(4, 8, 1, 1)}
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["a"], "a", pads=[1, 1, 1, 1]),
        oh.make_node("MaxPool", ["a"], ["m"], "m", kernel_shape=[2, 2], strides=[2, 2]),
        oh.make_node("ConvTranspose", ["m", "up"], ["u"], "u", strides=[2, 2], pads=[1, 1, 1, 1], group=8),
        oh.make_node("Add", ["a", "u"], ["s"], "s"),
        oh.make_node("Conv", ["s", "head"], ["y"], "y"),
    ]
    model = network(nodes, tensors, ["y"])
    made = quantize_static(model, statistics_of(model, IMAGES), Int8(placement="all", repair=False))
    kernels = optimized_nodes(ir.to_proto(made.model).SerializeToString())
    assert not {node.op_type for node in kernels if node.kind == "float"} - {"Reshape", "Transpose"}
    found = executed(model, made.decisions, kernels)
    assert not found.unexpected
    assert not found.unresolved
    assert next(record for record in found.nodes if record["node"] == "u")["kernel"] == "QLinearConv"
    noise = sum(np.square(run(model, feeds)["y"] - run(made.model, feeds)["y"]).sum() for feeds in IMAGES)
    assert noise < 1e-2 * sum(np.square(run(model, feeds)["y"]).sum() for feeds in IMAGES)
