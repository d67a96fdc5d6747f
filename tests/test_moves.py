"""Operators that move values, as different rules look through them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network, statistics_of

from octavo.graph.operators import MOVES
from octavo.graph.outputs import classes_told_apart, is_chosen
from octavo.graph.precision import precision_of
from octavo.params.grammar import Int8
from octavo.quantization.executed import executed
from octavo.quantization.int8 import quantize_static
from octavo.quantization.qdq_decisions import qdq_decisions
from octavo.runtime.kernels import optimized_nodes

GENERATOR = np.random.default_rng(3)
# Op type to the input's shape, constant inputs and attributes that make 1 x 8 x 4 x 4 of it.
MOVERS = {
    "Reshape": ([1, 8, 2, 8], [np.array([1, 8, 4, 4])], {}),
    "Identity": ([1, 8, 4, 4], [], {}),
    "Squeeze": ([1, 1, 8, 4, 4], [np.array([1])], {}),
    "Unsqueeze": ([8, 4, 4], [np.array([0])], {}),
    "Transpose": ([1, 8, 4, 4], [], {"perm": [0, 1, 3, 2]}),
    "DepthToSpace": ([1, 32, 2, 2], [], {"blocksize": 2}),
    "SpaceToDepth": ([1, 2, 8, 8], [], {"blocksize": 2}),
    "Gather": ([1, 9, 4, 4], [np.arange(8)], {"axis": 1}),
    "GatherElements": ([1, 8, 4, 4], [np.zeros((1, 8, 4, 4), np.int64)], {}),
    "Slice": ([1, 9, 4, 4], [np.array([0]), np.array([8]), np.array([1])], {}),
    "Expand": ([1, 8, 1, 4], [np.array([1, 8, 4, 4])], {}),
    "Tile": ([1, 8, 1, 4], [np.array([1, 1, 4, 1])], {}),
    "MaxPool": ([1, 8, 5, 5], [], {"kernel_shape": [2, 2]}),
}
QDQ = {"s": np.float32(0.05), "z": np.uint8(128), "wz": np.int8(0)}


def moved(op_type: str) -> ir.Model:
    """Codes, moved, and a Conv of them: Q, DQ, mover, Conv, Q, DQ."""
    shape, constants, attributes = MOVERS[op_type]
    tensors = {f"c{place}": constant for place, constant in enumerate(constants)}
    nodes = [
        oh.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"], "xq"),
        oh.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"], "xd"),
        oh.make_node(op_type, ["xd", *tensors], ["m"], "move", **attributes),
        oh.make_node("DequantizeLinear", ["w", "s", "wz"], ["wd"], "wd"),
        oh.make_node("Conv", ["m", "wd"], ["c"], "conv"),
        oh.make_node("QuantizeLinear", ["c", "s", "z"], ["cq"], "cq"),
        oh.make_node("DequantizeLinear", ["cq", "s", "z"], ["y"], "yd"),
    ]
    weights = GENERATOR.integers(-100, 100, (8, 8, 1, 1)).astype(np.int8)
    return network(nodes, QDQ | {"w": weights} | tensors, ["y"], inputs={"x": shape})


@pytest.mark.parametrize("op_type", MOVERS)
def test_a_layer_of_a_trained_file_is_said_to_read_codes_where_onnx_runtime_lets_it(op_type: str) -> None:
    model = moved(op_type)
    kernels = {node.op_type for node in optimized_nodes(ir.to_proto(model).SerializeToString())}

    decided = {decision.node: decision.precision for decision in qdq_decisions(model)}

    assert decided["conv"] == ("int8" if "QLinearConv" in kernels else "float")


def test_a_flatten_keeps_a_layer_in_float_as_onnx_runtime_does() -> None:
    nodes = [
        oh.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"], "xq"),
        oh.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"], "xd"),
        oh.make_node("Flatten", ["xd"], ["m"], "move"),
        oh.make_node("DequantizeLinear", ["w", "s", "wz"], ["wd"], "wd"),
        oh.make_node("Gemm", ["m", "wd"], ["y"], "layer", transB=1),
    ]
    model = network(nodes, QDQ | {"w": np.ones((4, 8), np.int8)}, ["y"], inputs={"x": [1, 8, 1, 1]})

    decided = {decision.node: decision.precision for decision in qdq_decisions(model)}

    assert "QGemm" not in {node.op_type for node in optimized_nodes(ir.to_proto(model).SerializeToString())}
    assert decided["layer"] == "float"


@pytest.mark.parametrize("op_type", MOVERS)
def test_a_layer_has_the_type_of_the_codes_that_are_moved_before_it(op_type: str) -> None:
    model = moved(op_type)

    found = precision_of(next(node for node in model.graph if node.name == "conv"))

    assert (found.name, found.data, found.weights) == ("int8", "uint8", "int8")


def test_space_to_depth_carries_codes_as_depth_to_space_does() -> None:
    nodes = [
        oh.make_node("Conv", ["x", "w0"], ["a"], "first", pads=[1, 1, 1, 1]),
        oh.make_node("SpaceToDepth", ["a"], ["b"], "move", blocksize=2),
        oh.make_node("Conv", ["b", "w1"], ["c"], "second"),
        oh.make_node("GlobalAveragePool", ["c"], ["d"], "pool"),
        oh.make_node("Flatten", ["d"], ["e"], "flat"),
        oh.make_node("Gemm", ["e", "w2"], ["y"], "last", transB=1),
    ]
    weights = {"w0": he(GENERATOR, 8, 3, 3, 3), "w1": he(GENERATOR, 8, 32, 1, 1), "w2": he(GENERATOR, 5, 8)}
    model = network(nodes, weights, ["y"])
    images = [{"x": GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(3)]

    result = quantize_static(model, statistics_of(model, images), Int8(placement="all"))

    assert {decision.node: decision.precision for decision in result.decisions}["move"] == "int8"
    found = executed(model, result.decisions, optimized_nodes(ir.to_proto(result.model).SerializeToString()))
    assert found.layers == found.integer
    assert not found.unexpected


@pytest.mark.parametrize("op_type", sorted(MOVES - {"GatherElements", "GatherND", "Flatten"}))
def test_a_map_of_classes_is_one_however_it_is_moved(op_type: str) -> None:
    makes = {
        "Identity": ([], {}),
        "Reshape": (["shape"], {}),
        "Squeeze": (["one"], {}),
        "Unsqueeze": (["zero"], {}),
        "Transpose": ([], {"perm": [0, 1, 3, 2]}),
        "DepthToSpace": ([], {"blocksize": 1}),
        "SpaceToDepth": ([], {"blocksize": 2}),
        "Gather": (["zero"], {"axis": 0}),
        "Slice": (["zero", "one"], {}),
        "Split": (["one"], {"axis": 0}),
        "Expand": (["twice"], {}),
        "Tile": (["twice"], {}),
    }
    inputs, attributes = makes[op_type]
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["a"], "conv"),
        oh.make_node("ArgMax", ["a"], ["b"], "best", axis=1),
        oh.make_node("Cast", ["b"], ["c"], "cast", to=onnx.TensorProto.FLOAT),
        oh.make_node(op_type, ["c", *inputs], ["y"], "move", **attributes),
    ]
    tensors = {"w": he(GENERATOR, 7, 3, 1, 1), "shape": np.array([16, 16]), "zero": np.array([0]), "one": np.array([1])}
    model = network(nodes, tensors | {"twice": np.array([2, 1, 1, 1])}, ["y"])

    assert is_chosen(model.graph.outputs[0])
    assert classes_told_apart(model.graph.outputs[0]) == 7
