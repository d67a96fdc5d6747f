"""QParams and Codes: properties that hold for any range, weights and bias."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import pytest
from graphs import network, run
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.numbers.shifts import own_shifts, rounding_shifts
from octavo.quantization.int8.numbers.weights import Codes, bias_of, channel_axis, codes_of
from octavo.quantization.int8.structure.units import units_of
from octavo.runtime.session import Session

ENDS = st.floats(-1e6, 1e6, width=32)
BITS = st.sampled_from([8, 16])
# Half a step, and what float32 adds to it at 16 bits.
HALF = {8: 0.5 + 1e-4, 16: 0.5 + 2e-2}


def codes_fit(chosen: QParams, bits: int) -> bool:
    return chosen.zero_point.dtype == {8: np.uint8, 16: np.uint16}[bits] and chosen.scale.dtype == np.float32 and chosen.scale > 0


@given(ENDS, ENDS, BITS, st.booleans())
def test_zero_is_exact_and_the_range_is_covered_to_within_a_step(one, other, bits, symmetric):
    low, high = min(one, other), max(one, other)
    chosen = QParams.spanning(low, high, bits=bits, symmetric=symmetric)
    assert codes_fit(chosen, bits)
    assert chosen.rounded(np.zeros(3, np.float32)).tolist() == [0, 0, 0]
    assert chosen.low <= 0 <= chosen.high
    step = float(chosen.scale) * (1 + 1e-3)
    assert chosen.low <= min(low, 0.0) + step
    assert chosen.high >= max(high, 0.0) - step
    if symmetric:
        assert int(chosen.zero_point) == 2 ** (bits - 1)
        assert chosen.low == pytest.approx(-(chosen.high + float(chosen.scale)), rel=1e-5)
    elif max(high, 0) - min(low, 0) > 1e-30:
        assert chosen.high - chosen.low == pytest.approx(max(high, 0) - min(low, 0), rel=1e-5), "no code is wasted"


@given(ENDS, ENDS, BITS, st.booleans(), st.floats(0, 1))
def test_values_inside_move_half_a_step_at_most_and_codes_stay(one, other, bits, symmetric, share):
    chosen = QParams.spanning(min(one, other), max(one, other), bits=bits, symmetric=symmetric)
    value = np.float32(chosen.low + share * (chosen.high - chosen.low))
    rounded = chosen.rounded(np.array([value], np.float32))
    assert rounded.dtype == np.float32
    assert abs(float(value) - float(rounded[0])) <= HALF[bits] * float(chosen.scale)
    assert np.array_equal(chosen.rounded(rounded), rounded)


@given(ENDS, ENDS, st.booleans())
def test_values_outside_go_to_the_ends(one, other, symmetric):
    chosen = QParams.spanning(min(one, other), max(one, other), symmetric=symmetric)
    beyond = np.array([chosen.low - 1e7, chosen.high + 1e7], np.float32)
    assert chosen.rounded(beyond).tolist() == pytest.approx([chosen.low, chosen.high])


@pytest.mark.parametrize("ends", [(0, 0), (0, 1e-44), (-1e-42, 0), (0.0, 1e-36)])
@pytest.mark.parametrize("symmetric", [False, True])
def test_a_range_of_nothing_has_a_finite_scale(ends, symmetric):
    chosen = QParams.spanning(*ends, symmetric=symmetric)
    assert np.isfinite(chosen.scale)
    assert chosen.scale >= np.finfo(np.float32).tiny
    assert chosen.rounded(np.zeros(1, np.float32)).tolist() == [0]


@given(ENDS, ENDS, st.booleans())
def test_signed_codes_are_unsigned_ones_less_128(one, other, symmetric):
    low, high = min(one, other), max(one, other)
    unsigned, signed = (QParams.spanning(low, high, symmetric=symmetric, signed=signed) for signed in (False, True))
    assert signed.zero_point.dtype == np.int8
    if symmetric:
        assert int(signed.zero_point) == 0
        largest = max(-low, high, 0.0)
        if largest > 1e-30:
            assert float(signed.scale) == pytest.approx(largest / 127, rel=1e-6)
        return
    assert (signed.scale, int(signed.zero_point)) == (unsigned.scale, int(unsigned.zero_point) - 128)
    assert (signed.low, signed.high) == pytest.approx((unsigned.low, unsigned.high))


def test_a_scalar_is_rounded_too():
    rounded = QParams.spanning(0, 255).rounded(np.float32(3.4))
    assert (rounded.shape, float(rounded)) == ((), 3.0)


@settings(max_examples=25, deadline=None)
@given(ENDS, ENDS, st.booleans(), st.booleans(), arrays(np.float32, 40, elements=st.floats(-1e6, 1e6, width=32)))
def test_rounding_is_that_of_onnx_runtime(one, other, symmetric, signed, values):
    chosen = QParams.spanning(min(one, other), max(one, other), symmetric=symmetric, signed=signed)
    graph = oh.make_graph(
        [oh.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), oh.make_node("DequantizeLinear", ["q", "s", "z"], ["y"])],
        "g",
        [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [40])],
        [oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [40])],
        [onh.from_array(np.asarray(chosen.scale), "s"), onh.from_array(np.asarray(chosen.zero_point), "z")],
    )
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=10)
    got = Session(model.SerializeToString(), optimization="off").run({"x": values})["y"]
    np.testing.assert_array_equal(chosen.rounded(values), got)


def codes_with(bias: np.ndarray, *, per_channel: bool, axis: int = 0, seed: int = 0) -> Codes:
    """Channels whose weights fall from 1 to 1e-12."""
    weights = np.random.default_rng(seed).standard_normal((len(bias), len(bias))).astype(np.float32)
    weights = np.moveaxis(weights * np.geomspace(1, 1e-12, len(bias), dtype=np.float32)[:, None], 0, axis)
    limits = np.abs(weights).max(axis=1 - axis) if per_channel else np.abs(weights).max(keepdims=True).reshape(-1)
    scale = (limits / np.float32(127)).astype(np.float32)
    along = scale.reshape([-1, 1] if axis == 0 else [1, -1])
    return Codes(np.rint(weights / along).astype(np.int8), scale, axis, bias)


class TestRoomForBias:
    @settings(max_examples=100, deadline=None)
    @given(
        arrays(np.float32, 6, elements=st.floats(-1e5, 1e5, width=32)),
        st.floats(2.0**-23, 1024, width=32),
        st.booleans(),
        st.sampled_from([0, 1]),
    )
    def test_the_bias_fits_and_the_weights_stay_near(self, bias, input_scale, per_channel, axis):
        before = codes_with(bias, per_channel=per_channel, axis=axis)
        after = before.with_room_for_bias(input_scale)
        assert after.bias is bias
        assert after.codes.dtype == np.int8
        assert after.scale.shape == before.scale.shape
        steps = after.scale.astype(np.float64) * float(input_scale)
        whole = np.rint(bias.astype(np.float64) / steps)
        assert np.abs(whole).max() <= 2**30 * 1.001
        assert (np.abs(whole * steps - bias) <= steps / 2 * 1.001).all()
        assert (after.scale >= before.scale).all()
        along = after.scale.reshape(([-1, 1] if axis == 0 else [1, -1]) if after.scale.size > 1 else [1, 1])
        assert (np.abs(after.restored - before.restored) <= along / 2 * 1.001).all()
        unchanged = after.scale == before.scale
        if per_channel:
            np.testing.assert_array_equal(np.compress(unchanged, after.codes, axis), np.compress(unchanged, before.codes, axis))

    def test_what_fits_already_is_left_alone(self):
        few = codes_with(np.full(4, 1e-3, np.float32), per_channel=False)
        assert few.with_room_for_bias(1.0) is few
        none = Codes(few.codes, few.scale, 0, None)
        assert none.with_room_for_bias(1e-20) is none

    def test_a_channel_of_nothing_makes_room_for_its_bias_alone(self):
        before = codes_with(np.full(3, 2.0, np.float32), per_channel=True)
        after = before.with_room_for_bias(0.01)
        # The channels' weights are about 1, 1e-6 and 1e-12; 2 / (0.01 * 2^30) is 1.9e-7, and 1e-6 / 127 is less.
        assert (after.scale == before.scale).tolist() == [True, False, False]


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("op", ["Conv", "Gemm", "Gemm transB", "MatMul"])
def test_codes_of_each_weighted_op(op, per_channel):
    generator = np.random.default_rng(1)
    weights = generator.standard_normal((6, 3, 1, 1) if op == "Conv" else (6, 3) if op == "Gemm transB" else (3, 6)).astype(
        np.float32
    )
    bias = generator.standard_normal((1, 6) if op.startswith("Gemm") else 6).astype(np.float32)
    inputs = ["x", "w"] if op == "MatMul" else ["x", "w", "b"]
    node = oh.make_node(op.split()[0], inputs, ["y"], "y", **({"transB": 1} if op == "Gemm transB" else {}))
    model = network([node], {"w": weights, "b": bias}, ["y"], inputs={"x": [1, 3, 4, 4] if op == "Conv" else [2, 3]})
    layer = model.graph[0]
    axis = {"Conv": 0, "Gemm": 1, "Gemm transB": 0, "MatMul": 1}[op]
    assert channel_axis(layer) == axis
    found = codes_of(layer, per_channel=per_channel)
    assert (found.codes.dtype, found.scale.dtype, found.scale.shape) == (np.int8, np.float32, (6 if per_channel else 1,))
    assert np.abs(found.codes.astype(int)).max() == 127
    others = tuple(place for place in range(weights.ndim) if place != axis) if per_channel else None
    steps = np.abs(weights).max(axis=others, keepdims=True) / 127
    assert (np.abs(found.restored - weights) <= steps / 2 * 1.0001).all()
    if op == "MatMul":
        assert bias_of(layer) is None
        assert found.bias is None
    else:
        np.testing.assert_array_equal(found.bias, bias.reshape(-1))


@pytest.mark.parametrize("known", [True, False], ids=["shape inferred", "nothing inferred"])
@pytest.mark.parametrize("sides", [(8,), (8, 8)], ids=["signals", "images"])
def test_shifts_are_those_of_channels(sides, known):
    generator, around = np.random.default_rng(9), {"pads": [1] * (2 * len(sides))}
    tensors = {
        "first": generator.standard_normal((8, 3, *[3] * len(sides))).astype(np.float32),
        "second": generator.standard_normal((4, 8, *[3] * len(sides))).astype(np.float32),
    }
    nodes = [
        oh.make_node("Conv", ["x", "first"], ["c"], "c", **around),
        oh.make_node("Relu", ["c"], ["r"], "r"),
        oh.make_node("Conv", ["r", "second"], ["y"], "y", **around),
    ]
    # As many places on an axis as channels: one taken for the other would not be seen by its size.
    model = network(nodes, tensors, ["r", "y"], inputs={"x": [1, 3, *sides]})
    feeds = [{"x": generator.standard_normal((1, 3, *sides)).astype(np.float32)} for _ in range(4)]
    values = np.concatenate([run(model, image)["r"] for image in feeds])
    if not known:
        for node in model.graph:
            node.outputs[0].shape = None
    chosen = QParams.spanning(0.0, 60.0)
    rounded = np.clip(np.rint(values / chosen.scale), 0, 255) * chosen.scale
    wanted = (rounded - values).mean(axis=(0, *range(2, values.ndim)))
    units = units_of(model)
    np.testing.assert_allclose(rounding_shifts(model, units, {"r": chosen}, feeds)["r"], wanted, atol=1e-6)
    own = own_shifts(model, units, {"r": chosen}, feeds)["r"]
    np.testing.assert_allclose(own.shift, wanted.reshape(-1, *[1] * len(sides)), atol=1e-6)
