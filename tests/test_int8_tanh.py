"""Tanh on codes: one table of ONNX Runtime's Sigmoid, whose codes are those of Tanh."""

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network, sqnr, statistics_of

from octavo.params.grammar import Int8
from octavo.quantization.executed import Executed, executed
from octavo.quantization.int8 import Images, quantize_static
from octavo.runtime.kernels import RunNode, optimized_nodes

GENERATOR = np.random.default_rng(59)
IMAGES = [{"x": GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(6)]
WEIGHTS = {"stem": he(GENERATOR, 8, 3, 3, 3), "body": he(GENERATOR, 8, 8, 3, 3), "head": he(GENERATOR, 4, 8, 1, 1)}
WIDE = he(GENERATOR, 4, 16, 1, 1)


def espcn(loud: float = 1.0) -> ir.Model:
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["a"], "a", pads=[1, 1, 1, 1]),
        oh.make_node("Tanh", ["a"], ["t"], "t"),
        oh.make_node("Conv", ["t", "body"], ["b"], "b", pads=[1, 1, 1, 1]),
        oh.make_node("Tanh", ["b"], ["u"], "u"),
        oh.make_node("Conv", ["u", "head"], ["y"], "y"),
    ]
    return network(nodes, WEIGHTS | {"stem": loud * WEIGHTS["stem"], "body": loud * WEIGHTS["body"]}, ["y"])


def joined() -> ir.Model:
    """A Tanh and a layer in one Concat, which would have one scale where no one else reads them."""
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["a"], "a", pads=[1, 1, 1, 1]),
        oh.make_node("Tanh", ["a"], ["t"], "t"),
        oh.make_node("Conv", ["a", "body"], ["b"], "b", pads=[1, 1, 1, 1]),
        oh.make_node("Concat", ["t", "b"], ["c"], "c", axis=1),
        oh.make_node("Conv", ["c", "wide"], ["y"], "y"),
    ]
    return network(nodes, {"stem": WEIGHTS["stem"], "body": WEIGHTS["body"], "wide": WIDE}, ["y"])


def quantized(model: ir.Model, **recipe: object) -> tuple[ir.Model, list[RunNode], Executed]:
    made = quantize_static(model, statistics_of(model, IMAGES), Int8(placement="all", repair=False, method="minmax", **recipe))
    nodes = optimized_nodes(ir.to_proto(made.model).SerializeToString())
    return made.model, nodes, executed(model, made.decisions, nodes)


def test_integer_throughout():
    model = espcn()
    made, nodes, found = quantized(model)
    assert not {node.op_type for node in nodes if node.kind == "float"} - {"Reshape", "Transpose"}
    records = {record["node"]: record for record in found.nodes}
    assert [(records[name]["runs"], records[name]["kernel"]) for name in "tu"] == [("int8", "QLinearSigmoid")] * 2
    assert not found.unexpected
    assert sqnr(model, made, IMAGES)["y"] > 30


@pytest.mark.parametrize(
    "recipe", [{"symmetric": True}, {"target": "arm"}, {"target": "openvino"}, {"format": "qoperator"}, {"bits16": ["t"]}], ids=str
)
def test_other_codes(recipe):
    model = espcn()
    assert sqnr(model, quantized(model, **recipe)[0], IMAGES)["y"] > 28


def test_symmetric_codes_have_the_same_table():
    found = quantized(espcn(), symmetric=True)[2]
    assert {record["kernel"] for record in found.nodes if record["op_type"] == "Tanh"} == {"QLinearSigmoid"}
    assert not found.unexpected


def test_a_concat_leaves_it_its_scale():
    model = joined()
    made, _, found = quantized(model)
    record = {record["node"]: record for record in found.nodes}["t"]
    assert (record["runs"], record["kernel"]) == ("int8", "QLinearSigmoid")
    assert sqnr(model, made, IMAGES)["y"] > 28


def test_codes_of_another_scale_come_from_a_float_tanh():
    model = joined()
    made, _, found = quantized(model, ranges={"t": {"bounds": [-3, 3]}})
    assert {record["node"]: record["runs"] for record in found.nodes}["t"] == "float"
    assert sqnr(model, made, IMAGES)["y"] > 28


def test_a_search_of_ranges_leaves_it_its_step():
    """Of a Tanh that never comes near 1 a narrower range rounds finer, and would have no table."""
    model = espcn(loud=0.1)
    recipe = Int8(placement="all", repair=False, effort="high")
    made = quantize_static(model, statistics_of(model, IMAGES), recipe, Images(IMAGES[:4], IMAGES[4:]))
    found = executed(model, made.decisions, optimized_nodes(ir.to_proto(made.model).SerializeToString()))
    assert {record["kernel"] for record in found.nodes if record["op_type"] == "Tanh"} == {"QLinearSigmoid"}
    assert not found.unexpected
