"""NoIdleMovesPass: Slices, Pads and Reshapes that change nothing are gone, and the others stay."""

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run

from octavo.graph.clean import clean
from octavo.graph.passes.cleaning.no_idle_moves import NoIdleMovesPass

FEEDS = {"x": np.random.default_rng(3).standard_normal((1, 4, 6, 6)).astype(np.float32)}
MOST = np.iinfo(np.int64).max


def sliced(starts: list, ends: list, *, axes: list | None = None, steps: list | None = None, shape: list | None = None) -> ir.Model:
    tensors = {"starts": np.array(starts), "ends": np.array(ends)}
    tensors |= {name: np.array(given) for name, given in (("axes", axes), ("steps", steps)) if given is not None}
    inputs = ["r", "starts", "ends", "axes" if axes is not None else "", "steps" if steps is not None else ""]
    while not inputs[-1]:
        inputs.pop()
    nodes = [
        oh.make_node("Relu", ["x"], ["r"], "act"),
        oh.make_node("Slice", inputs, ["s"], "cut"),
        oh.make_node("Neg", ["s"], ["y"], "last"),
    ]
    return network(nodes, tensors, ["y"], inputs={"x": shape or [1, 4, 6, 6]})


def padded(pads: list, **attributes: object) -> ir.Model:
    nodes = [
        oh.make_node("Relu", ["x"], ["r"], "act"),
        oh.make_node("Pad", ["r", "pads"], ["p"], "pad", **attributes),
        oh.make_node("Neg", ["p"], ["y"], "last"),
    ]
    return network(nodes, {"pads": np.array(pads)}, ["y"], inputs={"x": [1, 4, 6, 6]})


def reshaped(sizes: list, *, shape: list | None = None, **attributes: object) -> ir.Model:
    nodes = [
        oh.make_node("Relu", ["x"], ["r"], "act"),
        oh.make_node("Reshape", ["r", "sizes"], ["s"], "shape", **attributes),
        oh.make_node("Neg", ["s"], ["y"], "last"),
    ]
    return network(nodes, {"sizes": np.array(sizes)}, ["y"], inputs={"x": shape or [1, 4, 6, 6]})


IDLE = {
    "all of the channels": lambda: sliced([0], [4], axes=[1], steps=[1]),
    "beyond the end": lambda: sliced([0, -6], [9, MOST], axes=[1, -1]),
    "from the first axis on": lambda: sliced([0, 0], [1, 4]),
    "open sizes": lambda: sliced([0, 0], [MOST, 4], axes=[2, 1], shape=["n", 4, "h", "w"]),
    "no pads": lambda: padded([0] * 8),
    "no edges": lambda: padded([0] * 8, mode="edge"),
    "the same shape": lambda: reshaped([1, 4, 6, 6]),
    "sizes as they are": lambda: reshaped([-1, 4, 0, 0], shape=["n", 4, "h", "w"]),
    "a size that follows": lambda: reshaped([0, 4, 6, -1], shape=["n", 4, 6, "w"]),
}
MOVES = {
    "fewer channels": lambda: sliced([0], [3], axes=[1]),
    "not from the first": lambda: sliced([1], [4], axes=[1]),
    "backward": lambda: sliced([-1], [-5], axes=[1], steps=[-1]),
    "every other": lambda: sliced([0], [4], axes=[1], steps=[2]),
    "up to an open size": lambda: sliced([0], [6], axes=[2], shape=["n", 4, "h", "w"]),
    "less than none": lambda: padded([0, 0, -1, 0, 0, 0, 1, 0]),
    "another shape": lambda: reshaped([1, 6, 4, 6]),
    "fewer axes": lambda: reshaped([1, 4, -1]),
    "more axes": lambda: reshaped([1, 4, 6, 6, -1]),
    "rows for an open size": lambda: reshaped([-1, 4, 3, 12]),
    "one image for an open size": lambda: reshaped([1, 4, 6, 6], shape=["n", 4, 6, 6]),
    "two open sizes": lambda: reshaped([-1, 4, 6, 6], shape=["n", 4, "h", 6]),
}


@pytest.mark.parametrize("made", IDLE.values(), ids=IDLE)
def test_what_changes_nothing_is_gone(made):
    model = made()
    wanted = run(model, FEEDS)["y"]
    assert NoIdleMovesPass()(model).modified
    assert [node.op_type for node in model.graph] == ["Relu", "Neg"]
    assert not model.graph.initializers
    np.testing.assert_array_equal(run(model, FEEDS)["y"], wanted)


@pytest.mark.parametrize("made", MOVES.values(), ids=MOVES)
def test_what_moves_something_stays(made):
    model = made()
    assert not NoIdleMovesPass()(model).modified
    assert len(list(model.graph)) == 3


def test_an_output_keeps_its_node():
    nodes = [oh.make_node("Relu", ["x"], ["r"], "act"), oh.make_node("Pad", ["r", "pads"], ["y"], "pad")]
    model = network(nodes, {"pads": np.zeros(8, np.int64)}, ["y"], inputs={"x": [1, 4, 6, 6]})
    assert not NoIdleMovesPass()(model).modified


def test_a_whole_slice_is_gone_after_export():
    """GhostNet's modules: Concat, and a Slice of all that it has."""
    he = np.random.default_rng(1).standard_normal((4, 4, 1, 1)).astype(np.float32)
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["a"], "a"),
        oh.make_node("Conv", ["a", "w"], ["b"], "b"),
        oh.make_node("Concat", ["a", "b"], ["c"], "join", axis=1),
        oh.make_node("Slice", ["c", "starts", "ends", "axes"], ["s"], "cut"),
        oh.make_node("Relu", ["s"], ["y"], "act"),
    ]
    tensors = {"w": he, "starts": np.array([0]), "ends": np.array([8]), "axes": np.array([1])}
    model = network(nodes, tensors, ["y"], inputs={"x": [1, 4, 6, 6]})
    clean(model, 18)
    assert [node.op_type for node in model.graph] == ["Conv", "Conv", "Concat", "Relu"]
