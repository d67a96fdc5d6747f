"""1x1 heads of maps: an integer Gemm over pixels that writes float, and the decoding behind it that wants channels last."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network, optimized, run, statistics_of
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.graph.passes.kernels.tail_of_pixels import TailOfPixelsPass
from octavo.params.grammar import Int8
from octavo.quantization.executed import executed
from octavo.quantization.int8 import Images, quantize_static
from octavo.quantization.int8.draft import Draft
from octavo.quantization.int8.pricing.costs import signature
from octavo.quantization.int8.pricing.measuring import measure
from octavo.quantization.int8.pricing.price import measured
from octavo.quantization.int8.structure.heads import pixel_heads
from octavo.quantization.int8.structure.units import Unit, units_of
from octavo.runtime.kernels import optimized_nodes
from octavo.runtime.noise import sqnr_db

SIDE = 16
YOLO, RETINA = (0, 1, 3, 4, 2), (0, 3, 4, 1, 2)
RECIPE = {"method": "minmax", "placement": "all", "repair": False}


def detector(
    *, kernel: int = 1, channels: int = 21, bias: bool = True, side: int | str = SIDE, batch: int | str = 1, tail: str = "yolo"
) -> ir.Model:
    """Two Convs with Relus, a head, and what reads it: YOLOv5's rows, or as it is, averaged, resized, or cut at zero."""
    generator = np.random.default_rng(channels)
    tensors = {
        "stem": he(generator, 16, 3, 3, 3),
        "body": he(generator, 32, 16, 3, 3),
        "head": he(generator, channels, 32, kernel, kernel),
        "bias": generator.standard_normal(channels).astype(np.float32),
        "shape": np.array([-1, 3, channels // 3, SIDE, SIDE]),
    }
    pads = [kernel // 2] * 4
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["a"], "stem", pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["a"], ["ar"], "ar"),
        oh.make_node("Conv", ["ar", "body"], ["b"], "body", pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["b"], ["br"], "br"),
        oh.make_node("Conv", ["br", "head", *(["bias"] if bias else [])], ["h"], "head", pads=pads),
    ]
    if tail == "yolo":
        nodes.append(oh.make_node("Reshape", ["h", "shape"], ["r"], "parted"))
        nodes.append(oh.make_node("Transpose", ["r"], ["t"], "moved", perm=YOLO))
    last = {"yolo": "Sigmoid", "map": "Sigmoid", "pooled": "GlobalAveragePool", "relu": "Relu", "resized": "Resize"}[tail]
    reads, how = ["t" if tail == "yolo" else "h"], {}
    if tail == "resized":
        reads, how = [*reads, "", "scales"], {"mode": "linear"}
        tensors["scales"] = np.array([1, 1, 2, 2], np.float32)
    nodes.append(oh.make_node(last, reads, ["y"], "y", **how))
    used = {name for node in nodes for name in node.input}
    return network(nodes, {n: v for n, v in tensors.items() if n in used}, ["y"], inputs={"x": [batch, 3, side, side]})


def images(count: int, batch: int = 1, side: int = SIDE) -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(1)
    return [{"x": generator.standard_normal((batch, 3, side, side)).astype(np.float32)} for _ in range(count)]


def quantized(model: ir.Model, **recipe: object):
    feeds = images(8)
    return quantize_static(model, statistics_of(model, feeds[:6]), Int8(**{**RECIPE, **recipe}), Images(feeds[:6], feeds[6:]))


def of(model: ir.Model, op_type: str) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == op_type]


def test_a_detectors_head_is_an_integer_kernel_that_writes_float(tmp_path):
    model = detector()
    result = quantized(model)
    kernels = [node.op_type for node in optimized(result.model, tmp_path).graph.node]
    assert kernels.count("QLinearConv") == 2
    assert kernels.count("QGemm") == 1
    assert "DequantizeLinear" not in kernels, "nothing is brought back: codes end in the Gemm"
    decided = {decision.node: decision for decision in result.decisions}
    assert decided["head"].precision == "int8"
    assert "writes float" in decided["head"].reason
    assert decided["y"].precision == "float"
    wanted, got = run(model, images(9)[8])["y"], run(result.model, images(9)[8])["y"]
    assert got.shape == wanted.shape
    assert np.abs(wanted - got).max() < 0.1


@settings(max_examples=15, deadline=None)
@given(
    channels=st.sampled_from([3, 6, 21]),
    bias=st.booleans(),
    batch=st.sampled_from([1, "N"]),
    tail=st.sampled_from(["yolo", "map"]),
    side=st.sampled_from([SIDE, "S"]),
)
def test_its_output_has_no_rounding_of_its_own(channels, bias, batch, tail, side):
    """What is left is the noise of the layers before it and of its weights: more than 8 bits would leave of its output."""
    side = SIDE if tail == "yolo" else side
    model = detector(channels=channels, bias=bias, batch=batch, tail=tail, side=side)
    result = quantized(model).model
    onnx.checker.check_model(ir.to_proto(result), full_check=True)
    assert len(of(result, "Gemm")) == 1
    # A graph whose sizes vary runs images of any.
    for count, edge in ((1, SIDE), (3 if batch == "N" else 1, SIDE if side == SIDE else 2 * SIDE)):
        (feeds,) = images(1, count, edge)
        for level in ("off", "all"):
            wanted, got = run(model, feeds)["y"], run(result, feeds, optimization=level)["y"]
            assert got.shape == wanted.shape
            assert sqnr_db(float(np.square(wanted - wanted.mean()).mean()), float(np.square(wanted - got).mean())) > 25


@pytest.mark.parametrize(
    ("model", "recipe", "gemms"),
    [
        pytest.param({}, {}, 1, id="a 1x1 head"),
        pytest.param({"kernel": 3}, {}, 0, id="a 3x3 head stays float"),
        pytest.param({"tail": "relu"}, {}, 0, id="a Relu behind it would have to run on floats"),
        pytest.param({"tail": "resized"}, {}, 0, id="a resized map: float Convs leave the layout in which that is fast"),
        pytest.param({"tail": "pooled"}, {}, 0, id="a map that is averaged is rounded"),
        pytest.param({}, {"float_heads": False}, 0, id="heads in codes were asked for"),
        pytest.param({}, {"keep_float": ["head"]}, 0, id="float was asked for"),
        pytest.param({}, {"target": "openvino"}, 0, id="OpenVINO fuses by itself"),
        pytest.param({}, {"target": "arm"}, 1, id="ARM"),
        pytest.param({}, {"format": "qoperator"}, 0, id="as operators"),
        pytest.param({}, {"per_channel": False}, 1, id="one scale for all weights"),
    ],
)
def test_which_heads_are_gemms(model, recipe, gemms):
    model = detector(**model)
    result = quantized(model, **recipe)
    assert len(of(result.model, "Gemm")) == gemms
    assert len(of(result.model, "QGemm")) == (1 if recipe.get("format") == "qoperator" else 0)
    wanted, got = run(model, images(9)[8])["y"], run(result.model, images(9)[8])["y"]
    assert np.abs(wanted - got).max() < (0.35 if recipe.get("per_channel") is False else 0.2)


def test_the_cost_table_times_the_head_as_it_is_written():
    model = detector()
    draft = Draft(model, statistics_of(model, images(2)), Int8(method="minmax"), {})
    (head,) = (unit for unit in draft.units if unit.writes_float)
    plain = Unit(head.name, head.kind, head.nodes, head.inputs, head.outputs, head.inner)
    assert signature(head) == f"{signature(plain)}~float"
    plan = draft.plan()
    assert head.outputs[0].name not in plan.scales
    table = measure(model, plan.int8)
    assert table.units[signature(head)].int8_ms > 0
    prices = measured(draft.units, table, plan.int8)
    assert prices.dequantize[head.outputs[0]] == 0.0, "no border lies behind it"
    assert prices.dequantize[head.inputs[0]] > 0.0


def test_only_last_layers_write_float():
    model = detector()
    assert {unit.name for unit in pixel_heads(units_of(model))} == {"head"}
    branching = detector(tail="map")
    assert {unit.name for unit in pixel_heads(units_of(branching))} == {"head"}


def tail(parts: int, size: int, perm: tuple[int, ...], batch: int | str, *, rank: int = 5, seen: str = "") -> ir.Model:
    """Pixels brought to channels first, parted, and moved again."""
    channels, height, width = parts * size, 4, 6
    shape = [-1, parts, size, height, width] if rank == 5 else [-1, channels, height * width]
    nodes = [
        oh.make_node("Transpose", ["x"], ["first"], "first", perm=[0, 3, 1, 2]),
        oh.make_node("Reshape", ["first", "shape"], ["parted"], "parted"),
        oh.make_node("Transpose", ["parted"], ["moved"], "moved", perm=perm),
        oh.make_node("Sigmoid", ["moved"], ["y"], "y"),
    ]
    outputs = ["y", *([seen] if seen else [])]
    return network(nodes, {"shape": np.array(shape)}, outputs, inputs={"x": [batch, height, width, channels]})


@settings(max_examples=25, deadline=None)
@given(
    parts=st.integers(1, 4),
    size=st.integers(1, 9),
    perm=st.sampled_from([YOLO, RETINA, (0, 4, 3, 1, 2), (0, 1, 4, 3, 2), (0, 1, 2, 4, 3)]),
    batch=st.sampled_from([1, 2, "N"]),
)
def test_the_way_through_channels_first_goes(parts, size, perm, batch):
    model = tail(parts, size, perm, batch)
    feeds = {"x": np.random.default_rng(0).standard_normal((2 if batch == 2 else 1, 4, 6, parts * size)).astype(np.float32)}
    wanted = run(model, feeds)["y"]
    assert TailOfPixelsPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert len(of(model, "Transpose")) == (0 if perm == RETINA else 1)
    np.testing.assert_array_equal(run(model, feeds)["y"], wanted)
    assert not TailOfPixelsPass()(model).modified


@pytest.mark.parametrize(("perm", "transposes"), [(YOLO, [[0, 2, 3, 1], [0, 3, 1, 2, 4]]), (RETINA, [[0, 2, 3, 1]])])
def test_behind_a_conv_channels_are_last_first_of_all_where_that_is_no_work(perm, transposes):
    shape = [1, 3, 5, 4, 6] if perm == YOLO else [1, 15, 24]
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["c"], "conv"),
        oh.make_node("Reshape", ["c", "shape"], ["parted"], "parted"),
        oh.make_node("Transpose", ["parted"], ["moved"], "moved", perm=perm if perm == YOLO else [0, 2, 1]),
        oh.make_node("Sigmoid", ["moved"], ["y"], "y"),
    ]
    tensors = {"w": np.random.default_rng(1).standard_normal((15, 7, 1, 1)).astype(np.float32), "shape": np.array(shape)}
    model = network(nodes, tensors, ["y"], inputs={"x": [1, 7, 4, 6]})
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 7, 4, 6)).astype(np.float32)}
    wanted = run(model, feeds)["y"]
    assert not TailOfPixelsPass()(model).modified, "ONNX Runtime's float Convs put out channels first"
    assert TailOfPixelsPass(convs=True)(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert [list(node.attributes["perm"].as_ints()) for node in of(model, "Transpose")] == transposes
    np.testing.assert_array_equal(run(model, feeds)["y"], wanted)
    assert not TailOfPixelsPass(convs=True)(model).modified


def test_rows_of_all_channels_need_no_transpose():
    model = tail(3, 5, (0, 2, 1), 1, rank=3)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 4, 6, 15)).astype(np.float32)}
    wanted = run(model, feeds)["y"]
    assert TailOfPixelsPass()(model).modified
    assert not of(model, "Transpose")
    np.testing.assert_array_equal(run(model, feeds)["y"], wanted)


@pytest.mark.parametrize(
    "model", [tail(3, 5, YOLO, 1, seen="first"), tail(3, 5, YOLO, 1, seen="parted"), tail(3, 5, (1, 0, 3, 4, 2), 1)]
)
def test_other_tails_stay(model):
    before = ir.to_proto(model).SerializeToString()
    assert not TailOfPixelsPass()(model).modified
    assert ir.to_proto(model).SerializeToString() == before


def test_what_moves_its_float_values_is_no_surprise():
    """Nothing but the graph's output reads the head: the Reshape and Transpose behind its Gemm stay, in float."""
    model = detector(tail="relu")
    model.graph.outputs[0] = model.graph.outputs[0].producer().inputs[0]
    model.graph.remove(model.graph[-1], safe=True)
    result = quantized(model)
    found = executed(model, result.decisions, optimized_nodes(ir.to_proto(result.model).SerializeToString()))
    (head,) = (each for each in found.nodes if each["node"] == "head")
    assert (head["runs"], head["kernel"]) == ("int8", "QGemm")
    assert "Reshape" in found.counts["float"]
    assert found.unexpected == []
