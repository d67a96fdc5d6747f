"""CutBeforeConcatPass: the same values, and what layers can take in stands behind them."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run, statistics_of

from octavo.graph.passes.affine.cut_before_concat import CutBeforeConcatPass
from octavo.params.grammar import Int8
from octavo.quantization.int8 import quantize_static
from octavo.runtime.kernels import optimized_nodes

GENERATOR = np.random.default_rng(29)
IMAGES = [{"x": GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(4)]
BOUNDS = {"least": np.float32(-0.2), "most": np.float32(0.7)}


def normal(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def conv(source: str, target: str, weights: str) -> onnx.NodeProto:
    return oh.make_node("Conv", [source, weights], [target], target, pads=[1, 1, 1, 1])


def rewritten(model: ir.Model) -> list[str]:
    """Rewrite, hold every output to the bit, and give the operators that are left."""
    before = run(model, IMAGES[0], optimization="off")
    assert CutBeforeConcatPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    after = run(model, IMAGES[0], optimization="off")
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)
    assert not CutBeforeConcatPass()(model).modified
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("behind", [["Relu", "c"], ["Clip", "c", "least", "most"], ["Clip", "c", "", "most"]])
@pytest.mark.parametrize("axis", [1, 2])
def test_it_goes_before_a_concat_that_a_layer_leads_to(behind, axis):
    """Of the other parts one is the image, and one a layer's that others read."""
    nodes = [
        conv("x", "own", "w"),
        conv("x", "shared", "w"),
        oh.make_node("Concat", ["own", "x", "shared"], ["c"], "join", axis=axis),
        oh.make_node(behind[0], behind[1:], ["y"], "cut"),
        oh.make_node("Neg", ["shared"], ["z"], "other"),
    ]
    model = network(nodes, {"w": normal(3, 3, 3, 3)} | BOUNDS, ["y", "z"])
    assert rewritten(model) == ["Conv", "Conv", behind[0], behind[0], behind[0], "Concat", "Neg"]
    assert [node.outputs[0].name for node in model.graph][2:6] == ["y.part0", "y.part1", "y.part2", "y"]


@pytest.mark.parametrize("case", ["no layer", "another reader", "an output", "computed bounds", "not the first operand"])
def test_it_stays_where_one_for_all_parts_is_as_good_or_the_concat_is_wanted(case):
    parts, outputs, inputs = ["a", "b"], ["y", "z"], {"x": [1, 3, 16, 16]}
    cut = oh.make_node("Relu", ["c"], ["y"], "cut")
    other = oh.make_node("Neg", ["x"], ["z"], "other")
    if case == "no layer":
        parts = ["x", "x"]
    elif case == "another reader":
        other = oh.make_node("Neg", ["c"], ["z"], "other")
    elif case == "an output":
        outputs = ["y", "z", "c"]
    elif case == "computed bounds":
        cut, inputs["given"] = oh.make_node("Clip", ["c", "given"], ["y"], "cut"), []
    else:
        cut = oh.make_node("Max", ["x", "c"], ["y"], "cut")
    concat = oh.make_node("Concat", parts, ["c"], "join", axis=1)
    sizes = {"w": normal(2, 3, 3, 3), "v": normal(1, 3, 3, 3)}
    model = network([conv("x", "a", "w"), conv("x", "b", "v"), concat, cut, other], sizes, outputs, inputs=inputs)
    assert not CutBeforeConcatPass()(model).modified


def test_a_norm_and_relu_behind_a_conv_and_a_pool_leave_the_residual_sums_integer():
    """ERFNet's, ENet's and ESPNet's way to make an image smaller; the image of 4 channels has no Conv to fold its part into."""
    tensors = {"down": normal(5, 3, 3, 3), "body": normal(8, 8, 3, 3) / 9, "head": normal(4, 8, 3, 3)}
    tensors |= {"gain": normal(8) + 2, "shift": normal(8), "mean": normal(8), "variance": np.abs(normal(8)) + 1}
    nodes = [
        oh.make_node("Conv", ["x", "down"], ["a"], "a", pads=[1, 1, 1, 1], strides=[2, 2]),
        oh.make_node("MaxPool", ["x"], ["p"], "p", kernel_shape=[2, 2], strides=[2, 2]),
        oh.make_node("Concat", ["a", "p"], ["c"], "c", axis=1),
        oh.make_node("BatchNormalization", ["c", "gain", "shift", "mean", "variance"], ["n"], "n"),
        oh.make_node("Relu", ["n"], ["r"], "r"),
        conv("r", "b", "body"),
        oh.make_node("Add", ["b", "r"], ["s"], "s"),
        oh.make_node("Relu", ["s"], ["t"], "t"),
        conv("t", "y", "head"),
    ]
    model = network(nodes, tensors, ["y"])
    made = quantize_static(model, statistics_of(model, IMAGES), Int8(placement="all", repair=False))
    kinds = [(node.op_type, node.kind) for node in optimized_nodes(ir.to_proto(made.model).SerializeToString())]
    assert not {"Add", "Max", "MaxPool", "Relu"} & {op for op, kind in kinds if kind == "float"}, kinds
    assert [op for op, _ in kinds].count("QLinearAdd") == 1
    kept = quantize_static(model, statistics_of(model, IMAGES), Int8(placement="all", repair=False, keep_float=["r"]))
    decided = {decision.node: (decision.precision, decision.reason) for decision in kept.decisions}
    assert decided["r"] == ("float", "in 2 parts: keep_float: r")
    assert (decided["a"], decided["b"][0]) == (("float", "keep_float: r"), "int8")
