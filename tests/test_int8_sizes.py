"""Graphs that leave sizes open are priced by the sizes of an image, and stay open."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir
import pytest
from graphs import choosing_rows, he, inferred, network, run, statistics_of

from octavo.graph.io import copied
from octavo.params.grammar import Int8
from octavo.quantization.int8 import Images, quantize_static
from octavo.quantization.int8.pricing.price import estimated
from octavo.quantization.int8.structure.units import units_of
from octavo.quantization.share import integer_share
from octavo.runtime.shapes import fixed_shape, shape_of
from octavo.runtime.sizes import observe_sizes

GENERATOR = np.random.default_rng(2)
WEIGHTS = {"w0": he(GENERATOR, 8, 3, 3, 3), "w1": he(GENERATOR, 8, 8, 3, 3), "w2": he(GENERATOR, 4, 8, 1, 1)}


def open_graph(height: int | str = "height", width: int | str = "width") -> ir.Model:
    nodes = [
        oh.make_node("Conv", ["x", "w0"], ["c"], "stem", pads=[1, 1, 1, 1], strides=[2, 2]),
        oh.make_node("Relu", ["c"], ["r"], "relu"),
        oh.make_node("Conv", ["r", "w1"], ["d"], "body", pads=[1, 1, 1, 1]),
        oh.make_node("NonZero", ["d"], ["places"], "places"),
        oh.make_node("Cast", ["places"], ["z"], "cast", to=1),
        oh.make_node("GlobalAveragePool", ["d"], ["p"], "pool"),
        oh.make_node("Conv", ["p", "w2"], ["y"], "head"),
    ]
    return network(nodes, WEIGHTS, ["y", "z"], inputs={"x": ["n", 3, height, width]})


def feeds(height: int, width: int, count: int = 1) -> list[dict[str, np.ndarray]]:
    return [{"x": GENERATOR.standard_normal((1, 3, height, width)).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize("sizes", [(32, 48), (17, 33)])
def test_sizes_are_those_of_the_image(sizes):
    model = open_graph()
    (image,) = feeds(*sizes)
    observe_sizes(model, image)
    values = {value.name: value for node in model.graph for value in node.outputs}
    half = tuple(-(-size // 2) for size in sizes)
    assert shape_of(model.graph.inputs[0]) == (1, 3, *sizes)
    assert {name: shape_of(values[name]) for name in "crd"} == dict.fromkeys("crd", (1, 8, *half))
    assert fixed_shape(values["c"]) is None
    # Integers have no price, and what the graph says of itself stands.
    assert shape_of(values["places"]) is None
    assert shape_of(values["y"]) == (1, 4, 1, 1)


@pytest.mark.parametrize(("found", "rows"), [(5, 5), (0, 1)])
def test_rows_that_data_choose_are_no_batch(found, rows):
    """Layers behind 100 regions were priced as one row of each, and counted for no work at all."""
    model = choosing_rows(GENERATOR)
    image = {"x": np.zeros((1, 1, 16, 8), np.float32)}
    image["x"][0, 0, :found, 3] = 2.0
    observe_sizes(model, image)
    values = {value.name: value for node in model.graph for value in node.outputs}
    assert shape_of(values["some"]) == (rows, 8)
    assert shape_of(values["y"]) == (rows, 4)
    nodes = [{"node": "all", "precision": "float"}, {"node": "head", "precision": "int8"}]
    assert integer_share(choosing_rows(GENERATOR), nodes, image) == round(rows * 8 * 4 / (16 * 8 * 8 + rows * 8 * 4), 4)


def test_they_stay_beside_the_graph():
    model = open_graph()
    before = ir.to_proto(model).SerializeToString()
    observe_sizes(model, feeds(32, 32)[0])
    assert ir.to_proto(model).SerializeToString() == before
    copy = copied(model)
    assert shape_of(copy.graph.inputs[0]) == (1, 3, 32, 32)
    assert [shape_of(value) for node in copy.graph for value in node.outputs] == [
        shape_of(value) for node in model.graph for value in node.outputs
    ]


def test_an_open_graph_costs_what_a_fixed_one_does():
    def prices(model: ir.Model) -> dict[str, tuple[float, float]]:
        return {unit.name: pair for unit, pair in estimated(units_of(model)).units.items() if unit.kind != "Cast"}

    model, fixed = open_graph(), open_graph(64, 96)
    unknown = prices(model)
    observe_sizes(model, feeds(64, 96)[0])
    assert prices(model) == prices(fixed) != unknown


def test_kernels_of_an_open_graph_are_timed_and_its_file_stays_open():
    model = open_graph()
    images = feeds(64, 96, 6)
    result = quantize_static(model, statistics_of(model, images), Int8(method="minmax"), Images(images[:4], images[4:]))
    assert {key for key in result.costs.units if "1x8x32x48" in key}
    assert [list(map(str, value.shape)) for value in result.model.graph.inputs] == [["n", "3", "height", "width"]]
    other = feeds(30, 50)[0]
    assert run(result.model, other)["y"].shape == run(model, other)["y"].shape == (1, 4, 1, 1)


def test_kernels_behind_a_loop_of_unknown_rank_are_timed():
    """What a body carries may have any rank, and exporters that state none leave it open for all that is behind."""
    proto = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]> g (float[1,3,16,16] x) => (float[1,4,16,16] y)
        <int64 turns = {2}, bool keep = {1}> {
        [stem] c = Conv<pads=[1,1,1,1]>(x, w0)
        [loop] l = Loop<body = turn (int64 i, bool stay, float v) => (bool k, float t) { k = Identity(stay) t = Tanh(v) }>
            (turns, keep, c)
        [body] d = Conv<pads=[1,1,1,1]>(l, w1) [relu] r = Relu(d) [head] y = Conv(r, w2) }"""
    )
    proto.graph.initializer.extend(onh.from_array(array, name) for name, array in WEIGHTS.items())
    for value in (*proto.graph.node[1].attribute[0].g.input[2:], *proto.graph.node[1].attribute[0].g.output[1:]):
        value.type.tensor_type.ClearField("shape")
    model = inferred(proto)
    (behind,) = [node for node in model.graph if node.name == "body"]
    assert behind.inputs[0].shape is None
    images = feeds(16, 16, 6)
    result = quantize_static(model, statistics_of(model, images), Int8(method="minmax"), Images(images[:4], images[4:]))
    assert any("[x0:1x8x16x16 c:8x8x3x3" in key for key in result.costs.units)


def test_rows_of_a_batch_s_tokens_are_no_batch():
    """torch's exporter says so of LeViT, whose tokens are flattened before layers: a Reshape of 196 rows was timed as one of 1."""
    shapes = {"196*batch": (None, 8), "batch": (1, 8), "unk__4": (1, 8), None: (1, 8)}
    for first, (one, width) in shapes.items():
        value = ir.Value(name="rows", shape=ir.Shape([first, width]), type=ir.TensorType(ir.DataType.FLOAT))
        assert fixed_shape(value) == (None if one is None else (one, width))
