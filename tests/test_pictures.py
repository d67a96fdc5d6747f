"""Networks that answer with a picture are judged by it, and what a float ConvTranspose reads is no answer."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, numpy_helper
from onnx import helper as oh

from octavo.calibration.collector import collect
from octavo.graph.prepared import prepared
from octavo.params.grammar import Int8
from octavo.quantization.int8 import Images, quantize_static
from octavo.quantization.int8.noise.pictures import picture_judge
from octavo.quantization.int8.structure.heads import heads_of, last_of, map_heads
from octavo.quantization.int8.structure.units import units_of

SIZE = 24
RNG = np.random.default_rng(0)
W1, W2, W3 = RNG.normal(size=(8, 3, 3, 3)) * 0.2, RNG.normal(size=(12, 8, 3, 3)) * 0.02, RNG.normal(size=(3, 8, 3, 3))
UP = np.array([1, 1, 2, 2], np.float32)
LAYERS = [("Conv", ["x", W1], "c", {"pads": [1] * 4}), ("Relu", ["c"], "r", {})]
# A small difference, added to the image made larger.
DIFFERENCE = [
    *LAYERS,
    ("Conv", ["r", W2], "d", {"pads": [1] * 4}),
    ("DepthToSpace", ["d"], "e", {"blocksize": 2, "mode": "CRD"}),
    ("Resize", ["x", "", UP], "u", {"mode": "nearest"}),
    ("Add", ["e", "u"], "y", {}),
]
SCORES = [*LAYERS, ("Conv", ["r", W3], "y", {"pads": [1] * 4})]


def graph(steps, *, outputs=("y",), last=False) -> ir.Model:
    """Steps (op type, inputs, output, attributes) of x [1, 3, size, size], or channels last; arrays are constants."""
    constants, nodes = {}, []
    if last:
        turned = ("Transpose", ["image"], "x", {"perm": [0, 3, 1, 2]}), ("Transpose", ["y"], "z", {"perm": [0, 2, 3, 1]})
        steps, outputs = [turned[0], *steps, turned[1]], ("z",)
    for place, (op_type, inputs, output, attributes) in enumerate(steps):
        names = [value if isinstance(value, str) else f"k{place}_{number}" for number, value in enumerate(inputs)]
        constants |= {name: value for name, value in zip(names, inputs, strict=True) if not isinstance(value, str)}
        nodes.append(oh.make_node(op_type, names, [output], f"{op_type}_{place}", **attributes))
    image = ("image", [1, SIZE, SIZE, 3]) if last else ("x", [1, 3, SIZE, SIZE])
    made = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info(image[0], TensorProto.FLOAT, image[1])],
        [oh.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()],
    )
    model = onnx.shape_inference.infer_shapes(oh.make_model(made, opset_imports=[oh.make_opsetid("", 18)], ir_version=10))
    onnx.checker.check_model(model, full_check=True)
    return ir.from_proto(model)


def photos(count: int, *, last: bool = False) -> list[dict[str, np.ndarray]]:
    """Blocks of colours."""
    found = []
    for seed in range(count):
        small = np.random.default_rng(seed).uniform(size=(1, 3, 6, 6)).astype(np.float32)
        photo = small.repeat(4, axis=2).repeat(4, axis=3)
        found.append({"image": photo.transpose(0, 2, 3, 1)} if last else {"x": photo})
    return found


@pytest.mark.parametrize("last", [False, True])
def test_an_upscaler_is_judged_by_its_picture(last):
    model = graph(DIFFERENCE, last=last)
    judge = picture_judge(prepared(model), photos(4, last=last))
    assert judge is not None
    assert judge.heads == ["y"]
    images = photos(12, last=last)
    statistics = collect(model, lambda: ((str(place), feed) for place, feed in enumerate(images[:8])))
    result = quantize_static(model, statistics, Int8(placement="all"), Images(images[:8], images[8:]))
    assert result.measured["fidelity_db"] == 33.0
    assert result.measured["db"] >= 33.0
    # By the difference alone the same layers are held to 22.5 dB, and have 11 to 17 less than the picture.
    convs = [one.precision for one in result.decisions if one.node.startswith("Conv_")]
    # The last one, too, which a mask's or a detector's would not be: 8 bits hold a picture.
    assert convs == ["int8", "int8"]


@pytest.mark.parametrize(
    ("steps", "outputs"),
    [
        (SCORES, ("y",)),
        (DIFFERENCE, ("y", "d")),
        ([*LAYERS, ("Conv", ["r", W3[:1]], "y", {"pads": [1] * 4})], ("y",)),
        (
            [*DIFFERENCE[:-1], ("Add", ["e", "u"], "s", {}), ("MaxPool", ["s"], "y", {"kernel_shape": [8, 8], "strides": [8, 8]})],
            ("y",),
        ),
        ([*DIFFERENCE[:-1], ("Sub", ["e", "u"], "y", {})], ("y",)),
    ],
    ids=["scores of three classes", "two outputs", "a mask", "smaller than the image", "a negative"],
)
def test_no_picture(steps, outputs):
    assert picture_judge(prepared(graph(steps, outputs=outputs)), photos(4)) is None


def test_what_a_float_transposed_conv_reads_is_no_answer():
    """waifu2x: its input, each channel against its own variance, had 13 dB where what it makes had 27, and all went to float."""
    overlaps = {"kernel_shape": [4, 4], "strides": [2, 2], "pads": [3] * 4}
    steps = [*LAYERS, ("Conv", ["r", RNG.normal(size=(8, 8, 3, 3))], "d", {}), ("Relu", ["d"], "e", {})]
    units = units_of(graph([*steps, ("ConvTranspose", ["e", RNG.normal(size=(8, 5, 4, 4))], "y", overlaps)]))
    assert [value.name for value in heads_of(units)] == [value.name for value in last_of(units)] == ["y"]
    assert map_heads(units) == {}
