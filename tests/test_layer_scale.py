"""LayerScalePass: factors of channels behind a linear layer of tokens go into its weights and bias."""

import numpy as np
import onnx.helper as oh
import pytest
from graphs import network, run

from octavo.graph.passes.affine.layer_scale import LayerScalePass
from octavo.graph.prepared import prepared

TOKENS, WIDTH, CHANNELS = 5, 6, 4
GENERATOR = np.random.default_rng(5)


def normal(*shape):
    return GENERATOR.standard_normal(shape).astype(np.float32)


def scaled(scale, *, bias=None, first=False, extra=(), outputs=("y",), tokens=(2, TOKENS, WIDTH)):
    """`(x W + b) * s` and what reads it; `extra` nodes may read what lies between: `m`, `a`."""
    nodes = [oh.make_node("MatMul", ["x", "w"], ["m"], "linear")]
    if bias is not None:
        nodes.append(oh.make_node("Add", ["b", "m"] if first else ["m", "b"], ["a"], "bias"))
    between = "m" if bias is None else "a"
    nodes.append(oh.make_node("Mul", ["s", between] if first else [between, "s"], ["f"], "scale"))
    nodes.append(oh.make_node("Relu", ["f"], ["y"], "end"))
    constants = {"w": normal(WIDTH, CHANNELS), "s": scale} | ({} if bias is None else {"b": bias})
    return network([*nodes, *extra], constants, list(outputs), inputs={"x": list(tokens)})


def ops(model):
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("bias", [None, normal(CHANNELS), normal(1)])
@pytest.mark.parametrize("scale", [normal(CHANNELS), normal(1, 1, CHANNELS), np.float32(-0.25), np.zeros(CHANNELS, np.float32)])
def test_the_layer_takes_it_in(scale, bias, first):
    model = scaled(scale, bias=bias, first=first)
    feeds = {"x": normal(2, TOKENS, WIDTH)}
    wanted = run(model, feeds, optimization="off")["y"]
    assert LayerScalePass()(model).modified
    assert ops(model) == ["MatMul", *([] if bias is None else ["Add"]), "Relu"]
    np.testing.assert_allclose(run(model, feeds, optimization="off")["y"], wanted, rtol=1e-5, atol=1e-6)
    names = {value.name for node in model.graph for value in node.outputs}
    assert names == ({"f", "y"} if bias is None else {"m.scaled", "f", "y"})
    assert not LayerScalePass()(model).modified


def test_int8_begins_with_it():
    model = scaled(normal(CHANNELS), bias=normal(CHANNELS), tokens=("n", TOKENS, WIDTH))
    assert ops(prepared(model)) == ["MatMul", "Add", "Relu"]
    assert ops(model) == ["MatMul", "Add", "Mul", "Relu"]


def attention(*, scale=0.4, other=False, bias=True):
    """Queries and keys of two heads, each scaled behind what parts heads; what multiplies them."""
    nodes, constants = [], {"parts": np.array([0, 0, 2, CHANNELS // 2])}
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1])):
        constants |= {f"{name}w": normal(WIDTH, CHANNELS), f"{name}s": np.float32(scale)}
        nodes.append(oh.make_node("MatMul", ["x", f"{name}w"], [f"{name}m"], f"{name}_proj"))
        if bias:
            constants[f"{name}b"] = normal(CHANNELS)
            nodes.append(oh.make_node("Add", [f"{name}m", f"{name}b"], [f"{name}a"], f"{name}_bias"))
        nodes += [
            oh.make_node("Reshape", [f"{name}a" if bias else f"{name}m", "parts"], [f"{name}r"], f"{name}_parts"),
            oh.make_node("Transpose", [f"{name}r"], [f"{name}t"], f"{name}_turn", perm=perm),
            oh.make_node("Mul", [f"{name}t", f"{name}s"], [f"{name}f"], f"{name}_scale"),
        ]
    nodes.append(oh.make_node("MatMul", ["qf", "kf"] if not other else ["qf", "kw4"], ["y"], "product"))
    if other:
        constants["kw4"] = normal(2, CHANNELS // 2, 3)
    return network(nodes, constants, ["y", *(["kf"] if other else [])], inputs={"x": [2, TOKENS, WIDTH]})


@pytest.mark.parametrize("bias", [True, False])
def test_queries_and_keys_take_their_factor_through_what_parts_heads(bias):
    model = attention(bias=bias)
    feeds = {"x": normal(2, TOKENS, WIDTH)}
    wanted = run(model, feeds, optimization="off")["y"]
    assert LayerScalePass()(model).modified
    assert "Mul" not in ops(model)
    np.testing.assert_allclose(run(model, feeds, optimization="off")["y"], wanted, rtol=1e-5, atol=1e-6)
    # What calibration saw of the products is still so; of what lies before them it is not.
    names = {value.name for node in model.graph for value in node.outputs}
    assert {"qf", "kf"} < names
    assert not names & {"qm", "qa", "qr", "qt", "km", "ka", "kr", "kt"}


def test_a_factor_for_each_channel_or_of_no_product_of_two_stays_behind_what_parts_heads():
    assert not LayerScalePass()(attention(scale=normal(2, 1, 1))).modified
    assert not LayerScalePass()(attention(other=True)).modified


@pytest.mark.parametrize("read", ["m", "a"])
def test_what_others_read_keeps_its_values(read):
    other = oh.make_node("Relu", [read], ["z"], "other")
    assert not LayerScalePass()(scaled(normal(CHANNELS), bias=normal(CHANNELS), extra=[other], outputs=("y", "z"))).modified


@pytest.mark.parametrize(
    "scale", [normal(TOKENS, 1), normal(TOKENS, CHANNELS), normal(1, 1, 1, CHANNELS), np.float32([1, 2, 3, np.inf])]
)
def test_other_factors_stay(scale):
    assert not LayerScalePass()(scaled(scale, bias=normal(CHANNELS))).modified
