"""ReLU, clamps, LeakyReLU and PReLU that exporters write as Max, Min, Abs and products: one node each in what INT8 is made from."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network, optimized, run, sqnr, statistics_of

from octavo.graph.passes.spelled.max_min_to_clip import MaxMinToClipPass
from octavo.graph.passes.spelled.prelu import PReluPass
from octavo.graph.prepared import prepared
from octavo.params.grammar import Int8
from octavo.quantization.executed import executed
from octavo.quantization.int8 import quantize_static
from octavo.runtime.kernels import optimized_nodes

GENERATOR = np.random.default_rng(11)
SHAPE = [1, 8, 6, 6]
FEEDS = {"x": GENERATOR.uniform(-9, 9, SHAPE).astype(np.float32)}
SLOPES = GENERATOR.uniform(-0.5, 0.9, (8, 1, 1)).astype(np.float32)
NUMBERS = {name: np.float32(value) for name, value in {"0": 0, "1": 1, "6": 6, "9": 9, "-1": -1, ".5": 0.5}.items()}
TENSORS = {
    **NUMBERS,
    "nan": np.float32(np.nan),
    "[6]": np.full((1, 1, 1), 6, np.float32),
    "[[6]]": np.full((1, 1, 1, 1, 1), 6, np.float32),
    "each": np.full((8, 1, 1), 6, np.float32),
    ".1": np.float32(0.1),
    "2": np.float32(2),
    "s": SLOPES,
    "-s": -SLOPES,
    "s/2": SLOPES / 2,
    "1+s": 1 + SLOPES,
    "big": 2 + SLOPES,
    "rows": GENERATOR.uniform(0, 1, (6, 1)).astype(np.float32),
}


def graph(*steps: tuple[str, ...], outputs: tuple[str, ...] = ("y",), opset: int = 18) -> ir.Model:
    """Nodes as (op type, inputs, output), each with the name of its output and a dot."""
    nodes = [oh.make_node(op, list(inputs), [output], f"{output}.") for op, *inputs, output in steps]
    read = {name for node in nodes for name in node.input}
    tensors = {name: tensor for name, tensor in TENSORS.items() if name in read}
    return network(nodes, tensors, list(outputs), inputs={"x": SHAPE}, opset=opset)


def rewritten(model: ir.Model, rule: type) -> tuple[list[str], float]:
    """The operators that a pass leaves, and by how much results differ; names of the last node and its output stay."""
    truth, last = run(model, FEEDS, optimization="off")["y"], model.graph[-1].name
    assert rule()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert (model.graph[-1].name, model.graph[-1].outputs[0].name) == (last, "y")
    assert all(list(value.uses()) for value in model.graph.initializers.values())
    assert not rule()(model).modified
    return [node.op_type for node in model.graph], float(np.abs(run(model, FEEDS, optimization="off")["y"] - truth).max())


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ([("Max", "x", "0", "y")], ["Relu"]),
        ([("Max", "0", "x", "y")], ["Relu"]),
        ([("Clip", "x", "0", "y")], ["Relu"]),
        ([("Min", "x", "6", "y")], ["Clip"]),
        ([("Max", "x", "-1", "y")], ["Clip"]),
        ([("Relu", "x", "a"), ("Min", "a", "6", "b"), ("Max", "0", "b", "y")], ["Clip"]),
        ([("Min", "x", "6", "a"), ("Max", "a", "0", "y")], ["Clip"]),
        ([("Max", "x", "0", "a"), ("Min", "a", "[6]", "y")], ["Clip"]),
        ([("Max", "-1", "x", "1", "0", "a"), ("Min", "a", "9", "6", "y")], ["Clip"]),
        ([("Relu", "x", "a"), ("Clip", "a", "1", "6", "y")], ["Clip"]),
        ([("Clip", "x", "-1", "6", "a"), ("Relu", "a", "y")], ["Clip"]),
        (
            [("Neg", "x", "n"), ("Max", "n", "0", "a"), ("Sigmoid", "a", "b"), ("Min", "b", ".5", "y")],
            ["Neg", "Relu", "Sigmoid", "Clip"],
        ),
    ],
)
def test_max_and_min_with_numbers_are_relu_or_clip_to_the_last_bit(steps, left):
    assert rewritten(graph(*steps), MaxMinToClipPass) == (left, 0.0)


def test_nan_is_still_nan():
    model = graph(("Relu", "x", "a"), ("Min", "a", "6", "b"), ("Max", "b", "0", "y"))
    feeds = {"x": np.where(FEEDS["x"] > 4, np.nan, FEEDS["x"]).astype(np.float32)}
    truth = run(model, feeds, optimization="off")["y"]
    MaxMinToClipPass()(model)
    assert np.isnan(truth).any()
    np.testing.assert_array_equal(run(model, feeds, optimization="off")["y"], truth)


@pytest.mark.parametrize(
    "changed",
    [
        {"steps": [("Relu", "x", "y")]},
        {"steps": [("Clip", "x", "0", "6", "y")]},
        {"steps": [("Min", "x", "[[6]]", "y")]},
        {"steps": [("Min", "x", "each", "y")]},
        {"steps": [("Max", "x", "nan", "y")]},
        {"steps": [("Neg", "x", "n"), ("Max", "x", "n", "0", "y")]},
        {"steps": [("Clip", "x", "0", "1", "a"), ("Max", "a", "6", "y")]},
        {"steps": [("Max", "x", "0", "y")], "opset": 10},
    ],
)
def test_what_is_no_clip_stays(changed):
    assert not MaxMinToClipPass()(graph(*changed.pop("steps"), **changed)).modified


def test_what_is_read_between_bounds_stays():
    model = graph(("Relu", "x", "a"), ("Min", "a", "6", "y"), outputs=("y", "a"))
    assert MaxMinToClipPass()(model).modified
    assert [node.op_type for node in model.graph] == ["Relu", "Clip"]


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ([("Mul", "x", ".1", "a"), ("Max", "x", "a", "y")], "LeakyRelu"),
        ([("Mul", ".1", "x", "a"), ("Max", "a", "x", "y")], "LeakyRelu"),
        ([("Mul", "x", "2", "a"), ("Min", "x", "a", "y")], "LeakyRelu"),
        ([("Mul", "x", "s", "a"), ("Max", "x", "a", "y")], "PRelu"),
        ([("Mul", "x", "big", "a"), ("Min", "x", "a", "y")], "PRelu"),
        ([("Relu", "x", "a"), ("Neg", "x", "n"), ("Relu", "n", "b"), ("Mul", "s", "b", "c"), ("Sub", "a", "c", "y")], "PRelu"),
        (
            [("Relu", "x", "a"), ("Mul", "x", "-1", "n"), ("Relu", "n", "b"), ("Mul", "b", "-s", "c"), ("Add", "c", "a", "y")],
            "PRelu",
        ),
        ([("Relu", "x", "a"), ("Neg", "x", "n"), ("Relu", "n", "b"), ("Mul", ".1", "b", "c"), ("Sub", "a", "c", "y")], "LeakyRelu"),
        (
            [("Relu", "x", "a"), ("Abs", "x", "b"), ("Sub", "x", "b", "c"), ("Mul", "c", "s/2", "d"), ("Add", "a", "d", "y")],
            "PRelu",
        ),
        (
            [
                *[("Relu", "x", "a"), ("Abs", "x", "b"), ("Sub", "x", "b", "c")],
                *[("Mul", "c", "s", "d"), ("Div", "d", "2", "e"), ("Add", "a", "e", "y")],
            ],
            "PRelu",
        ),
        ([("Max", "x", "0", "a"), ("Min", "0", "x", "b"), ("Mul", "b", "s", "c"), ("Add", "a", "c", "y")], "PRelu"),
        ([("Clip", "x", "0", "a"), ("Clip", "x", "", "0", "b"), ("Mul", "b", "s", "c"), ("Add", "a", "c", "y")], "PRelu"),
        (
            [("Relu", "x", "a"), ("Sub", "0", "x", "n"), ("Relu", "n", "b"), ("Mul", "b", ".1", "c"), ("Sub", "a", "c", "y")],
            "LeakyRelu",
        ),
        ([("Abs", "x", "b"), ("Add", "x", "b", "c"), ("Mul", "c", ".5", "y")], "Relu"),
    ],
)
def test_what_is_bent_at_zero_is_a_prelu(steps, left):
    ops, error = rewritten(graph(*steps), PReluPass)
    assert ops == [left]
    assert error < 1e-5


@pytest.mark.parametrize(
    "changed",
    [
        {"steps": [("Mul", "x", "2", "a"), ("Max", "x", "a", "y")]},
        {"steps": [("Mul", "x", "1+s", "a"), ("Max", "x", "a", "y")]},
        {"steps": [("Mul", "x", "rows", "a"), ("Max", "x", "a", "y")]},
        {"steps": [("Mul", "x", "1", "a"), ("Max", "x", "a", "y")]},
        {"steps": [("Mul", "x", ".1", "a"), ("Max", "x", "a", "y")], "outputs": ("y", "a")},
        {"steps": [("Mul", "x", ".1", "a"), ("Max", "x", "a", "1", "y")]},
        {"steps": [("Mul", "x", ".1", "a"), ("Add", "a", ".5", "b"), ("Max", "x", "b", "y")]},
        {"steps": [("Relu", "x", "a"), ("Sigmoid", "x", "n"), ("Relu", "n", "b"), ("Mul", "b", ".1", "c"), ("Sub", "a", "c", "y")]},
        {"steps": [("Relu", "x", "a"), ("Neg", "x", "n"), ("Relu", "n", "b"), ("Mul", "a", "b", "y")]},
        {"steps": [("Mul", "x", ".1", "a"), ("Max", "x", "a", "y")], "opset": 10},
    ],
)
def test_what_is_no_prelu_stays(changed):
    assert not PReluPass()(graph(*changed.pop("steps"), **changed)).modified


def test_a_prelu_of_what_relu_gives_is_that_relu():
    """MobileFaceNet's depthwise layers have both."""
    steps = [("Relu", "x", "a"), ("Abs", "a", "b"), ("Sub", "a", "b", "c"), ("Mul", "c", "s", "d"), ("Add", "a", "d", "y")]
    model = graph(*steps)
    truth = run(model, FEEDS)["y"]
    ready = prepared(model)
    assert [node.op_type for node in ready.graph] == ["Relu"]
    np.testing.assert_array_equal(run(ready, FEEDS)["y"], truth)


def test_int8_runs_them_in_integers_and_says_so_of_every_part(tmp_path):
    tensors = {"w0": he(GENERATOR, 8, 3, 3, 3), "w1": he(GENERATOR, 8, 8, 3, 3), "w2": he(GENERATOR, 5, 8)}
    tensors |= {"zero": NUMBERS["0"], "six": NUMBERS["6"], "tenth": np.float32(0.1), "s": SLOPES}
    steps = {
        "c0": ("Conv", "x", "w0"),
        **{"relu": ("Relu", "c0"), "min": ("Min", "relu", "six"), "max": ("Max", "min", "zero")},
        "c1": ("Conv", "max", "w1"),
        **{"low": ("Mul", "c1", "tenth"), "leaky": ("Max", "c1", "low")},
        "c2": ("Conv", "leaky", "w1"),
        **{
            "up": ("Relu", "c2"),
            "neg": ("Neg", "c2"),
            "down": ("Relu", "neg"),
            "bent": ("Mul", "down", "s"),
            "prelu": ("Sub", "up", "bent"),
        },
        "c3": ("Conv", "prelu", "w1"),
        **{"last": ("Max", "zero", "c3"), "pool": ("GlobalAveragePool", "last"), "flat": ("Flatten", "pool")},
    }
    nodes = [
        oh.make_node(op, inputs, [name], name, **({"pads": [1] * 4} if op == "Conv" else {}))
        for name, (op, *inputs) in steps.items()
    ]
    nodes.append(oh.make_node("Gemm", ["flat", "w2"], ["y"], "head", transB=1))
    model = network(nodes, tensors, ["y"])
    feeds = [{"x": GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32) * 2} for _ in range(6)]
    result = quantize_static(model, statistics_of(model, feeds), Int8(method="minmax", placement="all", repair=False))
    assert {decision.precision for decision in result.decisions} == {"int8"}
    assert sqnr(model, result.model, feeds)["y"] > 30
    kernels = [node.op_type for node in optimized(result.model, tmp_path).graph.node]
    assert {"Relu", "Clip", "Min", "Mul", "Neg", "Sub", "DequantizeLinear"}.isdisjoint(kernels)
    found = executed(model, result.decisions, optimized_nodes(ir.to_proto(result.model).SerializeToString()))
    assert (found.unexpected, found.unresolved) == ([], [])
    records = {record["node"]: (record["kernel"], record.get("fused_into")) for record in found.nodes}
    assert [records[name] for name in ("relu", "min", "max")] == [("QLinearConv", "c0")] * 3
    assert [records[name] for name in ("low", "leaky")] == [("QLinearLeakyRelu", "leaky"), ("QLinearLeakyRelu", None)]
    assert [records[name] for name in ("up", "neg", "down", "bent")] == [("QLinearConv", "prelu")] * 4
    assert records["last"] == ("QLinearConv", "c3")
