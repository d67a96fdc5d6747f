"""ZerosToPadPass: the same values, and codes where a constant stood."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run, statistics_of

from octavo.graph.passes.forms.zeros_to_pad import ZerosToPadPass
from octavo.params.grammar import Int8
from octavo.quantization.int8 import quantize_static
from octavo.runtime.kernels import optimized_nodes

GENERATOR = np.random.default_rng(37)
IMAGES = [{"x": GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(4)]


def normal(*shape: int) -> np.ndarray:
    return (GENERATOR.standard_normal(shape) / 3).astype(np.float32)


@pytest.mark.parametrize("axis", [1, -2])
@pytest.mark.parametrize("parts", [["x", "zeros"], ["zeros", "x"], ["zeros", "x", "zeros", "zeros"]])
def test_the_same_values(parts, axis):
    nodes = [oh.make_node("Concat", parts, ["y"], "join", axis=axis)]
    model = network(nodes, {"zeros": np.zeros((1, 3, 16, 16), np.float32)}, ["y"])
    before = run(model, IMAGES[0])["y"]
    assert ZerosToPadPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert [(node.name, node.op_type) for node in model.graph] == [("join", "Pad")]
    assert list(model.graph.initializers) == ["join.pads"]
    np.testing.assert_array_equal(run(model, IMAGES[0])["y"], before)
    assert not ZerosToPadPass()(model).modified


@pytest.mark.parametrize("value", [None, 0.0, 1.0])
def test_zeros_of_a_batch_that_is_open(value):
    """As exporters write `x.new_zeros(len(x), 2, 16, 16)`."""
    settings = {} if value is None else {"value": oh.make_tensor("v", onnx.TensorProto.FLOAT, [1], [value])}
    nodes = [
        oh.make_node("Shape", ["x"], ["batch"], "batch", end=1),
        oh.make_node("Concat", ["batch", "rest"], ["sizes"], "sizes", axis=0),
        oh.make_node("ConstantOfShape", ["sizes"], ["filled"], "filled", **settings),
        oh.make_node("Concat", ["x", "filled"], ["y"], "join", axis=1),
    ]
    model = network(nodes, {"rest": np.array([2, 16, 16])}, ["y"], inputs={"x": ["n", 3, 16, 16]})
    model = ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(model), data_prop=True))
    image = {"x": np.concatenate([feeds["x"] for feeds in IMAGES])}
    before = run(model, image)["y"]
    assert ZerosToPadPass()(model).modified == (value != 1.0)
    np.testing.assert_array_equal(run(model, image)["y"], before)
    assert [node.op_type for node in model.graph][-1] == ("Concat" if value == 1.0 else "Pad")
    assert value == 1.0 or len(list(model.graph)) == 1, "what told the sizes goes, too"


@pytest.mark.parametrize("parts", [["x", "x", "zeros"], ["x", "some"], ["zeros", "zeros"], ["x"]])
def test_two_tensors_and_other_constants_stay(parts):
    tensors = {"zeros": np.zeros((1, 3, 16, 16), np.float32), "some": np.eye(16, dtype=np.float32)[None, None]}
    model = network([oh.make_node("Concat", parts, ["y"], "join", axis=1)], tensors, ["y"])
    assert not ZerosToPadPass()(model).modified


def test_a_shortcut_with_more_channels_leaves_the_residual_sums_integer():
    """ENet's, and those of ResNets for CIFAR."""
    tensors = {"w": normal(3, 3, 3, 3), "wider": normal(8, 3, 3, 3), "head": normal(4, 8, 3, 3)}
    tensors["zeros"] = np.zeros((1, 5, 8, 8), np.float32)
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["a"], "a", pads=[1, 1, 1, 1]),
        oh.make_node("MaxPool", ["a"], ["m"], "m", kernel_shape=[2, 2], strides=[2, 2]),
        oh.make_node("Concat", ["m", "zeros"], ["c"], "c", axis=1),
        oh.make_node("Conv", ["a", "wider"], ["b"], "b", pads=[1, 1, 1, 1], strides=[2, 2]),
        oh.make_node("Add", ["b", "c"], ["s"], "s"),
        oh.make_node("Relu", ["s"], ["r"], "r"),
        oh.make_node("Conv", ["r", "head"], ["y"], "y", pads=[1, 1, 1, 1]),
    ]
    model = network(nodes, tensors, ["y"])
    made = quantize_static(model, statistics_of(model, IMAGES), Int8(placement="all", repair=False))
    kinds = {node.op_type: node.kind for node in optimized_nodes(ir.to_proto(made.model).SerializeToString())}
    assert (kinds["QLinearAdd"], kinds["Pad"]) == ("int8", "int8")
    assert not {"Add", "Concat"} & set(kinds)
