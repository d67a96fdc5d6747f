"""SubToAddPass: the same values, and integer kernels for differences and quotients between layers."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network, run, sqnr, statistics_of

from octavo.graph.passes.affine.sub_to_add import SubToAddPass
from octavo.params.grammar import Int8
from octavo.quantization.executed import executed
from octavo.quantization.int8 import Images, quantize_static
from octavo.quantization.int8.begun import begin
from octavo.runtime.kernels import optimized_nodes

GENERATOR = np.random.default_rng(67)
IMAGES = [{"x": GENERATOR.standard_normal((1, 3, 12, 12)).astype(np.float32)} for _ in range(6)]
TENSORS = {
    "stem": he(GENERATOR, 8, 3, 3, 3),
    "side": he(GENERATOR, 8, 8, 1, 1),
    "last": he(GENERATOR, 5, 8, 1, 1),
    "half": np.float32(0.5),
    "three": np.full((1, 1, 1, 1), 3, np.float32),
    "zero": np.float32(0),
    "vector": np.linspace(1, 2, 8, dtype=np.float32).reshape(1, 8, 1, 1),
}
STEM = [oh.make_node("Conv", ["x", "stem"], ["a"], "a", pads=[1, 1, 1, 1]), oh.make_node("Relu", ["a"], ["r"], "r")]
LAST = [oh.make_node("Conv", ["d", "last"], ["y"], "y")]
SIDE = [oh.make_node("Conv", ["r", "side"], ["s"], "s")]
MEAN = [oh.make_node("AveragePool", ["r"], ["s"], "s", kernel_shape=[3, 3], pads=[1, 1, 1, 1])]
GATE = [*SIDE, oh.make_node("Sigmoid", ["s"], ["g"], "g")]
BETWEEN = {
    "of a layer": [*SIDE, oh.make_node("Sub", ["r", "s"], ["d"], "d")],
    "of a pool": [*MEAN, oh.make_node("Sub", ["r", "s"], ["d"], "d")],
    "of one pixel": [oh.make_node("GlobalAveragePool", ["r"], ["s"], "s"), oh.make_node("Sub", ["r", "s"], ["d"], "d")],
    "from a number": [*GATE, oh.make_node("Sub", ["three", "g"], ["o"], "o"), oh.make_node("Mul", ["r", "o"], ["d"], "d")],
    "from nothing": [*GATE, oh.make_node("Sub", ["zero", "g"], ["o"], "o"), oh.make_node("Mul", ["r", "o"], ["d"], "d")],
    "of a number": [oh.make_node("Sub", ["r", "half"], ["d"], "d")],
    "quotient": [oh.make_node("Div", ["r", "three"], ["d"], "d")],
}
FORMS = [["Mul", "Add"], ["Conv", "Add"], ["Conv", "Add"], ["Conv", "Mul"], ["Conv", "Mul"], ["Add"], ["Mul"]]


def of(nodes: list[onnx.NodeProto], *, batch: int | str = 1) -> ir.Model:
    nodes = [*STEM, *nodes]
    used = {name: TENSORS[name] for node in nodes for name in node.input if name in TENSORS}
    return network(nodes, used, ["y"], inputs={"x": [batch, 3, 12, 12]})


@pytest.mark.parametrize("batch", [1, "n"])
@pytest.mark.parametrize(("nodes", "forms"), zip(BETWEEN.values(), FORMS, strict=True), ids=BETWEEN.keys())
def test_the_same_values(nodes, forms, batch):
    model = of(nodes + LAST, batch=batch)
    before, names = run(model, IMAGES[0])["y"], {node.name for node in model.graph}
    assert SubToAddPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    np.testing.assert_allclose(run(model, IMAGES[0])["y"], before, rtol=1e-5, atol=1e-6)
    assert [node.op_type for node in model.graph][-1 - len(forms) : -1] == forms
    assert names <= {node.name for node in model.graph}
    assert not SubToAddPass()(model).modified


@pytest.mark.parametrize(
    ("recipe", "observes", "kinds"),
    [
        ({}, True, "Conv Add"),
        ({"keep_float": ["d"]}, True, "Conv Sub"),
        ({"target": "openvino"}, True, "Conv Sub"),
        ({}, False, "Conv Sub"),
    ],
)
def test_the_sign_goes_into_a_layer(recipe, observes, kinds):
    ready = begin(of(BETWEEN["of a layer"] + LAST), Int8(**recipe), observes=observes).complete
    assert [node.op_type for node in ready.graph] == ["Conv", "Relu", *kinds.split(), "Conv"]


LEFT = {
    "a tail": [*SIDE, oh.make_node("Sub", ["r", "s"], ["y"], "d")],
    "numbers of channels": [oh.make_node("Sub", ["vector", "r"], ["d"], "d"), *LAST],
    "by zero": [oh.make_node("Div", ["r", "zero"], ["d"], "d"), *LAST],
    "of a quotient": [oh.make_node("Div", ["three", "r"], ["d"], "d"), *LAST],
    "two tensors": [*SIDE, oh.make_node("Div", ["r", "s"], ["d"], "d"), *LAST],
    "a norm": [
        oh.make_node("GlobalAveragePool", ["r"], ["s"], "s"),
        oh.make_node("Sub", ["r", "s"], ["e"], "e"),
        oh.make_node("Mul", ["e", "e"], ["f"], "f"),
        oh.make_node("Sqrt", ["f"], ["q"], "q"),
        oh.make_node("Div", ["e", "q"], ["d"], "d"),
        *LAST,
    ],
    "of what is float": [oh.make_node("Softplus", ["r"], ["s"], "s"), oh.make_node("Sub", ["r", "s"], ["d"], "d"), *LAST],
    "the image's own": [oh.make_node("Sub", ["x", "half"], ["i"], "i"), oh.make_node("Conv", ["i", "stem"], ["y"], "y")],
}


@pytest.mark.parametrize("nodes", LEFT.values(), ids=LEFT.keys())
def test_left_alone(nodes):
    assert not SubToAddPass()(of(nodes)).modified


@pytest.mark.parametrize("nodes", BETWEEN.values(), ids=BETWEEN.keys())
def test_integer_throughout(nodes):
    model = of(nodes + LAST)
    assert quantize_static(model, statistics_of(model, IMAGES), Int8()).model  # no images, no -y
    made = quantize_static(model, statistics_of(model, IMAGES), Int8(placement="all", repair=False), Images(IMAGES, []))
    found_nodes = optimized_nodes(ir.to_proto(made.model).SerializeToString())
    found = executed(model, made.decisions, found_nodes)
    assert not {node.op_type for node in found_nodes if node.kind == "float"} - {"Reshape", "Transpose"}
    assert not found.unexpected
    assert not found.unresolved
    assert sqnr(model, made.model, IMAGES)["y"] > 25
