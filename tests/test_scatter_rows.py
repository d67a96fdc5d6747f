"""ScatterRowsPass: rows that torch's exporter puts in their places value by value."""

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run

from octavo.graph.clean import clean

PLACES = np.array([[4], [0], [2]], np.float32)
ROWS = np.random.default_rng(1).standard_normal((3, 2, 5)).astype(np.float32)


def assigned(shape=(6, 2, 5), **attributes) -> ir.Model:
    """`zeros[places] = rows`, as for the regions of one level of a pyramid."""
    nodes = [
        oh.make_node("Cast", ["places"], ["numbers"], "numbers", to=7),
        oh.make_node("Reshape", ["numbers", "columns"], ["column"], "column"),
        oh.make_node("Shape", ["rows"], ["sizes"], "sizes"),
        oh.make_node("Expand", ["column", "sizes"], ["each"], "each"),
        oh.make_node("ScatterElements", ["x", "each", "rows"], ["y"], "assign", **{"axis": 0} | attributes),
    ]
    inputs = {"x": list(shape), "places": ["n", 1], "rows": ["n", 2, 5]}
    return network(nodes, {"columns": np.array([-1, 1, 1])}, ["y"], inputs=inputs)


def given(**changed):
    return {"x": np.ones((6, 2, 5), np.float32), "places": PLACES, "rows": ROWS} | changed


@pytest.mark.parametrize("places", [PLACES, -1 - PLACES, np.zeros((0, 1), np.float32)])
def test_rows_are_put_in_their_places_at_once(places):
    model = assigned()
    feeds = given(places=places, rows=ROWS[: len(places)])
    wanted = run(model, feeds)["y"]
    clean(model, 18)
    assert [node.op_type for node in model.graph if node.name == "assign"] == ["ScatterND"]
    # Not one place for each value.
    assert all(len(node.outputs[0].shape) < 3 for node in model.graph if node.op_type == "Expand")
    np.testing.assert_array_equal(run(model, feeds)["y"], wanted)
    assert len(places) == np.count_nonzero((wanted != 1).any(axis=(1, 2)))


def test_one_place_is_no_place_for_no_rows():
    model = assigned()
    feeds = given(places=PLACES[:1], rows=ROWS[:0])
    wanted = run(model, feeds)["y"]
    clean(model, 18)
    np.testing.assert_array_equal(run(model, feeds)["y"], wanted)


@pytest.mark.parametrize(
    "model",
    [
        lambda: assigned(reduction="add"),
        lambda: assigned((6, 2, "wide")),
        # A part of each row alone.
        lambda: assigned((6, 2, 8)),
        lambda: assigned((6, 6, 5), axis=1),
    ],
)
def test_what_is_no_whole_row_is_left_alone(model):
    made = model()
    clean(made, 18)
    assert [node.op_type for node in made.graph if node.name == "assign"] == ["ScatterElements"]
