"""Linear layers as exporters write them, MatMul and Add: integer kernels in ONNX Runtime, whatever the tensors' dimensions."""

from __future__ import annotations

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import AS_ON_ARM, network, optimized, run, sqnr, statistics_of

from octavo.graph.passes.affine.fold_scale import FoldScalePass
from octavo.graph.passes.kernels.bias_apart import BiasApartPass
from octavo.graph.prepared import prepared
from octavo.params.grammar import Int8
from octavo.quantization.executed import executed
from octavo.quantization.int8 import quantize_static
from octavo.runtime.kernels import optimized_nodes

GENERATOR = np.random.default_rng(3)
WEIGHTS = {
    "w0": GENERATOR.standard_normal((8, 3, 3, 3)).astype(np.float32) / 4,
    "m1": GENERATOR.standard_normal((8, 16)).astype(np.float32) / 3,
    "b1": GENERATOR.standard_normal(16).astype(np.float32),
    "m2": GENERATOR.standard_normal((16, 8)).astype(np.float32) / 4,
    "b2": GENERATOR.standard_normal(8).astype(np.float32),
    "rows": np.array([0, 8, -1]),
}
IMAGES = [GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32) for _ in range(6)]


def linear(dimensions: int, *, bias_first: bool = False, opset: int = 18, **weights: np.ndarray) -> ir.Model:
    """A Conv, and two linear layers with a Relu between over its pixels or over their mean."""
    nodes = [oh.make_node("Conv", ["x", "w0"], ["c"], "conv", pads=[1, 1, 1, 1]), oh.make_node("Relu", ["c"], ["r"], "relu")]
    if dimensions == 3:
        nodes += [
            oh.make_node("Reshape", ["r", "rows"], ["f"], "flat"),
            oh.make_node("Transpose", ["f"], ["t"], "turn", perm=[0, 2, 1]),
        ]
    else:
        nodes += [oh.make_node("GlobalAveragePool", ["r"], ["p"], "pool"), oh.make_node("Flatten", ["p"], ["t"], "flat")]
    for place, (read, written) in ((1, ("t", "s")), (2, ("h", "y"))):
        pair = [f"b{place}", f"product{place}"]
        nodes.append(oh.make_node("MatMul", [read, f"m{place}"], [f"product{place}"], f"linear{place}"))
        nodes.append(oh.make_node("Add", pair if bias_first else pair[::-1], [written], f"bias{place}"))
        if place == 1:
            nodes.append(oh.make_node("Relu", ["s"], ["h"], "between"))
    return network(nodes, WEIGHTS | weights, ["y"], opset=opset)


@pytest.mark.parametrize("bias_first", [True, False])
@pytest.mark.parametrize("dimensions", [2, 3])
def test_they_run_in_integers(dimensions, bias_first):
    model = linear(dimensions, bias_first=bias_first)
    statistics = statistics_of(model, [{"x": image} for image in IMAGES])
    result = quantize_static(model, statistics, Int8(method="minmax", placement="all", float_heads=False))
    found = executed(model, result.decisions, optimized_nodes(ir.to_proto(result.model).SerializeToString()))
    assert (found.layers, found.integer, found.unexpected, found.unresolved) == (3, 3, [], [])
    assert not {"Gemm", "MatMul"} & set(found.counts.get("float", {}))
    truth = run(model, {"x": IMAGES[0]})["y"]
    assert 10 * np.log10((truth**2).sum() / ((truth - run(result.model, {"x": IMAGES[0]})["y"]) ** 2).sum()) > 20


@pytest.mark.parametrize("opset", [18, 21])
def test_they_run_in_integers_on_arm_and_the_file_loads_here(opset, tmp_path):
    """On x86 ONNX Runtime makes uint8 of int8 activations, and failed at opset 21, where it puts a Q behind the Reshape that it
    gathers rows by for a Gemm."""
    model = linear(3, opset=opset)
    statistics = statistics_of(model, [{"x": image} for image in IMAGES])
    result = quantize_static(model, statistics, Int8(method="minmax", placement="all", float_heads=False, target="arm"))
    kernels = [node.op_type for node in optimized(result.model, tmp_path, entries=AS_ON_ARM).graph.node]
    assert kernels.count("MatMulIntegerToFloat") == 2
    assert not {"Gemm", "MatMul"} & set(kernels)
    assert sqnr(model, result.model, [{"x": image} for image in IMAGES])["y"] > 20


def test_a_bias_behind_codes_of_16_bits_stays_with_its_product():
    """No integer kernel reads them: the float Gemm that ONNX Runtime makes of both is the fastest."""
    model = linear(3)
    statistics = statistics_of(model, [{"x": image} for image in IMAGES])
    recipe = Int8(method="minmax", placement="all", float_heads=False, bits16=["h"])
    made = quantize_static(model, statistics, recipe).model
    biases = [node.inputs for node in made.graph if node.name in ("bias1", "bias2")]
    assert [max(len(value.shape) for value in pair if value.is_initializer()) for pair in biases] == [3, 1]


@pytest.mark.parametrize("act", ["Relu", "Clip"])
@pytest.mark.parametrize("op_type", ["Gemm", "MatMul"])
def test_a_last_layer_with_a_relu_puts_out_float(op_type, act):
    """It was rounded, and cut at the largest value of calibration: an answer of a regression that was larger was lost."""
    nodes = [
        oh.make_node("Conv", ["x", "w0"], ["c"], "conv", pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["c"], ["r"], "relu"),
        oh.make_node("Reshape", ["r", "rows"], ["f"], "flat"),
        oh.make_node("Transpose", ["f"], ["t"], "turn", perm=[0, 2, 1]),
        oh.make_node("MatMul", ["t", "m1"], ["h"], "linear"),
    ]
    if op_type == "Gemm":
        nodes[2:] = [
            oh.make_node("GlobalAveragePool", ["r"], ["p"], "pool"),
            oh.make_node("Flatten", ["p"], ["f"], "flat"),
            oh.make_node("Gemm", ["f", "m1", "b1"], ["h"], "linear"),
        ]
    nodes.append(oh.make_node(act, ["h", "least", "most"] if act == "Clip" else ["h"], ["y"], "end"))
    model = network(nodes, WEIGHTS | {"least": np.float32(0), "most": np.float32(50)}, ["y"])
    statistics = statistics_of(model, [{"x": image} for image in IMAGES])
    result = quantize_static(model, statistics, Int8(method="minmax", placement="all", float_heads=False))
    assert sqnr(model, result.model, [{"x": image} for image in IMAGES])["y"] > 20
    assert next(value.producer() for value in result.model.graph.outputs).op_type == act, "no DequantizeLinear"
    made = {decision.node: (decision.precision, decision.reason) for decision in result.decisions}
    assert made["linear"][0] == "int8"
    assert made["end"] == ("float", "cuts what its layer puts out in float")
    found = executed(model, result.decisions, optimized_nodes(ir.to_proto(result.model).SerializeToString()))
    assert (found.layers, found.integer, found.unexpected, found.unresolved) == (2, 2, [], [])


def test_between_a_gemm_and_a_float_layer_a_relu_stays_in_integers():
    """ONNX Runtime would make a float Gemm of the two."""
    model = linear(2)
    statistics = statistics_of(model, [{"x": image} for image in IMAGES])
    result = quantize_static(model, statistics, Int8(method="minmax", placement="all", keep_float=["linear2"]))
    found = executed(model, result.decisions, optimized_nodes(ir.to_proto(result.model).SerializeToString()))
    assert (found.layers, found.integer, found.unexpected) == (2, 2, [])


@pytest.mark.parametrize("act", ["Relu", "Clip"])
def test_between_a_matmul_without_bias_and_a_float_layer_so_it_does(act):
    """The box head of a YOLOS whose biases are zero: the layer was decided INT8 and ran in float."""
    nodes = [
        oh.make_node("Conv", ["x", "w0"], ["c"], "conv", pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["c"], ["r"], "relu"),
        oh.make_node("Reshape", ["r", "rows"], ["f"], "flat"),
        oh.make_node("Transpose", ["f"], ["t"], "turn", perm=[0, 2, 1]),
        oh.make_node("MatMul", ["t", "m1"], ["h"], "linear1"),
        oh.make_node(act, ["h", "least", "most"] if act == "Clip" else ["h"], ["a"], "between"),
        oh.make_node("MatMul", ["a", "m2"], ["y"], "linear2"),
    ]
    model = network(nodes, WEIGHTS | {"least": np.float32(0), "most": np.float32(50)}, ["y"])
    statistics = statistics_of(model, [{"x": image} for image in IMAGES])
    result = quantize_static(model, statistics, Int8(method="minmax", placement="all", keep_float=["linear2"]))
    found = executed(model, result.decisions, optimized_nodes(ir.to_proto(result.model).SerializeToString()))
    assert (found.layers, found.integer, found.unexpected) == (2, 2, [])


def test_a_layer_that_onnx_runtime_runs_in_float_behind_our_back_is_told():
    """FP32 itself, said to be INT8: the fused Gemm has the MatMul's name and more."""
    model = linear(3)
    statistics = statistics_of(model, [{"x": image} for image in IMAGES])
    result = quantize_static(model, statistics, Int8(method="minmax", placement="all", float_heads=False))
    found = executed(model, result.decisions, optimized_nodes(ir.to_proto(model).SerializeToString()))
    assert found.integer == 0
    assert {"linear1", "linear2"} <= {each["node"] for each in found.unexpected}
    assert found.unresolved == []


@pytest.mark.parametrize("dimensions", [2, 3])
def test_vectors_become_a_gemm_and_nothing_else_does(dimensions):
    model = linear(dimensions)
    expected = run(model, {"x": IMAGES[0]})["y"]
    assert FoldScalePass()(model).modified == (dimensions == 2)
    ops = [node.op_type for node in model.graph]
    assert (ops.count("Gemm"), ops.count("MatMul")) == ((2, 0) if dimensions == 2 else (0, 2))
    np.testing.assert_allclose(run(model, {"x": IMAGES[0]})["y"], expected, rtol=1e-4, atol=1e-5)


def test_a_bias_that_is_not_one_value_a_column_stays():
    model = linear(2, b1=np.ones((2, 16), np.float32), b2=np.ones((2, 8), np.float32))
    assert not FoldScalePass()(model).modified


def test_a_float_product_keeps_its_bias():
    """ONNX Runtime's float Gemm is the fastest there."""
    model = prepared(linear(3))
    before = ir.to_proto(model).SerializeToString()
    assert not BiasApartPass()(model).modified
    assert ir.to_proto(model).SerializeToString() == before
