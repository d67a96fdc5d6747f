"""Each `int8.target`: which integers the file holds, where Q and DQ stand, and that it runs and is near FP32 in ONNX Runtime."""

from __future__ import annotations

from functools import partial

import graphs
import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir
import pytest
from graphs import AS_ON_ARM, network, optimized, sqnr, statistics_of

from octavo.graph.prepared import prepared
from octavo.params.grammar import Int8
from octavo.quantization.int8 import Images, quantize_static
from octavo.quantization.int8.draft import Draft
from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.pricing.price import estimated
from octavo.quantization.int8.structure.targets import TARGETS
from octavo.quantization.int8.structure.units import units_of
from octavo.quantization.int8.writing import writer
from octavo.quantization.int8.writing.input_layout import place_inputs

GENERATOR = np.random.default_rng(29)
IMAGES = [{"x": GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(10)]


he = partial(graphs.he, GENERATOR)


TENSORS = {
    "stem": he(16, 3, 3, 3),
    "stem.b": he(16, 1)[:, 0] * np.float32(0.2),
    "depth": he(16, 1, 3, 3) * np.float32(0.7),
    "point": he(16, 16, 1, 1),
    "point.b": he(16, 1)[:, 0] * np.float32(0.1),
    "again": he(16, 16, 1, 1),
    "wide": he(16, 32, 1, 1),
    "head": he(10, 16),
    "slopes": np.linspace(0.1, 0.4, 16, dtype=np.float32).reshape(-1, 1, 1),
    "scales": np.array([1, 1, 2, 2], np.float32),
}


def conv(source: str, target: str, weights: str, *bias: str) -> onnx.NodeProto:
    pads = {"pads": [1, 1, 1, 1]} if weights in ("stem", "depth") else {}
    return oh.make_node("Conv", [source, weights, *bias], [target], target, **pads, **({"group": 16} if weights == "depth" else {}))


def branches() -> ir.Model:
    """SiLU, a residual Add, PRelu, a depthwise Conv, pools, nearest Resize, a Concat and a Gemm."""
    nodes = [
        conv("x", "a", "stem", "stem.b"),
        oh.make_node("Sigmoid", ["a"], ["s"], "s"),
        oh.make_node("Mul", ["a", "s"], ["silu"], "silu"),
        conv("silu", "d", "depth"),
        oh.make_node("PRelu", ["d", "slopes"], ["p"], "p"),
        conv("p", "b", "point", "point.b"),
        oh.make_node("Add", ["silu", "b"], ["sum"], "sum"),
        oh.make_node("MaxPool", ["sum"], ["m"], "m", kernel_shape=[2, 2], strides=[2, 2]),
        oh.make_node("Resize", ["m", "", "scales"], ["up"], "up", mode="nearest"),
        oh.make_node("Concat", ["up", "silu"], ["j"], "j", axis=1),
        conv("j", "c", "wide"),
        oh.make_node("Relu", ["c"], ["r"], "r"),
        conv("r", "e", "again"),
        oh.make_node("LeakyRelu", ["e"], ["l"], "l", alpha=0.1),
        oh.make_node("GlobalAveragePool", ["l"], ["g"], "g"),
        oh.make_node("Flatten", ["g"], ["f"], "f"),
        oh.make_node("Gemm", ["f", "head"], ["y"], "y", transB=1),
    ]
    return network(nodes, TENSORS, ["y"])


@pytest.fixture(scope="module")
def model() -> ir.Model:
    return branches()


@pytest.fixture(scope="module")
def statistics(model):
    return statistics_of(model, IMAGES)


class Graph:
    """What tests ask of a Q/DQ graph."""

    def __init__(self, model: ir.Model) -> None:
        self.proto = ir.to_proto(model)
        onnx.checker.check_model(self.proto, full_check=True)
        self.nodes = {node.name: node for node in self.proto.graph.node}
        self.makers = {name: node for node in self.proto.graph.node for name in node.output}
        self.constants = {tensor.name: onh.to_array(tensor) for tensor in self.proto.graph.initializer}

    def of(self, op: str) -> list[onnx.NodeProto]:
        return [node for node in self.proto.graph.node if node.op_type == op]

    def activations(self) -> list[onnx.NodeProto]:
        """The QuantizeLinear nodes."""
        return self.of("QuantizeLinear")

    def reads_codes(self, name: str) -> list[bool]:
        """For each data input of a node: whether a DQ makes it."""
        found = [self.makers.get(source) for source in self.nodes[name].input if source and source not in self.constants]
        return [maker is not None and maker.op_type == "DequantizeLinear" for maker in found]

    def reads(self, name: str) -> list[str]:
        """A node's inputs, of those that a DQ makes what it restores: the constant, or what the Q before it reads."""
        found = []
        for source in self.nodes[name].input:
            maker = self.makers.get(source)
            if maker is not None and maker.op_type == "DequantizeLinear":
                maker = self.makers.get(source := maker.input[0])
                source = maker.input[0] if maker is not None else source
            found.append(source)
        return found

    def zero_points(self) -> set[tuple[str, bool]]:
        """(dtype, all are zero) of the activations' zero points."""
        points = [self.constants[node.input[2]] for node in self.activations()]
        return {(str(point.dtype), bool((point == 0).all())) for point in points}

    def weights(self) -> dict[str, np.ndarray]:
        return {name: array for name, array in self.constants.items() if name.endswith((".weight_codes", ".weight_codes.columns"))}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("optimization", ["off", "all"])
def test_every_target_runs_near_fp32_in_onnx_runtime(target, optimization, model, statistics):
    result = quantize_static(model, statistics, Int8(target=target, method="minmax", placement="all")).model
    # Symmetric activations cost up to 6 dB, weights of which 16 bits hold two products up to 3.
    least = {"tensorrt": 19, "cpu-no-vnni": 21, "openvino-no-vnni": 21}.get(target, 23)
    assert sqnr(model, result, IMAGES, optimization=optimization)["y"] > least
    weights = Graph(result).weights()
    assert len(weights) == 6
    assert {str(array.dtype) for array in weights.values()} == {"int8"}
    assert max(np.abs(array.astype(int)).max() for array in weights.values()) == 127


@pytest.mark.parametrize("target", TARGETS)
def test_with_images_what_is_kept_holds_the_bound_and_bytes_repeat(target, model, statistics):
    images = Images(IMAGES[:6], IMAGES[6:])
    first, second = (quantize_static(model, statistics, Int8(target=target, placement="all"), images) for _ in range(2))
    assert first.measured["db"] >= first.measured["fidelity_db"]
    assert ir.to_proto(first.model).SerializeToString() == ir.to_proto(second.model).SerializeToString()


class TestArm:
    def test_the_codes_are_those_of_cpu_less_128(self, model, statistics, monkeypatch):
        monkeypatch.setattr(writer, "write_kernel_forms", lambda model: None)
        recipes = {target: Int8(target=target, placement="all") for target in ("cpu", "arm")}
        made = {target: Graph(quantize_static(model, statistics, recipe).model) for target, recipe in recipes.items()}
        pairs = [{node.name: node for node in graph.activations()} for graph in made.values()]
        assert pairs[0].keys() == pairs[1].keys()
        for name in pairs[0]:
            unsigned, signed = (made[target].constants[pair[name].input[2]] for target, pair in zip(made, pairs, strict=True))
            scales = [made[target].constants[pair[name].input[1]] for target, pair in zip(made, pairs, strict=True)]
            assert (unsigned.dtype, signed.dtype) == (np.uint8, np.int8)
            np.testing.assert_array_equal(scales[0], scales[1])
            np.testing.assert_array_equal(unsigned.astype(int) - 128, signed)

    def test_the_same_kernels_are_fused_as_for_cpu(self, model, statistics, tmp_path):
        counts = []
        for target in ("cpu", "arm"):
            (tmp_path / target).mkdir()
            made = quantize_static(model, statistics, Int8(target=target)).model
            ops = [node.op_type for node in optimized(made, tmp_path / target, entries=AS_ON_ARM).graph.node]
            counts.append({op: ops.count(op) for op in ("QLinearConv", "QGemm", "QLinearAdd", "Conv", "PRelu", "Max")})
        assert counts[0] == counts[1]
        assert counts[0]["QLinearConv"] == 6, "one of them PRelu's"
        assert counts[0]["Conv"] == 0

    def test_codes_that_only_move_before_float_load_on_x86(self):
        """From opset 21 on ONNX Runtime fails there on a Q that it has itself put behind the move."""
        nodes = [
            conv("x", "a", "stem", "stem.b"),
            oh.make_node("MaxPool", ["a"], ["m"], "m", kernel_shape=[2, 2], strides=[2, 2]),
            conv("m", "b", "again"),
            # Too few values for a scale a channel, which ONNX Runtime moves no Q of.
            oh.make_node("Reshape", ["b", "rows"], ["r"], "r"),
            oh.make_node("Softmax", ["r"], ["y"], "y", axis=1),
        ]
        moved = network(nodes, TENSORS | {"rows": np.array([1, 16, -1])}, ["y"], opset=21)
        recipe = Int8(target="arm", method="minmax", placement="all", float_heads=False)
        made = quantize_static(moved, statistics_of(moved, IMAGES), recipe).model
        assert Graph(made).reads_codes("r") == [True]
        assert sqnr(moved, made, IMAGES)["y"] > 20


class TestBeforeInputs:
    @pytest.mark.parametrize("target", ["openvino", "tensorrt"])
    def test_weighted_layers_read_codes_and_nothing_is_quantized_before_an_activation(self, target, model, statistics):
        graph = Graph(quantize_static(model, statistics, Int8(target=target)).model)
        for name in ("a", "d", "b", "c", "e"):
            assert graph.reads(name)[1] == f"{name}.weight_codes"
        for node in graph.activations():
            maker = graph.makers.get(node.input[0])
            assert maker is None or maker.name in ("silu", "p", "b", "sum", "r", "l", "g", "j", "f")
            for fused in ("a", "d", "c", "e"):
                assert node.input[0] != fused, "the activation behind is fused into the Conv"
        for name in ("s", "p", "l", "r"):
            assert not any(graph.reads_codes(name))
        assert {"Sigmoid", "Mul", "PRelu", "LeakyRelu", "Relu"} <= {node.op_type for node in graph.proto.graph.node}
        assert not {"Max", "Min"} & {node.op_type for node in graph.proto.graph.node}

    @pytest.mark.parametrize("target", ["openvino", "tensorrt"])
    def test_biases_stay_float_and_corrected(self, target, model, statistics):
        graph = Graph(quantize_static(model, statistics, Int8(target=target)).model)
        bias = graph.constants[graph.nodes["a"].input[2]]
        assert bias.dtype == np.float32
        assert not any(array.dtype == np.int32 for array in graph.constants.values())
        plain = Graph(quantize_static(model, statistics, Int8(target=target, correction="none")).model)
        np.testing.assert_array_equal(plain.constants[plain.nodes["a"].input[2]], TENSORS["stem.b"])
        assert not np.array_equal(bias, TENSORS["stem.b"])

    def test_openvino_gets_one_q_a_tensor_and_integers_through_carriers(self, model, statistics):
        graph = Graph(quantize_static(model, statistics, Int8(target="openvino", method="minmax")).model)
        sources = [node.input[0] for node in graph.activations()]
        assert len(sources) == len(set(sources))
        assert graph.reads_codes("sum") == [True, True]
        assert graph.reads_codes("m") == [True]
        # What MaxPool and Resize put out are codes already, of the scale that the Concat's other input has.
        assert not {"m", "up", "j"} & set(sources)
        assert graph.nodes["up"].input[0] == "m"
        assert graph.nodes["c"].input[0] == "j"
        scales = {node.input[0]: graph.constants[node.input[1]] for node in graph.activations()}
        assert scales["sum"] == scales["silu"]
        assert {dtype for dtype, _ in graph.zero_points()} <= {"uint8", "int8"}

    @pytest.mark.parametrize("op", ["GlobalMaxPool", "ReduceMax", "ReduceMin"])
    def test_the_codes_of_a_maximum_are_made_before_it_too_and_no_value_changes(self, op):
        """OpenVINO computes otherwise where a Q stands right behind a maximum alone."""
        inputs = ["a"] if op == "GlobalMaxPool" else ["a", "axes"]
        nodes = [
            conv("x", "a", "stem", "stem.b"),
            oh.make_node(op, inputs, ["g"], "g"),
            oh.make_node("Flatten", ["g"], ["f"], "f"),
            oh.make_node("Gemm", ["f", "head"], ["y"], "y", transB=1),
        ]
        model = network(nodes, TENSORS | {"axes": np.array([2, 3])}, ["y"])
        made = quantize_static(model, statistics_of(model, IMAGES), Int8(target="openvino", method="minmax")).model
        graph = Graph(made)
        assert graph.reads("g")[0] == "a"
        assert graph.reads_codes("g")[0]
        behind = next(node for node in graph.activations() if node.input[0] == "g")
        before = next(node for node in graph.activations() if node.input[0] == "a")
        for place in (1, 2):
            assert graph.constants[before.input[place]] == graph.constants[behind.input[place]]
        graph.nodes["g"].input[0] = "a"
        for feeds in IMAGES[:3]:
            expected = graphs.run(ir.from_proto(graph.proto), feeds, optimization="off")["y"]
            np.testing.assert_array_equal(graphs.run(made, feeds, optimization="off")["y"], expected)

    def test_openvino_gives_channels_before_a_depthwise_conv_a_scale_each(self):
        spread = np.geomspace(0.01, 1, 16).astype(np.float32)
        nodes = [
            conv("x", "a", "uneven"),
            oh.make_node("Sigmoid", ["a"], ["s"], "s"),
            oh.make_node("Mul", ["a", "s"], ["silu"], "silu"),
            conv("silu", "d", "back"),
            conv("d", "y", "point"),
        ]
        tensors = TENSORS | {"uneven": TENSORS["point"][:, :3] * spread.reshape(-1, 1, 1, 1)}
        tensors["depth"] = TENSORS["depth"] / spread.reshape(-1, 1, 1, 1)
        nodes[3] = conv("silu", "d", "depth")
        model = network(nodes, tensors, ["y"])
        found = statistics_of(model, IMAGES)
        with_scales = quantize_static(model, found, Int8(target="openvino", method="minmax")).model
        graph = Graph(with_scales)
        (node,) = [node for node in graph.activations() if node.input[0] == "silu"]
        zero = graph.constants[node.input[2]]
        assert (zero.shape, zero.dtype, zero.any()) == ((16,), np.int8, False)
        per_tensor = quantize_static(model, found, Int8(target="tensorrt", method="minmax")).model
        assert sqnr(model, with_scales, IMAGES)["y"] > sqnr(model, per_tensor, IMAGES)["y"] + 6
        # With images to choose by, it is chosen where it measures better.
        chosen = quantize_static(model, found, Int8(target="openvino", method="minmax"), Images(IMAGES[:6], IMAGES[6:]))
        tried = chosen.measured["tried_db"]
        assert tried["minmax, by channel"] > tried["minmax"] + 3
        assert chosen.measured["all_int8_db"] == max(tried.values())

    @pytest.mark.parametrize("target", TARGETS)
    def test_symmetric_holds_for_channels_with_a_scale_each(self, target):
        """Behind a Relu OpenVINO's have the least code for zero where nothing else is asked for."""
        nodes = [conv("x", "a", "stem", "stem.b"), oh.make_node("Relu", ["a"], ["r"], "r"), conv("r", "d", "depth")]
        model = network([*nodes, conv("d", "y", "point")], TENSORS, ["y"])
        recipe = Int8(target=target, method="minmax", symmetric=True)
        graph = Graph(quantize_static(model, statistics_of(model, IMAGES), recipe).model)
        zeros = [graph.constants[node.input[2]] for node in graph.activations()]
        assert any(zero.size == 16 for zero in zeros) == target.startswith("openvino")
        assert all(np.all(zero == (0 if zero.dtype == np.int8 else 128)) for zero in zeros)

    @pytest.mark.parametrize("maker", ["conv", "relu", "sum", "pool", "max"])
    def test_a_scale_for_each_channel_stands_only_where_onnx_runtime_loads_it(self, maker):
        """An Add of two quantized tensors becomes QLinearAdd there, which refuses more than one output scale."""
        made = {
            "conv": "b",
            "relu": oh.make_node("Relu", ["b"], ["relu"], "relu"),
            "sum": oh.make_node("Add", ["b", "c"], ["sum"], "sum"),
            "pool": oh.make_node("AveragePool", ["b"], ["pool"], "pool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            "max": oh.make_node("MaxPool", ["b"], ["max"], "max", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        }[maker]
        nodes = [conv("x", "a", "stem", "stem.b"), conv("a", "b", "point"), conv("a", "c", "again")]
        name = made if isinstance(made, str) else maker
        nodes += [] if isinstance(made, str) else [made]
        nodes += [conv(name, "d", "depth"), conv("d", "e", "point", "point.b"), conv("c", "f", "again")]
        model = network([*nodes, oh.make_node("Add", ["e", "f"], ["y"], "y")], TENSORS, ["y"])
        ready = prepared(model)
        draft = Draft(ready, statistics_of(ready, IMAGES), Int8(target="openvino", method="minmax"), {}, IMAGES, by_channel=True)
        plan = draft.plan()
        assert plan.scales[name].by_channel == (maker in ("conv", "relu"))
        assert sqnr(ready, draft.written(plan), IMAGES)["y"] > 20

    def test_scales_of_channels_run_before_a_layer_whose_bias_nothing_corrects(self):
        nodes = [
            conv("x", "a", "stem", "stem.b"),
            # Codes of what is above zero are uint8, which ONNX Runtime fuses on x86.
            oh.make_node("Relu", ["a"], ["r"], "r"),
            conv("r", "d", "depth"),
            conv("d", "y", "point", "point.b"),
        ]
        model = network(nodes, TENSORS, ["y"])
        recipe = Int8(target="openvino", method="minmax", correction="none")
        draft = Draft(model, statistics_of(model, IMAGES), recipe, {}, IMAGES, by_channel=True)
        plan = draft.plan()
        assert plan.scales["r"].by_channel
        assert plan.codes["d"].bias is None
        for optimization in ("off", "all"):
            assert sqnr(model, draft.written(plan), IMAGES, optimization=optimization)["y"] > 20

    def test_a_channel_that_holds_nothing_has_no_codes_beyond_the_clip_before_it(self):
        """OpenVINO leaves a Clip out whose bounds no code exceeds."""
        dead = np.where(np.arange(16) % 4, 1, 0).astype(np.float32).reshape(-1, 1, 1, 1)
        bias = np.where(np.arange(16) % 4, TENSORS["stem.b"], -1).astype(np.float32)
        nodes = [
            conv("x", "a", "stem", "stem.b"),
            oh.make_node("Clip", ["a", "low", "high"], ["clip"], "clip"),
            conv("clip", "d", "depth"),
            conv("d", "y", "point", "point.b"),
        ]
        tensors = TENSORS | {"stem": TENSORS["stem"] * dead, "stem.b": bias, "low": np.float32(0), "high": np.float32(6)}
        model = network(nodes, tensors, ["y"])
        draft = Draft(model, statistics_of(model, IMAGES), Int8(target="openvino", method="minmax"), {}, IMAGES, by_channel=True)
        chosen = draft.plan().scales["clip"]
        assert chosen.by_channel
        assert (chosen.zero_point == 0).all()
        assert np.all(chosen.scale * 255 <= 6.001)
        nothing = QParams.per_channel(np.zeros(3), np.zeros(3))
        assert nothing.scale.tolist() == [1, 1, 1], "no channel has a scale to lend"

    @pytest.mark.parametrize("target", ["cpu", "cpu-no-vnni", "openvino"])
    def test_biases_of_channels_without_weights_are_as_exact_as_others(self, target):
        """Pruned channels put out their bias alone; inputs of raw pixels have steps of 1."""
        alive = np.where(np.arange(16) % 2, 0.01, 0).astype(np.float32).reshape(-1, 1, 1, 1)
        bias = np.random.default_rng(3).uniform(0, 1, 16).astype(np.float32)
        nodes = [conv("x", "a", "stem", "stem.b"), oh.make_node("Relu", ["a"], ["r"], "relu"), conv("r", "y", "point", "point.b")]
        tensors = {name: TENSORS[name] for name in ("stem", "point", "point.b")} | {"stem.b": bias}
        model = network(nodes, tensors | {"stem": TENSORS["stem"] * alive}, ["y"])
        images = [{"x": np.abs(feeds["x"]) * 100} for feeds in IMAGES]
        recipe = Int8(target=target, method="minmax", placement="all", float_heads=False)
        result = quantize_static(model, statistics_of(model, images), recipe)
        for optimization in ("off", "all"):
            assert sqnr(model, result.model, images, optimization=optimization)["y"] > 36

    def test_a_norm_that_no_layer_takes_in_is_left_to_the_runtime(self):
        """ONNX Runtime has no integer kernel for it and gets a depthwise Conv; OpenVINO fuses it."""
        norms = {name: np.abs(he(32, 1)[:, 0]) + np.float32(0.5) for name in ("gain", "shift", "mean", "variance")}
        nodes = [
            conv("x", "a", "stem", "stem.b"),
            oh.make_node("Relu", ["a"], ["r"], "r"),
            conv("r", "b", "point"),
            oh.make_node("Concat", ["r", "b"], ["j"], "j", axis=1),
            oh.make_node("BatchNormalization", ["j", *norms], ["n"], "n"),
            conv("n", "y", "wide"),
        ]
        model = network(nodes, TENSORS | norms, ["y"])
        found = statistics_of(model, IMAGES)
        kinds = {
            target: [node.op_type for node in quantize_static(model, found, Int8(target=target)).model.graph]
            for target in ("cpu", "openvino")
        }
        assert "BatchNormalization" not in kinds["cpu"]
        assert (kinds["openvino"].count("BatchNormalization"), kinds["openvino"].count("Conv")) == (1, 3)

    def test_estimates_say_which_layers_gain_in_openvino_and_which_in_onnx_runtime(self):
        """OpenVINO's integer kernels gain more where products decide; those of depthwise layers gain little in either."""
        units = units_of(branches())
        gain = {
            target: {unit.name: pair[0] / pair[1] for unit, pair in estimated(units, target).units.items() if unit.kind == "linear"}
            for target in ("cpu", "openvino")
        }
        assert gain["openvino"]["d"] < 0.6 * gain["openvino"]["b"]
        assert gain["openvino"]["b"] > 1.3 * gain["cpu"]["b"]

    def test_tensorrt_takes_zero_points_of_zero_and_leaves_an_input_of_the_add_to_the_conv(self, model, statistics):
        graph = Graph(quantize_static(model, statistics, Int8(target="tensorrt")).model)
        assert graph.zero_points() == {("int8", True)}
        assert "b" not in {node.input[0] for node in graph.activations()}
        assert graph.reads_codes("sum") == [True, False]
        # Carriers and Concat are left to TensorRT, which moves Q and DQ across them.
        assert graph.reads_codes("j") == [False, False]
        assert graph.reads_codes("m") == [False]
        assert (graph.reads_codes("c")[0], graph.reads("c")[0]) == (True, "j")
        assert {node.op_type for node in graph.proto.graph.node if node.domain} == set()
        assert {entry.domain for entry in graph.proto.opset_import} == {""}

    def test_of_two_projections_the_later_one_fuses(self):
        nodes = [
            conv("x", "a", "stem"),
            oh.make_node("Relu", ["a"], ["r"], "r"),
            conv("r", "b", "point"),
            # Of another tensor, or both would be one.
            oh.make_node("LeakyRelu", ["a"], ["l"], "l"),
            conv("l", "c", "again"),
            oh.make_node("Add", ["c", "b"], ["sum"], "sum"),
            conv("sum", "y", "point"),
        ]
        model = network(nodes, TENSORS, ["y"])
        graph = Graph(quantize_static(model, statistics_of(model, IMAGES), Int8(target="tensorrt")).model)
        assert (graph.reads_codes("sum"), graph.reads("sum")) == ([False, True], ["c", "b"])

    @pytest.mark.parametrize("target", ["openvino", "tensorrt"])
    def test_keep_float_and_the_tail_are_float_in_the_file_and_in_the_record(self, target, tmp_path):
        nodes = [
            conv("x", "a", "stem"),
            oh.make_node("Relu", ["a"], ["r"], "r"),
            conv("r", "b", "point"),
            oh.make_node("Relu", ["b"], ["t"], "t"),
            conv("t", "c", "again"),
            oh.make_node("Concat", ["c", "r"], ["y"], "y", axis=1),
        ]
        # A channel a hundred times smaller than others would not survive one scale for all.
        weights = TENSORS["point"] * np.geomspace(0.01, 1, 16, dtype=np.float32).reshape(-1, 1, 1, 1)
        model = network(nodes, TENSORS | {"point": weights}, ["y"])
        result = quantize_static(model, statistics_of(model, IMAGES), Int8(target=target, keep_float=("b",)))
        records = {decision.node: (decision.precision, decision.reason) for decision in result.decisions}
        assert records["b"] == ("float", "keep_float: b")
        assert records["y"][0] == "float"
        assert records["c"][0] == "int8"
        graph = Graph(result.model)
        assert graph.reads_codes("b") == [False]
        assert graph.nodes["b"].input[1] == "point"
        stored = [onh.to_array(tensor) for tensor in optimized(result.model, tmp_path).graph.initializer]
        shrunk = [array for array in stored if array.dtype == np.float32 and array.size == weights.size]
        assert any(np.array_equal(np.sort(array.ravel()), np.sort(weights.ravel())) for array in shrunk)

    def test_what_no_int8_unit_reads_is_not_quantized(self):
        nodes = [
            conv("x", "a", "stem"),
            oh.make_node("MaxPool", ["a"], ["m"], "m", kernel_shape=[2, 2]),
            oh.make_node("Exp", ["m"], ["e"], "e"),
            conv("e", "y", "point"),
        ]
        model = prepared(network(nodes, TENSORS, ["y"]))
        reasons = {unit.name: reason for unit, reason in place_inputs(units_of(model), {}, TARGETS["openvino"]).items()}
        assert reasons["m"] == "nothing that reads it is INT8"
        assert reasons["e"] == "no INT8 rule for Exp"
        assert reasons["a"] == reasons["y"] == ""
