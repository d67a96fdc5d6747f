"""Multiply-accumulates of graphs small enough to be counted by hand, and of networks whose figures are known."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir
import pytest
from conftest import small_network
from graphs import network

from octavo.graph.macs import layers_of, parameters
from octavo.graph.readable import readable, shapes_at


def counted(model: ir.Model, inputs: dict[str, list[int]] | None = None) -> dict[str, int | None]:
    plain = readable(model)
    return {layer.node.name: layer.macs for layer in layers_of(plain, shapes_at(plain, inputs or {}))}


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def one(
    op_type: str, tensors: dict[str, np.ndarray], shape: list, *, domain: str = "", opset: int = 18, **attributes
) -> int | None:
    node = oh.make_node(op_type, ["x", *tensors], ["y"], "node", domain=domain, **attributes)
    return counted(network([node], tensors, ["y"], inputs={"x": shape}, opset=opset))["node"]


def test_convolutions():
    assert one("Conv", {"w": zeros(8, 3, 3, 3)}, [1, 3, 16, 16], pads=[1, 1, 1, 1]) == 8 * 16 * 16 * 3 * 9
    assert one("Conv", {"w": zeros(8, 3, 3, 3), "b": zeros(8)}, [2, 3, 16, 16], strides=[2, 2]) == 2 * 8 * 7 * 7 * 3 * 9
    assert one("Conv", {"w": zeros(8, 2, 3, 3)}, [1, 8, 16, 16], group=4, pads=[1, 1, 1, 1]) == 8 * 16 * 16 * 2 * 9
    assert one("Conv", {"w": zeros(8, 1, 5, 5)}, [1, 8, 16, 16], group=8, dilations=[2, 2]) == 8 * 8 * 8 * 25
    assert one("Conv", {"w": zeros(4, 3, 7)}, [1, 3, 20]) == 4 * 14 * 3 * 7


def test_a_transposed_convolution_spreads_what_it_reads():
    assert one("ConvTranspose", {"w": zeros(3, 8, 2, 2)}, [1, 3, 16, 16], strides=[2, 2]) == 3 * 16 * 16 * 8 * 4
    assert one("ConvTranspose", {"w": zeros(4, 2, 4, 4)}, [1, 4, 8, 8], group=2, strides=[2, 2]) == 4 * 8 * 8 * 2 * 16


def test_products_of_matrices():
    assert one("Gemm", {"w": zeros(10, 32)}, [5, 32], transB=1) == 5 * 32 * 10
    assert one("Gemm", {"w": zeros(32, 10)}, [32, 5], transA=1) == 5 * 32 * 10
    assert one("MatMul", {"w": zeros(32, 10)}, [2, 7, 32]) == 2 * 7 * 32 * 10
    # A batch on one side alone goes for both.
    assert one("MatMul", {"w": zeros(4, 1, 6, 5)}, [3, 7, 6]) == 4 * 3 * 7 * 6 * 5
    assert one("Einsum", {"w": zeros(4, 6, 5)}, [3, 4, 7, 6], equation="bhqd,hdk->bhqk") == 3 * 4 * 7 * 6 * 5
    assert one("Einsum", {"w": zeros(6, 5)}, [3, 4, 6], equation="...d, dk -> ...k") == 3 * 4 * 6 * 5


def test_attention_counts_both_products():
    nodes = [oh.make_node("Attention", ["q", "k", "v"], ["y"], "attention")]
    shapes = {"q": [1, 2, 10, 8], "k": [1, 2, 12, 8], "v": [1, 2, 12, 6]}
    assert counted(network(nodes, {}, ["y"], inputs=shapes, opset=23)) == {"attention": 2 * 10 * 12 * (8 + 6)}


def test_recurrent_layers():
    nodes = [oh.make_node("LSTM", ["x", "w", "r"], ["y"], "lstm", hidden_size=6)]
    model = network(nodes, {"w": zeros(1, 24, 5), "r": zeros(1, 24, 6)}, ["y"], inputs={"x": [9, 2, 5]})
    assert counted(model) == {"lstm": 9 * 2 * 4 * 6 * (5 + 6)}


def test_elementwise_arithmetic_counts_nothing():
    nodes = [oh.make_node("Relu", ["x"], ["r"], "relu"), oh.make_node("Mul", ["r", "x"], ["y"], "mul")]
    assert counted(network(nodes, {}, ["y"])) == {}


def test_open_sizes_are_unknown_until_they_are_given():
    node = oh.make_node("Conv", ["x", "w"], ["y"], "conv")
    model = network([node], {"w": zeros(8, 3, 1, 1)}, ["y"], inputs={"x": ["batch", 3, "height", "width"]})
    assert counted(model) == {"conv": None}
    assert counted(model, {"x": [1, 3, 20, 30]}) == {"conv": 8 * 3 * 20 * 30}


def test_sizes_that_the_graph_computes_are_followed():
    """Shape, Gather and Concat before a Reshape, as exporters write them for dynamic sizes."""
    nodes = [
        oh.make_node("Shape", ["x"], ["shape"], "shape"),
        oh.make_node("Gather", ["shape", "first"], ["batch"], "batch"),
        oh.make_node("Concat", ["batch", "rest"], ["wanted"], "wanted", axis=0),
        oh.make_node("Reshape", ["x", "wanted"], ["flat"], "flat"),
        oh.make_node("MatMul", ["flat", "w"], ["y"], "product"),
    ]
    tensors = {"first": np.array([0], np.int64), "rest": np.array([-1, 4], np.int64), "w": zeros(4, 6)}
    model = network(nodes, tensors, ["y"], inputs={"x": ["batch", 4, "height", "width"]})
    assert counted(model, {"x": [1, 4, 8, 8]}) == {"product": 64 * 4 * 6}


def test_what_stands_in_a_branch_is_listed_and_not_counted():
    def branch(name: str) -> onnx.GraphProto:
        node = oh.make_node("Conv", ["x", "w"], [f"{name}.y"], f"{name}.conv")
        return oh.make_graph([node], name, [], [oh.make_tensor_value_info(f"{name}.y", 1, [1, 8, 16, 16])])

    node = oh.make_node("If", ["condition"], ["y"], "if", then_branch=branch("yes"), else_branch=branch("no"))
    graph = oh.make_graph(
        [node],
        "g",
        [oh.make_tensor_value_info("x", 1, [1, 3, 16, 16]), oh.make_tensor_value_info("condition", 9, [])],
        [oh.make_tensor_value_info("y", 1, [1, 8, 16, 16])],
        [onh.from_array(zeros(8, 3, 1, 1), "w")],
    )
    model = ir.from_proto(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=10))
    assert sorted(counted(model).items()) == [("no.conv", None), ("yes.conv", None)]


def test_parameters_are_what_training_sets():
    model = ir.from_proto(small_network())
    # stem 216 + 8, depth 72, point 64 + 8, head 32 + 4; the bounds of ReLU6 and axes are none.
    assert parameters(readable(model)) == 404
    nodes = [
        oh.make_node("BatchNormalization", ["x", "s", "b", "m", "v"], ["n"], "norm"),
        oh.make_node("Mul", ["n", "table"], ["y"], "grid"),
        oh.make_node("Mul", ["y", "vector"], ["z"], "vector"),
    ]
    tensors = {name: np.ones(3, np.float32) for name in "sbmv"} | {"table": zeros(1, 3, 16, 16), "vector": zeros(3, 1, 1)}
    assert parameters(readable(network(nodes, tensors, ["z"]))) == 15


def test_constants_inside_nodes_count_as_initializers_do():
    weights = onh.from_array(zeros(8, 3, 3, 3), "w")
    nodes = [oh.make_node("Constant", [], ["w"], "c", value=weights), oh.make_node("Conv", ["x", "w"], ["y"], "conv")]
    model = network(nodes, {}, ["y"])
    assert counted(model) == {"conv": 8 * 14 * 14 * 27}
    assert parameters(readable(model)) == 216


@pytest.mark.slow
@pytest.mark.parametrize(("name", "macs", "count"), [("resnet50", 4.09e9, 25.56e6), ("mobilenet_v2", 0.301e9, 3.50e6)])
def test_known_networks(name, macs, count, tmp_path):
    """torchvision says 4.09 and 0.3 GMACs ("GFLOPS" of their weights' tables), 25,557,032 and 3,504,872 parameters."""
    torch = pytest.importorskip("torch")
    torchvision = pytest.importorskip("torchvision")
    from octavo.graph.io import load

    module = getattr(torchvision.models, name)(weights=None).eval()
    torch.onnx.export(module, torch.zeros(1, 3, 224, 224), tmp_path / "m.onnx", dynamo=False, opset_version=17)
    model = readable(load(tmp_path / "m.onnx"))
    found = layers_of(model, shapes_at(model, {}))
    assert sum(layer.macs for layer in found) == pytest.approx(macs, rel=0.005)
    # Batch norms are folded into layers: their 2 numbers a channel became 1.
    assert parameters(model) == pytest.approx(count, rel=0.011)
