"""What INT8 chooses by measurement: equalization, which layers go back to float, and that predictions hold."""

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run

from octavo.calibration.collector import collect
from octavo.params.grammar import Int8
from octavo.quantization.int8 import Images, quantize_static
from octavo.quantization.int8.draft import Draft, prepared
from octavo.quantization.int8.judge import Judge, heads_of
from octavo.quantization.int8.price import latency_of
from octavo.quantization.int8.repair import Trade, give_back
from octavo.quantization.int8.sensitivity import unit_noise
from octavo.quantization.int8.units import units_of

GENERATOR = np.random.default_rng(5)
FEEDS = [{"x": GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(12)]
CALIBRATION, HELD_OUT = FEEDS[:8], FEEDS[8:]


def he(*shape: int) -> np.ndarray:
    return (GENERATOR.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)


def uneven(activation: str = "Relu") -> ir.Model:
    """Conv, activation, depthwise Conv, Conv, pool, Gemm; the first layer's channels differ by a factor of 100 in size."""
    spread = np.geomspace(0.01, 1, 16).astype(np.float32).reshape(-1, 1, 1, 1)
    tensors = {
        "stem": he(16, 3, 3, 3) * spread,
        "stem.bias": he(16, 1)[:, 0] * np.float32(0.1) * spread.ravel(),
        "depth": he(16, 1, 3, 3) / spread,
        "point": he(16, 16, 1, 1),
        "head": he(10, 16),
        "zero": np.float32(0),
        "six": np.float32(6),
    }
    bounds = ["zero", "six"] if activation == "Clip" else []
    nodes = [
        oh.make_node("Conv", ["x", "stem", "stem.bias"], ["a"], "stem", pads=[1, 1, 1, 1]),
        oh.make_node(activation, ["a", *bounds], ["ar"], "act"),
        oh.make_node("Conv", ["ar", "depth"], ["d"], "depth", pads=[1, 1, 1, 1], group=16),
        oh.make_node("Conv", ["d", "point"], ["p"], "point"),
        oh.make_node("Relu", ["p"], ["pr"], "pr"),
        oh.make_node("GlobalAveragePool", ["pr"], ["g"], "g"),
        oh.make_node("Flatten", ["g"], ["f"], "f"),
        oh.make_node("Gemm", ["f", "head"], ["y"], "head", transB=1),
    ]
    return network(nodes, tensors, ["y"])


def statistics_of(model: ir.Model):
    return collect(model, lambda: ((str(place), feeds) for place, feeds in enumerate(CALIBRATION)))


def test_equalization_changes_no_float_value_and_saves_an_uneven_depthwise_layer():
    for activation in ("Relu", "Clip", "LeakyRelu"):
        model = prepared(uneven(activation))
        statistics = statistics_of(model)
        recipe = Int8(method="minmax")
        plain = Draft(model, statistics, recipe, {}, CALIBRATION)
        equal = Draft(model, statistics, recipe, {}, CALIBRATION, equalized=True)
        assert equal.equalized > 0
        for feeds in CALIBRATION:
            before, after = run(model, feeds)["y"], run(equal.model, feeds)["y"]
            assert np.allclose(before, after, rtol=1e-4, atol=1e-4 * np.abs(before).max())
        judge = Judge(model, ["y"], HELD_OUT)
        noise = [judge.judge(draft.written(draft.plan(), judge.heads)) for draft in (plain, equal)]
        assert noise[1] < noise[0] / 2


def test_the_way_that_measures_best_is_taken_and_written_down():
    model = uneven()
    result = quantize_static(model, statistics_of(model), Int8(repair=False), Images(CALIBRATION, HELD_OUT))
    tried = result.measured["tried_db"]
    assert set(tried) == {"mse", "mse, equalized", "percentile", "percentile, equalized"}
    assert result.measured["db"] == max(tried.values())
    assert "equalized" in max(tried, key=tried.get)
    again = quantize_static(model, statistics_of(model), Int8(repair=False), Images(CALIBRATION, HELD_OUT))
    assert ir.to_proto(again.model).SerializeToString() == ir.to_proto(result.model).SerializeToString()


def test_without_images_nothing_is_measured_and_auto_is_mse():
    model = uneven()
    statistics = statistics_of(model)
    auto, mse = (quantize_static(model, statistics, Int8(method=method)) for method in ("auto", "mse"))
    assert ir.to_proto(auto.model).SerializeToString() == ir.to_proto(mse.model).SerializeToString()
    assert auto.measured == {}


@pytest.mark.parametrize("fidelity", [25.0, 32.0])
def test_repair_gives_back_what_is_needed_and_says_so(fidelity):
    model = uneven()
    statistics = statistics_of(model)
    recipe = Int8(method="minmax", fidelity=fidelity)
    images = Images(CALIBRATION, HELD_OUT)
    judge = Judge(prepared(model), ["y"], HELD_OUT)
    left = quantize_static(model, statistics, recipe.model_copy(update={"repair": False}), images)
    result = quantize_static(model, statistics, recipe, images)
    assert judge.judge(result.model) <= 10 ** (-fidelity / 10)
    assert result.measured["db"] >= fidelity
    floats = {decision.node: decision.reason for decision in result.decisions if decision.precision == "float"}
    if left.measured["db"] < fidelity:
        assert any(reason.startswith("repair:") for reason in floats.values())
    assert sum(decision.precision == "int8" for decision in result.decisions) > 0


def test_one_move_is_made_where_one_is_enough():
    model = uneven()
    statistics, images = statistics_of(model), Images(CALIBRATION, HELD_OUT)
    recipe = Int8(method="minmax", repair=False)
    short = quantize_static(model, statistics, recipe, images).measured["db"] + 0.05
    result = quantize_static(model, statistics, recipe.model_copy(update={"repair": True, "fidelity": short}), images)
    assert result.measured["db"] >= short
    assert any(decision.reason.startswith("repair:") for decision in result.decisions)


def test_noise_of_single_units_adds_up_to_that_of_the_network():
    model = prepared(uneven())
    draft = Draft(model, statistics_of(model), Int8(method="minmax"), {}, CALIBRATION)
    plan = draft.plan()
    judge = Judge(model, [value.name for value in heads_of(draft.units)], HELD_OUT)
    alone = unit_noise(draft.model, plan, judge, HELD_OUT)
    assert set(alone) == {"x"} | {unit.name for unit in plan.int8}
    whole = judge.judge(draft.written(plan, judge.heads))
    assert 0.4 < sum(alone.values()) / whole < 2.5


def test_moves_only_lower_the_noise_and_end_at_the_bound():
    model = prepared(uneven())
    draft = Draft(model, statistics_of(model), Int8(method="minmax"), {}, CALIBRATION)
    plan = draft.plan()
    judge = Judge(model, ["y"], HELD_OUT)
    trade = Trade(draft, unit_noise(draft.model, plan, judge, HELD_OUT), latency_of(draft.units))
    start = sum(trade.left(set(plan.int8)).values())
    moves = give_back(trade, start / 10)
    given, before = {}, start
    for move in moves:
        given |= move
        now = sum(trade.left({unit for unit, reason in trade.placed(given).items() if not reason}).values())
        assert now < before
        before = now
    assert before <= start / 10
    assert give_back(trade, start * 1.01) == []


def test_heads_are_the_last_weights_and_each_channel_of_a_map_has_its_own_scale():
    tensors = {"stem": he(8, 3, 3, 3), "head": he(4, 8, 1, 1) * np.array([0.01, 1, 10, 100], np.float32).reshape(-1, 1, 1, 1)}
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["a"], "stem", pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["a"], ["r"], "r"),
        oh.make_node("Conv", ["r", "head"], ["h"], "head"),
        oh.make_node("Softmax", ["h"], ["y"], "y", axis=1),
    ]
    model = network(nodes, tensors, ["h", "y"])
    assert [value.name for value in heads_of(units_of(model))] == ["h"]
    result = quantize_static(model, statistics_of(model), Int8())
    for feeds in HELD_OUT:
        true, got = run(model, feeds)["h"], run(result.model, feeds)["h"]
        for channel in range(4):
            error, signal = true[:, channel] - got[:, channel], true[:, channel]
            assert 10 * np.log10((signal**2).sum() / (error**2).sum()) > 28
