"""PReluToMaxPass: the same values, where no layer takes the PRelu in."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run, sqnr, statistics_of

from octavo.graph.passes.affine.prelu_to_max import PReluToMaxPass
from octavo.params.grammar import Int8
from octavo.quantization.int8 import quantize_static

GENERATOR = np.random.default_rng(37)
IMAGES = [{"x": GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(4)]


def normal(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def conv(source: str, target: str, weights: str) -> onnx.NodeProto:
    return oh.make_node("Conv", [source, weights], [target], target, pads=[1, 1, 1, 1])


def prelu(source: str, target: str) -> onnx.NodeProto:
    return oh.make_node("PRelu", [source, "slopes"], [target], target)


@pytest.mark.parametrize("slopes", [np.float32([[[0.2]], [[-0.5]], [[1.0]]]), np.float32(0.25), np.float32(-3).reshape(1, 1, 1, 1)])
def test_it_is_the_larger_of_two(slopes):
    """Behind the image, and behind a sum of two that others read."""
    nodes = [
        prelu("x", "p"),
        conv("p", "a", "w"),
        oh.make_node("Add", ["a", "x"], ["s"], "s"),
        prelu("s", "y"),
        oh.make_node("Neg", ["a"], ["z"]),
    ]
    model = network(nodes, {"w": normal(3, 3, 3, 3), "slopes": slopes}, ["y", "z"])
    before = run(model, IMAGES[0], optimization="off")
    assert PReluToMaxPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert [node.op_type for node in model.graph] == ["Mul", "Max", "Conv", "Add", "Mul", "Max", "Neg"]
    assert [node.name for node in model.graph if node.op_type == "Max"] == ["p", "y"]
    assert "slopes" not in model.graph.initializers
    after = run(model, IMAGES[0], optimization="off")
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)


@pytest.mark.parametrize("case", ["a layer", "a sum of a layer", "a norm of a layer", "steep", "by row", "computed"])
def test_it_stays_where_a_layer_takes_it_in_or_the_larger_is_another(case):
    tensors, inputs, source, nodes = (
        {"slopes": np.full((3, 1, 1), 0.25, np.float32)},
        {"x": [1, 3, 16, 16]},
        "x",
        [conv("x", "a", "w")],
    )
    if case == "a layer":
        source = "a"
    elif case == "a sum of a layer":
        nodes, source = [*nodes, oh.make_node("Add", ["x", "a"], ["s"], "s")], "s"
    elif case == "a norm of a layer":
        tensors |= {name: np.ones(3, np.float32) for name in "gbmv"}
        nodes, source = [*nodes, oh.make_node("BatchNormalization", ["a", *"gbmv"], ["n"], "n")], "n"
    elif case == "steep":
        tensors["slopes"][1] = 1.5
    elif case == "by row":
        tensors["slopes"] = np.full((1, 16, 1), 0.25, np.float32)
    else:
        tensors, inputs = {}, inputs | {"slopes": [3, 1, 1]}
    outputs = ["y", "a"] if source == "x" else ["y"]
    model = network([*nodes, prelu(source, "y")], tensors | {"w": normal(3, 3, 3, 3)}, outputs, inputs=inputs)
    assert not PReluToMaxPass()(model).modified


@pytest.mark.parametrize(("target", "kinds"), [("openvino", {"Max", "PRelu"}), ("tensorrt", {"PRelu"})])
def test_openvino_has_it_so(target, kinds):
    """A PRelu behind a layer, and one behind a sum that is read twice."""
    nodes = [
        conv("x", "a", "w"),
        prelu("a", "p"),
        oh.make_node("Add", ["p", "x"], ["s"], "s"),
        prelu("s", "q"),
        conv("q", "b", "w"),
        oh.make_node("Add", ["b", "s"], ["y"], "y"),
    ]
    model = network(nodes, {"w": normal(3, 3, 3, 3) / 5, "slopes": np.abs(normal(3, 1, 1)) / 4}, ["y"])
    recipe = Int8(target=target, placement="all", repair=False)
    made = quantize_static(model, statistics_of(model, IMAGES), recipe)
    assert {node.op_type for node in made.model.graph} & {"Max", "PRelu"} == kinds
    assert sqnr(model, made.model, IMAGES)["y"] > 30
    assert {"p", "q"} <= {decision.node for decision in made.decisions}
