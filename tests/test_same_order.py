"""SameOrderPass: what torch's exporter writes of a pool behind layers that lie channels last."""

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run

from octavo.graph.clean import clean
from octavo.graph.passes.cleaning.same_order import SameOrderPass


def strided(first: int | str, indices: np.ndarray | None, **changed: np.ndarray) -> ir.Model:
    """A global average pool whose result is laid in a row and taken up by constant indices, or by those of an open batch."""
    nodes = [
        oh.make_node("GlobalAveragePool", ["x"], ["p"], "pool"),
        oh.make_node("Reshape", ["p", "flat"], ["row"], "row"),
        oh.make_node("Gather", ["row", "indices"], ["g"], "take"),
        oh.make_node("Mul", ["x", "g"], ["y"], "gate"),
    ]
    constants = {"flat": np.array([-1])}
    if indices is None:
        nodes[2:2] = [
            oh.make_node("Shape", ["x"], ["n"], "shape", start=0, end=1),
            oh.make_node("Squeeze", ["n"], ["count"], "count"),
            oh.make_node("Range", ["zero", "count", "one"], ["images"], "images"),
            oh.make_node("Mul", ["images", "size"], ["begin"], "begin"),
            oh.make_node("Unsqueeze", ["begin", "axes"], ["rows"], "rows"),
            oh.make_node("Add", ["rows", "within"], ["sum"], "sum"),
            oh.make_node("Add", ["sum", "offset"], ["indices"], "all"),
        ]
        constants |= {"zero": np.int64(0), "one": np.int64(1), "size": np.int64(3), "axes": np.array([1, 2, 3])}
        constants |= {"within": np.arange(3).reshape(1, 3, 1, 1), "offset": np.zeros((1, 1, 1, 1), np.int64)}
    else:
        constants["indices"] = indices
    model = network(nodes, constants | changed, ["y"], inputs={"x": [first, 3, 4, 4]})
    for node in model.graph:
        for value in node.outputs:
            # As the exporter states it.
            value.shape = ir.Shape([first, 3, 1, 1]) if value.name == "g" else value.shape
    return model


@pytest.mark.parametrize(("first", "indices"), [(2, np.arange(6).reshape(2, 3, 1, 1)), ("batch", None)])
def test_what_is_taken_up_in_its_own_order_was_never_laid_in_a_row(first, indices):
    model = strided(first, indices)
    given = {"x": np.random.default_rng(1).standard_normal((2, 3, 4, 4)).astype(np.float32)}
    wanted = run(model, given)["y"]
    clean(model, 18)
    assert [node.op_type for node in model.graph] == ["GlobalAveragePool", "Mul"]
    np.testing.assert_array_equal(run(model, given)["y"], wanted)


@pytest.mark.parametrize(
    ("first", "indices", "changed"),
    [
        (2, np.arange(6)[::-1].reshape(2, 3, 1, 1), {}),
        (2, np.zeros((2, 3, 1, 1), np.int64), {}),
        (2, np.arange(3).reshape(1, 3, 1, 1), {}),
        ("batch", None, {"within": np.array([2, 1, 0]).reshape(1, 3, 1, 1)}),
        ("batch", None, {"offset": np.full((1, 1, 1, 1), 1)}),
        ("batch", None, {"size": np.int64(1)}),
        ("batch", None, {"zero": np.int64(1)}),
        ("batch", None, {"one": np.int64(2)}),
        (2, None, {}),
    ],
)
def test_another_order_and_another_count_stay(first, indices, changed):
    assert not SameOrderPass()(strided(first, indices, **changed)).modified


def test_as_many_as_another_tensor_has_stay():
    model = strided("batch", None)
    model.graph.inputs[0].shape = ir.Shape(["others", 3, 4, 4])
    assert not SameOrderPass()(model).modified


def test_an_output_keeps_its_node():
    model = strided(2, np.arange(6).reshape(2, 3, 1, 1))
    model.graph.outputs.append(next(node for node in model.graph if node.name == "take").outputs[0])
    assert not SameOrderPass()(model).modified
