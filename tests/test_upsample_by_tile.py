"""UpsampleByTilePass: the same codes without Resize, and the Resizes that it must leave alone."""

from pathlib import Path

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import optimized, run
from hypothesis import given, settings
from hypothesis import strategies as st
from quantized import Parts, held_to_the_bit

from octavo.graph.passes.kernels.upsample_by_tile import UpsampleByTilePass

TORCH = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
REPEATS = [
    TORCH,
    {},
    {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"},
    {"coordinate_transformation_mode": "pytorch_half_pixel"},
]


def resize(parts: Parts, code: str, *, scales: list | None = None, sizes: list | None = None, **attributes: object) -> str:
    inputs = [parts.read(code), "", ""]
    if scales is not None:
        parts.tensors["scales"] = np.array(scales, np.float32)
        inputs[2] = "scales"
    else:
        parts.tensors["sizes"] = np.array(sizes, np.int64)
        inputs.append("sizes")
    return parts.op("Resize", inputs, "resize", **attributes)


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph if node.op_type not in ("QuantizeLinear", "DequantizeLinear")]


@settings(max_examples=40, deadline=None)
@given(
    attributes=st.sampled_from(REPEATS),
    factors=st.tuples(st.integers(1, 5), st.integers(1, 5)).filter(lambda pair: max(pair) > 1),
    image=st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6)),
    by_size=st.booleans(),
)
def test_any_whole_factors_give_the_same_codes(attributes, factors, image, by_size):
    parts = Parts([1, *image])
    channels, *sides = image
    sizes = [1, channels, *(side * factor for side, factor in zip(sides, factors, strict=True))]
    given = {"sizes": sizes} if by_size else {"scales": [1, 1, *factors]}
    model = parts.model(resize(parts, "x.code", **given, **attributes))
    assert ops(held_to_the_bit(UpsampleByTilePass(), model, parts.image())) == [
        "Transpose",
        "Tile",
        "Reshape",
        "Tile",
        "Reshape",
        "Transpose",
    ]


@settings(max_examples=30, deadline=None)
@given(
    attributes=st.sampled_from(REPEATS),
    factors=st.tuples(st.integers(1, 5), st.integers(1, 5)).filter(lambda pair: max(pair) > 1),
    image=st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6)),
    open_sides=st.sampled_from([("h", "w"), ("h", None), (None, "w")]),
)
def test_open_sizes_too(attributes, factors, image, open_sides):
    channels, *sides = image
    parts = Parts(["n", channels, *(name or side for name, side in zip(open_sides, sides, strict=True))])
    model = parts.model(resize(parts, "x.code", scales=[1, 1, *factors], **attributes))
    rewritten = held_to_the_bit(UpsampleByTilePass(), model, Parts([2, *image]).image())
    assert "Resize" not in ops(rewritten)
    larger = [side if name is None else side + 3 for name, side in zip(open_sides, sides, strict=True)]
    (got,) = run(rewritten, {"x": Parts([1, channels, *larger]).image()}).values()
    assert list(got.shape) == [1, channels, *(side * factor for side, factor in zip(larger, factors, strict=True))]


def test_no_transposes_are_left_between_integer_kernels(tmp_path: Path):
    parts = Parts(["n", 8, 6, 7])
    first = parts.op("Conv", [parts.read("x.code"), parts.weights("v", 16, 8, 1, 1)], "first")
    larger = resize(parts, first, scales=[1, 1, 2, 2], **TORCH)
    last = parts.op("Conv", [parts.read(larger), parts.weights("w", 4, 16, 3, 3)], "last", pads=[1, 1, 1, 1])
    model = held_to_the_bit(UpsampleByTilePass(), parts.model(last), parts.image())
    ran = [node.op_type for node in optimized(model, tmp_path).graph.node]
    assert "Resize" not in ran
    assert ran.count("QLinearConv") == 2
    assert ran.count("Transpose") == 2, "into the layout of the kernels, and out of it at the end"


LEFT = {
    "linear": {"mode": "linear"},
    "align_corners": {"coordinate_transformation_mode": "align_corners"},
    "asymmetric, rounded": {"coordinate_transformation_mode": "asymmetric"},
    "half pixel, floor": {"nearest_mode": "floor"},
    "fraction": {"scales": [1, 1, 1.5, 2]},
    "smaller": {"scales": [1, 1, 0.5, 0.5]},
    "channels": {"scales": [1, 2, 2, 2]},
    "as it is": {"scales": [1, 1, 1, 1]},
    "some axes": {"axes": [2, 3], "scales": [2, 2]},
    "sizes for an unknown side": {"scales": None, "sizes": [1, 3, 16, 16]},
    "unknown channels": {},
    "another scale": {},
    "read twice": {},
}


@pytest.mark.parametrize("odd", LEFT)
def test_left_alone(odd):
    parts = Parts([1, "c" if odd == "unknown channels" else 3, "h" if odd == "sizes for an unknown side" else 8, 8])
    attributes = {"scales": [1, 1, 2, 2]} | LEFT[odd]
    code = resize(parts, "x.code", **attributes)
    outputs = [code]
    if odd == "another scale":
        parts.tensors["scale2"] = np.float32(0.04)
        parts.nodes[-1].input[1] = "scale2"
    if odd == "read twice":
        parts.nodes.append(oh.make_node("Relu", ["resize"], ["relu"], "relu"))
        outputs.append(parts.quantize("relu"))
    model = parts.model(*outputs)
    before = ir.to_proto(model).SerializeToString()
    assert not UpsampleByTilePass()(model).modified
    assert ir.to_proto(model).SerializeToString() == before
