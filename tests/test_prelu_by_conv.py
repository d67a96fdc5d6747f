"""PReluByConvPass: the same values without PRelu, and the ones that it must leave alone."""

from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, optimized, run
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from quantized import Parts

from octavo.graph.passes.kernels.prelu_by_conv import PReluByConvPass

GENERATOR = np.random.default_rng(23)


def prelu(slopes: np.ndarray, shape: list) -> ir.Model:
    return network([oh.make_node("PRelu", ["x", "s"], ["y"], "prelu")], {"s": slopes}, ["y"], inputs={"x": shape})


def alike(model: ir.Model, image: np.ndarray, slopes: np.ndarray) -> list[str]:
    before = run(model, {"x": image})
    assert PReluByConvPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    after = run(model, {"x": image})
    np.testing.assert_allclose(after["y"], before["y"], rtol=1e-6 * (1 + 2 * float(np.abs(slopes).max())))
    assert not PReluByConvPass()(model).modified
    used = {value.name for node in model.graph for value in node.inputs if value.is_initializer()}
    assert set(model.graph.initializers) == used
    return [node.op_type for node in model.graph]


@settings(max_examples=40, deadline=None)
@given(
    slopes=arrays(np.float32, st.integers(2, 20), elements=st.floats(-4, 4, width=32), unique=True),
    leading=st.booleans(),
)
def test_a_slope_a_channel(slopes, leading):
    slopes = slopes.reshape(*[1] * leading, -1, 1, 1)
    shape = [2, slopes.size, 5, 7]
    model = prelu(slopes, shape)
    assert alike(model, GENERATOR.standard_normal(shape).astype(np.float32), slopes) == ["Relu", "Conv", "Conv", "Add"]


@pytest.mark.parametrize("slopes", [np.full((1,), 0.25), np.full((1, 1, 1), -2.0), np.full((6, 1, 1), 1.5)])
def test_one_slope_for_all_is_a_leaky_relu(slopes):
    slopes = slopes.astype(np.float32)
    image = GENERATOR.standard_normal((1, 6, 5, 7)).astype(np.float32)
    assert alike(prelu(slopes, [1, 6, 5, 7]), image, slopes) == ["LeakyRelu"]


def test_between_q_and_dq_it_stays_float_and_exact(tmp_path: Path):
    """No optimizer may round the weights of Convs that stand between DQ and Q."""
    parts = Parts([1, 8, 6, 6])
    parts.tensors["s"] = np.linspace(-0.5, 1.5, 8, dtype=np.float32).reshape(8, 1, 1)
    model = parts.model(parts.op("PRelu", [parts.read("x.code"), "s"], "prelu"))
    image = parts.image()
    before = run(model, {"x": image})["y0"]
    assert PReluByConvPass()(model).modified
    apart = np.rint((run(model, {"x": image})["y0"] - before) / parts.tensors["scale"])
    assert np.abs(apart).max() <= 1
    assert (apart != 0).mean() < 0.02, "only products halfway between two codes may tip over"
    ran = [node.op_type for node in optimized(model, tmp_path).graph.node]
    assert not {"PRelu", "QLinearConv"} & set(ran)


@pytest.mark.parametrize(
    ("slopes", "shape"),
    [
        (np.linspace(0, 1, 5), [1, 3, 4, 5]),
        (np.linspace(0, 1, 4).reshape(4, 1), [1, 3, 4, 5]),
        (np.linspace(0, 1, 12).reshape(3, 4, 1), [1, 3, 4, 5]),
        (np.linspace(0, 1, 3), [1, 3]),
        (np.linspace(0, 1, 3).reshape(3, 1), [1, 3, 4]),
        (np.linspace(0, 1, 2).reshape(2, 1, 1, 1), [2, 3, 4, 5]),
    ],
)
def test_left_alone(slopes, shape):
    model = prelu(slopes.astype(np.float32), shape)
    before = ir.to_proto(model).SerializeToString()
    assert not PReluByConvPass()(model).modified
    assert ir.to_proto(model).SerializeToString() == before


def test_computed_slopes_are_left_alone():
    nodes = [oh.make_node("Relu", ["x"], ["s"], "s"), oh.make_node("PRelu", ["x", "s"], ["y"], "prelu")]
    assert not PReluByConvPass()(network(nodes, {}, ["y"])).modified
