"""1x1 Convs in INT8 whose SiLU, HardSwish or Gelu computes in float on the rows that they then write."""

from __future__ import annotations

import itertools
from functools import partial

import graphs
import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, optimized, run, statistics_of
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.graph.prepared import prepared
from octavo.params.grammar import Int8
from octavo.quantization.executed import executed
from octavo.quantization.int8 import Images, quantize_static
from octavo.quantization.int8.draft import Draft
from octavo.quantization.int8.noise.head_judge import HeadJudge
from octavo.quantization.int8.pricing.costs import signature
from octavo.quantization.int8.pricing.measuring import measure
from octavo.quantization.int8.pricing.price import Prices, estimated, measured
from octavo.quantization.int8.pricing.trade import Noise, Trade
from octavo.quantization.int8.structure.heads import heads_of
from octavo.quantization.int8.structure.placement import place
from octavo.quantization.int8.structure.rows import activated, joined, placed_by_time, row_activations
from octavo.quantization.int8.structure.units import units_of
from octavo.runtime.kernels import optimized_nodes
from octavo.runtime.noise import sqnr_db

SIDE = 16
RECIPE = {"method": "minmax", "placement": "all", "repair": False}


def bottleneck(
    *,
    activation: str = "silu",
    kernel: int = 1,
    group: int = 1,
    also: str = "",
    side: int | str = SIDE,
    batch: int | str = 1,
) -> ir.Model:
    """A stem, two layers of one image with activations, their Concat, and a layer behind that; `left` is the one that varies."""
    he = partial(graphs.he, np.random.default_rng(3))
    tensors = {
        "stem.w": he(8, 3, 3, 3),
        "left.w": he(8, 8 // group, kernel, kernel),
        "left.b": he(8, 1)[:, 0],
        "right.w": he(8, 8, 1, 1),
        "body.w": he(16, 16, 3, 3),
        "head.w": he(5, 16),
    }
    nodes = [
        oh.make_node("Conv", ["x", "stem.w"], ["a"], "stem", pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["a"], ["ar"], "ar"),
        oh.make_node("Conv", ["ar", "left.w", "left.b"], ["l"], "left", pads=[kernel // 2] * 4, group=group),
        *_activation(activation, "l"),
        oh.make_node("Conv", ["ar", "right.w"], ["r"], "right"),
        *_activation(activation, "r"),
        oh.make_node("Concat", ["lo", "ro"], ["c"], "c", axis=1),
        oh.make_node("Conv", ["c", "body.w"], ["b"], "body", pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["b"], ["br"], "br"),
        oh.make_node("GlobalAveragePool", ["br"], ["p"], "p"),
        oh.make_node("Flatten", ["p"], ["f"], "f"),
        oh.make_node("Gemm", ["f", "head.w"], ["y"], "head", transB=1),
    ]
    outputs = ["y"]
    if also == "output":
        outputs.append("l")
    elif also == "reader":
        nodes.append(oh.make_node("Neg", ["l"], ["z"], "z"))
        outputs.append("z")
    return network(nodes, tensors, outputs, inputs={"x": [batch, 3, side, side]}, opset=20 if activation == "Gelu" else 18)


def _activation(kind: str, name: str) -> list[onnx.NodeProto]:
    if kind == "silu":
        return [
            oh.make_node("Sigmoid", [name], [f"{name}g"], f"{name}g"),
            oh.make_node("Mul", [name, f"{name}g"], [f"{name}o"], f"{name}o"),
        ]
    return [oh.make_node(kind, [name], [f"{name}o"], f"{name}o")]


def images(count: int, side: int = SIDE, batch: int = 1) -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(1)
    return [{"x": generator.standard_normal((batch, 3, side, side)).astype(np.float32)} for _ in range(count)]


def quantized(model: ir.Model, **recipe: object):
    feeds = images(8)
    return quantize_static(model, statistics_of(model, feeds[:6]), Int8(**{**RECIPE, **recipe}), Images(feeds[:6], feeds[6:]))


@pytest.mark.parametrize(
    ("model", "found"),
    [
        pytest.param({}, ["left", "right"], id="1x1 and SiLU"),
        pytest.param({"activation": "HardSwish"}, ["left", "right"], id="1x1 and HardSwish"),
        pytest.param({"activation": "Gelu"}, ["left", "right"], id="1x1 and Gelu"),
        pytest.param({"activation": "Relu"}, [], id="a Relu is in the kernel"),
        pytest.param({"activation": "LeakyRelu"}, [], id="LeakyRelu is one table"),
        pytest.param({"kernel": 3}, ["right"], id="3x3 has no Gemm"),
        pytest.param({"group": 8}, ["right"], id="depthwise"),
        pytest.param({"also": "output"}, ["right"], id="an output of the graph"),
        pytest.param({"also": "reader"}, ["right"], id="somebody else reads it"),
    ],
)
def test_which_layers_have_an_activation_on_rows(model, found):
    units = activated(units_of(prepared(bottleneck(**model))))
    assert [unit.name for unit in units if unit.activation] == found
    assert [layer.name for layer in row_activations(units).values()] == found


def ending(activation: str) -> ir.Model:
    """A layer, the average of its map, and a 1x1 Conv with an activation that is all of the answer."""
    he = partial(graphs.he, np.random.default_rng(3))
    nodes = [
        oh.make_node("Conv", ["x", "stem.w"], ["a"], "stem"),
        oh.make_node("GlobalAveragePool", ["a"], ["p"], "p"),
        oh.make_node("Conv", ["p", "head.w"], ["l"], "head"),
        *_activation(activation, "l"),
    ]
    tensors = {"stem.w": he(8, 3, 3, 3), "head.w": he(5, 8, 1, 1)}
    return network(nodes, tensors, ["lo"], inputs={"x": [1, 3, 4, 4]}, opset=20 if activation == "Gelu" else 18)


@pytest.mark.parametrize("activation", ["silu", "HardSwish", "Gelu"])
def test_a_last_layer_puts_out_what_it_is_judged_by(activation):
    model = prepared(ending(activation))
    feeds = images(4, 4)
    draft = Draft(model, statistics_of(model, feeds), Int8(method="minmax"), {}, feeds)
    assert not row_activations(draft.units)
    judge = HeadJudge(model, [value.name for value in heads_of(draft.units)], feeds)
    assert judge.heads == ["l"]
    assert judge.judge(draft.written(draft.plan(), judge.heads)) < 0.01


# What makes an activation float: a Gelu is anyway.
KEPT = {"silu": ["Sigmoid", "Mul"], "HardSwish": ["HardSwish"], "Gelu": []}


@pytest.mark.parametrize("activation", KEPT)
def test_a_float_activation_reads_rows_and_what_stands_behind_it_is_int8(tmp_path, activation):
    kept = KEPT[activation]
    model = bottleneck(activation=activation)
    result = quantized(model, keep_float=kept)
    kernels = [node.op_type for node in optimized(result.model, tmp_path).graph.node]
    assert kernels.count("QGemm") == 3, "both layers and the head"
    assert kernels.count("QLinearConv") == 2
    assert "DequantizeLinear" not in kernels, "nothing is brought back"
    assert "QLinearConcat" in kernels, "what reads the activations is INT8"
    decided = {decision.node: decision for decision in result.decisions}
    assert decided["left"].precision == decided["right"].precision == decided["c"].precision == "int8"
    assert "writes float" in decided["left"].reason
    assert decided["lo"].precision == "float"
    found = executed(model, result.decisions, optimized_nodes(ir.to_proto(result.model).SerializeToString()))
    runs = {record["node"]: record["runs"] for record in found.nodes}
    assert runs["left"] == runs["c"] == "int8"
    assert runs["lo"] == "float"
    wanted, got = run(model, images(9)[8])["y"], run(result.model, images(9)[8])["y"]
    assert np.abs(wanted - got).max() < 0.1


def test_fewer_roundings_make_less_noise():
    """Of three, none is left where the activation is read as it is."""
    model = prepared(bottleneck())
    draft = Draft(model, statistics_of(model, images(6)), Int8(method="minmax"), {}, images(6))
    judge = HeadJudge(model, ["lo", "ro"], images(14)[6:])
    codes, rows = (judge.judge(draft.written(draft.plan(given), judge.heads)) for given in ({}, {"lg": "", "rg": ""}))
    assert rows < 0.6 * codes


@settings(max_examples=12, deadline=None)
@given(
    activation=st.sampled_from(list(KEPT)),
    batch=st.sampled_from([1, "N"]),
    side=st.sampled_from([SIDE, "S"]),
    float_too=st.booleans(),
)
def test_rows_of_any_batch_and_size(activation, batch, side, float_too):
    """Open sizes too; with the Concat in float, activations are read both as codes and as they are."""
    model = bottleneck(activation=activation, batch=batch, side=side)
    result = quantized(model, keep_float=[*KEPT[activation], *(["c"] if float_too else [])]).model
    onnx.checker.check_model(ir.to_proto(result), full_check=True)
    assert sum(node.op_type == "Gemm" for node in result.graph) == 3
    for count, edge in ((1, SIDE), (3 if batch == "N" else 1, SIDE if side == SIDE else 2 * SIDE)):
        (feeds,) = images(1, edge, count)
        for level in ("off", "all"):
            wanted, got = run(model, feeds)["y"], run(result, feeds, optimization=level)["y"]
            assert got.shape == wanted.shape
            assert sqnr_db(float(np.square(wanted).mean()), float(np.square(wanted - got).mean())) > 25


@pytest.mark.parametrize("target", ["openvino", "tensorrt"])
def test_other_layouts_have_no_rows(target):
    model = bottleneck()
    draft = Draft(model, statistics_of(model, images(2)), Int8(method="minmax", target=target), {})
    assert not any(unit.activation for unit in draft.units)


def test_the_cost_table_times_a_layer_with_its_activation_as_they_are_written():
    model = bottleneck()
    draft = Draft(model, statistics_of(model, images(2)), Int8(method="minmax"), {})
    plan = draft.plan()
    pairs = row_activations(draft.units)
    units = [joined(layer, unit) for unit, layer in pairs.items()]
    table = measure(model, [*plan.int8, *units])
    both = {unit.name: table.units[signature(unit)] for unit in units}
    assert all(cost.int8_ms > 0 for cost in both.values())
    prices = measured(draft.units, table, plan.int8)
    for unit, layer in pairs.items():
        # What the two cost together comes out, whatever the parts do.
        placed = set(plan.int8) - {unit}
        extra = prices.dequantize[layer.outputs[0]] * 2
        assert extra == pytest.approx(max(0.0, both[layer.name].int8_ms - prices.units[layer][1] - prices.units[unit][0]))
        moved = prices.of(placed) - prices.of(set(plan.int8))
        assert moved == pytest.approx(
            prices.units[unit][0] - prices.units[unit][1] + extra + table.rounding_ms(unit.outputs[0], to_int8=True)
        )
        border = prices.of(placed - {layer}) - prices.of(placed)
        assert border == pytest.approx(
            prices.units[layer][0]
            - prices.units[layer][1]
            - extra
            + prices.dequantize[layer.inputs[0]]
            + table.moving_ms(unit.outputs[0], to_int8=True)
        )


def test_an_activation_that_is_float_anyway_costs_what_it_adds_to_its_layer():
    model = bottleneck(activation="Gelu")
    draft = Draft(model, statistics_of(model, images(2)), Int8(method="minmax"), {})
    plan = draft.plan()
    pairs = placed_by_time(draft.units, plan.int8)
    assert [layer.name for layer in pairs.values()] == ["left", "right"]
    assert not set(pairs) & set(plan.int8)
    units = [joined(layer, unit) for unit, layer in pairs.items()]
    table = measure(model, [*plan.int8, *units])
    prices = measured(draft.units, table, plan.int8)
    for layer in pairs.values():
        both, alone = table.units[signature(next(unit for unit in units if unit.name == layer.name))], table.units[signature(layer)]
        more = both.int8_ms - alone.int8_ms - (both.float_ms - alone.float_ms)
        assert prices.dequantize[layer.outputs[0]] == pytest.approx(max(0.0, more))


UNITS = activated(units_of(prepared(bottleneck())))
TENSORS = list(dict.fromkeys(value for unit in UNITS for value in (*unit.inputs, *unit.outputs)))
TIMES = st.integers(0, 20).map(lambda count: count / 4)


@settings(deadline=None, max_examples=40)
@given(data=st.data(), weight=st.sampled_from([0.0, 0.5, 3.0]))
def test_the_cheapest_placement_is_the_cheapest_of_all(data, weight):
    def draw(keys):
        return {key: data.draw(TIMES) for key in keys}

    reasons = place(UNITS, {})
    free = [unit for unit in UNITS if not reasons[unit]]
    times = {unit: (data.draw(TIMES), data.draw(TIMES)) for unit in UNITS}
    on_rows = row_activations(UNITS)
    moving = {value: (data.draw(TIMES), data.draw(TIMES)) for unit in on_rows for value in unit.outputs}
    prices = Prices(times, draw(TENSORS), draw(TENSORS), on_rows=on_rows, moving=moving)
    noise = Noise(
        draw(value.name for value in TENSORS), draw(unit.name for unit in UNITS if unit.kind == "linear"), frozenset({"c"})
    )
    trade = Trade(reasons, prices, noise)

    def cost(int8):
        return prices.of(int8) + weight * trade.noise_of(int8)

    least = None
    for chosen in itertools.product([False, True], repeat=len(free)):
        kept = {node.name: "" for unit, taken in zip(free, chosen, strict=True) if not taken for node in unit.nodes}
        int8 = {unit for unit, taken in zip(free, chosen, strict=True) if taken}
        if int8 == {unit for unit, reason in place(UNITS, {}, kept).items() if not reason}:
            least = cost(int8) if least is None else min(least, cost(int8))
    assert cost(trade.cheapest(weight)) == pytest.approx(least)


def test_what_a_layer_puts_out_is_rounded_for_an_integer_activation_alone():
    prices = estimated(UNITS)
    units = {unit.name: unit for unit in UNITS}
    trade = Trade(place(UNITS, {}), prices, Noise({"l": 1.0}, {}))
    layer, activation = units["left"], units["lg"]
    assert trade.noise_of({layer}) == 0.0
    assert trade.noise_of({layer, activation}) == 1.0
    assert trade.own_noise(layer, {layer}) == 0.0
    assert prices.dequantize[layer.outputs[0]] > 0
