"""write_qdq on real ONNX Runtime: what runs as integers, what stays float, and values that agree with and without its optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import graphs
import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir
import pytest
from graphs import AS_ON_ARM, network, optimized, run, sqnr, statistics_of

from octavo.errors import QuantizationError
from octavo.params.grammar import Int8
from octavo.quantization.int8 import quantize_static
from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.numbers.scales import quantized_tensors, scales_of
from octavo.quantization.int8.numbers.weights import codes_of
from octavo.quantization.int8.structure.placement import place
from octavo.quantization.int8.structure.units import Unit, units_of
from octavo.quantization.int8.writing.qdq_graph import QdqGraph
from octavo.quantization.int8.writing.writer import write_qdq
from octavo.runtime.noise import sqnr_db

GENERATOR = np.random.default_rng(13)
IMAGES = [{"x": GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(6)]


normal = partial(graphs.he, GENERATOR)


TENSORS = {
    "stem": normal(8, 3, 3, 3),
    "stem.b": normal(8) * np.float32(0.2),
    "body": normal(8, 8, 1, 1),
    "wide": normal(8, 16, 1, 1),
    "head": normal(5, 8),
    "head.b": normal(5),
    "zero": np.float32(0),
    "six": np.float32(6),
    "half": np.float32(0.5),
    "spatial": np.array([2, 3], np.int64),
}


def conv(source: str, target: str, weights: str = "body", *bias: str) -> onnx.NodeProto:
    pads = {"pads": [1, 1, 1, 1]} if weights == "stem" else {}
    return oh.make_node("Conv", [source, weights, *bias], [target], target, **pads)


@dataclass
class Written:
    """A float graph and its INT8 form."""

    float32: ir.Model
    int8: ir.Model
    units: list[Unit]
    chosen: set[Unit]
    scales: dict[str, QParams]

    def both(self, **options: object) -> list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
        return [(run(self.float32, image), run(self.int8, image, **options)) for image in IMAGES]

    def sqnr(self) -> dict[str, float]:
        return sqnr(self.float32, self.int8, IMAGES)


def written(
    nodes: list[onnx.NodeProto],
    outputs: list[str],
    *,
    tensors: dict[str, np.ndarray] | None = None,
    kept: tuple[str, ...] = (),
    wide: dict[str, int] | None = None,
    force: tuple[str, ...] = (),
    opset: int = 18,
    **settings: object,
) -> Written:
    """Quantize with measured extremes; `force` takes units of the tail in, as the repair of placement may."""
    model = network(nodes, TENSORS | (tensors or {}), outputs, opset=opset)
    before = ir.to_proto(model).SerializeToString()
    units = units_of(model)
    reasons = place(units, {name: name for name in kept})
    chosen = {unit for unit in units if not reasons[unit] or unit.name in force}
    int8 = [unit for unit in units if unit in chosen]
    recipe = Int8(method="minmax", **settings)
    statistics = statistics_of(model, IMAGES)
    scales = scales_of(int8, quantized_tensors(int8), statistics, recipe, wide or {})
    codes = {unit.main.name: codes_of(unit.main, per_channel=recipe.per_channel) for unit in int8 if unit.kind == "linear"}
    result = write_qdq(model, units, chosen, scales, codes)
    assert ir.to_proto(model).SerializeToString() == before, "the float model is left as it was"
    onnx.checker.check_model(ir.to_proto(result), full_check=True)
    again = write_qdq(model, units, chosen, scales, codes)
    assert ir.to_proto(again).SerializeToString() == ir.to_proto(result).SerializeToString()
    made = Written(model, result, units, chosen, scales)
    agrees_without_the_optimizer(made)
    return made


def agrees_without_the_optimizer(made: Written) -> None:
    """The integer kernels give what the Q/DQ say: one code apart at most, and few of those."""
    for image in IMAGES[:2]:
        plain, fast = run(made.int8, image, optimization="off"), run(made.int8, image)
        for name, value in plain.items():
            # A code that tips over upstream can move what lies behind it by a few steps.
            assert sqnr_db(float((value**2).sum()), float(((value - fast[name]) ** 2).sum())) > 30, name


def counts(made: Written, folder: Path, **options: object) -> dict[str, int]:
    ops = [node.op_type for node in optimized(made.int8, folder, **options).graph.node]
    return {op: ops.count(op) for op in sorted(set(ops))}


def integer_only(found: dict[str, int], *also: str) -> bool:
    rest = {op for op in found if not op.startswith(("QLinear", "QGemm")) and op not in ("QuantizeLinear", "DequantizeLinear")}
    # Channels last is the layout of its kernels, which Transposes lead to and from; a stem's columns are read as blocks.
    return rest <= {"Transpose", "Reshape", *also}


def test_conv_relu_clip_add_pool_and_gemm_run_as_integers(tmp_path):
    nodes = [
        conv("x", "a", "stem", "stem.b"),
        oh.make_node("Relu", ["a"], ["r"], "r"),
        conv("r", "b"),
        oh.make_node("Clip", ["b", "zero", "six"], ["c"], "c"),
        oh.make_node("Add", ["r", "c"], ["s"], "s"),
        oh.make_node("MaxPool", ["s"], ["m"], "m", kernel_shape=[2, 2], strides=[2, 2]),
        oh.make_node("GlobalAveragePool", ["m"], ["g"], "g"),
        oh.make_node("Flatten", ["g"], ["f"], "f"),
        oh.make_node("Gemm", ["f", "head", "head.b"], ["y"], "y", transB=1),
    ]
    made = written(nodes, ["y"])
    assert made.sqnr()["y"] > 30
    assert "y" not in made.scales, "logits keep their precision"
    found = counts(made, tmp_path)
    assert integer_only(found, "NhwcMaxPool", "MaxPool", "Flatten"), found
    assert (found["QLinearConv"], found["QLinearAdd"], found["QGemm"]) == (2, 1, 1)
    assert (found["QuantizeLinear"], found.get("DequantizeLinear", 0)) == (1, 0)


def test_only_what_no_int8_layer_comes_behind_has_a_scale_for_each_channel():
    """`a` is read by float alone, yet leads to `y`: its DequantizeLinear would run with the channels last, which is slow."""
    nodes = [conv("x", "a", "stem", "stem.b"), oh.make_node("Tanh", ["a"], ["t"], "t"), conv("t", "y")]
    made = written(nodes, ["y"])
    assert (made.scales["a"].by_channel, made.scales["y"].by_channel) == (False, True)


def test_a_head_of_few_values_has_one_scale_because_their_extremes_say_nothing_of_the_next_image_s():
    made = written([conv("x", "a", "stem", "stem.b"), oh.make_node("GlobalAveragePool", ["a"], ["g"], "g"), conv("g", "y")], ["y"])
    assert not made.scales["y"].by_channel


def test_stems_pools_and_upsampling_are_written_as_what_runs_fastest(tmp_path):
    nodes = [
        oh.make_node("Conv", ["x", "stem", "stem.b"], ["a"], "a", pads=[1, 1, 1, 1], strides=[2, 2]),
        oh.make_node("AveragePool", ["a"], ["p"], "p", kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1], count_include_pad=1),
        oh.make_node("Resize", ["p", "", "twice"], ["u"], "u", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        conv("u", "y"),
    ]
    made = written(nodes, ["y"], tensors={"twice": np.array([1, 1, 2, 2], np.float32)})
    assert made.sqnr()["y"] > 28
    found = counts(made, tmp_path)
    assert integer_only(found, "Tile"), found
    assert (found["QLinearConv"], found["Tile"]) == (3, 2)
    (stem,) = (node for node in made.int8.graph if node.name == "a")
    assert list(stem.attributes["strides"].as_ints()) == [2, 1], "on blocks of columns"


@pytest.mark.parametrize(
    ("inputs", "settings"),
    [(["s", "pads"], {}), (["s", "pads", "zero"], {}), (["s", "pads"], {"mode": "reflect"})],
    ids=["zeros", "given", "reflect"],
)
@pytest.mark.parametrize("target", ["cpu", "arm"])
def test_a_pad_works_on_codes(inputs, settings, target, tmp_path):
    pads = {"pads": np.array([0, 0, 1, 2, 0, 0, 2, 1])}
    nodes = [
        conv("x", "a", "stem", "stem.b"),
        conv("a", "s"),
        oh.make_node("Pad", inputs, ["p"], "p", **settings),
        conv("p", "b"),
        oh.make_node("Add", ["b", "p"], ["t"], "t"),
        conv("t", "u"),
        oh.make_node("GlobalAveragePool", ["u"], ["y"], "y"),
    ]
    made = written(nodes, ["y", "p"], tensors=pads, target=target)
    assert all(decision > 25 for decision in made.sqnr().values())
    assert made.scales["p"] == made.scales["s"]
    options = {"entries": AS_ON_ARM} if target == "arm" else {}
    found = counts(made, tmp_path, **options)
    assert (found["Pad"], found["QLinearConv"], found["QLinearAdd"]) == (1, 4, 1)
    # Of the tensor that is an output of the graph, and behind the tail.
    assert found["DequantizeLinear"] == 2
    for wanted, got in made.both():
        if not settings:
            border = np.ones_like(wanted["p"], bool)
            border[:, :, 1:-2, 2:-1] = False
            assert not got["p"][border].any(), "zeros are exact"


@pytest.mark.parametrize("target", ["cpu", "arm"])
@pytest.mark.parametrize(
    ("cut", "kernels"),
    [
        (oh.make_node("Relu", ["a"], ["r"], "r"), {"Max": 1}),
        (oh.make_node("Clip", ["a", "", "half"], ["r"], "r"), {"Min": 1}),
        (oh.make_node("Clip", ["a", "zero", "half"], ["r"], "r"), {"Max": 1, "Min": 1}),
    ],
    ids=["Relu", "at most", "between"],
)
def test_a_relu_or_clip_that_no_layer_takes_in_cuts_codes(cut, kernels, target, tmp_path):
    """What it reads another node reads, too: residual units that begin with it (RefineNet, DPT)."""
    nodes = [
        conv("x", "a", "stem", "stem.b"),
        cut,
        conv("r", "b"),
        oh.make_node("Add", ["b", "a"], ["s"], "s"),
        oh.make_node("Add", ["s", "r"], ["t"], "t"),
        conv("t", "u"),
        oh.make_node("GlobalAveragePool", ["u"], ["y"], "y"),
    ]
    made = written(nodes, ["y", "r"], target=target)
    assert all(kept > 25 for kept in made.sqnr().values())
    assert made.scales["r"] == made.scales["a"], "nothing is rounded again"
    assert "r" in [node.name for node in made.int8.graph], "what stands for FP32's node has its name"
    found = counts(made, tmp_path, **({"entries": AS_ON_ARM} if target == "arm" else {}))
    assert {op: found.get(op, 0) for op in kernels} == kernels
    assert (found["QLinearConv"], found["QLinearAdd"], found.get("Relu", 0), found.get("Clip", 0)) == (3, 2, 0, 0)
    # Of the image; of the tensor that is an output of the graph, and behind the tail.
    assert (found["QuantizeLinear"], found["DequantizeLinear"]) == (1, 2)


def test_a_relu_of_codes_that_reach_no_lower_is_nothing(tmp_path):
    nodes = [
        conv("x", "a", "stem", "stem.b"),
        oh.make_node("Relu", ["a"], ["r"], "r"),
        oh.make_node("MaxPool", ["r"], ["m"], "m", kernel_shape=[2, 2], strides=[2, 2]),
        oh.make_node("Relu", ["m"], ["again"], "again"),
        conv("again", "y"),
    ]
    made = written(nodes, ["y", "again"])
    assert all(kept > 25 for kept in made.sqnr().values())
    found = counts(made, tmp_path)
    assert not {"Max", "Min", "Relu", "Identity"} & set(found), found


@pytest.mark.parametrize("op", ["Max", "Min"])
@pytest.mark.parametrize("target", ["cpu", "arm"])
def test_the_larger_of_two_halves_of_a_layer_is_chosen_among_codes(op, target, tmp_path):
    """Max feature map of LightCNN."""
    nodes = [
        conv("x", "a", "stem", "stem.b"),
        oh.make_node("Split", ["a"], ["one", "other"], "halves", axis=1, num_outputs=2),
        oh.make_node(op, ["one", "other"], ["m"], "m"),
        conv("m", "b", "narrow"),
        oh.make_node("Add", ["b", "m"], ["s"], "s"),
        conv("s", "u", "narrow"),
        oh.make_node("GlobalAveragePool", ["u"], ["y"], "y"),
    ]
    made = written(nodes, ["y", "m"], tensors={"narrow": normal(4, 4, 1, 1)}, target=target)
    assert all(kept > 25 for kept in made.sqnr().values())
    assert made.scales["m"] == made.scales["a"], "nothing is rounded again"
    assert "m" in [node.name for node in made.int8.graph], "what stands for FP32's node has its name"
    ops = optimized(made.int8, tmp_path, **({"entries": AS_ON_ARM} if target == "arm" else {})).graph.node
    (chosen,) = (node for node in ops if node.op_type == op)
    assert {node.op_type for node in ops if chosen.input[0] in node.output} <= {"Split", "Transpose"}
    found = [node.op_type for node in ops]
    # Of the image; of the tensor that is an output of the graph, and behind the tail.
    assert (found.count("QuantizeLinear"), found.count("DequantizeLinear"), found.count("QLinearAdd")) == (1, 2, 1)


def made_larger(nodes: list, folder: Path) -> dict[str, int]:
    """What runs of a Concat `c` of maps, some made larger by `scales`, with a Conv and a classifier behind."""
    behind = [
        conv("c", "w", "wide"),
        oh.make_node("GlobalAveragePool", ["w"], ["g"], "g"),
        oh.make_node("Flatten", ["g"], ["f"], "f"),
        oh.make_node("Gemm", ["f", "head"], ["y"], "y", transB=1),
    ]
    made = written([*nodes, *behind], ["y"], tensors={"scales": np.array([1, 1, 2, 2], np.float32)})
    assert made.sqnr()["y"] > 25
    return counts(made, folder)


def test_what_was_made_larger_in_float_joins_integers(tmp_path):
    nodes = [
        conv("x", "a", "stem", "stem.b"),
        oh.make_node("MaxPool", ["a"], ["m"], "m", kernel_shape=[2, 2], strides=[2, 2]),
        conv("m", "b"),
        oh.make_node("Resize", ["b", "", "scales"], ["r"], "r", mode="linear"),
        oh.make_node("Concat", ["r", "a"], ["c"], "c", axis=1),
    ]
    found = made_larger(nodes, tmp_path)
    # The image, and what was made larger; brought back is what is made larger.
    assert (found["QLinearConv"], found["QLinearConcat"], found["Resize"]) == (3, 1, 1)
    assert (found["QuantizeLinear"], found["DequantizeLinear"]) == (2, 1)


def test_a_concat_of_float_maps_is_one_of_codes_before_layers(tmp_path):
    nodes = [
        conv("x", "a", "stem", "stem.b"),
        conv("a", "b"),
        oh.make_node("Resize", ["a", "", "scales"], ["r"], "r", mode="linear"),
        oh.make_node("Resize", ["b", "", "scales"], ["s"], "s", mode="linear"),
        oh.make_node("Concat", ["r", "s"], ["c"], "c", axis=1),
    ]
    found = made_larger(nodes, tmp_path)
    assert (found["QLinearConcat"], found["Resize"]) == (1, 2)
    assert "Concat" not in found
    # The image, and both maps; brought back is what is made larger.
    assert (found["QuantizeLinear"], found["DequantizeLinear"]) == (3, 2)


def test_silu_runs_as_integer_sigmoid_and_mul(tmp_path):
    nodes = [
        conv("x", "a", "stem", "stem.b"),
        oh.make_node("Sigmoid", ["a"], ["s"], "s"),
        oh.make_node("Mul", ["a", "s"], ["m"], "m"),
        conv("m", "y"),
    ]
    made = written(nodes, ["y"])
    assert made.sqnr()["y"] > 28
    assert (made.scales["s"].low, made.scales["s"].high) == pytest.approx((0, 1))
    found = counts(made, tmp_path)
    assert integer_only(found), found
    assert (found["QLinearConv"], found["QLinearSigmoid"], found["QLinearMul"]) == (2, 1, 1)


SLOPES = {
    "below one": np.linspace(0.01, 1, 8),
    "above one": np.linspace(0.3, 2.5, 8),
    "negative": np.linspace(-1.5, 0.9, 8),
    "of all kinds": np.array([-3, -0.5, 0, 1e-6, 0.25, 1, 1.5, 4]),
    "one for all": np.array([0.25]),
    "one above one": np.array([1.7]),
}


@pytest.mark.parametrize("settings", [{}, {"symmetric": True}, {"target": "arm"}], ids=["affine", "symmetric", "int8"])
@pytest.mark.parametrize("kind", SLOPES)
def test_prelu_is_the_float_one_rounded(kind, settings, tmp_path):
    slopes = SLOPES[kind].astype(np.float32).reshape(-1, 1, 1)
    nodes = [conv("x", "a", "stem", "stem.b"), oh.make_node("PRelu", ["a", "slopes"], ["p"], "p"), conv("p", "y")]
    made = written(nodes, ["y", "a", "p"], tensors={"slopes": slopes}, **settings)
    chosen = made.scales["p"]
    assert made.scales["a"] == chosen
    for optimization in ("off", "all"):
        for image in IMAGES:
            got = run(made.int8, image, optimization=optimization)
            true = np.where(got["a"] < 0, slopes * got["a"], got["a"])
            apart = np.rint((got["p"] - chosen.rounded(true)) / chosen.scale)
            assert np.abs(apart).max() <= 1, optimization
            halfway = np.abs(np.mod(true / chosen.scale, 1) - 0.5) < 1e-3
            assert not (apart != 0)[~halfway].any(), "codes differ only where the product lies halfway between two"
    found = counts(made, tmp_path, entries=AS_ON_ARM)
    assert found["QLinearConv"] == 3
    assert not {"Conv", "PRelu"} & set(found)


@pytest.mark.parametrize("target", ["cpu", "arm"])
def test_inputs_of_a_concat_share_its_scale_and_relu_still_clips(target, tmp_path):
    """Shared with a tensor that goes below zero, the Q behind Relu and Clip does not stop at zero, so Max and Min of codes do."""
    nodes = [
        conv("x", "a", "stem", "stem.b"),
        conv("a", "b"),
        oh.make_node("Relu", ["b"], ["r"], "r"),
        conv("a", "c", "body", "stem.b"),
        oh.make_node("Concat", ["r", "c"], ["j"], "j", axis=1),
        conv("j", "d", "wide"),
        oh.make_node("Clip", ["d", "", "half"], ["k"], "k"),
        conv("a", "e"),
        oh.make_node("Concat", ["k", "e"], ["l"], "l", axis=1),
        conv("l", "y", "wide"),
    ]
    made = written(nodes, ["y", "r", "k"], target=target)
    assert made.scales["r"] == made.scales["c"] == made.scales["j"]
    assert made.scales["r"].low < 0
    for _, got in made.both():
        assert got["r"].min() == 0
        assert got["k"].max() == pytest.approx(0.5, abs=float(made.scales["k"].scale))
    assert min(made.sqnr().values()) > 22
    found = counts(made, tmp_path, entries=AS_ON_ARM)
    assert integer_only(found, "Concat", "Max", "Min"), found
    assert (found["QLinearConv"], found["Max"], found["Min"]) == (6, 1, 1)


@pytest.mark.parametrize("settings", [{"symmetric": True}, {}, {"target": "arm"}], ids=["symmetric", "affine", "int8"])
def test_a_clip_away_from_zero_keeps_its_bounds(settings, tmp_path):
    nodes = [conv("x", "a", "stem"), oh.make_node("Clip", ["a", "half", "six"], ["c"], "c"), conv("c", "y")]
    made = written(nodes, ["y", "c"], **settings)
    for _, got in made.both():
        assert got["c"].min() == pytest.approx(0.5, abs=float(made.scales["c"].scale))
    assert made.sqnr()["y"] > 28
    assert counts(made, tmp_path, entries=AS_ON_ARM)["QLinearConv"] == 2


def test_relu_with_symmetric_activations_stays_at_zero(tmp_path):
    nodes = [conv("x", "a", "stem", "stem.b"), oh.make_node("Relu", ["a"], ["r"], "r"), conv("r", "y")]
    made = written(nodes, ["y", "r"], symmetric=True)
    assert all(got["r"].min() == 0 for _, got in made.both())
    assert made.sqnr()["y"] > 25
    assert counts(made, tmp_path)["QLinearConv"] == 2


MIDDLES = {
    "Conv": [conv("r", "m", "body", "stem.b")],
    "Conv and Relu": [conv("r", "k", "body", "stem.b"), oh.make_node("Relu", ["k"], ["m"], "m")],
    "Conv and Relu6": [conv("r", "k", "body", "stem.b"), oh.make_node("Clip", ["k", "zero", "six"], ["m"], "m")],
    "Conv and Clip": [conv("r", "k", "body", "stem.b"), oh.make_node("Clip", ["k", "half", "six"], ["m"], "m")],
    "ConvTranspose": [oh.make_node("ConvTranspose", ["r", "body", "stem.b"], ["m"], "k")],
    "ConvTranspose and Relu": [
        oh.make_node("ConvTranspose", ["r", "body", "stem.b"], ["k"], "k"),
        oh.make_node("Relu", ["k"], ["m"], "m"),
    ],
}


@pytest.mark.parametrize("shown", [False, True], ids=["", "a graph output too"])
@pytest.mark.parametrize("middle", MIDDLES)
def test_a_float_unit_between_integer_ones_really_is_float(middle, shown, tmp_path):
    """ONNX Runtime would round the weights of a Conv between DQ and Q, all channels with one scale."""
    # One channel a hundred times smaller than the others: a scale for all of them would ruin it.
    weights = TENSORS["body"] * np.geomspace(0.01, 1, 8, dtype=np.float32).reshape(-1, 1, 1, 1)
    nodes = [conv("x", "a", "stem", "stem.b"), oh.make_node("Relu", ["a"], ["r"], "r"), *MIDDLES[middle], conv("m", "y", "last")]
    name = MIDDLES[middle][0].name
    made = written(
        nodes, ["y", MIDDLES[middle][0].output[0]][: 1 + shown], kept=(name,), tensors={"body": weights, "last": normal(8, 8, 1, 1)}
    )
    assert next(unit.name for unit in made.units if unit not in made.chosen) == name
    graph = optimized(made.int8, tmp_path).graph
    kernels = [node for node in graph.node if node.op_type in ("Conv", "FusedConv", "ConvTranspose")]
    assert len(kernels) == 1
    stored = {tensor.name: onh.to_array(tensor) for tensor in graph.initializer}
    used = stored[kernels[0].input[1]]
    # The layout for vector units has its own order of blocks, and the same values.
    assert np.array_equal(np.sort(used[used != 0].ravel()), np.sort(weights[weights != 0].ravel()))
    assert sum(node.op_type == "QLinearConv" for node in graph.node) == 2
    for image in IMAGES:
        plain, fast = run(made.int8, image, optimization="off"), run(made.int8, image)
        step = made.scales["y"].scale.reshape(1, -1, 1, 1)
        apart = np.abs(plain["y"] - fast["y"]) / step
        assert apart.max() <= 2.01, "float rounding tips a code over at most"
        assert (apart > 0.5).mean() < 0.01


def test_a_float_gemm_between_integer_ones_keeps_its_weights(tmp_path):
    nodes = [
        conv("x", "a", "stem", "stem.b"),
        oh.make_node("GlobalAveragePool", ["a"], ["g"], "g"),
        oh.make_node("Flatten", ["g"], ["f"], "f"),
        oh.make_node("Gemm", ["f", "square"], ["h"], "h"),
        oh.make_node("Relu", ["h"], ["hr"], "hr"),
        oh.make_node("Gemm", ["hr", "head"], ["y"], "y", transB=1),
    ]
    square = TENSORS["body"].reshape(8, 8) * np.geomspace(0.01, 1, 8, dtype=np.float32)
    made = written(nodes, ["y"], kept=("h",), tensors={"square": square})
    graph = optimized(made.int8, tmp_path).graph
    floats = [node for node in graph.node if node.op_type in ("Gemm", "FusedGemm")]
    assert len(floats) == 1
    stored = {tensor.name: onh.to_array(tensor) for tensor in graph.initializer}
    assert np.array_equal(stored[floats[0].input[1]].reshape(8, 8), square)
    assert [node.op_type for node in graph.node].count("QGemm") == 1


def test_quantized_graph_outputs_and_tensors_with_float_and_integer_readers(tmp_path):
    nodes = [
        conv("x", "a", "stem", "stem.b"),
        oh.make_node("Relu", ["a"], ["r"], "r"),
        conv("r", "b"),
        oh.make_node("Softmax", ["r"], ["p"], "p", axis=1),
        oh.make_node("Add", ["r", "b"], ["s"], "s"),
        conv("s", "y"),
        oh.make_node("Exp", ["x"], ["e"], "e"),
    ]
    made = written(nodes, ["y", "r", "p", "s", "e"])
    assert [value.name for value in made.int8.graph.outputs] == ["y", "r", "p", "s", "e"]
    assert min(made.sqnr().values()) > 28
    assert made.sqnr()["e"] > 150, "a float reader of the image gets it unrounded"
    for name in ("y", "r", "s"):
        scale = made.scales[name].scale
        codes = made.both()[0][1][name] / (scale.reshape(1, -1, 1, 1) if np.ndim(scale) else scale)
        assert np.allclose(codes, np.rint(codes), atol=1e-3)
    found = counts(made, tmp_path)
    assert (found["QLinearConv"], found["QLinearAdd"]) == (3, 1)


def test_a_tensor_read_twice_by_one_unit(tmp_path):
    nodes = [
        conv("x", "a", "stem"),
        oh.make_node("Add", ["a", "a"], ["d"], "d"),
        *[conv("d", f"c{place}") for place in range(10)],
        oh.make_node("Concat", ["d", *(f"c{place}" for place in range(10)), "d"], ["j"], "j", axis=1),
        conv("j", "y", "many"),
    ]
    made = written(nodes, ["y"], tensors={"many": normal(4, 96, 1, 1)})
    assert made.sqnr()["y"] > 28
    found = counts(made, tmp_path)
    assert integer_only(found, "Concat"), found
    assert found["QLinearConv"] == 12


def test_a_subgraph_reads_what_an_integer_kernel_made():
    branches = {
        f"{name}_branch": oh.make_graph(
            [oh.make_node(op, ["r"], [name], name)], name, [], [oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)]
        )
        for name, op in (("then", "Exp"), ("else", "Neg"))
    }
    nodes = [
        conv("x", "a", "stem"),
        oh.make_node("Relu", ["a"], ["r"], "r"),
        oh.make_node("If", ["yes"], ["i"], "i", **branches),
        conv("r", "y"),
    ]
    made = written(nodes, ["i", "y"], tensors={"yes": np.bool_(True)})
    assert min(made.sqnr().values()) > 28


@pytest.mark.parametrize("target", ["cpu", "openvino"])
def test_tensors_of_any_name_keep_their_values(target):
    """What quantization adds is named after a tensor, and FP32 may have that name: a module's `scale` behind its result."""
    nodes = [
        conv("x", "a", "stem"),
        oh.make_node("Relu", ["a"], ["r"], "r"),
        oh.make_node("Mul", ["r", "r.scale"], ["m"], "m"),
        oh.make_node("Add", ["m", "r.zero"], ["x.scale"], "s"),
        conv("x.scale", "b"),
        conv("b", "y"),
    ]
    tensors = {name: TENSORS[name] for name in ("stem", "body")}
    tensors |= {"r.scale": np.float32(1.7), "r.zero": np.float32(0.3), "b.weight_codes": np.float32(1)}
    model = network(nodes, tensors, ["y"])
    result = quantize_static(model, statistics_of(model, IMAGES), Int8(method="minmax", target=target)).model
    assert sqnr(model, result, IMAGES)["y"] > 25


@pytest.mark.parametrize("target", ["cpu", "openvino"])
@pytest.mark.parametrize("taken", ["r.code", "r.raw"])
def test_outputs_that_are_named_as_a_tensor_s_codes_would_be_keep_their_names(taken, target):
    """Two nodes made the tensor: a traceback."""
    nodes = [
        conv("x", "a", "stem"),
        oh.make_node("Relu", ["a"], ["r"], "r"),
        conv("r", taken),
        oh.make_node("Relu", [taken], ["e"], "e"),
        conv("e", "y"),
    ]
    tensors = {name: TENSORS[name] for name in ("stem", "body")}
    model = network(nodes, tensors, ["y", taken])
    result = quantize_static(model, statistics_of(model, IMAGES), Int8(method="minmax", placement="all", target=target)).model
    assert [value.name for value in result.graph.outputs] == ["y", taken]
    assert min(sqnr(model, result, IMAGES).values()) > 25


def test_a_name_that_another_constant_has_gets_a_longer_one():
    graph = QdqGraph(network([conv("x", "y")], {"body": np.ones((8, 3, 1, 1), np.float32)}, ["y"]))
    asked = [("s", 1.0), ("s", 1.0), ("s", 2.0), ("s", 2.0), ("y", 1.0)]
    names = [graph.constant(name, np.array(number)) for name, number in asked]
    assert names == ["s", "s", "s+", "s+", "y+"]


def test_constants_that_only_a_subgraph_reads_stay():
    inner = [oh.make_node("Mul", ["r", "gain"], ["m"], "m"), oh.make_node("Conv", ["m", "body"], ["inner"], "inner")]
    body = oh.make_graph(inner, "inner", [], [oh.make_tensor_value_info("inner", onnx.TensorProto.FLOAT, None)])
    nodes = [
        conv("x", "a", "stem"),
        oh.make_node("Relu", ["a"], ["r"], "r"),
        oh.make_node("If", ["yes"], ["i"], "i", then_branch=body, else_branch=body),
        oh.make_node("Conv", ["i", "next"], ["y"], "y"),
    ]
    made = written(nodes, ["y"], tensors={"yes": np.bool_(True), "gain": np.float32(2), "next": normal(8, 8, 1, 1)})
    assert {"gain", "body"} <= set(made.int8.graph.initializers)
    assert made.sqnr()["y"] > 28


def test_nodes_without_a_name_of_their_own_are_refused():
    model = network([conv("x", "a", "stem"), conv("a", "y")], TENSORS, ["y"])
    for node in model.graph:
        node.name = ""
    with pytest.raises(QuantizationError, match=r"two nodes or more are called ''.*\n.*octavo\.graph\.clean"):
        QdqGraph(model)


def test_sixteen_bits_are_finer_and_run(tmp_path):
    nodes = [
        conv("x", "a", "stem", "stem.b"),
        oh.make_node("Relu", ["a"], ["r"], "r"),
        oh.make_node("Add", ["r", "x2"], ["s"], "s"),
        conv("s", "y"),
    ]
    nodes.insert(1, conv("x", "x2", "stem", "stem.b"))
    every = dict.fromkeys(("x", "x2", "r", "s", "y"), 16)
    narrow, made = written(nodes, ["y", "r"], opset=21), written(nodes, ["y", "r"], opset=21, wide=every)
    assert {chosen.zero_point.dtype for chosen in made.scales.values()} == {np.dtype(np.uint16)}
    assert all(got["r"].min() == 0 for _, got in made.both())
    assert made.sqnr()["r"] > narrow.sqnr()["r"] + 3


def test_matmul_over_sequences_takes_a_scale_a_column(tmp_path):
    columns = TENSORS["body"].reshape(8, 8) * np.geomspace(0.01, 1, 8, dtype=np.float32)
    nodes = [
        conv("x", "a", "stem"),
        oh.make_node("Reshape", ["a", "shape"], ["t"], "t"),
        oh.make_node("Transpose", ["t"], ["u"], "u", perm=[0, 2, 1]),
        oh.make_node("MatMul", ["u", "columns"], ["v"], "v"),
        oh.make_node("MatMul", ["v", "more"], ["y"], "y"),
    ]
    tensors = {"shape": np.array([1, 8, -1], np.int64), "columns": columns, "more": normal(8, 4)}
    made = written(nodes, ["y"], tensors=tensors)
    assert made.sqnr()["y"] > 25
    found = counts(made, tmp_path)
    assert not {"MatMul", "Conv"} & set(found), found


def test_per_tensor_weights_and_a_bias_that_dwarfs_its_channel(tmp_path):
    weights = TENSORS["stem"].copy()
    weights[2] *= np.float32(1e-12)
    bias = TENSORS["stem.b"] + np.float32(3)
    nodes = [conv("x", "a", "w", "b"), oh.make_node("Relu", ["a"], ["r"], "r"), conv("r", "y")]
    nodes[0].attribute.extend([oh.make_attribute("pads", [1, 1, 1, 1])])
    for per_channel in (True, False):
        made = written(nodes, ["y", "r"], tensors={"w": weights, "b": bias}, per_channel=per_channel)
        assert min(made.sqnr().values()) > 25
        assert counts(made, tmp_path)["QLinearConv"] == 2


POOL = oh.make_node("MaxPool", ["r"], ["m"], "pool", kernel_shape=[2, 2], strides=[2, 2])
STEM = [conv("x", "a", "stem", "stem.b"), oh.make_node("LeakyRelu", ["a"], ["r"], "r", alpha=0.1)]


@pytest.mark.parametrize("kept", [("a", "r", "pool"), ("pool",)], ids=["behind float layers", "behind an integer activation"])
def test_a_float_max_pool_is_not_made_an_integer_one_without_a_layout(kept, tmp_path):
    """ONNX Runtime moves Q backward and DQ forward across a MaxPool, whose integer kernel on NCHW is 18 times as slow."""
    made = written([*STEM, POOL, conv("m", "y")], ["y"], kept=kept)
    graph = optimized(made.int8, tmp_path).graph
    (pool,) = [node for node in graph.node if "MaxPool" in node.op_type]
    makers = {name: node.op_type for node in graph.node for name in node.output}
    assert makers[pool.input[0]] not in ("QuantizeLinear", "QLinearLeakyRelu")
    assert sum(node.op_type == "QLinearConv" for node in graph.node) == 1 + ("a" not in kept)
    assert made.sqnr()["y"] > 25


def test_a_float_max_pool_right_behind_an_integer_conv_may_take_its_codes(tmp_path):
    made = written([conv("x", "r", "stem", "stem.b"), POOL, conv("m", "y")], ["y"], kept=("pool",))
    assert counts(made, tmp_path).get("NhwcMaxPool", 0) + counts(made, tmp_path).get("MaxPool", 0) == 1
    assert not any(node.name.endswith(".guard") for node in made.int8.graph)
