"""Tails that end with channels last: computed so from the heads on, with the same values."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.graph.passes.kernels.tail_channels_last import TailChannelsLastPass

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def yolox(batch: int | str = 1, sides: tuple[int, ...] = (8, 4), also: str = "") -> ir.Model:
    """Boxes and scores of some heads, in one row, with channels last; scores come from pixels that had channels last."""
    nodes, tensors, rows, inputs = [], {}, [], {}
    for side in sides:
        name = f"h{side}"
        inputs |= {f"{name}.boxes": [batch, 4, side, side], f"{name}.pixels": [batch, side, side, 6]}
        tensors[f"{name}.row"] = np.array([0, 10, side * side])
        nodes += [
            oh.make_node("Transpose", [f"{name}.pixels"], [f"{name}.raw"], f"{name}.first", perm=FIRST),
            oh.make_node("Sigmoid", [f"{name}.raw"], [f"{name}.scores"], f"{name}.sigmoid"),
            oh.make_node("Concat", [f"{name}.boxes", f"{name}.scores"], [f"{name}.both"], f"{name}.both", axis=1),
            oh.make_node("Reshape", [f"{name}.both", f"{name}.row"], [f"{name}.laid"], f"{name}.laid"),
        ]
        rows.append(f"{name}.laid")
    nodes.append(oh.make_node("Concat", rows, ["all"], "all", axis=2))
    nodes.append(oh.make_node("Transpose", ["all"], ["y"], "y", perm=(0, 2, 1)))
    outputs = ["y"]
    if also == "reader":
        nodes.append(oh.make_node("Neg", ["h8.both"], ["z"], "z"))
        outputs.append("z")
    elif also == "output":
        outputs.append("h8.scores")
    return network(nodes, tensors, outputs, inputs=inputs)


def nanodet() -> ir.Model:
    """One map in two parts, each laid in a row without the batch, channels last."""
    nodes = [
        oh.make_node("Transpose", ["x"], ["map"], "first", perm=FIRST),
        oh.make_node("Split", ["map", "sizes"], ["s", "b"], "split", axis=1),
        oh.make_node("Sigmoid", ["s"], ["p"], "p"),
        oh.make_node("Reshape", ["p", "scores"], ["sr"], "sr"),
        oh.make_node("Reshape", ["b", "boxes"], ["br"], "br"),
        oh.make_node("Transpose", ["sr"], ["y"], "y", perm=(1, 0)),
        oh.make_node("Transpose", ["br"], ["z"], "z", perm=(1, 0)),
    ]
    tensors = {"sizes": np.array([6, 4]), "scores": np.array([6, -1]), "boxes": np.array([4, 25])}
    return network(nodes, tensors, ["y", "z"], inputs={"x": [1, 5, 5, 10]})


def changed(model: ir.Model) -> ir.Model | None:
    """A rewritten copy; None where the graph was left alone."""
    copy = ir.from_proto(ir.to_proto(model))
    result = TailChannelsLastPass()(copy)
    onnx.checker.check_model(ir.to_proto(copy), full_check=True)
    return copy if result.modified else None


def count(model: ir.Model, op_type: str) -> int:
    return sum(node.op_type == op_type for node in model.graph)


def feeds_of(model: ir.Model, batch: int = 1) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(2)
    inputs = {value.name: list(value.shape) for value in model.graph.inputs}
    shapes = {name: [size if isinstance(size, int) else batch for size in sizes] for name, sizes in inputs.items()}
    return {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def assert_same(model: ir.Model, other: ir.Model, batch: int = 1) -> None:
    feeds = feeds_of(model, batch)
    for level in ("off", "all"):
        wanted, got = run(model, feeds, optimization=level), run(other, feeds, optimization=level)
        assert wanted.keys() == got.keys()
        for name in wanted:
            assert np.array_equal(wanted[name], got[name])


@pytest.mark.parametrize("batch", [1, "N"])
def test_yolox_rows_are_never_turned(batch):
    model = yolox(batch)
    other = changed(model)
    # What is left brings the boxes' channels last.
    assert count(other, "Transpose") == 2
    assert not {"y", "h8.first", "h4.first"} & {node.name for node in other.graph}
    assert_same(model, other, 3 if batch == "N" else 1)


def test_both_parts_of_nanodets_map_keep_their_order():
    model = nanodet()
    other = changed(model)
    assert count(other, "Transpose") == 0
    assert count(other, "Split") == 1
    assert_same(model, other)


@pytest.mark.parametrize("also", ["reader", "output"])
def test_what_somebody_else_reads_keeps_its_order(also):
    model = yolox(also=also)
    other = changed(model)
    if other is not None:
        assert_same(model, other)
        assert count(other, "Sigmoid") == 2, "nothing is computed twice"


def test_a_tail_is_left_alone_where_more_would_be_moved():
    nodes = [
        oh.make_node("Concat", ["x", "w"], ["c"], "c", axis=1),
        oh.make_node("Slice", ["c", "from", "to", "axis"], ["s"], "s"),
        oh.make_node("Sigmoid", ["s"], ["p"], "p"),
        oh.make_node("Transpose", ["p"], ["y"], "y", perm=LAST),
    ]
    tensors = {"from": np.array([0]), "to": np.array([3]), "axis": np.array([1])}
    model = network(nodes, tensors, ["y"], inputs={"x": [1, 4, 6, 6], "w": [1, 4, 6, 6]})
    assert changed(model) is None


def test_of_two_turns_one_behind_the_other_nodes_before_the_first_stay():
    """The order of three sizes is its own inverse: what stood before the first turn was there twice, under one name."""
    nodes = [
        oh.make_node("Concat", ["a", "b"], ["row"], "row", axis=2),
        oh.make_node("Transpose", ["row"], ["turned"], "turned", perm=(0, 2, 1)),
        oh.make_node("Sigmoid", ["turned"], ["scores"], "scores"),
        oh.make_node("Transpose", ["scores"], ["y"], "y", perm=(0, 2, 1)),
    ]
    model = network(nodes, {}, ["y"], inputs={"a": [1, 3, 16], "b": [1, 3, 4]})
    found = changed(model)
    assert [node.name for node in found.graph] == ["row", "scores"]
    assert_same(model, found)


def test_an_unknown_size_is_left_alone():
    nodes = [oh.make_node("Sigmoid", ["x"], ["p"], "p"), oh.make_node("Transpose", ["p"], ["y"], "y", perm=LAST)]
    assert changed(network(nodes, {}, ["y"], inputs={"x": [1, 3, "H", "W"]})) is None


STEPS = st.lists(st.sampled_from(["Sigmoid", "Mul", "Clip", "Concat", "Split"]), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    steps=STEPS,
    axis=st.sampled_from([1, 2, 3, -1]),
    batch=st.sampled_from([1, "N"]),
    rank=st.sampled_from([2, 3, 4]),
    first=st.booleans(),
)
def test_the_values_are_the_same_whatever_stands_between(steps, axis, batch, rank, first):
    """Random steps on an image, laid in a row or not, and then turned."""
    batch = 1 if rank == 2 else batch
    nodes, tensors, value = [], {"two": np.float32(2), "low": np.float32(-0.5), "high": np.float32(0.5)}, "x"
    if first:
        nodes.append(oh.make_node("Transpose", ["x"], ["x.first"], "first", perm=FIRST))
        value = "x.first"
    sizes = [4, 6, 8]
    for place, step in enumerate(steps):
        made = f"v{place}"
        if step == "Concat":
            nodes.append(oh.make_node("Concat", [value, value], [made], f"n{place}", axis=axis))
            sizes[axis - 1 if axis > 0 else 2] *= 2
        elif step == "Split":
            nodes.append(oh.make_node("Split", [value], [f"{made}.a", f"{made}.b"], f"n{place}", axis=axis, num_outputs=2))
            nodes.append(oh.make_node("Concat", [f"{made}.b", f"{made}.a"], [made], f"m{place}", axis=axis))
        else:
            reads = {"Sigmoid": [value], "Mul": [value, "two"], "Clip": [value, "low", "high"]}[step]
            nodes.append(oh.make_node(step, reads, [made], f"n{place}"))
        value = made
    if rank < 4:
        row = [sizes[0], sizes[1] * sizes[2]]
        tensors["row"] = np.array(row if rank == 2 else [0, *row])
        nodes.append(oh.make_node("Reshape", [value, "row"], ["laid"], "laid"))
        value = "laid"
    nodes.append(oh.make_node("Transpose", [value], ["y"], "y", perm={2: (1, 0), 3: (0, 2, 1), 4: LAST}[rank]))
    used = {name for node in nodes for name in node.input}
    shape = [batch, 6, 8, 4] if first else [batch, 4, 6, 8]
    model = network(nodes, {name: array for name, array in tensors.items() if name in used}, ["y"], inputs={"x": shape})
    other = changed(model)
    # An image that came otherwise is turned where that is less than what it grew to.
    assert other is not None or not first
    if other is not None:
        assert count(other, "Transpose") == (0 if first else 1)
        assert_same(model, other, 3 if batch == "N" else 1)


def test_names_that_layers_over_pixels_give_are_not_given_again():
    """Layers over pixels call what brings channels last `<tensor>.last`."""
    model = yolox()
    first = model.graph[0]
    taken = ir.node("Transpose", [model.graph.inputs[0]], {"perm": list(LAST)}, name="h8.boxes.last")
    taken.outputs[0].name, taken.outputs[0].dtype = "h8.boxes.last", ir.DataType.FLOAT
    model.graph.insert_before(first, taken)
    model.graph.outputs.append(taken.outputs[0])
    taken.outputs[0].shape = ir.Shape([1, 8, 8, 4])
    other = changed(model)
    assert other is not None
    made = [value.name for node in other.graph for value in node.outputs] + [value.name for value in other.graph.inputs]
    names = [node.name for node in other.graph]
    assert len(set(made)) == len(made)
    assert len(set(names)) == len(names)
    assert_same(model, other)
