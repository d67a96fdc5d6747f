"""ShiftAheadPass: the same values with no shift of channels ahead of layers that can hold it, and what stays as it is."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, numpy_helper
from onnx import helper as oh

from octavo.calibration.collector import collect
from octavo.graph.passes.affine.shift_ahead import ShiftAheadPass
from octavo.graph.prepared import prepared
from octavo.params.grammar import Int8
from octavo.quantization.int8 import Images, quantize_static
from octavo.runtime.session import Session

CHANNELS = 4
RNG = np.random.default_rng(0)
SHIFT = np.linspace(-1, 2, CHANNELS).reshape(1, CHANNELS, 1, 1)
FACTOR = np.linspace(0.4, 2, CHANNELS).reshape(1, CHANNELS, 1, 1)
LAYER, GROUPED, DEPTHWISE = (RNG.normal(size=(8, size, 3, 3)) for size in (CHANNELS, 2, 1))
NORM = [RNG.uniform(0.5, 2, CHANNELS), RNG.normal(size=CHANNELS), RNG.normal(size=CHANNELS), RNG.uniform(0.5, 2, CHANNELS)]


def graph(*steps, outputs=("y",)) -> ir.Model:
    """Layer and Relu of x to `r`, then steps (op type, inputs, output, attributes); arrays among the inputs are constants."""
    constants = {"w": RNG.normal(size=(CHANNELS, 3, 3, 3)), "b": RNG.normal(size=CHANNELS)}
    nodes = [oh.make_node("Conv", ["x", "w", "b"], ["c"], "conv", pads=[1, 1, 1, 1]), oh.make_node("Relu", ["c"], ["r"], "relu")]
    for place, (op_type, inputs, output, attributes) in enumerate(steps):
        names = []
        for number, value in enumerate(inputs):
            names.append(value if isinstance(value, str) else f"k{place}_{number}")
            if not isinstance(value, str):
                constants[names[-1]] = value
        nodes.append(oh.make_node(op_type, names, [output], f"{op_type}_{place}", **attributes))
    made = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 12, 14])],
        [oh.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [
            numpy_helper.from_array(
                np.asarray(value) if np.asarray(value).dtype == np.int64 else np.asarray(value, np.float32), name
            )
            for name, value in constants.items()
        ],
    )
    model = oh.make_model(made, opset_imports=[oh.make_opsetid("", 18)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model)
    onnx.checker.check_model(model, full_check=True)
    return ir.from_proto(model)


def run(model: ir.Model) -> list[np.ndarray]:
    x = np.random.default_rng(1).normal(size=(2, 3, 12, 14)).astype(np.float32)
    return list(Session(ir.to_proto(model).SerializeToString(), threads=1).run({"x": x}).values())


def kinds(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def shifted(*behind, kind="Add", source="r", output="s"):
    """A shift of `r` to `s`, and what is behind."""
    return [(kind, [source, SHIFT], output, {}), *behind]


POOL = ("MaxPool", ["s"], "p", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]})
DENSE = RNG.normal(size=(CHANNELS * 6 * 7, 5))


@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        (shifted(("Conv", ["s", LAYER], "y", {})), ["Conv"]),
        (shifted(("Conv", ["s", LAYER, np.ones(8)], "y", {"strides": [2, 2]}), kind="Sub"), ["Conv"]),
        (shifted(("Conv", ["s", GROUPED], "y", {"group": 2})), ["Conv"]),
        (shifted(("Conv", ["s", DEPTHWISE], "y", {"group": CHANNELS, "auto_pad": "VALID"})), ["Conv"]),
        (shifted(POOL, ("Conv", ["p", LAYER], "y", {})), ["MaxPool", "Conv"]),
        (shifted(POOL, ("Flatten", ["p"], "f", {}), ("MatMul", ["f", DENSE], "y", {})), ["MaxPool", "Flatten", "Gemm"]),
        (
            shifted(
                POOL,
                ("Transpose", ["p"], "t", {"perm": [0, 2, 3, 1]}),
                ("Reshape", ["t", np.array([-1, CHANNELS * 42])], "f", {}),
                ("Gemm", ["f", DENSE.T, np.ones(5)], "y", {"transB": 1}),
            ),
            ["MaxPool", "Transpose", "Reshape", "Gemm"],
        ),
        (
            shifted(("GlobalMaxPool", ["s"], "p", {}), ("Flatten", ["p"], "f", {}), ("Gemm", ["f", DENSE[:4]], "y", {})),
            ["GlobalMaxPool", "Flatten", "Gemm"],
        ),
    ],
    ids=["Conv", "Sub", "groups", "depthwise", "pool", "vectors", "vectors, channels last", "largest of all"],
)
def test_what_reads_a_shift_takes_it(steps, wanted):
    model = graph(*steps)
    expected = run(model)
    assert ShiftAheadPass()(model).modified
    assert kinds(model) == ["Conv", "Relu", *wanted]
    np.testing.assert_allclose(run(model), expected, rtol=1e-4, atol=1e-4)
    names = {value.name for node in model.graph for value in node.outputs}
    # What calibration saw of these is still so; of what held the shift it is not.
    assert {"c", "r", "y"} <= names
    assert not names & {"s", "p", "t", "f"}


def test_several_layers_take_a_shift_each():
    model = graph(*shifted(("Conv", ["s", LAYER], "y", {}), ("Conv", ["s", GROUPED], "z", {"group": 2})), outputs=("y", "z"))
    expected = run(model)
    assert ShiftAheadPass()(model).modified
    assert kinds(model) == ["Conv", "Relu", "Conv", "Conv"]
    for found, value in zip(run(model), expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-4)


def test_before_a_layer_that_pads_a_shift_goes_behind_the_pool_and_is_a_depthwise_conv():
    model = graph(*shifted(POOL, ("Conv", ["p", LAYER], "y", {"pads": [1, 1, 1, 1]})))
    expected = run(model)
    ready = prepared(model)
    assert kinds(ready) == ["Conv", "Relu", "MaxPool", "Conv", "Conv"]
    assert ready.graph.node(3).attributes["group"].as_int() == CHANNELS
    assert (ready.graph.node(3).name, ready.graph.node(3).outputs[0].name) == ("Add_0", "p")
    np.testing.assert_allclose(run(ready), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spelled", [True, False])
def test_a_norm_between_relu_and_layer_leaves_nothing(spelled):
    scaled = [("Mul", ["r", FACTOR], "m", {}), ("Add", ["m", SHIFT], "s", {})]
    norm = scaled if spelled else [("BatchNormalization", ["r", *NORM], "s", {"epsilon": 1e-3})]
    model = graph(*norm, POOL, ("Conv", ["p", LAYER], "y", {}))
    expected = run(model)
    ready = prepared(model)
    assert kinds(ready) == ["Conv", "Relu", "MaxPool", "Conv"]
    np.testing.assert_allclose(run(ready), expected, rtol=1e-4, atol=1e-4)
    # Each value that kept its name is the one that calibration saw.
    assert {"c", "s", "p"}.isdisjoint(value.name for node in ready.graph for value in node.outputs)


@pytest.mark.parametrize(
    ("steps", "outputs"),
    [
        (shifted(("Conv", ["s", LAYER], "y", {"pads": [0, 1, 0, 0]})), ("y",)),
        (shifted(("Conv", ["s", LAYER], "y", {"auto_pad": "SAME_UPPER"})), ("y",)),
        (shifted(("Conv", ["s", LAYER], "y", {})), ("s", "y")),
        (shifted(("Conv", ["s", LAYER], "y", {}), ("Sigmoid", ["s"], "z", {})), ("y", "z")),
        ([("Add", ["r", RNG.normal(size=(1, 1, 12, 14))], "s", {}), ("Conv", ["s", LAYER], "y", {})], ("y",)),
        ([("Add", ["r", np.full_like(SHIFT, np.inf)], "s", {}), ("Conv", ["s", LAYER], "y", {})], ("y",)),
        (shifted(("AveragePool", ["s"], "p", {"kernel_shape": [2, 2]}), ("Conv", ["p", LAYER], "y", {})), ("y",)),
        ([("BatchNormalization", ["r", -NORM[0], *NORM[1:]], "s", {}), ("Conv", ["s", LAYER], "y", {})], ("y",)),
        ([("BatchNormalization", ["r", *NORM], "s", {}), ("Conv", ["s", LAYER], "y", {"pads": [1, 1, 1, 1]})], ("y",)),
    ],
    ids=["pads", "auto_pad", "an output", "no layer", "a shift each position", "infinite", "means", "below 0", "norm before pads"],
)
def test_what_stays(steps, outputs):
    model = graph(*steps, outputs=outputs)
    before = ir.to_proto(model).SerializeToString()
    assert not ShiftAheadPass()(model).modified
    assert ir.to_proto(model).SerializeToString() == before


@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 1, 1, 1]])
def test_layers_with_relu_and_norm_are_int8_throughout(pads):
    """As Keras' networks have them, frozen: the sums and the pools behind them were float."""
    block = [("Mul", ["r", FACTOR], "m", {}), ("Add", ["m", SHIFT], "s", {}), POOL, ("Conv", ["p", LAYER], "q", {"pads": pads})]
    tail = [("GlobalAveragePool", ["q"], "g", {}), ("Flatten", ["g"], "f", {}), ("Gemm", ["f", DENSE[:8, :3]], "y", {})]
    model = graph(*block, *tail)
    images = [{"x": RNG.normal(size=(1, 3, 12, 14)).astype(np.float32)} for _ in range(8)]
    statistics = collect(model, lambda: ((str(place), feed) for place, feed in enumerate(images)))
    result = quantize_static(model, statistics, Int8(placement="all", repair=False), Images(images, images[:4]))
    assert {one.precision for one in result.decisions if one.op_type in ("Conv", "MaxPool", "Mul", "Relu")} == {"int8"}
    assert result.measured["db"] > 20
