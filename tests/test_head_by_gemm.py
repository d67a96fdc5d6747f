"""HeadByGemmPass: YOLO's heads as rows, the same boxes, and the heads that stay Convs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network, optimized, run, statistics_of
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.graph.passes.head_by_gemm import HeadByGemmPass
from octavo.params.grammar import Int8
from octavo.quantization.int8 import Images, quantize_static

HEIGHT, WIDTH = 4, 6
YOLO, RETINA = (0, 1, 3, 4, 2), (0, 3, 4, 1, 2)


def head(
    *,
    parts: int = 3,
    size: int = 7,
    perm: tuple[int, ...] = YOLO,
    kernel: int = 1,
    shape: list[int] | None = None,
    batch: int | str = 1,
    integer: bool = True,
    stored: bool = False,
    bias: bool = True,
    seen: str = "",
) -> ir.Model:
    """Codes of an integer Conv (or of a float one), DQ, Conv, Reshape, Transpose, Sigmoid."""
    generator = np.random.default_rng(parts * size)
    channels = parts * size
    tensors = {
        "scale": np.float32(0.05),
        "zero": np.uint8(120),
        "stem": generator.integers(-90, 90, (8, 3, 1, 1)).astype(np.int8),
        "stem.scale": np.float32(0.02),
        "w": he(generator, channels, 8, kernel, kernel),
        "b": generator.standard_normal(channels).astype(np.float32),
        "shape": np.array(shape or [-1, parts, size, HEIGHT, WIDTH]),
        "w.int8": generator.integers(-127, 127, (channels, 8, kernel, kernel)).astype(np.int8),
        "w.scale": np.float32(0.01),
    }
    nodes = [
        oh.make_node("QuantizeLinear", ["x", "scale", "zero"], ["x.code"], "x.Q"),
        oh.make_node("DequantizeLinear", ["x.code", "scale", "zero"], ["x.read"], "x.DQ"),
        oh.make_node("DequantizeLinear", ["stem", "stem.scale"], ["stem.read"], "stem.DQ"),
        oh.make_node("Conv", ["x.read" if integer else "x", "stem.read"], ["s"], "stem"),
        oh.make_node("QuantizeLinear", ["s", "scale", "zero"], ["s.code"], "s.Q"),
        oh.make_node("DequantizeLinear", ["s.code", "scale", "zero"], ["s.read"], "s.DQ"),
    ]
    if stored:
        nodes.append(oh.make_node("Cast", ["w.int8"], ["w.float"], "w.cast", to=onnx.TensorProto.FLOAT))
        nodes.append(oh.make_node("Mul", ["w.float", "w.scale"], ["w.restored"], "w.restore"))
    pads = [kernel // 2] * 4
    nodes += [
        oh.make_node("Conv", ["s.read", "w.restored" if stored else "w", *(["b"] if bias else [])], ["c"], "head", pads=pads),
        oh.make_node("Reshape", ["c", "shape"], ["r"], "parted"),
        oh.make_node("Transpose", ["r"], ["t"], "moved", perm=perm),
        oh.make_node("Sigmoid", ["t"], ["y"], "y"),
    ]
    used = {name for node in nodes for name in node.input}
    tensors = {name: value for name, value in tensors.items() if name in used}
    return network(nodes, tensors, ["y", *([seen] if seen else [])], inputs={"x": [batch, 3, HEIGHT, WIDTH]})


def image(batch: int = 1) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(3).standard_normal((batch, 3, HEIGHT, WIDTH)).astype(np.float32)}


@settings(max_examples=20, deadline=None)
@given(
    parts=st.integers(1, 4),
    size=st.integers(1, 9),
    perm=st.sampled_from([YOLO, RETINA, (0, 4, 3, 1, 2), (0, 1, 4, 3, 2)]),
    stored=st.booleans(),
    bias=st.booleans(),
    batch=st.sampled_from([1, 2, "N"]),
)
def test_the_same_rows_from_a_gemm(parts, size, perm, batch, **weights):
    model = head(parts=parts, size=size, perm=perm, batch=batch, **weights)
    feeds = image(3 if batch == "N" else batch)
    before = {level: run(model, feeds, optimization=level)["y"] for level in ("off", "all")}
    assert HeadByGemmPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    ops = [node.op_type for node in model.graph]
    assert ops.count("Conv") == 1
    assert ops.count("Gemm") == 1
    for level, wanted in before.items():
        np.testing.assert_allclose(run(model, feeds, optimization=level)["y"], wanted, rtol=1e-4, atol=1e-5)
    assert not HeadByGemmPass()(model).modified


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(head(kernel=3), id="a 3x3 Conv"),
        pytest.param(head(integer=False), id="behind a float layer"),
        pytest.param(head(perm=(0, 1, 2, 4, 3)), id="channels do not come last"),
        pytest.param(head(shape=[-1, 7, 3, WIDTH, HEIGHT]), id="rows and columns are parted otherwise"),
        pytest.param(head(seen="c"), id="the Conv's output is seen"),
        pytest.param(head(seen="r"), id="the Reshape's output is seen"),
    ],
)
def test_other_heads_stay_convs(model):
    before = ir.to_proto(model).SerializeToString()
    assert not HeadByGemmPass()(model).modified
    assert ir.to_proto(model).SerializeToString() == before


def test_a_quantized_detector_has_its_heads_as_gemms(tmp_path):
    generator = np.random.default_rng(0)
    tensors = {
        "stem": he(generator, 16, 3, 3, 3),
        "body": he(generator, 32, 16, 3, 3),
        "head": he(generator, 21, 32, 1, 1),
        "bias": generator.standard_normal(21).astype(np.float32),
        "shape": np.array([1, 3, 7, 16, 16]),
    }
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["a"], "stem", pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["a"], ["ar"], "ar"),
        oh.make_node("Conv", ["ar", "body"], ["b"], "body", pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["b"], ["br"], "br"),
        oh.make_node("Conv", ["br", "head", "bias"], ["h"], "head"),
        oh.make_node("Reshape", ["h", "shape"], ["r"], "r"),
        oh.make_node("Transpose", ["r"], ["t"], "t", perm=YOLO),
        oh.make_node("Sigmoid", ["t"], ["y"], "y"),
    ]
    model = network(nodes, tensors, ["y"])
    feeds = [{"x": generator.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(8)]
    result = quantize_static(
        model, statistics_of(model, feeds[:6]), Int8(placement="all", fidelity=5), Images(feeds[:6], feeds[6:])
    ).model
    (gemm,) = [node for node in result.graph if node.op_type == "Gemm"]
    assert gemm.name == "head"
    kernels = [node.op_type for node in optimized(result, tmp_path).graph.node]
    assert kernels.count("QLinearConv") == 2
    assert "ReorderOutput" not in kernels
    wanted, got = run(model, feeds[7])["y"], run(result, feeds[7])["y"]
    assert np.abs(wanted - got).max() < 0.1
