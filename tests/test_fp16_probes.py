"""What float16 costs, measured inside the graph: against the same sums over the tensors themselves."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from test_fp16 import build, networks, node

from octavo.errors import ModelRunError
from octavo.quantization.fp16 import convert, measure
from octavo.quantization.fp16.measure import broken, compare, reach, rounded_everywhere
from octavo.quantization.fp16.probes import FP32, beside
from octavo.runtime import session
from octavo.runtime.noise import SQNR_CAP, sqnr_db
from octavo.runtime.tensors import float_activations, read_tensors


def fetched(model: ir.Model, feeds: list[dict], names: list[str]) -> list[dict[str, np.ndarray]]:
    places = [(str(place), feed) for place, feed in enumerate(feeds)]
    return [found for _, found in read_tensors(model, names, lambda: places, optimization="off", group_bytes=1 << 40)]


def halved(model: ir.Model, **options) -> ir.Model:
    return convert(model, **{"keep_io": True, "keep_float": {}} | options).model


@settings(max_examples=30, deadline=None, derandomize=True)
@given(networks())
def test_losses_and_reaches_are_those_of_the_tensors(drawn):
    model, kept, keep_io = drawn
    feeds = [{"x": np.random.default_rng(seed).normal(size=(2, 3, 6, 6)).astype(np.float32)} for seed in (1, 2)]
    half = halved(model, keep_io=keep_io, keep_float=dict.fromkeys(kept, "asked"))
    names = float_activations(model)
    expected = fetched(model, feeds, names)
    halves = {value.name for value in half.graph.inputs if value.dtype == ir.DataType.FLOAT16}
    got = fetched(rounded_everywhere(half), [session.halved(feed, halves) for feed in feeds], names)
    losses, reached = compare(model, half, feeds, names), reach(model, feeds)
    before = ir.to_proto(half).SerializeToString()
    assert compare(model, half, feeds, names, known=expected) == losses
    assert ir.to_proto(half).SerializeToString() == before
    for name in names:
        pairs = [(a[name].astype(np.float64), b[name].astype(np.float64)) for a, b in zip(expected, got, strict=True)]
        signal, noise = (sum(float((one**2).sum()) for one in part) for part in ([a for a, _ in pairs], [a - b for a, b in pairs]))
        assert losses[name].comparable
        assert losses[name].sqnr_db == pytest.approx(sqnr_db(signal, noise), abs=0.05), name
        assert reached[name] == pytest.approx(max(np.abs(a).max() for a, _ in pairs), rel=1e-5), name


def test_both_graphs_stay_as_they_were_and_share_what_is_equal():
    weights = {"w": np.ones((4, 4), np.float32), "shape": np.array([-1, 2])}
    model = build(
        [node("MatMul", ["x", "w"], ["m"]), node("Reshape", ["m", "shape"], ["y"])], {"x": ["n", 4]}, {"y": ["k", 2]}, weights
    )
    half = halved(model, keep_io=False)
    before = [ir.to_proto(one).SerializeToString() for one in (model, half)]
    merged = beside(model, half)
    assert [ir.to_proto(one).SerializeToString() for one in (model, half)] == before
    assert merged.graph.inputs[0].dtype == ir.DataType.FLOAT
    assert f"{FP32}w" in merged.graph.initializers
    assert f"{FP32}shape" not in merged.graph.initializers


def test_infinities_of_fp32_are_no_loss_and_those_of_float16_are():
    weights = {"mask": np.array([[-np.inf, 0, 0, 0]], np.float32), "ten": np.float32(10)}
    nodes = [node("Add", ["x", "mask"], ["a"]), node("Softmax", ["a"], ["p"], axis=1), node("Mul", ["x", "ten"], ["y"])]
    model = build(nodes, {"x": ["n", 4]}, {"p": ["n", 4], "y": ["n", 4]}, weights)
    feeds = [{"x": np.array([[1, 2, 3, 4]], np.float32)}]
    losses = compare(model, halved(model), feeds, ["a", "p", "y"])
    assert not any(loss.broken for loss in losses.values())
    assert losses["a"].sqnr_db == SQNR_CAP
    assert losses["p"].sqnr_db > 55
    assert reach(model, feeds)["a"] == 4

    feeds = [{"x": np.array([[1, 2, 3, 4]], np.float32)}, {"x": np.array([[1, 2, 3, 7000]], np.float32)}]
    losses = compare(model, halved(model), feeds, ["a", "y"])
    assert (losses["a"].broken, losses["y"].broken) == (False, True)
    half = convert(model, keep_io=False, keep_float={}).model
    assert broken(model, half, feeds, ["a", "y"]) == ["y"]


def test_fp32_does_not_run_again_where_fp16_is_finite(monkeypatch):
    model = build([node("Mul", ["x", "ten"], ["y"])], {"x": ["n", 4]}, {"y": ["n", 4]}, {"ten": np.float32(10)})
    half, ran = convert(model, keep_io=False, keep_float={}).model, []
    read = measure.read_tensors

    def watched(graph, names, samples, *, what):
        for where, values in read(graph, names, samples, what=what):
            ran.append((what, where))
            yield where, values

    monkeypatch.setattr(measure, "read_tensors", watched)
    feeds = [{"x": np.array([[1, 2, 3, last]], np.float32)} for last in (4, 7000)]
    assert broken(model, half, feeds[:1], ["y"]) == []
    assert ran == [("FP16", "sample 0")]
    assert broken(model, half, feeds, ["y"]) == ["y"]
    assert ran[1:] == [("FP16", "sample 0"), ("FP16", "sample 1"), ("FP32", "sample 1")]


def rows(threshold: float) -> ir.Model:
    """Rows of x above a threshold, as a detector's post-processing picks them, and what is computed of them."""
    weights = {"threshold": np.float32(threshold), "zero": np.array([0]), "two": np.float32(2)}
    nodes = [
        node("Relu", ["x"], ["top"]),
        node("Greater", ["top", "threshold"], ["above"]),
        node("NonZero", ["above"], ["places"]),
        node("Transpose", ["places"], ["turned"]),
        node("GatherND", ["x", "turned"], ["picked"]),
        node("Mul", ["picked", "two"], ["y"]),
    ]
    return build(nodes, {"x": ["n", 4]}, {"y": ["k"]}, weights)


@pytest.mark.parametrize("threshold", [0.5, 100])
def test_tensors_whose_size_the_data_decide(threshold):
    model = rows(threshold)
    loss = compare(model, halved(model), [{"x": np.array([[0.1, 1.1, 2.1, 3.3]], np.float32)}], ["y"])["y"]
    assert loss.comparable
    assert loss.sqnr_db > 55


@pytest.mark.parametrize("large", [3.3, 50000])
def test_tensors_of_two_sizes_are_not_compared_but_must_be_finite(large):
    model = rows(1.0)
    # Float16 rounds 1.0003 to 1: one row fewer.
    feeds = [{"x": np.array([[0.1, 1.0003, 2.1, large]], np.float32)}]
    half = halved(model, keep_io=False)
    loss = compare(model, half, feeds, ["y"])["y"]
    assert compare(model, half, feeds, ["y"], known=fetched(model, feeds, ["y"]))["y"] == loss
    assert not loss.comparable
    assert loss.broken == (large > 40000)
    assert loss.sqnr_db == (-SQNR_CAP if large > 40000 else SQNR_CAP)
    assert broken(model, half, feeds, ["y"]) == (["y"] if large > 40000 else [])


def test_an_output_of_fp32_that_is_nan_is_named():
    model = build([node("Sqrt", ["x"], ["s"]), node("Relu", ["x"], ["y"])], {"x": ["n", 2]}, {"s": ["n", 2], "y": ["n", 2]})
    with pytest.raises(ModelRunError, match=r"'s' holds NaN on sample 1"):
        reach(model, [{"x": np.ones((1, 2), np.float32)}, {"x": -np.ones((1, 2), np.float32)}])
