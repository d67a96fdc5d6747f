"""INT8: placement by structure, ranges and bias correction that can be checked by hand, and graphs that run as integers."""

from collections.abc import Sequence

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir
import pytest
from conftest import small_network
from graphs import inferred, network

from octavo.calibration.collector import collect
from octavo.calibration.ranges import tensor_range
from octavo.calibration.statistics import Statistics
from octavo.errors import QuantizationError
from octavo.graph.passes.cleaning.resize_all_axes import ResizeAllAxesPass
from octavo.graph.passes.forms.count_values import CountValuesPass
from octavo.graph.passes.forms.mean_to_pool import MeanToPoolPass
from octavo.graph.prepared import prepared
from octavo.params.grammar import Int8
from octavo.quantization.decisions import summary
from octavo.quantization.int8 import quantize_dynamic, quantize_static
from octavo.quantization.int8.numbers.correction import correct_bias, weight_codes
from octavo.quantization.int8.structure.placement import place
from octavo.quantization.int8.structure.units import units_of
from octavo.runtime.session import Session

GENERATOR = np.random.default_rng(7)
IMAGES = [GENERATOR.standard_normal((1, 3, 32, 32)).astype(np.float32) for _ in range(8)]


def samples_of(name: str = "image"):
    return lambda: ((str(place), {name: image}) for place, image in enumerate(IMAGES))


def statistics_of(model: ir.Model, name: str = "image"):
    return collect(model, samples_of(name))


def run(model: ir.Model, feeds: dict[str, np.ndarray], **options: object) -> np.ndarray:
    return next(iter(Session(ir.to_proto(model).SerializeToString(), **options).run(feeds).values()))


def sqnr(reference: ir.Model, other: ir.Model) -> float:
    signal = noise = 0.0
    for image in IMAGES:
        truth, got = run(reference, {"image": image}), run(other, {"image": image})
        signal, noise = signal + (truth**2).sum(), noise + ((truth - got) ** 2).sum()
    return 10 * np.log10(signal / noise)


@pytest.fixture(scope="module")
def model() -> ir.Model:
    return inferred(small_network())


@pytest.fixture(scope="module")
def statistics(model):
    return statistics_of(model)


def test_the_static_model_is_close_small_and_integer(model, statistics, tmp_path):
    result = quantize_static(model, statistics, Int8())
    assert sqnr(model, result.model) > 25
    precisions = {decision.node: (decision.precision, decision.reason) for decision in result.decisions}
    assert precisions["stem"][0] == precisions["point"][0] == precisions["residual"][0] == precisions["head"][0] == "int8"
    assert precisions["stem.relu"] == ("int8", "integer kernel")
    assert precisions["depth.relu6"] == ("int8", "integer kernel")
    Session(ir.to_proto(result.model).SerializeToString(), optimization="extended", save_optimized=tmp_path / "opt.onnx")
    ops = [node.op_type for node in onnx.load(tmp_path / "opt.onnx").graph.node]
    assert ops.count("QLinearConv") == 3
    assert not {"Conv", "Relu", "Clip", "Add", "Gemm", "MatMul"} & set(ops)


def test_the_scales_are_those_of_our_ranges(model, statistics):
    for method in ("minmax", "percentile", "mse", "entropy"):
        recipe = Int8(method=method, **({"percentile": 99} if method == "percentile" else {}))
        quantized = quantize_static(model, statistics, recipe).model
        low, high = tensor_range(statistics.tensors["sum"], method, percentile=99)
        (q,) = [node for node in quantized.graph if node.op_type == "QuantizeLinear" and node.inputs[0].name == "sum.raw"]
        assert q.inputs[1].const_value.numpy() == pytest.approx((high - low) / 255, rel=1e-5)
        assert q.inputs[2].const_value.numpy().dtype == np.uint8
    bounded = quantize_static(model, statistics, Int8(ranges={"sum": [-1, 9], "stem": [0, 4]})).model
    scales = {node.inputs[0].name: node.inputs[1].const_value.numpy() for node in bounded.graph if node.op_type == "QuantizeLinear"}
    assert scales["sum.raw"] == pytest.approx(10 / 255)
    assert scales["stem.relu.raw"] == pytest.approx(4 / 255)
    restored = {node.inputs[0].name: node for node in quantized.graph if node.op_type == "DequantizeLinear"}
    weights = restored["stem.weight_codes.columns"]
    assert weights.inputs[0].const_value.numpy().dtype == np.int8
    assert weights.inputs[1].const_value.numpy().shape == (16,), "two columns at a time"


def test_per_tensor_symmetric_and_room_for_16_bit_sums(model, statistics):
    quantized = quantize_static(
        model, statistics, Int8(per_channel=False, symmetric=True, target="cpu-no-vnni", correction="none")
    ).model
    weights = [tensor.const_value.numpy() for name, tensor in quantized.graph.initializers.items() if name.endswith("weight_codes")]
    assert weights
    # One scale for all of a layer leaves the room that its worst pair of weights asks for.
    assert 64 <= max(np.abs(tensor.astype(int)).max() for tensor in weights) <= 127
    points = [
        node.inputs[2].const_value.numpy()
        for node in quantized.graph
        if node.op_type == "QuantizeLinear" and node.inputs[0].name == "sum.raw"
    ]
    assert points == [128]


def test_qoperator_runs_and_agrees_with_qdq(model, statistics):
    qdq = quantize_static(model, statistics, Int8())
    operators = quantize_static(model, statistics, Int8(format="qoperator"))
    assert "QLinearConv" in [node.op_type for node in operators.model.graph]
    assert sqnr(model, operators.model) > sqnr(model, qdq.model) - 3
    used = {node.domain for node in ir.traversal.RecursiveGraphIterator(operators.model.graph)}
    assert set(operators.model.opset_imports) == used, "an older ONNX Runtime refuses a version that it does not know"


def test_keep_float_really_is_float(model, statistics, tmp_path):
    result = quantize_static(model, statistics, Int8(keep_float=("point",)))
    kept = {decision.node: decision for decision in result.decisions}
    assert (kept["point"].precision, kept["point"].reason) == ("float", "keep_float: point")
    assert kept["residual"].precision == "float", "what it fed has no scale any more"
    Session(ir.to_proto(result.model).SerializeToString(), optimization="extended", save_optimized=tmp_path / "opt.onnx")
    ops = [node.op_type for node in onnx.load(tmp_path / "opt.onnx").graph.node]
    assert ops.count("QLinearConv") == 2
    with pytest.raises(QuantizationError, match="'Convv'"):
        quantize_static(model, statistics, Int8(keep_float=("Convv",)))
    with pytest.raises(QuantizationError, match="no node of this graph can be quantized"):
        quantize_static(model, statistics, Int8(keep_float=("Conv", "Gemm")))


def test_the_fp32_model_is_left_as_it_was_and_equal_input_gives_equal_bytes(model, statistics):
    before = ir.to_proto(model).SerializeToString()
    first = ir.to_proto(quantize_static(model, statistics, Int8()).model).SerializeToString()
    second = ir.to_proto(quantize_static(model, statistics, Int8()).model).SerializeToString()
    assert first == second
    quantize_dynamic(model, Int8())
    assert ir.to_proto(model).SerializeToString() == before


def test_dynamic_keeps_convolutions_exact_but_for_their_weights(model):
    result = quantize_dynamic(model, Int8())
    assert sqnr(model, result.model) > 25
    stored = [value.const_value for value in result.model.graph.initializers.values()]
    floats = [tensor for tensor in stored if tensor.dtype == ir.DataType.FLOAT and tensor.size > 16]
    assert floats == [], "no weight stays in float32"
    reasons = {decision.node: decision for decision in result.decisions}
    assert reasons["stem"].precision == "int8"
    assert "weights" in reasons["stem"].reason
    with pytest.raises(QuantizationError, match="no node of this graph has weights"):
        quantize_dynamic(model, Int8(keep_float=("Conv", "Gemm")))


def rounded(weights: np.ndarray) -> np.ndarray:
    codes, scale = weight_codes(weights, 0, per_channel=True)
    return codes * scale


def corrected_layers(model: ir.Model, statistics: Statistics, names: set[str]) -> list[str]:
    layers = [node for node in model.graph if node.name in names]
    return [node.name for node in layers if correct_bias(model, statistics, node, rounded(node.inputs[1].const_value.numpy()))]


class TestCorrection:
    def test_rounding_is_symmetric_and_within_half_a_step(self):
        weights = GENERATOR.standard_normal((4, 3, 3, 3)).astype(np.float32)
        restored = rounded(weights)
        steps = np.abs(weights).max(axis=(1, 2, 3)) / 127
        assert (np.abs(restored - weights).max(axis=(1, 2, 3)) <= steps / 2 * 1.001).all()
        assert np.array_equal(rounded(-weights), -restored)

    @pytest.mark.parametrize("value", [0.0, 1e-41, 1e-44, 5e-37])
    def test_a_dead_channel_becomes_zero_and_nothing_becomes_nan(self, value, statistics):
        weights = GENERATOR.standard_normal((4, 3, 3, 3)).astype(np.float32)
        weights[1] = value
        restored = rounded(weights)
        assert np.abs(restored[1]).max() <= 1.01 * value
        assert np.isfinite(restored).all()
        dead = small_network().graph.initializer[0]
        stem = onh.to_array(dead).copy()
        stem[2] = value
        network = inferred(small_network(weights={"stem.weight": stem}))
        for result in (quantize_static(network, statistics, Int8()), quantize_dynamic(network, Int8(), statistics)):
            assert np.isfinite(run(result.model, {"image": IMAGES[0]})).all()

    def test_the_mean_of_a_layer_s_output_comes_back(self, model, statistics):
        # Weights replaced by their rounded form: without correction the channel means drift, with it they return.
        drifted, corrected = (inferred(small_network()) for _ in range(2))
        names = {"stem", "point"}
        corrected_layers(corrected, statistics, names)
        for changed in (drifted, corrected):
            for node in changed.graph:
                if node.name in names:
                    weight = node.inputs[1]
                    weight.const_value = ir.tensor(rounded(weight.const_value.numpy()))

        def mean(changed: ir.Model) -> np.ndarray:
            tensors = collect(changed, samples_of(), tensors=["stem", "point"]).tensors
            return np.concatenate([tensors["stem"].means(), tensors["point"].means()])

        truth = mean(model)
        assert np.abs(mean(corrected) - truth).max() < 0.5 * np.abs(mean(drifted) - truth).max()

    def test_layers_without_bias_groups_and_gemm_are_covered(self, statistics):
        changed = inferred(small_network())
        assert len(corrected_layers(changed, statistics, {"stem", "depth", "point", "head"})) == 4
        depth = next(node for node in changed.graph if node.name == "depth")
        assert depth.inputs[2].name == "depth.corrected_bias"
        onnx.checker.check_model(ir.to_proto(changed))

    def test_it_helps_on_inputs_with_a_mean(self):
        images = [image + 1 for image in IMAGES]
        model = inferred(small_network(seed=3))
        found = collect(model, lambda: ((str(place), {"image": image}) for place, image in enumerate(images)))
        results = {}
        for correction in ("none", "bias"):
            quantized = quantize_static(model, found, Int8(correction=correction)).model
            errors = [run(model, {"image": image}) - run(quantized, {"image": image}) for image in images]
            results[correction] = np.abs(np.mean(errors, axis=0)).max()
        assert results["bias"] < results["none"]


class TestPlacement:
    def test_a_concat_of_boxes_and_scores_stays_float(self):
        """What mixes scores with another range stands behind the last weights, and is not forced under one scale."""
        weights = {name: onh.from_array(GENERATOR.standard_normal((4, 3, 1, 1)).astype(np.float32), name) for name in ("a", "b")}
        nodes = [
            oh.make_node("Conv", ["image", "a"], ["boxes"], "boxes"),
            oh.make_node("Conv", ["image", "b"], ["raw"], "raw"),
            oh.make_node("Sigmoid", ["raw"], ["scores"], "scores"),
            oh.make_node("Concat", ["boxes", "scores"], ["mixed"], "mixed", axis=1),
            oh.make_node("Concat", ["boxes", "raw"], ["alike"], "alike", axis=1),
        ]
        outputs = [oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 8, 32, 32]) for name in ("mixed", "alike")]
        image = oh.make_tensor_value_info("image", onnx.TensorProto.FLOAT, [1, 3, 32, 32])
        graph = oh.make_graph(nodes, "g", [image], outputs, list(weights.values()))
        model = inferred(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8))
        decisions = {d.node: d for d in quantize_static(model, statistics_of(model), Int8()).decisions}
        assert decisions["boxes"].precision == "int8"
        assert decisions["mixed"].precision == "float"
        assert "scores" in decisions["mixed"].reason
        assert decisions["alike"].precision == "float", "behind the last weights nothing is won by INT8"
        assert "int8: 2 Conv" in summary(decisions.values())

    def test_computed_weights_stay_float(self):
        nodes = [
            oh.make_node("Relu", ["w"], ["positive"], "positive"),
            oh.make_node("MatMul", ["x", "positive"], ["y"], "product"),
            oh.make_node("MatMul", ["y", "fixed"], ["z"], "second"),
        ]
        fixed = onh.from_array(np.eye(6, dtype=np.float32), "fixed")
        inputs = [oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [6, 6]) for name in ("x", "w")]
        graph = oh.make_graph(nodes, "g", inputs, [oh.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [6, 6])], [fixed])
        model = inferred(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8))
        found = collect(model, lambda: [("i", {"x": np.ones((6, 6), np.float32), "w": np.ones((6, 6), np.float32)})])
        decisions = {d.node: d for d in quantize_static(model, found, Int8()).decisions}
        assert decisions["product"].reason == "its weights are not constant"
        assert decisions["second"].precision == "int8"


class TestPadAllAxes:
    @pytest.mark.parametrize(("axes", "pads"), [([2, 3], [1, 2, 3, 0]), ([-1], [2, 1]), ([3, 1], [1, 0, 0, 2])])
    def test_values_are_the_same_and_integer_layers_around_it_run(self, axes, pads):
        model = self.padded(axes, pads)
        feeds = {"x": GENERATOR.standard_normal((1, 3, 8, 8)).astype(np.float32)}
        before = run(model, feeds)
        ready = prepared(model)
        (pad,) = (node for node in ready.graph if node.op_type == "Pad")
        assert [value is not None for value in pad.inputs] in ([True, True], [True, True, False])
        assert np.allclose(run(ready, feeds), before, atol=1e-6)
        found = collect(model, lambda: [("i", feeds)])
        for recipe in (Int8(), Int8(keep_float=["pad"])):
            result = quantize_static(model, found, recipe).model
            assert np.abs(run(result, feeds) - before).max() < 0.1 * np.abs(before).max()

    def test_a_pad_of_computed_axes_is_left_alone_and_stays_float(self):
        model = self.padded([2, 3], [1, 2, 3, 0], computed=True)
        (decision,) = (one for one in quantize_static(model, self.seen(model), Int8()).decisions if one.node == "pad")
        assert (decision.precision, decision.reason) == ("float", "the axes that it pads are computed")

    @staticmethod
    def seen(model: ir.Model):
        feeds = {"x": np.ones((1, 3, 8, 8), np.float32), "axes": np.array([2, 3])}
        return collect(model, lambda: [("i", feeds)])

    @staticmethod
    def padded(axes: list[int], pads: list[int], *, computed: bool = False) -> ir.Model:
        """A Pad of some axes between two Convs."""
        grown = 3 + sum(pads[place] + pads[place + len(axes)] for place, axis in enumerate(axes) if axis == 1)
        tensors = {"v": np.eye(3), "w": GENERATOR.standard_normal((4, grown)), "pads": pads} | ({} if computed else {"axes": axes})
        nodes = [
            oh.make_node("Conv", ["x", "v"], ["a"], "first"),
            oh.make_node("Pad", ["a", "pads", "", "axes"], ["p"], "pad"),
            oh.make_node("Conv", ["p", "w"], ["c"], "second"),
            oh.make_node("GlobalAveragePool", ["c"], ["y"], "pool"),
        ]
        shapes = {"v": (3, 3, 1, 1), "w": (4, grown, 1, 1)}
        inputs = [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 8, 8])]
        inputs += [oh.make_tensor_value_info("axes", onnx.TensorProto.INT64, [2])] if computed else []
        graph = oh.make_graph(
            nodes,
            "g",
            inputs,
            [oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
            [
                onh.from_array(np.asarray(value, np.float32).reshape(shapes[name]) if name in shapes else np.array(value), name)
                for name, value in tensors.items()
            ],
        )
        return inferred(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8))


class TestResizeAllAxes:
    @pytest.mark.parametrize(
        ("axes", "read", "open_sides", "written"),
        [
            pytest.param([2, 3], {"scales": [2, 3]}, False, [1, 1, 2, 3], id="scales"),
            pytest.param([-1], {"scales": [2]}, True, [1, 1, 1, 2], id="scales of one axis, open sizes"),
            pytest.param([3, 2], {"sizes": [21, 16]}, False, [1, 1, 2, 3], id="sizes that scales make"),
            pytest.param([2, 3], {"sizes": [16, 31]}, False, "Concat", id="sizes that no scales make"),
            pytest.param([3], {"sizes": [16]}, True, "Concat", id="sizes of one axis, open sizes"),
            pytest.param([3, 2], {"computed": [21, 16]}, True, "Concat", id="computed sizes"),
        ],
    )
    def test_values_are_the_same_and_integer_layers_around_it_run(self, axes, read, open_sides, written):
        ((kind, numbers),) = read.items()
        model = self.resized(axes, kind, np.array(numbers, np.float32 if kind == "scales" else np.int64), open_sides=open_sides)
        image = GENERATOR.standard_normal((1, 3, 8, 7)).astype(np.float32)
        feeds = {"x": np.concatenate([image, image[..., ::-1]])}
        before = run(model, feeds)
        ready = prepared(model)
        (resize,) = (node for node in ready.graph if node.op_type == "Resize")
        given = resize.inputs[-1]
        assert "axes" not in resize.attributes
        assert (given.producer().op_type if given.producer() else given.const_value.numpy().tolist()) == written
        assert np.array_equal(run(ready, feeds), before)
        found = collect(model, lambda: [("i", {"x": image})])
        result = quantize_static(model, found, Int8()).model
        assert np.abs(run(result, feeds) - before).max() < 0.1 * np.abs(before).max()

    @pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
    @pytest.mark.parametrize(("axes", "sizes"), [([2, 3], [16, 24]), ([3, 2], [28, 16]), ([3], [10])])
    @pytest.mark.parametrize("mode", ["nearest", "linear"])
    def test_kept_proportions_become_one_scale(self, policy, axes, sizes, mode):
        settings = {"keep_aspect_ratio_policy": policy, "mode": mode, "coordinate_transformation_mode": "half_pixel"}
        self.is_the_same(self.resized(axes, "sizes", np.array(sizes), **settings))

    @pytest.mark.parametrize(
        ("axes", "kind", "numbers", "region"),
        [
            ([2, 3], "sizes", [16, 24], [0.1, 0.2, 0.9, 0.7]),
            ([3], "sizes", [5], [0.25, 1.5]),
            ([3, 2], "scales", [2, 1.5], [0.3, -0.2, 0.8, 0.9]),
        ],
    )
    @pytest.mark.parametrize("mode", ["nearest", "linear"])
    def test_a_region_of_some_axes_is_all_of_the_others(self, axes, kind, numbers, region, mode):
        numbers = np.array(numbers, np.float32 if kind == "scales" else np.int64)
        settings = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 0.5, "mode": mode}
        self.is_the_same(self.resized(axes, kind, numbers, region=region, **settings), float_resize=True)

    def is_the_same(self, model: ir.Model, *, float_resize: bool = False) -> None:
        image = {"x": GENERATOR.standard_normal((1, 3, 8, 7)).astype(np.float32)}
        before = run(model, image)
        ready = prepared(model)
        assert not any("axes" in node.attributes for node in ready.graph if node.op_type == "Resize")
        # Exact but for the last bit of interpolated values: other kernels.
        np.testing.assert_allclose(run(ready, image), before, rtol=1e-5, atol=1e-6)
        result = quantize_static(model, collect(model, lambda: [("i", image)]), Int8(placement="all"))
        assert np.abs(run(result.model, image) - before).max() < 0.3 * np.abs(before).max()
        if float_resize:
            assert {one.node: one.precision for one in result.decisions}["up"] == "float"

    @pytest.mark.parametrize(
        ("sizes", "settings"),
        [
            # 7 times 1.5 is rounded to 11, and no scale of both axes says so.
            ([12, 24], {"keep_aspect_ratio_policy": "not_larger"}),
            ([16, 24], {"coordinate_transformation_mode": "tf_crop_and_resize"}),
        ],
        ids=["proportions that are rounded up", "no known region"],
    )
    def test_what_counts_other_axes_is_left_alone(self, sizes, settings):
        model = self.resized([2, 3], "sizes", np.array(sizes), **settings)
        assert not ResizeAllAxesPass()(model).modified

    @staticmethod
    def resized(
        axes: list[int],
        kind: str,
        numbers: np.ndarray,
        *,
        open_sides: bool = False,
        region: Sequence[float] = (),
        **settings: object,
    ) -> ir.Model:
        """A Resize of some axes between two Convs, of any batch."""
        weights = {"v": np.eye(3).reshape(3, 3, 1, 1), "w": GENERATOR.standard_normal((4, 3, 1, 1))}
        tensors = {name: value.astype(np.float32) for name, value in weights.items()} | {"numbers": numbers}
        cut = "region" if region else ""
        tensors |= {"region": np.array(region, np.float32)} if region else {}
        nodes = [
            oh.make_node("Conv", ["x", "v"], ["a"], "first"),
            oh.make_node("Add", ["numbers", "none"], ["asked"], "asked"),
            oh.make_node(
                "Resize",
                ["a", cut, "numbers"] if kind == "scales" else ["a", cut, "", "asked" if kind == "computed" else "numbers"],
                ["r"],
                "up",
                axes=axes,
                **({"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"} | settings),
            ),
            oh.make_node("Conv", ["r", "w"], ["c"], "second"),
            oh.make_node("GlobalAveragePool", ["c"], ["y"], "pool"),
        ]
        if kind == "computed":
            # What no constant folding sees through.
            nodes[1:2] = [
                oh.make_node("Shape", ["x"], ["batch"], "batch", end=1),
                oh.make_node("Sub", ["batch", "batch"], ["none"], "none"),
                nodes[1],
            ]
        else:
            del nodes[1]
        sides = ["h", "w"] if open_sides else [8, 7]
        graph = oh.make_graph(
            nodes,
            "g",
            [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 3, *sides])],
            [oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
            [onh.from_array(value, name) for name, value in tensors.items()],
        )
        return inferred(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8))


class TestCountValues:
    @staticmethod
    def pooled(**settings: object) -> ir.Model:
        """An AveragePool, whose last windows reach beyond the image, between two Convs."""
        weights = {name: GENERATOR.standard_normal((3, 3, 1, 1)).astype(np.float32) for name in "vw"}
        nodes = [
            oh.make_node("Conv", ["x", "v"], ["a"], "first"),
            oh.make_node("Relu", ["a"], ["r"], "relu"),
            oh.make_node("AveragePool", ["r"], ["p"], "pool", strides=[2, 2], **settings),
            oh.make_node("Conv", ["p", "w"], ["y"], "second"),
        ]
        return network(nodes, weights, ["y"], inputs={"x": [1, 3, 7, 9]})

    @pytest.mark.parametrize("kernel", [2, 3, 4])
    def test_what_pads_nothing_counts_no_padding_and_its_integer_kernel_is_right(self, kernel):
        model = self.pooled(kernel_shape=[kernel, kernel], ceil_mode=1, count_include_pad=1)
        feeds = {"x": GENERATOR.standard_normal((1, 3, 7, 9)).astype(np.float32)}
        before, ready = run(model, feeds), prepared(model)
        assert "count_include_pad" not in ready.graph.node("pool").attributes
        assert np.allclose(run(ready, feeds), before, atol=1e-5)
        result = quantize_static(model, collect(model, lambda: [("i", feeds)]), Int8(placement="all"))
        assert {decision.node: decision.precision for decision in result.decisions}["pool"] == "int8"
        assert np.abs(run(result.model, feeds) - before).max() < 0.05 * np.abs(before).max()

    @pytest.mark.parametrize(
        ("settings", "precision"),
        [
            ({"ceil_mode": 1, "count_include_pad": 1, "pads": [1, 1, 1, 1]}, "float"),
            ({"ceil_mode": 1, "pads": [1, 1, 1, 1]}, "int8"),
            ({"count_include_pad": 1, "pads": [1, 1, 1, 1]}, "int8"),
        ],
    )
    def test_padding_that_counts_stays(self, settings, precision):
        model = self.pooled(kernel_shape=[3, 3], **settings)
        assert not CountValuesPass()(model).modified
        (reason,) = (reason for unit, reason in place(units_of(model), {}).items() if unit.kind == "AveragePool")
        assert bool(reason) == (precision == "float")


def test_a_mean_of_what_has_none_has_codes_that_its_kernel_takes():
    """Squeeze and excitation of maps that are as often above zero as below: its means are float32's roundings."""
    weights = {name: GENERATOR.standard_normal((3, 3, 1, 1)).astype(np.float32) for name in "uvw"}
    nodes = [
        oh.make_node("Conv", ["x", "u"], ["n"], "stem"),
        oh.make_node("GlobalAveragePool", ["n"], ["p"], "pool"),
        oh.make_node("Conv", ["p", "v", "b"], ["g"], "gate"),
        oh.make_node("Sigmoid", ["g"], ["s"], "sigmoid"),
        oh.make_node("Mul", ["n", "s"], ["m"], "scaled"),
        oh.make_node("Conv", ["m", "w"], ["y"], "last"),
    ]
    model = network(nodes, weights | {"b": np.array([1, -1, 2], np.float32)}, ["y"], inputs={"x": [1, 3, 12, 40]})
    half = GENERATOR.standard_normal((1, 3, 12, 20)).astype(np.float32)
    feeds = {"x": np.concatenate([half, -half], 3)}
    result = quantize_static(model, collect(model, lambda: [("i", feeds)]), Int8(placement="all"))
    assert {decision.node: decision.precision for decision in result.decisions}["pool"] == "int8"
    wanted = run(model, feeds)
    assert np.abs(run(result.model, feeds) - wanted).max() < 0.05 * np.abs(wanted).max()


class TestMeanToPool:
    @pytest.mark.parametrize(
        ("steps", "keepdims"),
        [
            ([[2, 3]], (1,)),
            ([[2, 3]], (0,)),
            ([[-1, -2]], (1,)),
            ([[3, -2]], (0,)),
            ([[3], [2]], (0, 0)),
            ([[2], [2]], (0, 0)),
            ([[-1], [-2]], (1, 1)),
            ([[-1], [-1]], (0, 0)),
        ],
    )
    def test_a_spatial_mean_or_several_become_a_pool_with_the_same_values(self, steps, keepdims):
        model = self.means([1, 4, 5, 6], steps, keepdims)
        value = GENERATOR.standard_normal((1, 4, 5, 6)).astype(np.float32)
        before = run(model, {"x": value})
        assert MeanToPoolPass()(model).modified
        proto = ir.to_proto(model)
        onnx.checker.check_model(proto, full_check=True)
        assert [node.op_type for node in proto.graph.node] == ["GlobalAveragePool"] + ([] if keepdims[-1] else ["Squeeze"])
        assert [value.name for value in proto.graph.output] == ["y"]
        read = {name for node in proto.graph.node for name in node.input}
        assert {tensor.name for tensor in proto.graph.initializer} <= read, "the mean's axes go with it"
        assert np.allclose(run(model, {"x": value}), before, atol=1e-6)

    @pytest.mark.parametrize(
        ("steps", "keepdims"),
        [
            ([[3], [2]], (0, 1)),
            ([[3], [2]], (1, 0)),
            ([[3], [1]], (0, 0)),
            ([[3], [3]], (1, 1)),
            ([[1], [1]], (0, 0)),
            ([[3]], (0,)),
        ],
    )
    def test_means_that_are_not_the_spatial_one_are_left_alone(self, steps, keepdims):
        model = self.means([1, 4, 5, 6], steps, keepdims)
        MeanToPoolPass()(model)
        assert model.graph[0].op_type == "ReduceMean"

    def test_a_mean_that_another_node_reads_is_left_alone(self):
        model = self.means([1, 4, 5, 6], [[3], [2]], (0, 0))
        model.graph.outputs.append(model.graph[0].outputs[0])
        MeanToPoolPass()(model)
        assert model.graph[0].op_type == "ReduceMean"

    @pytest.mark.parametrize("axes", [[1], [1, 2, 3], [2], [0, 2, 3]])
    def test_another_mean_is_left_alone(self, axes):
        model = self.means([1, 4, 5, 6], [axes], (1,))
        assert not MeanToPoolPass()(model).modified

    @staticmethod
    def means(shape: list[int], steps: list[list[int]], keepdims: tuple[int, ...]) -> ir.Model:
        names = ["x", *(f"m{place}" for place in range(1, len(steps))), "y"]
        graph = oh.make_graph(
            [
                oh.make_node("ReduceMean", [names[place], f"axes{place}"], [names[place + 1]], f"mean{place}", keepdims=keeps)
                for place, keeps in enumerate(keepdims)
            ],
            "g",
            [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
            [oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
            [onh.from_array(np.array(axes, np.int64), f"axes{place}") for place, axes in enumerate(steps)],
        )
        return inferred(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8))
