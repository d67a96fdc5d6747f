"""`int8.bits16` and `int8.weights`: what they promise, end to end in ONNX Runtime."""

from __future__ import annotations

from functools import partial

import graphs
import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir
import pytest
from graphs import network, optimized, sqnr, statistics_of
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from octavo.errors import CalibrationError, QuantizationError
from octavo.params.grammar import Int8
from octavo.quantization.executed import executed
from octavo.quantization.int8 import Images, quantize_dynamic, quantize_static
from octavo.quantization.int8.numbers.correction import weight_codes
from octavo.runtime.kernels import optimized_nodes

GENERATOR = np.random.default_rng(31)
IMAGES = [{"x": GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(8)]


he = partial(graphs.he, GENERATOR)


def narrow() -> ir.Model:
    """A PRelu whose first channel is a hundred times larger than those that the last Conv listens to."""
    spread = np.array([100, *[1] * 7], np.float32).reshape(-1, 1, 1, 1)
    tensors = {
        "stem": he(8, 3, 3, 3) * spread,
        "slopes": np.full((8, 1, 1), 0.2, np.float32),
        "last": he(4, 8, 1, 1) / spread.reshape(1, -1, 1, 1) ** 2,
    }
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["a"], "stem", pads=[1, 1, 1, 1]),
        oh.make_node("PRelu", ["a", "slopes"], ["p"], "act"),
        oh.make_node("MaxPool", ["p"], ["m"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        oh.make_node("Conv", ["m", "last"], ["y"], "last"),
        oh.make_node("Relu", ["y"], ["z"], "tail"),
    ]
    return network(nodes, tensors, ["z", "p"])


@pytest.fixture(scope="module")
def model() -> ir.Model:
    return narrow()


@pytest.fixture(scope="module")
def statistics(model):
    return statistics_of(model, IMAGES)


def types_of(model: ir.Model) -> dict[str, np.dtype]:
    """Tensor before each QuantizeLinear to the type of its codes."""
    proto = ir.to_proto(model)
    constants = {tensor.name: onh.to_array(tensor) for tensor in proto.graph.initializer}
    return {
        node.input[0].removesuffix(".raw"): constants[node.input[2]].dtype
        for node in proto.graph.node
        if node.op_type == "QuantizeLinear"
    }


class TestSixteenBits:
    @pytest.mark.parametrize("target", ["cpu", "arm"])
    @pytest.mark.parametrize("optimization", ["off", "all"])
    def test_named_tensors_have_16_bits_and_serve_what_8_cannot(self, target, optimization, model, statistics):
        plain, wide = (
            quantize_static(model, statistics, Int8(method="minmax", target=target, bits16=names)).model
            for names in ((), ("a", "p", "m"))
        )
        proto = ir.to_proto(wide)
        onnx.checker.check_model(proto, full_check=True)
        assert [entry.version for entry in proto.opset_import if not entry.domain] == [21]
        types = types_of(wide)
        assert {name for name, kind in types.items() if kind == np.uint16} == {"a", "p", "m"}
        assert len(types) > 3
        plain_db, wide_db = (sqnr(model, made, IMAGES, optimization=optimization) for made in (plain, wide))
        for name in ("p", "z"):
            assert wide_db[name] > plain_db[name] + 6
        assert wide_db["z"] > 30

    def test_around_them_onnx_runtime_computes_in_float(self, model, statistics, tmp_path):
        wide = quantize_static(model, statistics, Int8(bits16=("m",))).model
        ops = [node.op_type for node in optimized(wide, tmp_path).graph.node]
        assert ops.count("QLinearConv") == 2, "stem and PRelu"
        assert len([op for op in ops if op in ("Conv", "FusedConv")]) == 1, "the Conv that reads 16 bits"

    def test_what_is_around_them_is_called_so_and_is_no_surprise(self, model, statistics):
        result = quantize_static(model, statistics, Int8(bits16=("m",), float_heads=False))
        record = {decision.node: decision for decision in result.decisions}
        assert {name: one.precision for name, one in record.items()} == {
            "stem": "int8",
            "act": "int8",
            "pool": "16-bit",
            "last": "16-bit",
            "tail": "16-bit",
        }
        assert record["last"].reason == "bits16: 16-bit codes beside int8 weights, which ONNX Runtime's CPU computes with in float"
        ran = executed(model, result.decisions, optimized_nodes(ir.to_proto(result.model).SerializeToString()))
        assert ran.unexpected == []
        assert ran.layers == ran.integer == 1

    def test_a_pattern_means_what_shares_its_histogram_too(self, statistics):
        nodes = [
            oh.make_node("Conv", ["x", "w"], ["stem/out"], "stem"),
            oh.make_node("Relu", ["stem/out"], ["relu/out"], "relu"),
            oh.make_node("Conv", ["relu/out", "v"], ["y"], "last"),
        ]
        model = network(nodes, {"w": he(8, 3, 1, 1), "v": he(4, 8, 1, 1)}, ["y"])
        found = statistics_of(model, IMAGES)
        for pattern in ("stem/*", "relu/out"):
            assert types_of(quantize_static(model, found, Int8(bits16=(pattern,))).model)["relu/out"] == np.uint16

    def test_the_judge_and_the_repair_take_them(self, model, statistics):
        images = Images(IMAGES[:5], IMAGES[5:])
        plain, wide = (
            quantize_static(model, statistics, Int8(bits16=names, placement="all"), images) for names in ((), ("p", "a", "m"))
        )
        assert wide.measured["all_int8_db"] > plain.measured["all_int8_db"] + 6
        again = quantize_static(model, statistics, Int8(bits16=("p", "a", "m"), placement="all"), images)
        assert ir.to_proto(again.model).SerializeToString() == ir.to_proto(wide.model).SerializeToString()

    def test_a_name_without_a_tensor_is_an_error(self, model, statistics):
        with pytest.raises(CalibrationError, match=r"`int8.bits16` names 'stemm'"):
            quantize_static(model, statistics, Int8(bits16=("stemm",)))
        with pytest.raises(QuantizationError, match="'p', and no tensor of this name or pattern is quantized"):
            quantize_static(model, statistics, Int8(bits16=("p",), keep_float=("act", "pool", "last")))

    def test_qoperator_keeps_them(self, model, statistics):
        fused = quantize_static(model, statistics, Int8(bits16=("m",), format="qoperator")).model
        assert sqnr(model, fused, IMAGES)["p"] > 20
        assert np.dtype(np.uint16) in types_of(fused).values()


def branches() -> ir.Model:
    """A Conv with a Sigmoid, two Convs in a Concat, a pool, and a last Conv whose map has a scale a channel."""
    he = partial(graphs.he, np.random.default_rng(31))
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["a"], "stem"),
        oh.make_node("Sigmoid", ["a"], ["r"], "act"),
        oh.make_node("Conv", ["r", "left"], ["l"], "left"),
        oh.make_node("Conv", ["r", "right"], ["q"], "right"),
        oh.make_node("Concat", ["l", "q"], ["c"], "cat", axis=1),
        oh.make_node("MaxPool", ["c"], ["m"], "pool", kernel_shape=[2, 2]),
        oh.make_node("Conv", ["m", "last"], ["h"], "last"),
        oh.make_node("Sigmoid", ["h"], ["y"], "tail"),
    ]
    tensors = {"stem": he(8, 3, 3, 3), "left": he(4, 8, 1, 1), "right": he(4, 8, 1, 1), "last": he(4, 8, 1, 1)}
    return network(nodes, tensors, ["y"])


class TestRanges:
    @pytest.fixture(scope="class")
    def made(self):
        model = branches()
        statistics = statistics_of(model, IMAGES)

        def ends(**ranges: object) -> dict[str, tuple[float, float]]:
            """First and last value that each tensor's codes mean; of a scale a channel the least and the largest."""
            recipe = Int8(
                method="minmax", float_heads=False, ranges={key.replace("_", "*"): value for key, value in ranges.items()}
            )
            written = quantize_static(model, statistics, recipe).model
            found = {}
            for node in written.graph:
                if node.op_type == "QuantizeLinear":
                    scale, zero = (node.inputs[place].const_value.numpy().astype(np.float64) for place in (1, 2))
                    name = node.inputs[0].name.removesuffix(".raw")
                    found[name] = (float((-zero * scale).min()), float(((255 - zero) * scale).max()))
            return found

        return ends

    @pytest.mark.parametrize("named", ["l", "q", "c", "m"])
    def test_tensors_that_share_a_scale_share_what_is_asked_for_one(self, named, made):
        plain, asked = made(), made(**{named: [0, 0.5]})
        for name in ("l", "q", "c", "m"):
            assert asked[name] == pytest.approx((0, 0.5))
        assert {name: ends for name, ends in asked.items() if name not in "lqcm"} == {
            name: ends for name, ends in plain.items() if name not in "lqcm"
        }

    def test_a_name_goes_before_a_pattern_and_two_names_have_to_agree(self, made):
        for asked in ({"_": [0, 3], "l": [0, 1]}, {"l": [0, 1], "m": [0, 1]}, {"c": [0, 1], "_": {"method": "mse"}}):
            assert made(**asked)["m"] == pytest.approx((0, 1))
        with pytest.raises(QuantizationError, match="'m' and 'l' different ranges, and these tensors share one scale"):
            made(m=[0, 2], l=[0, 1])

    @pytest.mark.parametrize("named", ["h", "h_"])
    def test_a_head_has_the_range_it_is_given(self, named, made):
        assert made()["h"] != pytest.approx((-1, 1))
        assert made(**{named: [-1, 1]})["h"] == pytest.approx((-1, 1), rel=0.01)

    def test_fixed_ends_hold_for_shares_too(self, made):
        assert made(r=[0, 0.5])["r"] == pytest.approx((0, 0.5))
        assert made(_={"method": "percentile", "percentile": 60})["r"] == pytest.approx((0, 1))

    def test_effort_has_no_range_to_search_where_all_are_given(self):
        model, recipe = branches(), Int8(effort="high", placement="all", ranges={"*": {"method": "mse"}})
        result = quantize_static(model, statistics_of(model, IMAGES), recipe, Images(IMAGES[:5], IMAGES[5:]))
        assert not any("ranges" in way for way in result.measured["tried_db"])

    def test_a_tensor_that_is_not_quantized_is_an_error(self, model, statistics):
        with pytest.raises(QuantizationError, match="`int8.ranges` names 'p', and no tensor of this name or pattern is quantized"):
            quantize_static(model, statistics, Int8(ranges={"p": [0, 1]}, keep_float=("act", "pool", "last")))


WEIGHTS = arrays(np.float32, (5, 4, 3, 3), elements=st.floats(-1e4, 1e4, width=32))


class TestWeightsOfLeastError:
    @settings(max_examples=40, deadline=None)
    @given(WEIGHTS, st.booleans(), st.sampled_from([0, 1]))
    def test_never_worse_than_minmax_in_any_channel_and_codes_fit(self, weights, per_channel, axis):
        errors = {}
        for method in ("minmax", "mse"):
            options = {"per_channel": per_channel, "method": method}
            codes, scale = weight_codes(weights, axis, **options)
            assert np.abs(codes).max() <= 127
            assert scale.dtype == np.float32
            assert (scale > 0).all()
            others = tuple(place for place in range(4) if place != axis) if per_channel else None
            rounded = (codes * scale).astype(np.float64)
            errors[method] = np.square(rounded - weights).sum(axis=others)
        assert (errors["mse"] <= errors["minmax"] * (1 + 1e-6)).all()

    def test_an_outlier_is_clipped_where_that_helps_the_rest(self):
        weights = GENERATOR.standard_normal((4, 65536)).astype(np.float32)
        weights[:, 0] = 12
        codes, scale = weight_codes(weights, 0, per_channel=True, method="mse")
        wide = weight_codes(weights, 0, per_channel=True)[1]
        assert (scale < 0.9 * wide).all()
        assert (codes[:, 0] == 127).all()

    @pytest.mark.parametrize("value", [0.0, 1e-41, 5e-37])
    def test_a_channel_of_nothing_stays_finite(self, value):
        weights = np.full((3, 8), value, np.float32)
        assert np.isfinite(np.multiply(*weight_codes(weights, 0, per_channel=True, method="mse"))).all()

    def test_the_setting_reaches_both_files(self):
        weights = GENERATOR.standard_normal((256, 3, 16, 16)).astype(np.float32)
        weights[3, 1, 2, 2] = 14
        model = network([oh.make_node("Conv", ["x", "w"], ["y"], "stem")], {"w": weights}, ["y"])
        stored = {}
        for method in ("minmax", "mse"):
            recipe = Int8(weights=method, per_channel=False)
            results = quantize_static(model, statistics_of(model, IMAGES), recipe), quantize_dynamic(model, recipe)
            names = ("stem.weight_codes", "stem.weight.int8")
            stored[method] = [
                result.model.graph.initializers[name].const_value.numpy() for result, name in zip(results, names, strict=True)
            ]
            np.testing.assert_array_equal(*stored[method])
        assert (np.abs(stored["minmax"][0].astype(int)) == 127).sum() == 1
        assert np.abs(stored["mse"][0].astype(int)).sum() > 1.05 * np.abs(stored["minmax"][0].astype(int)).sum()


@pytest.mark.parametrize(
    ("kept", "float_"),
    [
        ("BatchNormalization", {"stem", "norm"}),
        ("plus", {"last", "plus"}),
        ("three", {"swish", "three"}),
        ("bias", {"vector", "bias"}),
    ],
)
def test_what_preparation_rewrites_stays_float_in_what_it_became(kept, float_):
    tensors = {
        "w": he(8, 3, 3, 3),
        **{name: np.full(8, value, np.float32) for name, value in (("s", 1.5), ("b", 0.1), ("m", 0.2), ("v", 2))},
        "k3": np.float32(3),
        "k0": np.float32(0),
        "k6": np.float32(6),
        "w2": he(8, 8, 3, 3),
        "shift": np.full((1, 8, 1, 1), 0.3, np.float32),
        "wl": he(8, 16),
        "bl": np.full(16, 0.2, np.float32),
        "w3": he(16, 5),
    }
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["a"], "stem", pads=[1] * 4),
        oh.make_node("BatchNormalization", ["a", "s", "b", "m", "v"], ["n"], "norm"),
        oh.make_node("Add", ["n", "k3"], ["h1"], "three"),
        oh.make_node("Clip", ["h1", "k0", "k6"], ["h2"], "clip"),
        oh.make_node("Mul", ["n", "h2"], ["h3"], "times"),
        oh.make_node("Div", ["h3", "k6"], ["h4"], "swish"),
        oh.make_node("Conv", ["h4", "w2"], ["c"], "last", pads=[1] * 4),
        oh.make_node("Add", ["c", "shift"], ["d"], "plus"),
        oh.make_node("GlobalAveragePool", ["d"], ["g"], "pool"),
        oh.make_node("Flatten", ["g"], ["f"], "flat"),
        oh.make_node("MatMul", ["f", "wl"], ["l"], "vector"),
        oh.make_node("Add", ["l", "bl"], ["l2"], "bias"),
        oh.make_node("Relu", ["l2"], ["l3"], "relu"),
        oh.make_node("Gemm", ["l3", "w3"], ["y"], "answer"),
    ]
    model = network(nodes, tensors, ["y"])
    statistics = statistics_of(model, IMAGES)
    precision = {one.node: one.precision for one in quantize_static(model, statistics, Int8(keep_float=(kept,))).decisions}
    assert {name for name in float_ if precision[name] == "float"} == float_
    others = {"stem", "last", "vector", "answer"} - float_
    assert {name for name in others if precision[name] == "int8"} == others


def test_a_frozen_norm_behind_a_sum_is_int8_and_so_is_the_sum():
    tensors = {
        **{"w": he(8, 3, 3, 3), "w2": he(8, 8, 1, 1), "w3": he(8, 8, 3, 3), "w4": he(8, 5)},
        "gain": np.linspace(0.5, 1.5, 8, dtype=np.float32).reshape(1, 8, 1, 1),
        "shift": np.linspace(-0.2, 0.2, 8, dtype=np.float32).reshape(1, 8, 1, 1),
    }
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["a"], "stem", pads=[1] * 4),
        oh.make_node("Conv", ["a", "w2"], ["b"], "branch"),
        oh.make_node("Add", ["a", "b"], ["s"], "sum"),
        oh.make_node("Mul", ["s", "gain"], ["m"], "times"),
        oh.make_node("Add", ["m", "shift"], ["n"], "plus"),
        oh.make_node("Relu", ["n"], ["r"], "relu"),
        oh.make_node("Conv", ["r", "w3"], ["c"], "last", pads=[1] * 4),
        oh.make_node("GlobalAveragePool", ["c"], ["g"], "pool"),
        oh.make_node("Flatten", ["g"], ["f"], "flat"),
        oh.make_node("Gemm", ["f", "w4"], ["y"], "answer"),
    ]
    model = network(nodes, tensors, ["y"])
    statistics = statistics_of(model, IMAGES)
    decisions = {one.node: (one.precision, one.reason) for one in quantize_static(model, statistics, Int8()).decisions}
    assert {name: precision for name, (precision, _) in decisions.items()} == {node.name: "int8" for node in nodes}
    assert decisions["times"] == decisions["plus"]
    kept = quantize_static(model, statistics, Int8(keep_float=("times",))).decisions
    assert {one.node for one in kept if one.precision == "float"} >= {"times", "plus"}


def test_attention_under_a_mask_of_infinities_stays_float_and_all_else_does_not():
    tensors = {"patches": he(16, 3, 4, 4), "flat": np.array([1, 16, 16]), "value": he(16, 16), "head": he(16, 4)}
    tensors["mask"] = np.where(np.tri(16, dtype=bool), 0, -np.inf).astype(np.float32)
    nodes = [
        oh.make_node("Conv", ["x", "patches"], ["p"], "patches", strides=[4, 4]),
        oh.make_node("Reshape", ["p", "flat"], ["rows"], "rows"),
        oh.make_node("Transpose", ["rows"], ["t"], "t", perm=[0, 2, 1]),
        oh.make_node("MatMul", ["t", "rows"], ["scores"], "scores"),
        oh.make_node("Add", ["scores", "mask"], ["masked"], "masked"),
        oh.make_node("Softmax", ["masked"], ["shares"], "shares"),
        oh.make_node("MatMul", ["t", "value"], ["v"], "value"),
        oh.make_node("MatMul", ["shares", "v"], ["mixed"], "mixed"),
        oh.make_node("MatMul", ["mixed", "head"], ["y"], "head"),
    ]
    model = network(nodes, tensors, ["y"])
    result = quantize_static(model, statistics_of(model, IMAGES), Int8(placement="all"), Images(IMAGES[:6], IMAGES[6:]))
    made = {decision.node: decision for decision in result.decisions}
    assert {name for name, one in made.items() if "infinite" in one.reason} == {"masked", "shares"}
    assert {made[name].precision for name in ("patches", "value", "head")} == {"int8"}
    assert sqnr(model, result.model, IMAGES)["y"] > 25


@pytest.mark.parametrize("kept", ["columns", "rows"])
def test_means_of_one_axis_after_another_stay_float_whichever_of_them_is_named(kept):
    """They become one pool; the first one's name was found on what drops the axes, and the pool was int8."""
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["c"], "conv"),
        oh.make_node("ReduceMean", ["c", "last"], ["m"], "columns", keepdims=0),
        oh.make_node("ReduceMean", ["m", "last"], ["p"], "rows", keepdims=0),
        oh.make_node("MatMul", ["p", "v"], ["y"], "classes"),
    ]
    tensors = {"w": he(8, 3, 3, 3), "v": he(8, 5), "last": np.array([-1])}
    model = network(nodes, tensors, ["y"])
    result = quantize_static(model, statistics_of(model, IMAGES), Int8(keep_float=(kept,), placement="all"))
    told = {one.node: (one.precision, one.reason) for one in result.decisions}
    assert told["columns"] == told["rows"] == ("float", f"keep_float: {kept}")
    assert told["conv"][0] == told["classes"][0] == "int8"
    found = executed(model, result.decisions, optimized_nodes(ir.to_proto(result.model).SerializeToString()))
    assert found.unexpected == []
