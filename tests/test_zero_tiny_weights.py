"""ZeroTinyWeightsPass: what no result depends on goes, what a result may depend on stays."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper
from onnx import helper as oh

from octavo.graph.clean import clean
from octavo.graph.passes.cleaning.zero_tiny_weights import TINY, ZeroTinyWeightsPass
from octavo.graph.prepared import prepared
from octavo.runtime.session import Session

NORMAL = 2.0**-126


def graph(nodes, constants, *, shape=("n", 4, 6, 6), outputs=("y",)) -> ir.Model:
    made = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [oh.make_tensor_value_info(name, TensorProto.FLOAT, list("abcd")) for name in outputs],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()],
    )
    model = oh.make_model(made, opset_imports=[oh.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return ir.from_proto(onnx.shape_inference.infer_shapes(model))


def constants(model: ir.Model) -> dict[str, np.ndarray]:
    return {name: value.const_value.numpy() for name, value in model.graph.initializers.items()}


def run(model: ir.Model, x: np.ndarray) -> np.ndarray:
    return Session(ir.to_proto(model).SerializeToString(), threads=1).run({"x": x})["y"]


@st.composite
def decayed(draw):
    """Conv, batch norm, PRelu, Conv with weights of every size down to subnormal, and its input."""
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    low = draw(st.sampled_from([-6, -18, -25, -44]))

    def weights(*shape):
        return (rng.normal(size=shape) * 10.0 ** rng.uniform(low, 0, shape)).astype(np.float32)

    nodes = [
        oh.make_node("Conv", ["x", "w", "b"], ["c"], "c"),
        oh.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["n"], "n"),
        oh.make_node("PRelu", ["n", "slope"], ["p"], "p"),
        oh.make_node("Conv", ["p", "v"], ["y"], "y"),
    ]
    made = {"w": weights(5, 4, 3, 3), "b": weights(5), "scale": weights(5), "shift": weights(5), "mean": weights(5)}
    made |= {"variance": np.abs(weights(5)), "slope": weights(5, 1, 1), "v": weights(3, 5, 1, 1)}
    return graph(nodes, made), rng.normal(size=(2, 4, 6, 6)).astype(np.float32)


@settings(max_examples=30, deadline=None)
@given(decayed())
def test_results_do_not_change(drawn):
    model, x = drawn
    before = run(model, x)
    values = constants(model)
    done = ZeroTinyWeightsPass()
    done(model)
    after = constants(model)
    changed = sum(int((values[name] != after[name]).sum()) for name in values)
    assert done.count == changed
    # 36 values of up to 4.5 times TINY, times 300 (the batch norm's 1 / sqrt(1e-5)): 1e-14 at most.
    np.testing.assert_allclose(run(model, x), before, rtol=0, atol=max(1e-6 * float(np.abs(before).max()), 1e-14))
    for name, value in after.items():
        changed = value != values[name]
        assert (value[changed] == 0).all()
        assert (np.abs(values[name][changed]) < TINY).all()
        if name != "variance":
            assert not ((np.abs(value) < NORMAL) & (value != 0)).any()
    assert not done(model).modified  # once is enough


def test_a_dead_channel_puts_out_exact_zeros():
    weights = np.full((2, 4, 1, 1), 0.5)
    weights[1] = 1e-40
    nodes = [oh.make_node("Conv", ["x", "w", "b"], ["y"], "y")]
    model = graph(nodes, {"w": weights, "b": [1.0, 1e-39]})
    x = np.full((1, 4, 6, 6), 1e3, np.float32)
    assert (run(model, x)[0, 1] != 0).all()
    ZeroTinyWeightsPass()(model)
    assert (run(model, x)[0, 1] == 0).all()


@pytest.mark.parametrize(("size", "stays"), [(1e-10, True), (3e-19, True), (1e-19, False), (1e-30, False), (1e-40, False)])
def test_beside_large_weights(size, stays):
    model = graph([oh.make_node("Conv", ["x", "w"], ["y"], "y")], {"w": np.array([1, 1, 1, size]).reshape(1, 4, 1, 1)})
    ZeroTinyWeightsPass()(model)
    assert (constants(model)["w"][0, 3, 0, 0] != 0) == stays


def test_small_throughout_may_be_scaled_back():
    nodes = [oh.make_node("Conv", ["x", "w"], ["c"], "c"), oh.make_node("Mul", ["c", "k"], ["y"], "y")]
    model = graph(nodes, {"w": np.full((2, 4, 1, 1), 1e-25), "k": np.full((1, 2, 1, 1), 1e25)})
    x = np.ones((1, 4, 6, 6), np.float32)
    before = run(model, x)
    assert not ZeroTinyWeightsPass()(model).modified
    np.testing.assert_array_equal(run(model, x), before)
    np.testing.assert_allclose(before, 4.0, rtol=1e-5)


@pytest.mark.parametrize(
    ("nodes", "made"),
    [
        # x / (x^2 + guard): without it 0 / 0.
        ([("Mul", ["x", "x"], "s"), ("Add", ["s", "k"], "d"), ("Div", ["x", "d"], "y")], {"k": 1e-40}),
        ([("Max", ["x", "k"], "d"), ("Log", ["d"], "y")], {"k": [1e-40]}),
        ([("Mul", ["x", "k"], "y")], {"k": [1e-40]}),
        # Read as weights and as a guard.
        ([("Max", ["x", "k"], "d"), ("Conv", ["d", "k"], "y")], {"k": np.full((4, 4, 1, 1), 1e-40)}),
    ],
)
def test_what_may_guard_stays(nodes, made):
    model = graph([oh.make_node(op_type, inputs, [output], output) for op_type, inputs, output in nodes], made)
    assert not ZeroTinyWeightsPass()(model).modified


def test_weights_within_a_branch():
    inner = oh.make_graph(
        [oh.make_node("Conv", ["x", "w"], ["inner"], "inner")],
        "then",
        [],
        [oh.make_tensor_value_info("inner", TensorProto.FLOAT, list("abcd"))],
        [numpy_helper.from_array(np.full((2, 4, 1, 1), 1e-41, np.float32), "w")],
    )
    other = oh.make_graph(
        [oh.make_node("Conv", ["x", "v"], ["outer"], "outer")],
        "else",
        [],
        [oh.make_tensor_value_info("outer", TensorProto.FLOAT, list("abcd"))],
    )
    nodes = [
        oh.make_node("ReduceMax", ["x"], ["most"], "most", keepdims=0),
        oh.make_node("Greater", ["most", "zero"], ["yes"], "yes"),
        oh.make_node("If", ["yes"], ["y"], "y", then_branch=inner, else_branch=other),
    ]
    model = graph(nodes, {"zero": 0.0, "v": np.full((2, 4, 1, 1), 1e-41)})
    done = ZeroTinyWeightsPass()
    done(model)
    assert done.count == 16


def test_export_says_what_it_did_and_folding_makes_none():
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["c"], "c"),
        oh.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["y"], "y"),
    ]
    weights = np.ones((2, 4, 1, 1))
    weights[0, 0] = 1e-40
    weights[1] = 1e-15
    # 1e-15 times 1e-30 is subnormal; neither factor is.
    made = {"w": weights, "scale": [1.0, 1e-15], "shift": [1.0, 1e-15], "mean": [0.0, 0.0], "variance": [1e-20, 1e20]}
    model = graph(nodes, made)
    (note,) = [note for note in clean(model, 18) if "too small" in note]
    assert note.startswith("1 weights")
    ready = prepared(model)
    assert [node.op_type for node in ready.graph] == ["Conv"]
    for value in constants(ready).values():
        assert not ((np.abs(value) < NORMAL) & (value != 0)).any()
