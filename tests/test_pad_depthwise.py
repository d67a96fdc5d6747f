"""PadDepthwisePass: the same bits from wider depthwise Convs, and the graphs that it must leave alone."""

from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network, optimized, run, sqnr, statistics_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from quantized import Parts, held_to_the_bit

from octavo.calibration.tensor import TensorStatistics
from octavo.graph.passes.kernels.pad_depthwise import PadDepthwisePass
from octavo.params.grammar import Int8
from octavo.quantization.int8 import Images, quantize_static


def conv(parts: Parts, code: str, name: str, shape: tuple[int, ...], **attributes: object) -> str:
    """An integer Conv with a bias."""
    inputs = [parts.read(code, f"{name}.x"), parts.weights(f"{name}.w", *shape), f"{name}.b.read"]
    parts.tensors |= {
        f"{name}.b": parts.generator.integers(-4000, 4000, shape[0], np.int32),
        f"{name}.b.scale": parts.tensors[f"{name}.w.scale"] * parts.tensors["scale"],
        f"{name}.b.zero": np.zeros(shape[0], np.int32),
    }
    parts.nodes.append(
        oh.make_node(
            "DequantizeLinear", [f"{name}.b", f"{name}.b.scale", f"{name}.b.zero"], [f"{name}.b.read"], f"{name}.b.DQ", axis=0
        )
    )
    return parts.op("Conv", inputs, name, **attributes)


def chain(parts: Parts, width: int, *, kernel: int = 3, stride: int = 1, activation: str = "", outputs: int = 5) -> list[str]:
    """Codes of each step: dense, activation where one is given, depthwise, dense."""
    steps = [conv(parts, "x.code", "first", (width, 3, 1, 1))]
    if activation == "LeakyRelu":
        steps.append(parts.op("LeakyRelu", [parts.read(steps[-1])], "bent", alpha=0.1))
    elif activation == "Max":
        parts.nodes.append(oh.make_node("Max", [steps[-1], "zero"], ["bent"], "bent"))
        steps.append("bent")
    pads = {"pads": [kernel // 2] * 4}
    steps.append(conv(parts, steps[-1], "depthwise", (width, 1, kernel, kernel), group=width, strides=[stride] * 2, **pads))
    steps.append(conv(parts, steps[-1], "last", (outputs, width, 1, 1)))
    return steps


def groups(model: ir.Model) -> list[int]:
    return [node.attributes.get_int("group", 1) for node in model.graph if node.op_type == "Conv"]


@settings(max_examples=25, deadline=None)
@given(
    width=st.integers(14, 80),
    kernel=st.sampled_from([1, 3, 5]),
    stride=st.integers(1, 2),
    activation=st.sampled_from(["", "LeakyRelu", "Max"]),
)
def test_any_width_gives_the_same_codes(width, kernel, stride, activation):
    assume(0 < -width % 16 <= width / 6)
    parts = Parts([1, 3, 7, 8])
    model = parts.model(chain(parts, width, kernel=kernel, stride=stride, activation=activation)[-1])
    held_to_the_bit(PadDepthwisePass(), model, parts.image())
    assert groups(model) == [1, width + -width % 16, 1]


def test_it_still_runs_as_integers_and_two_in_a_row_are_both_wider(tmp_path: Path):
    parts = Parts(["n", 3, 7, 8])
    code = chain(parts, 58, activation="LeakyRelu", outputs=30)[-1]
    code = conv(parts, code, "depthwise2", (30, 1, 3, 3), group=30)
    code = conv(parts, code, "last2", (4, 30, 1, 1))
    model = held_to_the_bit(PadDepthwisePass(), parts.model(code), parts.image())
    assert groups(model) == [1, 64, 1, 32, 1]
    ran = [node.op_type for node in optimized(model, tmp_path).graph.node]
    assert ran.count("QLinearConv") == 5
    assert "Conv" not in ran


@pytest.mark.parametrize(
    "odd", ["whole", "too few", "read twice", "output", "image before", "group behind", "weights with a zero point"]
)
def test_left_alone(odd):
    parts = Parts([1, 58 if odd == "image before" else 3, 7, 8])
    width = {"whole": 64, "too few": 36}.get(odd, 58)
    outputs = []
    if odd == "image before":
        code = conv(parts, "x.code", "depthwise", (58, 1, 3, 3), group=58)
        outputs.append(conv(parts, code, "last", (5, 58, 1, 1)))
    elif odd == "group behind":
        steps = chain(parts, 58)
        outputs.append(conv(parts, steps[-2], "grouped", (4, 29, 1, 1), group=2))
    else:
        steps = chain(parts, width)
        outputs.append(steps[-1])
        if odd == "read twice":
            outputs.append(conv(parts, steps[0], "other", (4, width, 1, 1)))
        if odd == "output":
            outputs.append(steps[1])
    if odd == "weights with a zero point":
        parts.tensors["depthwise.w.zero"] += 1
    model = parts.model(*outputs)
    before = ir.to_proto(model).SerializeToString()
    assert not PadDepthwisePass()(model).modified
    assert ir.to_proto(model).SerializeToString() == before


def floats(width: int, *, activation: str = "", outputs: int = 5, odd: str = "") -> ir.Model:
    """The same chain in float."""
    generator = np.random.default_rng(7)
    tensors = {
        "first.w": he(generator, width, 3, 1, 1),
        "first.b": he(generator, width, 1)[:, 0],
        "depthwise.w": he(generator, width, 1, 3, 3),
        "last.w": he(generator, outputs, width, 1, 1),
        "low": np.float32(-0.2),
        "high": np.float32(0.7),
    }
    bends = {
        "": [oh.make_node("Identity", ["a"], ["b"], "b")],
        "SiLU": [oh.make_node("Sigmoid", ["a"], ["g"], "g"), oh.make_node("Mul", ["a", "g"], ["b"], "b")],
        "Clip": [oh.make_node("Clip", ["a", "low", "high"], ["b"], "b")],
    }
    between = bends.get(activation) or [oh.make_node(activation, ["a"], ["b"], "b")]
    nodes = [
        oh.make_node("Conv", ["x", "first.w", "first.b"], ["a"], "first"),
        *between,
        oh.make_node("Conv", ["b", "depthwise.w"], ["c"], "depthwise", group=width, pads=[1, 1, 1, 1]),
        *([oh.make_node("Sigmoid", ["c"], ["d.g"], "d.g"), oh.make_node("Mul", ["d.g", "c"], ["d"], "d")] if activation else []),
        oh.make_node("Conv", ["d" if activation else "c", "last.w"], ["y"], "last"),
    ]
    if activation == "":
        nodes[2].input[0] = "a"
        del nodes[1]
    made = ["y"]
    if odd == "gate read twice":
        nodes.append(oh.make_node("Neg", ["g"], ["z"], "z"))
        made.append("z")
    elif odd == "gate of another":
        nodes[1].input[0] = "c0"
        nodes.insert(1, oh.make_node("Neg", ["a"], ["c0"], "c0"))
    elif odd == "output":
        made.append("a")
    used = {name for node in nodes for name in node.input}
    return network(nodes, {name: array for name, array in tensors.items() if name in used}, made, inputs={"x": [1, 3, 7, 8]})


@settings(max_examples=25, deadline=None)
@given(width=st.integers(14, 80), activation=st.sampled_from(["", "LeakyRelu", "HardSwish", "Clip", "SiLU"]))
def test_float_convs_give_the_same_values(width, activation):
    assume(0 < -width % 16 <= width / 6)
    model = floats(width, activation=activation)
    image = np.random.default_rng(3).standard_normal((1, 3, 7, 8)).astype(np.float32)
    wanted = {level: run(model, {"x": image}, optimization=level)["y"] for level in ("off", "all")}
    assert PadDepthwisePass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert groups(model) == [1, width + -width % 16, 1]
    for level, values in wanted.items():
        np.testing.assert_allclose(run(model, {"x": image}, optimization=level)["y"], values, rtol=1e-4, atol=1e-5)
    assert not PadDepthwisePass()(model).modified


def test_they_then_run_in_the_blocked_layout(tmp_path: Path):
    kinds = []
    for model in (floats(58, activation="LeakyRelu"), floats(58, activation="LeakyRelu")):
        if kinds:
            PadDepthwisePass()(model)
        kinds.append([node.domain for node in optimized(model, tmp_path).graph.node if node.op_type == "Conv"])
    assert kinds[1].count("com.microsoft.nchwc") > kinds[0].count("com.microsoft.nchwc")


@pytest.mark.parametrize("odd", ["gate read twice", "gate of another", "output"])
def test_float_chains_left_alone(odd):
    assert not PadDepthwisePass()(floats(58, activation="SiLU", odd=odd)).modified


def test_int8_of_padded_layers_is_that_of_the_statistics_as_they_were():
    """What was calibrated with 58 channels serves 64: means take back the shift of rounded weights, ranges are the same."""
    model = floats(58, activation="LeakyRelu", outputs=16)
    feeds = [{"x": np.random.default_rng(place).standard_normal((1, 3, 7, 8)).astype(np.float32)} for place in range(8)]
    statistics = statistics_of(model, feeds[:6])
    result = quantize_static(model, statistics, Int8(method="minmax", placement="all", repair=False), Images(feeds[:6], feeds[6:]))
    assert result.corrected == 3, "all three layers"
    assert 64 in {node.attributes.get_int("group", 1) for node in result.model.graph if node.op_type == "Conv"}
    assert sqnr(model, result.model, feeds)["y"] > 30
    assert {decision.node for decision in result.decisions if decision.precision == "int8"} >= {"first", "depthwise", "last"}


def test_wider_statistics_are_those_of_the_wider_tensor():
    values = np.random.default_rng(0).uniform(0.5, 2, (2, 5, 3, 4)).astype(np.float32)
    plain, wide = TensorStatistics(), TensorStatistics()
    plain.update("t", values, "image")
    wide.update("t", np.concatenate([values, np.zeros((2, 3, 3, 4), np.float32)], 1), "image")
    found = plain.widened(8)
    assert (found.low, found.high) == (wide.low, wide.high) == (0.0, values.max())
    for each in ("channel_low", "channel_high"):
        np.testing.assert_array_equal(getattr(found, each), getattr(wide, each))
    np.testing.assert_array_equal(found.means(), wide.means())
    assert plain.widened(5) is plain.widened(3) is plain
    assert plain.low > 0, "the original is as it was"
