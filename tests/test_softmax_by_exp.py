"""SoftmaxByExpPass and SoftmaxOfTwoPass: the same values along any axis but the last, or of two; and what stays as it is."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.graph.passes.kernels.softmax_by_exp import SoftmaxByExpPass
from octavo.graph.passes.kernels.softmax_of_two import SoftmaxOfTwoPass


def softmax(shape: list, axis: int | None, opset: int = 18) -> ir.Model:
    how = {} if axis is None else {"axis": axis}
    nodes = [oh.make_node("Softmax", ["x"], ["y"], "soft", **how)]
    return network(nodes, {}, ["y"], inputs={"x": shape}, opset=opset)


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(2, 5), min_size=2, max_size=4))
    axis = draw(st.integers(0, len(shape) - 2))
    values = np.random.default_rng(draw(st.integers(0, 1000))).standard_normal(shape) * 10 ** draw(st.floats(-2, 2.5))
    # Sums that would overflow without the maximum taken off.
    return shape, axis - draw(st.sampled_from([0, len(shape)])), values.astype(np.float32), draw(st.sampled_from([13, 17, 18, 21]))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(tensors())
def test_the_values_are_those_of_softmax(case):
    shape, axis, values, opset = case
    model = softmax(shape, axis, opset)
    wanted = run(model, {"x": values})["y"]
    assert SoftmaxByExpPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert "Softmax" not in {node.op_type for node in model.graph}
    assert model.graph[-1].name == "soft"
    np.testing.assert_allclose(run(model, {"x": values})["y"], wanted, rtol=1e-5, atol=1e-7)
    assert not SoftmaxByExpPass()(model).modified


def test_open_sizes_do():
    model = softmax(["n", 16, 4, "anchors"], 1)
    values = np.random.default_rng(0).standard_normal((2, 16, 4, 9)).astype(np.float32)
    wanted = run(model, {"x": values})["y"]
    assert SoftmaxByExpPass()(model).modified
    np.testing.assert_allclose(run(model, {"x": values})["y"], wanted, rtol=1e-5)


@pytest.mark.parametrize(("shape", "axis"), [([2, 3, 4], 2), ([2, 3, 4], None), ([2, 3, 4], -1), ([2, 3, 1, 1], 1)])
def test_along_the_last_axis_it_stays(shape, axis):
    assert not SoftmaxByExpPass()(softmax(shape, axis)).modified


def test_one_of_codes_stays():
    pair = {"scale": np.float32(0.01), "zero": np.uint8(0)}
    nodes = [
        oh.make_node("QuantizeLinear", ["x", "scale", "zero"], ["c"], "q"),
        oh.make_node("DequantizeLinear", ["c", "scale", "zero"], ["d"], "dq"),
        oh.make_node("Softmax", ["d"], ["s"], "soft", axis=1),
        oh.make_node("QuantizeLinear", ["s", "scale", "zero"], ["e"], "q2"),
        oh.make_node("DequantizeLinear", ["e", "scale", "zero"], ["y"], "dq2"),
    ]
    assert not SoftmaxByExpPass()(network(nodes, pair, ["y"])).modified


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    size=st.floats(-2, 3),
    seed=st.integers(0, 1000),
    opset=st.sampled_from([13, 18]),
)
def test_two_shares_are_a_sigmoid(shape, size, seed, opset):
    model = softmax([*shape, 2], -1, opset)
    values = (np.random.default_rng(seed).standard_normal([*shape, 2]) * 10**size).astype(np.float32)
    wanted = run(model, {"x": values})["y"]
    assert SoftmaxOfTwoPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert [node.op_type for node in model.graph] == ["MatMul", "Sigmoid"]
    assert model.graph[-1].name == "soft"
    np.testing.assert_allclose(run(model, {"x": values})["y"], wanted, rtol=1e-5, atol=1e-6)
    assert not SoftmaxOfTwoPass()(model).modified


@pytest.mark.parametrize(("shape", "axis"), [([3, 4], -1), ([2, 3], 0), ([2, 2, 3], 1), ([2], -1), ([3, "n"], -1)])
def test_more_than_two_and_other_axes_stay(shape, axis):
    assert not SoftmaxOfTwoPass()(softmax(shape, axis)).modified
