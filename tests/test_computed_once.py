"""What a graph computes twice, as INT8 begins with it."""

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network, run, sqnr, statistics_of

from octavo.graph.passes.cleaning.computed_once import ComputedOncePass
from octavo.params.grammar import Int8
from octavo.quantization.int8 import Images, quantize_static

IMAGE = {"x": np.random.default_rng(3).standard_normal((1, 3, 16, 16)).astype(np.float32)}


def names(model: ir.Model) -> list[str | None]:
    return [node.name for node in model.graph]


def differences(*behind: str) -> ir.Model:
    """The mean twice, its axes in a constant each; the difference as often; what is behind reads them."""
    nodes = [
        oh.make_node("ReduceMean", ["x", "axes"], ["m"], "m"),
        oh.make_node("ReduceMean", ["x", "same"], ["n"], "n"),
        oh.make_node("Sub", ["x", "m"], ["d"], "d"),
        oh.make_node("Sub", ["x", "n"], ["e"], "e"),
        oh.make_node("Mul", ["d", "e"], [behind[0] if behind else "y"], "square"),
    ]
    return network(nodes, {"axes": np.array([2, 3]), "same": np.array([2, 3])}, list(behind) or ["y"])


def test_nodes_that_do_the_same_become_one():
    model = differences()
    wanted = run(model, IMAGE)["y"]
    assert ComputedOncePass()(model).modified
    assert names(model) == ["m", "d", "square"]
    assert "same" not in model.graph.initializers
    np.testing.assert_array_equal(run(model, IMAGE)["y"], wanted)
    assert not ComputedOncePass()(model).modified


def test_nodes_that_are_named_and_those_that_the_graph_puts_out_stay():
    model = differences()
    ComputedOncePass(["e"])(model)
    assert names(model) == ["m", "d", "e", "square"]
    model = differences("y", "e")
    ComputedOncePass()(model)
    assert names(model) == ["m", "d", "e", "square"]


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("RandomUniformLike", {}, {}),
        ("Elu", {"alpha": 1.0}, {"alpha": 0.5}),
        ("LeakyRelu", {"alpha": 0.1}, {}),
    ],
)
def test_nodes_of_chance_or_other_settings_stay(kind, one, other):
    nodes = [oh.make_node(kind, ["x"], [name], name, **settings) for name, settings in (("a", one), ("b", other))]
    model = network([*nodes, oh.make_node("Add", ["a", "b"], ["y"], "sum")], {}, ["y"])
    assert not ComputedOncePass()(model).modified


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_norm_that_writes_its_difference_several_times_is_no_integer_one(count):
    """Deviations squared as integers, and a variance of these: all that stands around went back to float."""
    random = np.random.default_rng(5)
    differences = [f"d{place}" for place in range(count)]
    one, two, three = (differences * 3)[:3]
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["a"], "stem", pads=[1, 1, 1, 1]),
        oh.make_node("ReduceMean", ["a", "axes"], ["mean"], "mean"),
        *(oh.make_node("Sub", ["a", "mean"], [name], name) for name in differences),
        oh.make_node("Mul", [two, three], ["square"], "square"),
        oh.make_node("ReduceMean", ["square", "axes"], ["variance"], "variance"),
        oh.make_node("Add", ["variance", "epsilon"], ["more"], "more"),
        oh.make_node("Sqrt", ["more"], ["root"], "root"),
        oh.make_node("Div", [one, "root"], ["normed"], "normed"),
        oh.make_node("Mul", ["normed", "gain"], ["scaled"], "scaled"),
        oh.make_node("Add", ["scaled", "shift"], ["b"], "shifted"),
        oh.make_node("Relu", ["b"], ["r"], "relu"),
        oh.make_node("Conv", ["r", "head"], ["y"], "head", pads=[1, 1, 1, 1]),
    ]
    gain, shift = ((base + 0.2 * random.standard_normal((1, 16, 1, 1))).astype(np.float32) for base in (1, 0))
    constants = {"axes": np.array([2, 3]), "epsilon": np.float32(1e-5), "gain": gain, "shift": shift}
    constants |= {"stem": he(random, 16, 3, 3, 3), "head": he(random, 8, 16, 3, 3)}
    model = network(nodes, constants, ["y"])
    sizes, colours = random.uniform(0.2, 2, (12, 1, 1, 1, 1)), random.standard_normal((12, 1, 3, 1, 1))
    photos = sizes * random.standard_normal((12, 1, 3, 16, 16)) + colours
    feeds = [{"x": photo.astype(np.float32)} for photo in photos]
    images = Images(feeds[:8], feeds[8:])
    result = quantize_static(model, statistics_of(model, feeds[:8]), Int8(placement="all", repair=False), images)
    assert "square" not in {one.node for one in result.decisions if one.precision == "int8"}
    assert sqnr(model, result.model, feeds[8:])["y"] > 20
