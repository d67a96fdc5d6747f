"""Networks that INT8 does not serve: float throughout, int8 weights in the file."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import graphs
import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run

from octavo.graph.custom_ops import CustomOps
from octavo.graph.io import save
from octavo.params.grammar import Int8
from octavo.quantization.int8 import Images, in_float, placed, quantize_static, static
from octavo.quantization.int8.in_float import speeds_of
from octavo.quantization.int8.pricing.costs import Cost, CostTable
from octavo.quantization.int8.recut import Ranged, recut
from octavo.quantization.int8.result import Int8Result
from octavo.quantization.verification import verified
from octavo.runtime.noise import sqnr_db
from octavo.runtime.timing import Latency

GENERATOR = np.random.default_rng(8)
FEEDS = [{"x": GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(12)]
IMAGES = Images(FEEDS[:8], FEEDS[8:])


def plain(outlier: float = 0.0) -> ir.Model:
    """Two Convs, a residual Add, a pool and a Gemm; an outlier among a layer's weights leaves the others few codes."""
    he = partial(graphs.he, np.random.default_rng(4))
    tensors = {"stem": he(16, 3, 3, 3), "body": he(16, 16, 3, 3), "head": he(10, 16), "bias": he(16, 1)[:, 0]}
    tensors["body"][:, 0, 0, 0] += np.float32(outlier)
    nodes = [
        oh.make_node("Conv", ["x", "stem", "bias"], ["a"], "stem", pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["a"], ["r"], "act"),
        oh.make_node("Conv", ["r", "body"], ["b"], "body", pads=[1, 1, 1, 1]),
        oh.make_node("Add", ["r", "b"], ["s"], "sum"),
        oh.make_node("GlobalAveragePool", ["s"], ["g"], "pool"),
        oh.make_node("Flatten", ["g"], ["f"], "flat"),
        oh.make_node("Gemm", ["f", "head"], ["y"], "head", transB=1),
    ]
    return network(nodes, tensors, ["y"])


MODEL = plain()
STATISTICS = graphs.statistics_of(MODEL, FEEDS[:8])


def quantized(**settings: object) -> Int8Result:
    return quantize_static(MODEL, STATISTICS, Int8(method="minmax", **settings), IMAGES)


def precisions(result: Int8Result) -> set[str]:
    return {decision.precision for decision in result.decisions}


def close(result: Int8Result) -> float:
    pairs = [(run(MODEL, feeds)["y"], run(result.model, feeds)["y"]) for feeds in FEEDS[8:]]
    signal, noise = (sum(float((one**2).sum()) for one in values) for values in zip(*((a, a - b) for a, b in pairs), strict=True))
    return sqnr_db(signal, noise)


# Everything in INT8 is faster than anything else, or slower.
FAST, SLOW = Cost(10.0, 0.1), Cost(0.0, 10.0)


@pytest.fixture
def timed(monkeypatch):
    """Let files run at told shares of FP32's speed, on a machine that they are for: the placement, and float, which is timed where
    prices call it fastest.
    """

    def told(speed: float | None, rival: float | None = None) -> list[ir.Model]:
        seen: list[ir.Model] = []

        def speeds(model, made, feeds):
            seen.extend(made.values())
            return {} if speed is None else dict(zip(made, (speed, rival), strict=False))

        costs = quantized(fidelity=10.0).costs
        priced = replace(costs, units=dict.fromkeys(costs.units, FAST if rival is None else SLOW), speeds={})
        monkeypatch.setattr(static, "measure", lambda *_: priced)
        monkeypatch.setattr(in_float, "has_vnni", lambda: True)
        monkeypatch.setattr(in_float, "speeds_of", speeds)
        return seen

    return told


def table(path: Path, cost: Cost, model: ir.Model = MODEL) -> str:
    costs = quantize_static(model, graphs.statistics_of(model, FEEDS[:8]), Int8(method="minmax", fidelity=10.0), IMAGES).costs
    replace(costs, units=dict.fromkeys(costs.units, cost), speeds={}).save(path)
    return f"table:{path}"


def test_a_file_that_runs_slower_than_fp32_computes_in_float_with_int8_weights(timed, tmp_path, monkeypatch):
    (seen,) = [timed(0.7)]
    result = quantized(fidelity=10.0)
    assert len(seen) == 1
    assert any(node.op_type == "QuantizeLinear" for node in seen[0].graph), "INT8 is what was timed"
    assert precisions(result) == {"float"}
    why = "INT8 ran at 0.70 times FP32's speed"
    assert result.measured["in_float"] == why
    (warning,) = result.warnings(repair=True)
    assert warning.startswith("all layers compute in float, with int8 weights in the file where these are close enough: ")
    assert f": {why}; `repair: false` keeps INT8" in warning
    reasons = {decision.node: decision.reason for decision in result.decisions}
    assert reasons["body"] == reasons["stem"] == reasons["head"] == f"{why}; weights int8 in the file"
    assert reasons["sum"] == why
    kinds = {node.op_type for node in result.model.graph}
    assert not kinds & {"QuantizeLinear", "DequantizeLinear"}
    codes = [value for value in result.model.graph.initializers.values() if value.dtype == ir.DataType.INT8]
    assert sorted(value.shape[0] for value in codes) == [10, 16, 16]
    assert close(result) > 35
    # The table knows it: nothing is timed again, and the bytes are the same.
    result.costs.save(tmp_path / "costs.json")
    monkeypatch.setattr(in_float, "speeds_of", None)
    again = quantized(fidelity=10.0, placement=f"table:{tmp_path / 'costs.json'}")
    assert ir.to_proto(again.model).SerializeToString() == ir.to_proto(result.model).SerializeToString()
    assert CostTable.load(tmp_path / "costs.json").speeds == result.costs.speeds


def test_where_16_bits_slow_it_the_warning_says_so(timed):
    timed(0.7)
    result = quantized(bits16=("r", "s"))
    (warning,) = result.warnings(repair=True)
    assert "INT8 ran at 0.70 times FP32's speed with `bits16`, around whose tensors layers compute in float" in warning
    timed(1.5)
    assert not quantized(bits16=("r", "s")).warnings(repair=True)


def test_what_was_too_dear_in_int8_is_not_said_of_a_file_in_float(timed, monkeypatch):
    bound = quantized(fidelity=10.0).measured["all_int8_db"] + 2
    monkeypatch.setattr(static, "fidelity_of", lambda *_: bound)
    monkeypatch.setattr(placed, "least_of", lambda _: 10.0)
    for speed, dear in ((1.5, True), (0.7, False)):
        timed(speed)
        measured = quantized().measured
        assert ("in_float" in measured) == (not dear)
        assert ("dear_db" in measured) == ("dear_price" in measured) == dear
        assert (measured["fidelity_db"] == bound) == (not dear)
        assert measured["db"] >= measured["fidelity_db"]


@pytest.mark.parametrize("speed", [None, 0.96, 1.5])
def test_a_file_that_does_not_is_int8(timed, speed):
    timed(speed)
    result = quantized(fidelity=10.0)
    assert "int8" in precisions(result)
    assert "in_float" not in result.measured
    assert list(result.costs.speeds.values()) == ([] if speed is None else [speed])


@pytest.mark.parametrize(("rival", "taken"), [(1.9, "float"), (1.72, "int8")])
def test_where_prices_call_float_fastest_it_is_timed_too(timed, rival, taken):
    """A file in float runs other kernels than the FP32 that it is made from, and may be faster than that and than INT8."""
    seen = timed(1.7, rival)
    result = quantized(fidelity=10.0)
    assert [any(node.op_type == "QuantizeLinear" for node in made.graph) for made in seen] == [True, False]
    assert taken in precisions(result)
    assert ("in_float" in result.measured) == (taken == "float")
    if taken == "float":
        assert result.measured["in_float"] == "float ran at 1.90 times FP32's speed, INT8 at 1.70"
    assert sorted(result.costs.speeds.values()) == sorted((1.7, rival))


@pytest.mark.parametrize("settings", [{"repair": False}, {"placement": "all"}, {"format": "qoperator"}, {"target": "openvino"}])
def test_speed_is_not_asked_for_where_it_decides_nothing(timed, settings):
    seen = timed(0.1)
    result = quantized(fidelity=10.0, **settings)
    assert not seen
    assert "int8" in precisions(result)


def test_times_of_a_cpu_without_vnni_decide_nothing(timed, monkeypatch):
    seen = timed(0.1)
    monkeypatch.setattr(in_float, "has_vnni", lambda: False)
    assert "int8" in precisions(quantized(fidelity=10.0))
    assert not seen


def test_where_no_placement_is_close_enough_weights_alone_are_rounded(tmp_path):
    # Priced so that none gives less than all of it back, and all of it in INT8 misses the mark.
    named = table(tmp_path / "costs.json", SLOW)
    whole = quantized(fidelity=10.0, placement=named)
    assert "int8" in precisions(whole)
    assert whole.measured["times_of"] == whole.costs.machine
    wanted = whole.measured["all_int8_db"] + 3
    result = quantized(fidelity=wanted, placement=named)
    assert result.measured["in_float"] == "none of the measured placements with INT8 in them is close enough to FP32"
    assert result.measured["db"] >= wanted
    assert precisions(result) == {"float"}
    assert "int8" in precisions(quantized(fidelity=wanted, placement=named, repair=False))
    # So it is where integer operators were asked for: it stayed far from FP32, with a warning.
    operators = quantized(fidelity=wanted, placement=named, format="qoperator")
    assert ir.to_proto(operators.model).SerializeToString() == ir.to_proto(result.model).SerializeToString()
    assert operators.measured["in_float"] == result.measured["in_float"]
    # Where those of all layers miss the mark, too, the ones that make little noise are: not the layer with the outlier.
    model = plain(outlier=20.0)
    statistics = graphs.statistics_of(model, FEEDS[:8])
    more = quantize_static(model, statistics, Int8(method="minmax", fidelity=28.0, placement=named), IMAGES)
    assert precisions(more) == {"float"}
    reasons = {decision.node: decision.reason for decision in more.decisions}
    assert "weights int8 in the file" not in reasons["body"]
    assert any("weights int8 in the file" in reason for reason in reasons.values())
    assert more.measured["db"] >= 28


def test_float16_weights_of_a_file_in_float_are_in_its_record(tmp_path):
    # int8 weights are too far, of any layer: float16 is all that is rounded.
    result = quantized(fidelity=40.0, placement=table(tmp_path / "costs.json", SLOW))
    assert result.measured["in_float"]
    assert {decision.precision for decision in result.decisions} == {"float"}
    # The judge holds features against their variance, which is less than their squares.
    assert 40 < result.measured["db"] < close(result) < 100
    # And where that is too far, too, it is of some layers, or of none.
    closer = quantized(fidelity=result.measured["db"] + 2, placement=table(tmp_path / "costs.json", SLOW))
    assert closer.measured["db"] >= result.measured["db"] + 2


def cancelling() -> ir.Model:
    """`head` sees what two halves of `body` differ by, a thousandth of their weights; `stem` before it is like any other layer."""
    he = partial(graphs.he, np.random.default_rng(6))
    tensors = {"stem": he(16, 3, 3, 3), "half": he(16, 16, 3, 3), "h": he(10, 16) * 1000}
    tensors["body"] = np.concatenate([tensors["half"], tensors["half"] + he(16, 16, 3, 3) / np.float32(1000)])
    tensors["head"] = np.concatenate([tensors.pop("h"), -he(10, 16)], 1)
    tensors["head"][:, 16:] = -tensors["head"][:, :16]
    del tensors["half"]
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["a"], "stem", pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["a"], ["r"], "act"),
        oh.make_node("Conv", ["r", "body"], ["b"], "body", pads=[1, 1, 1, 1]),
        oh.make_node("GlobalAveragePool", ["b"], ["g"], "pool"),
        oh.make_node("Flatten", ["g"], ["f"], "flat"),
        oh.make_node("Gemm", ["f", "head"], ["y"], "head", transB=1),
    ]
    return network(nodes, tensors, ["y"])


@pytest.mark.parametrize(("cost", "stem"), [(SLOW, "float"), (FAST, "int8")])
def test_layers_that_float16_brings_below_the_mark_are_float32(tmp_path, cost, stem):
    """In a file that is float throughout, and beside layers in INT8: there float16 was measured by nobody."""
    model = cancelling()
    statistics = graphs.statistics_of(model, FEEDS[:8])
    recipe = Int8(method="minmax", fidelity=24.0, placement=table(tmp_path / "costs.json", cost, model))
    result = quantize_static(model, statistics, recipe, IMAGES)
    reasons = {decision.node: (decision.precision, decision.reason) for decision in result.decisions}
    assert reasons["stem"][0] == stem
    assert "in the file" not in reasons["body"][1]
    assert result.model.graph.initializers["body"].dtype == ir.DataType.FLOAT
    if stem == "float":
        assert "in the file" in reasons["stem"][1]
    assert result.measured["db"] >= 24
    pairs = [(run(model, feeds)["y"], run(result.model, feeds)["y"]) for feeds in FEEDS[8:]]
    assert sqnr_db(sum(np.square(a).sum() for a, _ in pairs), sum(np.square(a - b).sum() for a, b in pairs)) > 24


def test_where_repair_leaves_hardly_anything_in_int8_weights_alone_are_rounded(tmp_path, monkeypatch):
    """The Gemm has nearly all that INT8 saves, and what it reads makes nearly all noise: what is left of INT8 serves nobody."""
    recuts: list[Ranged] = []
    monkeypatch.setattr(placed, "recut", lambda found, *given: recuts.append(found) or recut(found, *given))
    costs = quantized(fidelity=10.0).costs
    for most, taken in ((200.0, "float"), (10.0, "int8")):
        gains = {kind: most if "Gemm" in kind else 3.0 if "Conv" in kind else 0.3 for kind in costs.units}
        units = {kind: Cost(gain, 0.1) for kind, gain in gains.items()}
        replace(costs, units=units, speeds={}).save(tmp_path / "costs.json")
        result = quantized(fidelity=23.0, placement=f"table:{tmp_path / 'costs.json'}")
        assert precisions(result) == {"float"} | {taken}
        # Ranges of what goes back to float are not chosen again.
        assert len(recuts) == (1 if taken == "float" else 2)
        assert result.measured["all_int8_db"] < 23 <= result.measured["db"]
        if taken == "float":
            why = result.measured["in_float"]
            assert re.fullmatch(r"once it is close enough to FP32, INT8 saves \d\.\d% of float's time, by prices", why)
            (warning,) = result.warnings(repair=True)
            assert f": {why}; `repair: false` keeps INT8" in warning
            assert {decision.node: decision.reason for decision in result.decisions}["body"] == f"{why}; weights int8 in the file"


def test_estimated_prices_do_not_say_that_next_to_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(in_float, "_SAVES", 1.0)
    for placement, taken in (("all", {"float", "int8"}), (table(tmp_path / "costs.json", FAST), {"float"})):
        result = quantized(fidelity=23.0, placement=placement)
        assert result.measured["all_int8_db"] < 23 <= result.measured["db"]
        assert precisions(result) == taken


def test_such_a_file_is_accepted_and_its_record_says_that_no_layer_is_int8(timed, tmp_path):
    timed(0.5)
    result = quantized(fidelity=10.0)
    save(MODEL, tmp_path / "fp32.onnx")
    save(result.model, tmp_path / "int8.onnx")
    images = [(f"image{place}", feeds) for place, feeds in enumerate(FEEDS[8:])]
    sizes = tuple((tmp_path / f"{name}.onnx").stat().st_size for name in ("fp32", "int8"))
    made = verified(
        tmp_path / "int8.onnx",
        tmp_path / "fp32.onnx",
        result.decisions,
        images,
        name="int8.onnx",
        custom=CustomOps(),
        sizes=sizes,
        classes=1,
    )
    assert made["executed"]["int8_layers"] == made["executed"]["int8_share"] == 0
    (warning,) = result.warnings(repair=True, share=0)
    assert warning.startswith("all layers compute in float")
    assert not made["executed"]["unexpected"]
    assert not made["executed"]["unresolved"]
    assert not {node.get("runs") for node in made["nodes"]} & {"int8", "16-bit"}


def test_speed_is_fp32_s_time_over_the_file_s():
    he = partial(graphs.he, np.random.default_rng(1))
    nodes = [oh.make_node("Conv", ["x", "w"], ["y"], "w", pads=[1, 1, 1, 1])]
    feeds = {"x": np.zeros((1, 32, 128, 128), np.float32)}
    once = network(nodes, {"w": he(32, 32, 3, 3)}, ["y"], inputs={"x": [1, 32, 128, 128]})
    more = [oh.make_node("Conv", [f"y{place}", "w"], [f"y{place + 1}"], f"w{place}", pads=[1, 1, 1, 1]) for place in range(6)]
    more = [oh.make_node("Conv", ["x", "w"], ["y0"], "w", pads=[1, 1, 1, 1]), *more]
    several = network(more, {"w": he(32, 32, 3, 3)}, ["y6"], inputs={"x": [1, 32, 128, 128]})
    # Seven times the work.
    found = speeds_of(several, {"once": once, "same": several}, feeds)
    assert found["once"] > found["same"]
    assert found["once"] > 1
    assert speeds_of(MODEL, {"same": MODEL}, FEEDS[0]) == {}, "too short to be timed"


def test_a_busy_machine_makes_no_small_network_a_large_one(monkeypatch):
    times = {"": [0.04, 3.0, 3.0], "int8": [0.09, 4.0, 4.0]}
    told = lambda *_, **__: {name: Latency(np.array(samples)) for name, samples in times.items()}  # noqa: E731
    monkeypatch.setattr(in_float, "interleaved", told)
    assert speeds_of(MODEL, {"int8": MODEL}, FEEDS[0]) == {}
    times[""] = [1.4, 3.0, 3.0]
    assert speeds_of(MODEL, {"int8": MODEL}, FEEDS[0]) == {"int8": 0.75}


def test_runs_of_a_short_network_are_timed_several_together(monkeypatch):
    """A gender network of .32 ms was written in INT8 at .71 times FP32's speed."""
    ran, together = [], []
    each_ms = {"": 0.25, "int8": 0.4}

    def told(runners, **_):
        ran.clear()
        for runner in runners.values():
            runner()
        together.append(len(ran) // len(runners))
        return {name: Latency(np.array([each_ms[name] * together[-1]] * 3)) for name in runners}

    monkeypatch.setattr(in_float, "interleaved", told)
    monkeypatch.setattr(in_float, "session_of", lambda *_, **__: SimpleNamespace(run=ran.append))
    assert speeds_of(MODEL, {"int8": MODEL}, FEEDS[0]) == {"int8": 0.625}
    assert together == [1, 4]
    each_ms[""] = 0.09
    assert speeds_of(MODEL, {"int8": MODEL}, FEEDS[0]) == {}, "too short to be told"


def test_beside_other_jobs_speed_is_that_of_one_thread(monkeypatch):
    """Of a detector 3.3 times as fast the medians said .68, and all of it was float."""
    taken = {time.perf_counter_ns: {"": [8.0, 44.0, 30.0], "int8": [2.6, 65.0, 39.0]}}
    taken[time.thread_time_ns] = {"": [9.0, 9.1, 9.0], "int8": [5.9, 6.0, 6.0]}
    opened = []

    def told(_runners, *, clock, **_):
        return {name: Latency(np.array(samples)) for name, samples in taken[clock].items()}

    monkeypatch.setattr(in_float, "interleaved", told)
    monkeypatch.setattr(in_float, "session_of", lambda _graph, *, threads, entries: opened.append(threads))
    assert speeds_of(MODEL, {"int8": MODEL}, FEEDS[0]) == {"int8": 1.517}
    assert opened == [2, 2, 1, 1]
    taken[time.perf_counter_ns] = {"": [8.0, 9.0, 10.0], "int8": [10.0, 12.0, 13.0]}
    assert speeds_of(MODEL, {"int8": MODEL}, FEEDS[0]) == {"int8": 0.769}, "a machine with nothing else to do"


def test_two_rounds_of_several_seconds_say_enough(monkeypatch):
    asked = []

    def told(_runners, *, rounds, **_):
        asked.append(rounds)
        return {"": Latency(np.array([3600.0, 3500.0])), "int8": Latency(np.array([1800.0, 1750.0]))}

    monkeypatch.setattr(in_float, "interleaved", told)
    monkeypatch.setattr(in_float, "session_of", lambda *_, **__: None)
    assert speeds_of(MODEL, {"int8": MODEL}, FEEDS[0]) == {"int8": 2.0}
    assert asked == [2]
