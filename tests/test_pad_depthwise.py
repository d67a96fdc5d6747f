"""PadDepthwisePass: the same bits from wider depthwise Convs, and the graphs that it must leave alone."""

from pathlib import Path

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import optimized
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from quantized import Parts, held_to_the_bit

from octavo.graph.passes.pad_depthwise import PadDepthwisePass


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
