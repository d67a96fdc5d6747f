"""PoolBehindConvPass: the same values with the pool of fewer channels, and integer kernels for it."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run, statistics_of
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.graph.passes.forms.pool_behind_conv import PoolBehindConvPass
from octavo.params.grammar import Int8
from octavo.quantization.executed import executed
from octavo.quantization.int8 import Images, quantize_static
from octavo.quantization.origins import Origins
from octavo.runtime.kernels import RunNode, optimized_nodes

GENERATOR = np.random.default_rng(17)
IMAGES = [{"x": GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(4)]


def normal(*shape: int) -> np.ndarray:
    return (GENERATOR.standard_normal(shape) / 3).astype(np.float32)


def branch(*, channels: int = 2, biased: bool = True, conv: dict | None = None, **pool: object) -> ir.Model:
    nodes = [
        oh.make_node("AveragePool", ["x"], ["p"], "pool", **{"kernel_shape": [3, 3], "strides": [1, 1], **pool}),
        oh.make_node("Conv", ["p", "w", "b"] if biased else ["p", "w"], ["c"], "conv", **(conv or {})),
        oh.make_node("Relu", ["c"], ["y"], "relu"),
    ]
    tensors = {"w": normal(channels, 3, 1, 1)} | ({"b": normal(channels)} if biased else {})
    return network(nodes, tensors, ["y"], inputs={"x": ["n", 3, 16, 16]})


@settings(max_examples=40, deadline=None)
@given(
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    places=st.tuples(*[st.integers(0, 3)] * 4),
    counts=st.integers(0, 1),
    biased=st.booleans(),
    padding=st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]),
)
def test_the_same_values(kernel, places, counts, biased, padding):
    settings = {"kernel_shape": kernel, "count_include_pad": counts}
    if padding == "NOTSET":
        # A window holds at least one value.
        settings["pads"] = [min(pad, size - 1) for pad, size in zip(places, [*kernel, *kernel], strict=True)]
    else:
        settings["auto_pad"] = padding
    model = branch(biased=biased, **settings)
    before = run(model, IMAGES[0])
    if not PoolBehindConvPass()(model).modified:
        assert counts
        assert padding.startswith("SAME")
        return
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    np.testing.assert_allclose(run(model, IMAGES[0])["y"], before["y"], rtol=1e-5, atol=1e-6)
    depthwise = bool(counts and any(settings.get("pads", [])))
    assert [(node.op_type, node.name) for node in model.graph] == [
        ("Conv", "conv"),
        ("Conv" if depthwise else "AveragePool", "pool"),
        ("Relu", "relu"),
    ]
    assert model.graph.node(1).outputs[0].name == "c"
    assert not PoolBehindConvPass()(model).modified


@pytest.mark.parametrize(
    "settings",
    [
        {"channels": 3},
        {"strides": [2, 2]},
        {"ceil_mode": 1},
        {"conv": {"strides": [2, 2]}},
        {"conv": {"pads": [1, 1, 1, 1]}},
    ],
    ids=str,
)
def test_what_saves_nothing_or_is_not_the_same_stays(settings):
    assert not PoolBehindConvPass()(branch(**settings)).modified


@pytest.mark.parametrize("name", ["pool", "conv"])
def test_what_is_kept_stays(name):
    assert not PoolBehindConvPass({name})(branch()).modified


def test_a_pool_that_others_read_stays():
    model = branch()
    model.graph.outputs.append(model.graph.node(0).outputs[0])
    assert not PoolBehindConvPass()(model).modified


@pytest.mark.parametrize("counts", [0, 1])
def test_an_inception_module_is_integer_throughout(counts):
    tensors = {"stem": normal(12, 3, 3, 3), "w": normal(6, 12, 1, 1), "b": normal(6), "side": normal(6, 12, 1, 1)}
    tensors["head"] = normal(4, 12, 1, 1)
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["a"], "a", pads=[1, 1, 1, 1]),
        oh.make_node("AveragePool", ["a"], ["p"], "p", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=counts),
        oh.make_node("Conv", ["p", "w", "b"], ["c"], "c"),
        oh.make_node("Relu", ["c"], ["r"], "r"),
        oh.make_node("Conv", ["a", "side"], ["s"], "s"),
        oh.make_node("Concat", ["r", "s"], ["j"], "j", axis=1),
        oh.make_node("Conv", ["j", "head"], ["y"], "y"),
    ]
    model = network(nodes, tensors, ["y"])
    made = quantize_static(model, statistics_of(model, IMAGES), Int8(placement="all", repair=False), Images(IMAGES, []))
    kernels = optimized_nodes(ir.to_proto(made.model).SerializeToString())
    assert not {node.op_type for node in kernels if node.kind == "float"} - {"Reshape", "Transpose"}
    found = executed(model, made.decisions, kernels)
    assert not found.unexpected
    assert not found.unresolved
    records = {record["node"]: record for record in found.nodes}
    assert records["p"]["kernel"] == ("QLinearConv" if counts else "QLinearAveragePool")
    assert {records[name]["precision"] for name in "apcrsj"} == {"int8"}
    noise = sum(np.square(run(model, feeds)["y"] - run(made.model, feeds)["y"]).sum() for feeds in IMAGES)
    assert noise < 1e-2 * sum(np.square(run(model, feeds)["y"]).sum() for feeds in IMAGES)


@pytest.mark.parametrize(("op_type", "origin"), [("AveragePool", "pool"), ("Conv", "norm")])
def test_a_float_pool_behind_its_conv_is_not_the_norm_whose_tensor_it_writes(op_type, origin):
    """Inception V3 of Keras: a warning said that a norm was decided int8 and runs as float."""
    nodes = [
        oh.make_node("AveragePool", ["x"], ["p"], "pool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        oh.make_node("Conv", ["p", "w"], ["c"], "conv"),
        oh.make_node("BatchNormalization", ["c", "one", "one", "one", "one"], ["n"], "norm"),
        oh.make_node("Relu", ["n"], ["y"], "relu"),
    ]
    model = network(nodes, {"w": normal(2, 3, 1, 1), "one": np.ones(2, np.float32)}, ["y"])
    found = Origins(model, {}).origin(RunNode("n_nchwc", op_type, "com.microsoft.nchwc", "float", ("reorder_token_0",)))
    assert found.name == origin
