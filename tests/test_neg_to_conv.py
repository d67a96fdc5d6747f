"""NegToConvPass: the same values to the bit, and CReLU in integers."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run, statistics_of

from octavo.graph.passes.affine.neg_to_conv import NegToConvPass
from octavo.params.grammar import Int8
from octavo.quantization.int8 import quantize_static
from octavo.runtime.kernels import optimized_nodes

GENERATOR = np.random.default_rng(43)
IMAGES = [{"x": GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(4)]
TENSORS = {
    name: (GENERATOR.standard_normal(shape) / 3).astype(np.float32)
    for name, shape in {"w": (4, 3, 3, 3), "v": (5, 8, 3, 3)}.items()
}


def crelu(*behind: onnx.NodeProto) -> list[onnx.NodeProto]:
    return [
        oh.make_node("Conv", ["x", "w"], ["a"], "a", pads=[1, 1, 1, 1]),
        oh.make_node("Neg", ["a"], ["n"], "n"),
        oh.make_node("Concat", ["a", "n"], ["c"], "c", axis=1),
        oh.make_node("Relu", ["c"], ["r"], "r"),
        *behind,
    ]


def test_before_a_layer_it_is_a_depthwise_conv_of_the_same_values():
    model = network(crelu(oh.make_node("Conv", ["r", "v"], ["y"], "y")), TENSORS, ["y", "n"])
    before = run(model, IMAGES[0], optimization="off")
    assert NegToConvPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    for name, value in run(model, IMAGES[0], optimization="off").items():
        np.testing.assert_array_equal(value, before[name])
    assert [(node.name, node.op_type) for node in model.graph][1] == ("n", "Conv")
    assert not NegToConvPass()(model).modified


@pytest.mark.parametrize("case", ["tail", "image", "vector"])
def test_in_a_tail_of_the_image_itself_and_of_vectors_it_stays(case):
    tensors = {"w": TENSORS["w"]}
    nodes = crelu(oh.make_node("GlobalAveragePool", ["r"], ["g"], "g"), oh.make_node("Sqrt", ["r"], ["y"], "y"))
    if case == "image":
        tensors = {"v": TENSORS["w"]}
        nodes = [oh.make_node("Neg", ["x"], ["n"], "n"), oh.make_node("Conv", ["n", "v"], ["y"], "y")]
    elif case == "vector":
        tensors |= {"m": np.eye(4, 6, dtype=np.float32)}
        nodes = [
            oh.make_node("Conv", ["x", "w"], ["a"], "a"),
            oh.make_node("GlobalAveragePool", ["a"], ["g"], "g"),
            oh.make_node("Flatten", ["g"], ["f"], "f"),
            oh.make_node("Neg", ["f"], ["n"], "n"),
            oh.make_node("Gemm", ["n", "m"], ["y"], "y"),
        ]
    else:
        nodes.pop(-2)
    model = network(nodes, tensors, ["y"])
    assert not NegToConvPass()(model).modified


def test_crelu_is_integer_throughout():
    pool = oh.make_node("MaxPool", ["r"], ["m"], "m", kernel_shape=[2, 2], strides=[2, 2])
    model = network(crelu(pool, oh.make_node("Conv", ["m", "v"], ["y"], "y", pads=[1, 1, 1, 1])), TENSORS, ["y"])
    made = quantize_static(model, statistics_of(model, IMAGES), Int8(placement="all", repair=False, float_heads=False))
    floats = {node.op_type for node in optimized_nodes(ir.to_proto(made.model).SerializeToString()) if node.kind == "float"}
    assert not floats
    decided = {decision.node: decision.precision for decision in made.decisions}
    assert decided == dict.fromkeys(["a", "n", "c", "r", "m", "y"], "int8")
    noise, power = (sum(np.square(one).sum() for one in ones) for ones in zip(*differences(model, made.model), strict=True))
    assert noise < 1e-2 * power


def differences(model: ir.Model, other: ir.Model) -> list[tuple[np.ndarray, np.ndarray]]:
    pairs = [(run(model, feeds)["y"], run(other, feeds)["y"]) for feeds in IMAGES]
    return [(wanted - got, wanted) for wanted, got in pairs]
