"""Activations without a kernel on codes: looked up in a table of codes, and Mish in float by Exp."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network, run, sqnr, statistics_of
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.graph.nodes import mish_of
from octavo.graph.passes.kernels.mish_by_exp import MishByExpPass
from octavo.graph.prepared import prepared
from octavo.params.grammar import Int8
from octavo.quantization.executed import Executed, executed
from octavo.quantization.int8 import quantize_static
from octavo.quantization.int8.draft import Draft
from octavo.quantization.int8.fitting.cuts import searched_scales
from octavo.quantization.int8.noise.head_judge import HeadJudge
from octavo.quantization.int8.noise.sensitivity import noise_of
from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.structure.curves import CURVES, activation_behind, curve_of
from octavo.quantization.int8.structure.units import units_of
from octavo.quantization.int8.writing.writer import write_qdq
from octavo.runtime.kernels import RunNode, optimized_nodes
from octavo.runtime.session import Session

GENERATOR = np.random.default_rng(61)
WEIGHTS = {"stem": he(GENERATOR, 8, 3, 3, 3), "body": he(GENERATOR, 12, 8, 3, 3), "head": he(GENERATOR, 4, 12, 1, 1)}
SETTINGS = {"Celu": {"alpha": 0.7}, "Elu": {"alpha": 1.3}, "Selu": {}, "Mish": {}, "Softplus": {}, "Softsign": {}}


def images(*shape: int) -> list[dict[str, np.ndarray]]:
    return [{"x": GENERATOR.standard_normal(shape).astype(np.float32)} for _ in range(6)]


IMAGES = images(1, 3, 16, 16)


def activation(kind: str, source: str, target: str) -> list:
    if kind != "spelled":
        return [oh.make_node(kind, [source], [target], target, **SETTINGS[kind])]
    return [
        oh.make_node("Softplus", [source], [f"{target}.p"], f"{target}.softplus"),
        oh.make_node("Tanh", [f"{target}.p"], [f"{target}.t"], f"{target}.tanh"),
        oh.make_node("Mul", [source, f"{target}.t"], [target], target),
    ]


def two(kind: str, sizes: tuple = (1, 3, 16, 16)) -> ir.Model:
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["a"], "a", pads=[1, 1, 1, 1]),
        *activation(kind, "a", "t"),
        oh.make_node("Conv", ["t", "body"], ["b"], "b", pads=[1, 1, 1, 1]),
        *activation(kind, "b", "u"),
        oh.make_node("Conv", ["u", "head"], ["y"], "y"),
    ]
    return network(nodes, WEIGHTS, ["y"], inputs={"x": list(sizes)})


def quantized(model: ir.Model, **recipe: object) -> tuple[ir.Model, list[RunNode], Executed]:
    settings = {"placement": "all", "repair": False, "method": "minmax"} | recipe
    made = quantize_static(model, statistics_of(model, IMAGES), Int8(**settings))
    nodes = optimized_nodes(ir.to_proto(made.model).SerializeToString())
    return made.model, nodes, executed(model, made.decisions, nodes)


@pytest.mark.parametrize("kind", [*sorted(CURVES), "spelled"])
def test_integer_throughout(kind):
    model = two(kind)
    made, nodes, found = quantized(model)
    assert not [node for node in nodes if node.kind == "float" and node.op_type not in ("Reshape", "Transpose")]
    records = {record["node"]: record for record in found.nodes}
    assert [(records[name]["runs"], records[name]["kernel"]) for name in "tu"] == [("int8", "GatherElements")] * 2
    inner = [records[name] for name in ("t.softplus", "t.tanh") if name in records]
    assert all((one["precision"], one["fused_into"]) == ("int8", "t") for one in inner)
    assert not found.unexpected
    assert sqnr(model, made, IMAGES)["y"] > 30


def test_codes_move_only_as_convolutions_have_them():
    """What brings them to channels last and back cancels with what ONNX Runtime puts around its own kernels."""
    _, nodes, _ = quantized(two("Mish"))
    assert sum(node.op_type == "Transpose" for node in nodes) == 2


@pytest.mark.parametrize("recipe", [{"symmetric": True}, {"target": "arm"}, {"target": "openvino"}, {"bits16": ["t"]}], ids=str)
@pytest.mark.parametrize("kind", ["Elu", "spelled"])
def test_other_codes(kind, recipe):
    model = two(kind)
    assert sqnr(model, quantized(model, **recipe)[0], IMAGES)["y"] > 27


QPARAMS = st.builds(lambda scale, zero: QParams(np.float32(scale), np.uint8(zero)), st.floats(0.01, 0.3), st.integers(0, 255))
SHAPES = st.sampled_from([(1, 3, 5, 7), (2, 16, 3, 1), (3, 8), (5,), (1, 12, 4)])


@given(st.sampled_from(sorted(CURVES)), QPARAMS, QPARAMS, SHAPES)
@settings(deadline=None)
def test_the_table_is_what_rounding_behind_the_activation_gives(kind, before, behind, shape):
    model = network(activation(kind, "x", "y"), {}, ["y"], inputs={"x": list(shape)})
    (unit,) = units_of(model)
    made = write_qdq(model, [unit], {unit}, {"x": before, "y": behind}, {})
    feeds = {"x": np.random.default_rng(0).normal(0, 100 * before.scale, shape).astype(np.float32)}
    exact = behind.rounded(run(model, {"x": before.rounded(feeds["x"])})["y"])
    # A value in the middle between two codes may go either way.
    off = np.abs(run(made, feeds)["y"] - exact) / behind.scale
    assert (off < 1.01).all()
    assert (off > 0.01).mean() < 0.1


def test_open_sizes_run_at_any_size():
    model = two("spelled", sizes=("N", 3, "H", "W"))
    made, _, found = quantized(model)
    assert not found.unexpected
    for shape in [(1, 3, 16, 16), (2, 3, 24, 8)]:
        assert sqnr(model, made, images(*shape))["y"] > 27


def test_kept_float_computes_in_float():
    model = two("spelled")
    made, nodes, found = quantized(model, keep_float=["Softplus"])
    assert {record["precision"] for record in found.nodes if record["node"] in ("t", "t.softplus", "t.tanh", "u")} == {"float"}
    assert not found.unexpected
    assert {"Exp"} <= {node.op_type for node in nodes}
    assert not {"Softplus", "GatherElements"} & {node.op_type for node in nodes}
    assert sqnr(model, made, IMAGES)["y"] > 30


@pytest.mark.parametrize("kind", ["Mish", "spelled"])
def test_mish_by_exp(kind):
    model = network(activation(kind, "x", "y"), {}, ["y"], inputs={"x": [1, 2001]})
    feeds = {"x": np.concatenate([np.linspace(-30, 30, 1999), [-1e4, 1e4]]).astype(np.float32)[None]}
    exact = run(model, feeds)["y"]
    assert MishByExpPass()(model).modified
    assert not {"Mish", "Softplus", "Tanh"} & {node.op_type for node in model.graph}
    np.testing.assert_allclose(run(model, feeds)["y"], exact, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("kind", ["Mish", "spelled"])
def test_trials_compute_mish_as_the_file_does(kind, monkeypatch):
    """Single roundings, ranges and FP32 itself are run hundreds of times, and ONNX Runtime's Mish takes ten times as long."""
    ran, opened = [], Session.__init__

    def watched(self, model, *args, **options):
        ran.append({node.op_type for node in onnx.load_from_string(model).graph.node})
        opened(self, model, *args, **options)

    model = two(kind)
    ready = prepared(model)
    plan = Draft(ready, statistics_of(model, IMAGES), Int8(method="mse"), {}, IMAGES).plan()
    monkeypatch.setattr(Session, "__init__", watched)
    judge = HeadJudge(ready, ["y"], IMAGES)
    assert sum(noise_of(ready, plan, judge, IMAGES).tensors.values()) > 0
    searched_scales(ready, plan, judge, judge)
    assert sum("Exp" in kinds for kinds in ran) >= 3
    assert not any({"Mish", "Softplus"} & kinds for kinds in ran)


def test_not_every_softplus_is_a_mish():
    nodes = activation("spelled", "x", "y")
    nodes[-1].input[0] = "other"
    model = network([oh.make_node("Relu", ["x"], ["other"], "other"), *nodes], {}, ["y"])
    assert all(mish_of(node) is None for node in model.graph)
    assert not MishByExpPass()(model).modified


@pytest.mark.parametrize("kind", [*sorted(CURVES), "spelled"])
def test_functions_are_those_of_the_operators(kind):
    model = network([oh.make_node("Identity", ["x"], ["z"], "z"), *activation(kind, "z", "y")], {}, ["y"], inputs={"x": [1, 401]})
    values = np.linspace(-20, 20, 401).astype(np.float32)
    exact = run(model, {"x": values[None]})["y"][0]
    node = next(node for node in model.graph if node.op_type not in ("Identity",))
    np.testing.assert_allclose(curve_of(node)(values), exact, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(activation_behind(node.inputs[0])(values), exact, rtol=1e-5, atol=1e-6)
