"""FoldScalePass: the same values with no factor or shift left behind a Conv, and what stays as it is."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper
from onnx import helper as oh

from octavo.graph.passes.affine.fold_scale import FoldScalePass
from octavo.graph.prepared import prepared
from octavo.runtime.session import Session

CHANNELS = 4


def graph(steps, *, outputs=("y",), bias=True) -> ir.Model:
    """A 3x3 Conv of x to `c`, then steps (op type, inputs, output, constant or None by the name `k<place>`)."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(CHANNELS, 3, 3, 3))} | ({"b": rng.normal(size=CHANNELS)} if bias else {})
    nodes = [oh.make_node("Conv", ["x", *weights], ["c"], "conv", pads=[1, 1, 1, 1])]
    for place, (op_type, inputs, output, constant) in enumerate(steps):
        nodes.append(oh.make_node(op_type, inputs, [output], f"{op_type}_{place}"))
        if constant is not None:
            weights[f"k{place}"] = constant
    made = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 5, 6])],
        [oh.make_tensor_value_info(name, TensorProto.FLOAT, ["n", CHANNELS, 5, 6]) for name in outputs],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in weights.items()],
    )
    model = oh.make_model(made, opset_imports=[oh.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return ir.from_proto(onnx.shape_inference.infer_shapes(model))


def run(model: ir.Model) -> dict[str, np.ndarray]:
    x = np.random.default_rng(1).normal(size=(2, 3, 5, 6)).astype(np.float32)
    return Session(ir.to_proto(model).SerializeToString(), threads=1).run({"x": x})


SHAPES = [(), (1,), (1, 1, 1, 1), (CHANNELS, 1, 1), (1, CHANNELS, 1, 1)]


@st.composite
def chains(draw):
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    steps, last = [], "c"
    for place in range(draw(st.integers(1, 4))):
        op_type = draw(st.sampled_from(["Mul", "Div", "Add", "Sub"]))
        constant = rng.uniform(0.5, 2, draw(st.sampled_from(SHAPES))) * rng.choice([-1, 1])
        first = op_type == "Div" or draw(st.booleans())
        steps.append((op_type, [last, f"k{place}"] if first else [f"k{place}", last], f"t{place}", constant))
        last = f"t{place}"
    return graph(steps, outputs=(last,), bias=draw(st.booleans()))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(chains())
def test_any_chain_goes_into_the_conv(model):
    expected = run(model)
    FoldScalePass()(model)
    assert [node.op_type for node in model.graph] == ["Conv"]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    for name, value in run(model).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-4)
    assert not FoldScalePass()(model).modified


@pytest.mark.parametrize(
    ("steps", "outputs"),
    [
        ([("Div", ["k0", "c"], "y", 2.0)], ("y",)),
        ([("Div", ["c", "k0"], "y", 0.0)], ("y",)),
        ([("Mul", ["c", "k0"], "y", np.ones((1, 1, 5, 6)))], ("y",)),
        ([("Mul", ["c", "k0"], "y", np.ones(6))], ("y",)),
        ([("Mul", ["c", "k0"], "y", 2.0)], ("c", "y")),
        ([("Add", ["c", "c"], "y", None)], ("y",)),
        ([("Relu", ["c"], "r", None), ("Mul", ["r", "k1"], "y", -2.0)], ("y",)),
        ([("Relu", ["c"], "r", None), ("Mul", ["r", "k1"], "y", [[[2.0]], [[1.0]], [[0.0]], [[3.0]]])], ("y",)),
        ([("Relu", ["c"], "r", None), ("Div", ["k1", "r"], "y", 2.0)], ("y",)),
        ([("Relu", ["c"], "r", None), ("Add", ["r", "k1"], "y", 2.0)], ("y",)),
        ([("Relu", ["c"], "r", None), ("Mul", ["r", "k1"], "y", 2.0)], ("r", "y")),
        ([("Relu", ["c"], "r", None), ("Mul", ["r", "k1"], "y", 2.0)], ("c", "y")),
        ([("Add", ["c", "k0"], "a", np.full((2, 1, 1, 1), 0.5)), ("Relu", ["a"], "y", None)], ("y",)),
    ],
    ids=[
        "divided by the Conv",
        "by zero",
        "by position",
        "by column",
        "an output",
        "by itself",
        "a sign behind Relu",
        "a channel that ends",
        "divided by Relu",
        "a shift behind Relu",
        "Relu an output",
        "cut by Relu, an output",
        "a larger batch",
    ],
)
def test_what_stays(steps, outputs):
    model = graph(steps, outputs=outputs)
    before = ir.to_proto(model).SerializeToString()
    assert not FoldScalePass()(model).modified
    assert ir.to_proto(model).SerializeToString() == before


@pytest.mark.parametrize("factor", [1.0, 0.25, np.linspace(0.1, 3, CHANNELS).reshape(-1, 1, 1)])
@pytest.mark.parametrize(("kind", "first"), [("Mul", True), ("Mul", False), ("Div", True)])
def test_a_factor_above_0_goes_before_a_relu(factor, kind, first):
    """HGNetV2's learnable affine blocks: a shift stays where it is."""
    scaled = (kind, ["r", "k2"] if first else ["k2", "r"], "m", factor)
    model = graph([("Add", ["c", "k0"], "a", 0.3), ("Relu", ["a"], "r", None), scaled, ("Add", ["m", "k3"], "y", -0.2)])
    expected = run(model)["y"]
    FoldScalePass()(model)
    assert [node.op_type for node in model.graph] == ["Conv", "Relu", "Add"]
    np.testing.assert_allclose(run(model)["y"], expected, rtol=1e-5, atol=1e-5)
    # What calibration saw of these is still so; of what the Relu reads it is not.
    names = {value.name for node in model.graph for value in node.outputs}
    assert {"m", "y"} < names
    assert not names & {"c", "a", "r"}


def test_a_frozen_batch_norm_as_exporters_write_it_is_one_integer_convolution_with_its_relu():
    steps = [
        ("Mul", ["c", "k0"], "m", np.full((1, CHANNELS, 1, 1), 0.7)),
        ("Add", ["m", "k1"], "a", np.linspace(-1, 1, CHANNELS).reshape(1, -1, 1, 1)),
        ("Relu", ["a"], "y", None),
    ]
    model = graph(steps)
    expected = run(model)
    ready = prepared(model)
    assert [node.op_type for node in ready.graph] == ["Conv", "Relu"]
    assert ready.graph.node(0).outputs[0].name == "a"
    np.testing.assert_allclose(run(ready)["y"], expected["y"], rtol=1e-4, atol=1e-5)
    assert [node.op_type for node in model.graph] == ["Conv", "Mul", "Add", "Relu"]


FACTORS = np.linspace(0.5, 2, CHANNELS).reshape(1, -1, 1, 1)
SHIFTS = np.linspace(-1, 1, CHANNELS).reshape(-1, 1, 1)
LAYER = np.random.default_rng(2).normal(size=(CHANNELS, CHANNELS, 1, 1))


def norm(*steps, behind="Relu"):
    """Steps of a norm behind a sum, then an activation and a layer."""
    made, last = [("Add", ["c", "c"], "sum", None)], "sum"
    for place, (op_type, first, constant) in enumerate(steps, 1):
        made.append((op_type, [last, f"k{place}"] if first else [f"k{place}", last], f"t{place}", constant))
        last = f"t{place}"
    made.append((behind, [last], "r", None))
    return [*made, ("Conv", ["r", f"k{len(made)}"], "y", LAYER)]


@pytest.mark.parametrize(
    "steps",
    [
        norm(("Mul", True, FACTORS), ("Add", True, SHIFTS)),
        norm(("Sub", True, SHIFTS), ("Div", True, FACTORS), ("Mul", False, 3.0), ("Sub", False, 0.5)),
    ],
    ids=["a product and a sum", "spelled out in full"],
)
def test_a_norm_behind_a_sum_is_one_depthwise_conv(steps):
    model = graph(steps)
    expected = run(model)
    last = steps[-3][2]
    for settings_, op_type in (({}, "Conv"), ({"depthwise_norms": False}, "BatchNormalization")):
        ready = prepared(model, **settings_)
        assert [node.op_type for node in ready.graph] == ["Conv", "Add", op_type, "Relu", "Conv"]
        assert ready.graph.node(2).outputs[0].name == last
        assert not [name for name, value in ready.graph.initializers.items() if not list(value.uses())]
        np.testing.assert_allclose(run(ready)["y"], expected["y"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("steps", "outputs"),
    [
        (norm(("Mul", True, 2.0), ("Add", True, SHIFTS)), ("y",)),
        (norm(("Mul", True, FACTORS)), ("y",)),
        (norm(("Mul", True, FACTORS), ("Add", True, SHIFTS)), ("t1", "y")),
        ([*norm(("Mul", True, FACTORS), ("Add", True, SHIFTS))[:-2], ("Sigmoid", ["t2"], "y", None)], ("y",)),
        (norm(("Mul", True, FACTORS), ("Add", True, np.inf * SHIFTS), behind="Sigmoid"), ("y",)),
    ],
    ids=["one factor for all", "no shift", "the product is an output", "no layer behind", "infinite"],
)
def test_no_norm_is_made_of(steps, outputs):
    model = graph(steps, outputs=outputs)
    assert [node.op_type for node in prepared(model).graph] == [node.op_type for node in model.graph]


def test_what_prepares_the_image_stays_float():
    shape = (1, 3, 1, 1)
    steps = [
        ("Mul", ["x", "k0"], "m", np.linspace(1, 2, 3).reshape(shape)),
        ("Add", ["m", "k1"], "a", np.ones(shape)),
        ("Conv", ["a", "k2"], "y", LAYER[:, :3]),
    ]
    assert [node.op_type for node in prepared(graph(steps, outputs=("c", "y"))).graph] == ["Conv", "Mul", "Add", "Conv"]
