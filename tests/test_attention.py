"""NoMaskPass, SureSoftmaxPass, SwappedAxesPass: what torch's exporter writes around attention with an open batch."""

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run

from octavo.graph.clean import clean
from octavo.graph.passes.cleaning.no_mask import NoMaskPass
from octavo.graph.passes.cleaning.sure_softmax import SureSoftmaxPass
from octavo.graph.passes.cleaning.swapped_axes import SwappedAxesPass

HEADS, TOKENS, WIDTH = 2, 6, 4
ATTENDED = ["n", HEADS, TOKENS, WIDTH]
MINUS = np.float32(-np.inf)


def attention(mask=True, hidden=MINUS, between=(), inputs=None):
    """Scaled dot-product attention of a tensor with itself as `torch.onnx` writes it; `mask` is what it is told to look at.

    Nodes in `between` read `masked` and make `scores`.
    """
    nodes = [
        oh.make_node("Shape", ["x"], ["shape"], "shape"),
        oh.make_node("Slice", ["shape", "zero", "two"], ["ahead"], "ahead"),
        oh.make_node("Concat", ["minus", "sizes"], ["flat"], "flat", axis=0),
        oh.make_node("Reshape", ["x", "flat"], ["together"], "together"),
        oh.make_node("Transpose", ["together"], ["turned"], "turned", perm=[0, 2, 1]),
        oh.make_node("Concat", ["ahead", "swapped"], ["parts"], "parts", axis=0),
        oh.make_node("Reshape", ["turned", "parts"], ["keys"], "keys"),
        oh.make_node("Concat", ["n", "wide"], ["all"], "all", axis=0),
        oh.make_node("Slice", ["shape", "zero", "one"], ["n"], "n"),
        oh.make_node("Expand", ["mask", "all"], ["seen"], "seen"),
        oh.make_node("Where", ["seen", "nothing", "hidden"], ["added"], "added"),
        oh.make_node("MatMul", ["x", "keys"], ["products"], "products"),
        oh.make_node("Add", ["products", "added"], ["masked"], "masked"),
        *between,
        oh.make_node("Softmax", ["scores" if between else "masked"], ["shares"], "shares"),
        oh.make_node("IsNaN", ["shares"], ["empty"], "empty"),
        oh.make_node("Where", ["empty", "nothing", "shares"], ["guarded"], "guarded"),
        oh.make_node("MatMul", ["guarded", "x"], ["y"], "y"),
    ]
    nodes[7], nodes[8] = nodes[8], nodes[7]
    longs = {"zero": [0], "one": [1], "two": [2], "minus": [-1], "sizes": [TOKENS, WIDTH], "swapped": [WIDTH, TOKENS]}
    longs |= {"wide": [1, TOKENS, TOKENS]}
    constants = {name: np.array(value, np.int64) for name, value in longs.items()}
    constants |= {"mask": np.broadcast_to(mask, (1, 1, TOKENS, 1)), "nothing": np.float32(0), "hidden": np.float32(hidden)}
    constants |= {"large": np.float32(3), "endless": MINUS}
    model = network(nodes, constants, ["y"], inputs={"x": ATTENDED, **(inputs or {})})
    # As the exporter states them, which knows what is the batch.
    stated = {"together": [None, TOKENS, WIDTH], "turned": [None, WIDTH, TOKENS], "keys": ["n", HEADS, WIDTH, TOKENS]}
    stated |= {"seen": ["n", 1, TOKENS, TOKENS], "added": ["n", 1, TOKENS, TOKENS]}
    stated |= {name: ["n", HEADS, TOKENS, TOKENS] for name in ("products", "masked", "scores", "shares", "empty", "guarded")}
    for node in model.graph:
        for value in node.outputs:
            value.shape = ir.Shape(stated[value.name]) if value.name in stated else value.shape
    return model


def feeds(batch=3):
    return {"x": np.random.default_rng(0).standard_normal((batch, HEADS, TOKENS, WIDTH)).astype(np.float32)}


def ops(model):
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("unstated", [(), ("together", "turned", "keys", "products", "masked", "shares", "empty", "guarded")])
def test_what_masks_nothing_goes(unstated):
    """Also where the exporter does not say what sizes the keys have that it turns: the graph does."""
    model = attention()
    for node in model.graph:
        for value in node.outputs:
            value.shape = None if value.name in unstated else value.shape
    wanted = run(model, feeds())["y"]
    clean(model, 18)
    assert ops(model) == ["Transpose", "MatMul", "Softmax", "MatMul"]
    assert model.graph[0].attributes["perm"].as_ints() == (0, 1, 3, 2)
    np.testing.assert_array_equal(run(model, feeds())["y"], wanted)
    np.testing.assert_array_equal(run(model, feeds(1))["y"], wanted[:1])


@pytest.mark.parametrize("mask", [False, np.arange(TOKENS)[:, None] > 0])
def test_what_masks_whole_rows_keeps_its_guard(mask):
    model = attention(mask)
    wanted = run(model, feeds())["y"]
    clean(model, 18)
    assert {"Where", "IsNaN", "Add"} <= set(ops(model))
    assert np.isfinite(wanted).all()
    np.testing.assert_array_equal(run(model, feeds())["y"], wanted)


def test_a_mask_that_hides_by_nothing_is_none():
    model = attention(np.arange(TOKENS)[:, None] > 0, hidden=0)
    wanted = run(model, feeds())["y"]
    assert NoMaskPass()(model).modified
    np.testing.assert_array_equal(run(model, feeds())["y"], wanted)


@pytest.mark.parametrize(
    ("op_type", "other", "goes"),
    [("Mul", "large", True), ("Div", "large", True), ("Sub", "large", True), ("Add", "endless", False), ("Div", "nothing", False)],
)
def test_what_may_make_a_row_endless_keeps_its_guard(op_type, other, goes):
    model = attention(between=[oh.make_node(op_type, ["masked", other], ["scores"], "scores")])
    NoMaskPass()(model)
    assert SureSoftmaxPass()(model).modified == goes


def test_a_mask_that_is_fed_keeps_its_guard():
    between = [oh.make_node("Add", ["masked", "fed"], ["scores"], "scores")]
    model = attention(between=between, inputs={"fed": [1, 1, TOKENS, TOKENS]})
    assert NoMaskPass()(model).modified
    assert not NoMaskPass()(model).modified
    assert not SureSoftmaxPass()(model).modified


def test_zeros_that_repeat_what_they_meet_stay():
    nodes = [oh.make_node("Add", ["x", "zeros"], ["y"], "sum"), oh.make_node("Relu", ["y"], ["z"], "end")]
    for shape, goes in (([1, 3, 4], True), ([2, 3, 4], False), ([4], True)):
        model = network(nodes, {"zeros": np.zeros(shape, np.float32)}, ["z"], inputs={"x": [1, 3, 4]})
        assert NoMaskPass()(model).modified == goes
    assert not NoMaskPass()(network(nodes[:1], {"zeros": np.zeros(4, np.float32)}, ["y"], inputs={"x": [1, 3, 4]})).modified


@pytest.mark.parametrize(
    ("perm", "last", "goes"),
    [
        ([0, 2, 1], [1, 2, 4, 6], True),
        ([0, 2, 1], [2, 1, 4, 6], False),
        ([0, 2, 1], [1, 2, 6, 4], False),
        ([2, 0, 1], [1, 2, 4, 6], False),
    ],
)
def test_only_the_last_two_axes_are_exchanged(perm, last, goes):
    nodes = [
        oh.make_node("Reshape", ["x", "flat"], ["a"], "first"),
        oh.make_node("Transpose", ["a"], ["b"], "turn", perm=perm),
        oh.make_node("Reshape", ["b", "last"], ["y"], "second"),
    ]
    constants = {"flat": np.array([-1, 6, 4], np.int64), "last": np.array(last, np.int64)}
    model = network(nodes, constants, ["y"], inputs={"x": [1, 2, 6, 4]})
    given = {"x": np.arange(48, dtype=np.float32).reshape(1, 2, 6, 4)}
    wanted = run(model, given)["y"]
    assert SwappedAxesPass()(model).modified == goes
    np.testing.assert_array_equal(run(model, given)["y"], wanted)
    assert model.graph[-1].name == "second"
