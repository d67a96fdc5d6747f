"""Pools of ceil_mode whose last window lies in the padding: sizes and pixels are those that ONNX Runtime makes."""

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run, sqnr, statistics_of
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.graph.clean import clean
from octavo.graph.passes.cleaning.whole_windows import WholeWindowsPass
from octavo.params.grammar import Int8
from octavo.quantization.int8 import Images, quantize_static


def doubled(op_type, size, opset=18, *, stated=None, **attributes):
    """A pool, and a Resize to twice the size that the graph asks of it."""
    nodes = [
        oh.make_node(op_type, ["x"], ["small"], "pool", ceil_mode=1, **attributes),
        oh.make_node("Shape", ["small"], ["shape"], "shape"),
        oh.make_node("Mul", ["shape", "twice"], ["size"], "mul"),
        oh.make_node("Resize", ["small", "", "", "size"], ["y"], "resize", mode="linear"),
    ]
    model = network(nodes, {"twice": np.array([1, 1] + [2] * len(size))}, ["y"], inputs={"x": [1, 2, *size]}, opset=opset)
    if stated:
        next(node for node in model.graph if node.name == "pool").outputs[0].shape = stated
    return model


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_sizes_and_pixels_are_those_that_onnx_runtime_makes(data):
    axes = data.draw(st.integers(1, 3), "axes")

    def each(low, high):
        return [data.draw(st.integers(low, high)) for _ in range(axes)]

    op_type = data.draw(st.sampled_from(["AveragePool", "LpPool", "MaxPool"]))
    size, kernel, strides = each(4, 9), each(1, 4), each(1, 4)
    pads = [data.draw(st.integers(0, length - 1)) for length in kernel * 2]
    padding = data.draw(st.sampled_from([{"pads": pads}, {"pads": pads}, {}, {"auto_pad": "VALID"}]))
    extra = {"count_include_pad": data.draw(st.integers(0, 1))} if op_type == "AveragePool" else {}
    attributes = {"kernel_shape": kernel, "strides": strides} | padding | extra
    image = {"x": np.random.default_rng(0).standard_normal((1, 2, *size)).astype(np.float32)}
    alone = network(
        [oh.make_node(op_type, ["x"], ["y"], "pool", ceil_mode=1, **attributes)], {}, ["y"], inputs={"x": [1, 2, *size]}
    )
    wanted = run(alone, image, optimization="off")["y"]
    WholeWindowsPass()(alone)
    for level in ("off", "all"):
        np.testing.assert_allclose(run(alone, image, optimization=level)["y"], wanted, rtol=0, atol=1e-6)
    assert not WholeWindowsPass()(alone).modified
    if not alone.graph.node(0).attributes.get_int("ceil_mode", 0):
        assert list(alone.graph.outputs[0].shape) == list(wanted.shape)


@pytest.mark.parametrize("opset", [13, 18, 22])
@pytest.mark.parametrize("op_type", ["AveragePool", "MaxPool"])
@pytest.mark.parametrize(
    ("size", "attributes"),
    [
        ((5, 5), {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((8, 8), {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 1, 1]}),
        # Strides beyond the kernel.
        ((6, 4), {"kernel_shape": [1, 1], "strides": [2, 2]}),
        ((6, 6), {"kernel_shape": [2, 2], "strides": [3, 3], "auto_pad": "VALID"}),
        # Along the second axis rounding up adds a window that is made.
        ((8, 8), {"kernel_shape": [2, 3], "strides": [2, 2], "pads": [0, 0, 1, 0]}),
    ],
)
def test_what_the_graph_computes_of_the_size_is_right(op_type, opset, size, attributes):
    model = doubled(op_type, size, opset, **attributes)
    image = {"x": np.random.default_rng(0).standard_normal((1, 2, *size)).astype(np.float32)}
    wanted = run(model, image, optimization="off")["y"]
    notes = clean(model, 18)
    assert any("window" in note for note in notes) == (opset < 22)
    for level in ("off", "all"):
        np.testing.assert_allclose(run(model, image, optimization=level)["y"], wanted, rtol=0, atol=1e-6)


def test_a_size_that_the_file_states_wrongly_is_forgotten():
    pool = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    model = doubled("MaxPool", (5, 5), stated=ir.Shape([1, 2, 4, 4]), **pool)
    clean(model, 18)
    assert list(model.graph.node(0).outputs[0].shape) == [1, 2, 3, 3]
    assert list(model.graph.outputs[0].shape) == [1, 2, 6, 6]


def test_two_pools_behind_each_other_are_told_one_by_one():
    """Of the second all is right once the first one's size is."""
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 1, 1], "ceil_mode": 1}
    nodes = [
        oh.make_node("MaxPool", ["x"], ["a"], "first", **attributes),
        oh.make_node("MaxPool", ["a"], ["y"], "second", **attributes),
    ]
    model = network(nodes, {}, ["y"], inputs={"x": [1, 2, 6, 6]})
    assert WholeWindowsPass()(model).modified
    assert [list(node.outputs[0].shape) for node in model.graph] == [[1, 2, 3, 3], [1, 2, 2, 2]]
    assert model.graph.node(1).attributes.get_int("ceil_mode", 0) == 1


def test_pools_of_open_size_and_of_whole_windows_stay():
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}
    open_, whole = (
        network([oh.make_node("MaxPool", ["x"], ["y"], "pool", **attributes, pads=[1] * 4)], {}, ["y"], inputs={"x": shape})
        for shape in ([1, 2, "h", "w"], [1, 2, 6, 6])
    )
    assert not WholeWindowsPass()(open_).modified
    assert not WholeWindowsPass()(whole).modified


@pytest.mark.parametrize(
    ("op_type", "extra"), [("MaxPool", {}), ("AveragePool", {}), ("AveragePool", {"count_include_pad": 1})], ids=str
)
@pytest.mark.parametrize("pads", [[0, 0, 1, 1], [0, 1, 1, 1]], ids=str)
def test_a_layer_behind_such_pools_becomes_int8(op_type, extra, pads):
    """Behind two of them quantizing ended in an error: a layer's stated size was not the one that it ran at."""
    size = [16, 16 - pads[1]]
    pool = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": pads, "ceil_mode": 1, **extra}
    nodes = [
        oh.make_node(op_type, ["x"], ["p"], "p", **pool),
        oh.make_node(op_type, ["p"], ["q"], "q", **pool),
        oh.make_node("Conv", ["q", "w"], ["y"], "conv", pads=[1, 1, 1, 1]),
    ]
    generator = np.random.default_rng(0)
    model = network(nodes, {"w": generator.standard_normal((4, 3, 3, 3)).astype(np.float32)}, ["y"], inputs={"x": [1, 3, *size]})
    image = {"x": generator.standard_normal((1, 3, *size)).astype(np.float32)}
    expected = run(model, image, optimization="off")["y"]
    assert list(model.graph.outputs[0].shape) != list(expected.shape)
    clean(model, 18)
    assert list(model.graph.outputs[0].shape) == list(expected.shape)
    result = quantize_static(model, statistics_of(model, [image] * 2), Int8(placement="all"), Images([image], [image])).model
    assert sqnr(model, result, [image])["y"] > 20
