"""FP16 conversion: a graph for each trap, run by ONNX Runtime; random networks; the proof by measurement."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from octavo.errors import QuantizationError
from octavo.graph.selection import choosing, held, pasted
from octavo.quantization.fp16 import Fp16Result, convert, quantize_fp16
from octavo.quantization.fp16.measure import Loss, compare, rounded_everywhere
from octavo.quantization.fp16.stretches import Stretch, loudest, stretches
from octavo.quantization.fp16.watched import watched
from octavo.quantization.select import asked, select
from octavo.runtime.noise import SQNR_CAP
from octavo.runtime.session import Session

F32, F16, I64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64
RNG = np.random.default_rng(0)


def build(nodes, inputs: dict, outputs: dict, weights: dict | None = None, *, functions: Sequence = ()) -> ir.Model:
    """A checked model; inputs and outputs map a name to a shape or to (element type, shape)."""

    def info(name, spec):
        kind, shape = spec if isinstance(spec, tuple) else (F32, spec)
        return helper.make_tensor_value_info(name, kind, shape)

    graph = helper.make_graph(
        nodes,
        "graph",
        [info(*item) for item in inputs.items()],
        [info(*item) for item in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", 18), *(helper.make_opsetid(f.domain, 1) for f in functions)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=10, functions=list(functions))
    proto = onnx.shape_inference.infer_shapes(proto)
    onnx.checker.check_model(proto, full_check=True)
    return ir.from_proto(proto)


def node(op_type, inputs, outputs, name=None, **attributes):
    return helper.make_node(op_type, inputs, outputs, name=name or f"{op_type}_{outputs[0]}", **attributes)


def proto_of(model: ir.Model) -> onnx.ModelProto:
    """The message, after strict checks and after holding each value's type against inference from nothing."""
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    del bare.graph.value_info[:]
    inferred = onnx.shape_inference.infer_shapes(bare, strict_mode=True, check_type=True)
    types = {value.name: value.type.tensor_type.elem_type for value in inferred.graph.value_info}
    for value in proto.graph.value_info:
        if value.name in types:
            assert value.type.tensor_type.elem_type == types[value.name], value.name
    return proto


def run(model: ir.Model, feeds: dict, **options) -> dict:
    return Session(ir.to_proto(model).SerializeToString(), threads=1, **options).run(feeds)


def check(model: ir.Model, feeds: dict, *, keep_io: bool = True, close: float = 5e-3, **options) -> Fp16Result:
    """Convert, check, run both (FP16 with every tensor rounded), compare, and see that the input was left alone."""
    before = ir.to_proto(model).SerializeToString()
    result = convert(model, keep_io=keep_io, **options)
    assert ir.to_proto(model).SerializeToString() == before
    proto_of(result.model)
    expected = run(model, feeds)
    for got in (run(result.model, feeds), run(rounded_everywhere(result.model), feeds, optimization="off")):
        for name, value in expected.items():
            if value.dtype == np.float32:
                assert got[name].dtype == (np.float32 if keep_io else np.float16)
                scale = np.abs(value[np.isfinite(value)]).max(initial=1e-6)
                np.testing.assert_allclose(got[name].astype(np.float32), value, atol=close * scale, rtol=close)
            else:
                np.testing.assert_array_equal(got[name], value)
    return result


def precision(result: Fp16Result) -> dict[str, str]:
    return {decision.node: decision.precision for decision in result.decisions}


def reason(result: Fp16Result, name: str) -> str:
    return next(decision.reason for decision in result.decisions if decision.node == name)


def ops(model: ir.Model) -> list[str]:
    return [item.op_type for item in model.graph]


def image(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


# ---------------------------------------------------------------- types, attributes, borders


def test_a_convolutional_net_halves_in_size_and_needs_one_cast_at_each_end():
    weights = {"w": image(64, 3, 3, 3), "b": image(64), "v": image(64, 64, 3, 3)}
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], "c1"),
        node("Relu", ["c"], ["r"]),
        node("Conv", ["r", "v"], ["d"], "c2"),
        node("GlobalAveragePool", ["d"], ["y"]),
    ]
    model = build(nodes, {"x": ["n", 3, 8, 8]}, {"y": ["n", 64, 1, 1]}, weights)
    result = check(model, {"x": image(2, 3, 8, 8)})
    assert ops(result.model) == ["Cast", "Conv", "Relu", "Conv", "GlobalAveragePool", "Cast"]
    assert set(precision(result).values()) == {"fp16"}
    assert len(proto_of(result.model).SerializeToString()) < 0.52 * len(ir.to_proto(model).SerializeToString())
    assert [value.name for value in (*result.model.graph.inputs, *result.model.graph.outputs)] == ["x", "y"]


def test_without_keep_io_inputs_and_outputs_are_float16_under_their_names_and_no_cast_is_left():
    model = build([node("Relu", ["x"], ["y"])], {"x": [2, 3]}, {"y": [2, 3]})
    result = check(model, {"x": image(2, 3)}, keep_io=False)
    assert ops(result.model) == ["Relu"]
    graph = proto_of(result.model).graph
    assert [value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)] == [F16, F16]


def test_an_output_that_is_also_read_inside_is_cast_once():
    nodes = [node("Relu", ["x"], ["y"]), node("Tanh", ["y"], ["s"]), node("NonZero", ["y"], ["z"])]
    model = build(nodes, {"x": [4]}, {"y": [4], "s": [4], "z": (I64, [1, "k"])})
    result = check(model, {"x": image(4)})
    assert ops(result.model).count("Cast") == 3


def test_cast_to_float_becomes_cast_to_float16_and_back_to_integers_takes_what_comes():
    nodes = [
        node("Cast", ["i"], ["f"], "in", to=F32),
        node("Mul", ["f", "x"], ["m"]),
        node("Cast", ["m"], ["j"], "out", to=I64),
        node("Identity", ["m"], ["y"]),
    ]
    model = build(nodes, {"i": (TensorProto.UINT8, [4]), "x": [4]}, {"y": [4], "j": (I64, [4])})
    result = check(model, {"i": np.arange(4, dtype=np.uint8), "x": np.array([1, 2, 4, 8], np.float32)})
    graph = proto_of(result.model).graph
    assert next(item for item in graph.node if item.name == "in").attribute[0].i == F16
    assert precision(result)["out"] == "fp16"


@pytest.mark.parametrize("keep_io", [True, False])
def test_resize_by_scales_keeps_the_scales_in_float32(keep_io):
    weights = {"scales": np.array([1, 1, 2, 2], np.float32)}
    model = build(
        [node("Resize", ["x", "", "scales"], ["y"], "up", mode="linear")], {"x": [1, 2, 4, 4]}, {"y": [1, 2, 8, 8]}, weights
    )
    result = check(model, {"x": image(1, 2, 4, 4)}, keep_io=keep_io)
    assert precision(result) == {"up": "fp16"}
    assert result.model.graph.initializers["scales"].dtype == ir.DataType.FLOAT


def test_resize_by_sizes_and_reduce_mean_by_axes_convert():
    weights = {"sizes": np.array([1, 2, 8, 8]), "axes": np.array([2, 3])}
    nodes = [node("Resize", ["x", "", "", "sizes"], ["r"], "up"), node("ReduceMean", ["r", "axes"], ["y"], "mean", keepdims=0)]
    result = check(build(nodes, {"x": [1, 2, 4, 4]}, {"y": [1, 2]}, weights), {"x": image(1, 2, 4, 4)})
    assert precision(result) == {"up": "fp16", "mean": "fp16"}


def test_scales_computed_from_the_shape_stay_float32_to_the_end():
    nodes = [
        node("Shape", ["x"], ["s"], "shape"),
        node("Cast", ["s"], ["f"], "to_float", to=F32),
        node("Mul", ["f", "two"], ["d"], "double"),
        node("Cast", ["d"], ["sizes"], "to_int", to=I64),
        node("Resize", ["x", "", "", "sizes"], ["y"], "up"),
    ]
    weights = {"two": np.array([1, 1, 1, 2], np.float32)}
    model = build(nodes, {"x": [1, 1, 1, "w"]}, {"y": ["a", "b", "c", "d"]}, weights)
    # 4098 and 2049: float16 rounds both.
    result = check(model, {"x": image(1, 1, 1, 2049)})
    assert precision(result) == {"shape": "float", "to_float": "float", "double": "float", "to_int": "float", "up": "fp16"}
    assert "2048" in reason(result, "double")


def test_places_and_counts_in_a_float32_output_stay_float32():
    places = [
        node("TopK", ["x", "k"], ["best", "at"], "top"),
        node("Cast", ["at"], ["ids"], "ids", to=F32),
        node("Unsqueeze", ["ids", "last"], ["a"], "a"),
        node("Unsqueeze", ["best", "last"], ["b"], "b"),
        node("Concat", ["a", "b"], ["y"], "rows", axis=-1),
    ]
    weights = {"k": np.array([3]), "last": np.array([-1])}
    feeds = {"x": np.arange(4096, dtype=np.float32)[None] / 4096}
    result = check(build(places, {"x": [1, 4096]}, {"y": [1, 3, 2]}, weights), feeds)
    assert {precision(result)[name] for name in ("ids", "a", "rows")} == {"float"}
    assert run(result.model, feeds)["y"][0, :, 0].tolist() == [4095, 4094, 4093]

    count = [
        node("Greater", ["x", "none"], ["hit"], "hit"),
        node("Cast", ["hit"], ["mask"], "mask", to=F32),
        node("ReduceSum", ["mask"], ["y"], "count", keepdims=0),
    ]
    result = check(build(count, {"x": [1, 4096]}, {"y": []}, {"none": np.float32(0)}), feeds)
    assert run(result.model, feeds)["y"] == 4095


def test_sequences_are_no_tensors_to_measure():
    nodes = [
        node("Relu", ["x"], ["r"], "relu"),
        node("SplitToSequence", ["r"], ["parts"], "parts", axis=1),
        node("SequenceAt", ["parts", "first"], ["part"], "at"),
        node("Exp", ["part"], ["y"], "exp"),
    ]
    model = build(nodes, {"x": [1, 2, 4]}, {"y": [1, 1, 4]}, {"first": np.int64(0)})
    result = quantize_fp16(model, samples=[{"x": np.ones((1, 2, 4), np.float32)}])
    assert precision(result) == {"relu": "fp16", "parts": "float", "at": "float", "exp": "fp16"}


def test_clip_with_initializers_and_with_an_infinite_bound():
    weights = {"low": np.float32(0), "high": np.float32(6), "inf": np.float32(np.inf)}
    nodes = [node("Clip", ["x", "low", "high"], ["c"], "a"), node("Clip", ["c", "low", "inf"], ["y"], "b")]
    result = check(build(nodes, {"x": [8]}, {"y": [8]}, weights), {"x": 10 * image(8)})
    assert precision(result) == {"a": "fp16", "b": "fp16"}
    assert result.model.graph.initializers["inf"].const_value.numpy() == np.inf


@pytest.mark.parametrize("value", [None, 2.5])
def test_constant_of_shape(value):
    attributes = {} if value is None else {"value": helper.make_tensor("v", F32, [1], [value])}
    nodes = [node("ConstantOfShape", ["s"], ["c"], "fill", **attributes), node("Add", ["x", "c"], ["y"], "add")]
    result = check(build(nodes, {"x": [2, 3]}, {"y": [2, 3]}, {"s": np.array([2, 3])}), {"x": image(2, 3)})
    assert precision(result) == {"fill": "fp16", "add": "fp16"}


def test_range_and_non_max_suppression_stay_float32_between_casts():
    nodes = [
        node("Relu", ["boxes"], ["b"], "relu"),
        node("NonMaxSuppression", ["b", "scores", "most", "iou"], ["kept"], "nms"),
        node("Range", ["zero", "four", "one"], ["r"], "range"),
        node("Add", ["r", "v"], ["y"], "add"),
    ]
    weights = {"most": np.array([2]), "iou": np.float32(0.5), "zero": np.float32(0), "four": np.float32(4), "one": np.float32(1)}
    boxes = np.array([[[0, 0, 1, 1], [0, 0, 1, 1.1], [2, 2, 3, 3]]], np.float32)
    model = build(nodes, {"boxes": [1, 3, 4], "scores": [1, 1, 3], "v": [4]}, {"kept": (I64, ["k", 3]), "y": ["n"]}, weights)
    result = check(model, {"boxes": boxes, "scores": np.array([[[0.9, 0.8, 0.7]]], np.float32), "v": image(4)})
    assert precision(result) == {"relu": "fp16", "nms": "float", "range": "float", "add": "fp16"}
    assert reason(result, "nms") == "schema allows no float16"


def test_generators_without_a_float16_kernel_are_cast_behind():
    nodes = [node("EyeLike", ["i"], ["e"], "eye", dtype=F32), node("MatMul", ["x", "e"], ["y"], "mm")]
    result = check(
        build(nodes, {"x": [3, 3], "i": (I64, [3, 3])}, {"y": [3, 3]}), {"x": image(3, 3), "i": np.zeros((3, 3), np.int64)}
    )
    assert precision(result) == {"eye": "float", "mm": "fp16"}


@pytest.mark.parametrize("epsilon", [1e-5, 1e-12])
def test_layer_normalisation_keeps_its_float32_statistics_to_which_its_epsilon_is_added(epsilon):
    """transformers' ViT and BEiT have 1e-12; a row of zeros and one of values whose squares float16 has not are divided by it."""
    nodes = [node("LayerNormalization", ["x", "s"], ["y", "mean"], "norm", epsilon=epsilon)]
    rows = np.stack([image(8), 1e-4 * image(8), np.zeros(8, np.float32)])
    result = check(build(nodes, {"x": [3, 8]}, {"y": [3, 8], "mean": [3, 1]}, {"s": np.ones(8, np.float32)}), {"x": rows})
    assert precision(result) == {"norm": "fp16"}


def test_a_tiny_epsilon_of_float16_keeps_a_norm():
    weights = {"s": np.ones(2, np.float32), "b": np.zeros(2, np.float32)}
    nodes = [node("InstanceNormalization", ["x", "s", "b"], ["y"], "norm", epsilon=1e-12)]
    assert precision(check(build(nodes, {"x": [1, 2, 8]}, {"y": [1, 2, 8]}, weights), {"x": image(1, 2, 8)})) == {"norm": "float"}


def test_a_divisor_kept_from_zero_by_a_tiny_constant_stays_float32_as_a_whole():
    nodes = [
        node("ReduceL2", ["x", "axis"], ["n"], "norm"),
        node("Clip", ["n", "eps"], ["c"], "clip"),
        node("Div", ["x", "c"], ["y"], "div"),
    ]
    model = build(nodes, {"x": [2, 4]}, {"y": [2, 4]}, {"axis": np.array([1]), "eps": np.float32(1e-12)})
    result = check(model, {"x": np.stack([np.zeros(4, np.float32), image(4)])})
    assert precision(result) == {"norm": "fp16", "clip": "float", "div": "float"}


def test_moves_between_float32_nodes_are_not_cast_to_and_fro():
    nodes = [
        node("Sigmoid", ["x"], ["a"], "first"),
        node("Transpose", ["a"], ["t"], "t"),
        node("Reshape", ["t", "s"], ["r"], "r"),
        node("Tanh", ["r"], ["y"], "last"),
    ]
    model = build(nodes, {"x": [2, 3]}, {"y": [6]}, {"s": np.array([6])})
    result = check(model, {"x": image(2, 3)}, keep_float={"first": "asked", "last": "asked"})
    assert "Cast" not in ops(result.model)
    assert reason(result, "t") == "only moves values between float32 nodes"


# ---------------------------------------------------------------- scores


def own(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def scored() -> ir.Model:
    """Boxes and scores of eight places, joined, as a detector puts them out; the gate in front is no score."""
    nodes = [
        node("Sigmoid", ["x"], ["g"], "gate"),
        node("Mul", ["x", "g"], ["a"], "silu"),
        node("MatMul", ["a", "w"], ["l"], "logits"),
        node("Sigmoid", ["l"], ["p"], "score"),
        node("Transpose", ["p"], ["t"], "move", perm=[1, 0]),
        node("Mul", ["a", "up"], ["b"], "boxes"),
        node("Transpose", ["b"], ["u"], "box_move", perm=[1, 0]),
        node("Concat", ["u", "t"], ["y"], "join", axis=0),
    ]
    weights = {"w": np.eye(4, 1, dtype=np.float32), "up": np.float32(3)}
    return build(nodes, {"x": [8, 4]}, {"y": [5, 8]}, weights)


def test_scores_near_1_keep_their_order_where_float16_would_make_them_equal():
    feeds = {"x": own(8, 4)}
    feeds["x"][:, 0] = np.linspace(8, 9.5, 8)
    result = check(scored(), feeds)
    kept = run(rounded_everywhere(result.model), feeds, optimization="off")["y"][4]
    assert (np.diff(kept) > 0).all()
    assert len(set(kept.astype(np.float16).tolist())) < 3, "else this shows nothing"
    kinds = precision(result)
    assert {name for name, kind in kinds.items() if kind == "float"} == {"score", "move", "join"}
    assert "0.0005" in reason(result, "score")


def test_scores_that_leave_as_float16_or_are_computed_with_are_converted():
    assert set(precision(convert(scored(), keep_io=False)).values()) == {"fp16"}
    nodes = [node("Softmax", ["x"], ["p"]), node("MatMul", ["p", "w"], ["y"])]
    result = check(build(nodes, {"x": [2, 5]}, {"y": [2, 3]}, {"w": own(5, 3)}), {"x": own(2, 5)})
    assert set(precision(result).values()) == {"fp16"}


@pytest.mark.parametrize("keep_io", [True, False])
def test_scores_that_rows_are_chosen_by_are_float32_up_to_the_choice(keep_io):
    nodes = [
        node("Softmax", ["x"], ["p"], "score"),
        node("Flatten", ["p"], ["f"], "move", axis=0),
        node("TopK", ["f", "k"], ["v", "i"], "top"),
    ]
    model = build(nodes, {"x": [4, 3]}, {"v": [1, 3], "i": (I64, [1, 3])}, {"k": np.array([3])})
    result = convert(model, keep_io=keep_io)
    assert precision(result)["score"] == precision(result)["move"] == "float"
    proto_of(result.model)
    # Two that float16 has one number for: the better one is behind the other.
    x = np.array([[9.0, 0, 0], [0, 0, 0], [0, 0, 9.01], [0, 0, 0]], np.float32)
    found = run(rounded_everywhere(result.model), {"x": x}, optimization="off")["i"]
    assert found[0, :2].tolist() == [8, 0]


def peaks(form: str) -> ir.Model:
    """A heat map, and the two surest of its places that are surer than their neighbours, as CenterNet chooses them."""
    nodes = [
        node("Conv", ["x", "w"], ["m"], "map", pads=[1, 1, 1, 1]),
        node("Sigmoid", ["m"], ["p"], "score"),
        node("MaxPool", ["p"], ["best"], "around", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    ]
    if form == "mul":
        nodes += [
            node("Equal", ["best", "p"], ["is"], "peak"),
            node("Cast", ["is"], ["one"], "mask", to=TensorProto.FLOAT),
            node("Mul", ["p", "one"], ["left"], "leave"),
        ]
    else:
        nodes += [node("GreaterOrEqual", ["p", "best"], ["is"], "peak"), node("Where", ["is", "p", "nil"], ["left"], "leave")]
    nodes += [node("Flatten", ["left"], ["rows"], "rows"), node("TopK", ["rows", "k"], ["v", "i"], "top")]
    weights = {"w": np.float32([[[[0, 0, 0], [0, 1, 0], [0, 0, 0]]]]), "k": np.array([2]), "nil": np.float32(0)}
    return build(nodes, {"x": [1, 1, 6, 6]}, {"v": [1, 2], "i": (I64, [1, 2])}, weights)


@pytest.mark.parametrize("form", ["mul", "where"])
def test_peaks_of_a_heat_map_are_found_by_scores_in_float32(form):
    result = convert(peaks(form))
    assert {name for name, kind in precision(result).items() if kind == "float"} == {
        *("score", "around", "peak", "leave", "rows", "top")
    }
    x = np.full((1, 1, 6, 6), -9, np.float32)
    # Neighbours that float16 has one number for, and a place that is less sure than either.
    x[0, 0, 1, 1:3], x[0, 0, 4, 4] = (9.01, 9), 2
    found = run(rounded_everywhere(result.model), {"x": x}, optimization="off")["i"]
    assert found.tolist() == [[7, 28]]


@pytest.mark.parametrize("form", ["mul", "where"])
def test_a_heat_map_is_judged_before_its_peaks_are_looked_for(form):
    """Where two neighbours are level to within a rounding, the peak is the one's or the other's: layers were given back for it."""
    samples = [{"x": np.full((1, 1, 6, 6), -3, np.float32)} for _ in range(2)]
    for sample, low in zip(samples, (1.0003, 2.0006), strict=True):
        sample["x"][0, 0, 1, 1:3] = low - 0.0002, low
    model = peaks(form)
    half = run(rounded_everywhere(convert(model).model), samples[0], optimization="off")["i"]
    assert half[0, 0] != run(model, samples[0])["i"][0, 0], "else this shows nothing"
    result = quantize_fp16(model, samples=samples)
    assert precision(result)["map"] == "fp16"
    assert not result.warnings
    assert min(result.sqnr_db.values()) > 60


def decoding(grid: str) -> ir.Model:
    """Corners at 80 places of stride 8, of distances that a layer tells, as YOLOs without anchors decode them."""
    nodes = [
        node("MatMul", ["x", "w"], ["d"], "layer"),
        node("Add", ["d", "bias"], ["e"], "bias"),
        node("Exp", ["e"], ["far"], "distance"),
    ]
    weights = {"w": np.eye(4, 1, dtype=np.float32), "bias": np.float32([0.5]), "all": np.array([-1]), "side": np.float32(8)}
    if grid == "constant":
        weights["places"] = 8 * np.arange(80, dtype=np.float32)
    else:
        weights |= {"zero": np.array(0), "one": np.array(1), "first": np.array(0)}
        nodes += [
            node("Shape", ["x"], ["shape"], "sizes"),
            node("Gather", ["shape", "first"], ["n"], "count"),
            node("Range", ["zero", "n", "one"], ["cells"], "range"),
            node("Cast", ["cells"], ["number"], "number", to=TensorProto.FLOAT),
            node("Mul", ["number", "side"], ["places"], "grid"),
        ]
    nodes += [
        node("Reshape", ["far", "all"], ["l"], "line"),
        node("Sub", ["places", "l"], ["left"], "left"),
        node("Add", ["places", "l"], ["right"], "right"),
        node("Sub", ["right", "left"], ["width"], "width"),
        node("Concat", ["left", "width"], ["y"], "join", axis=0),
    ]
    return build(nodes, {"x": [80, 4]}, {"y": [None]}, weights)


@pytest.mark.parametrize("grid", ["constant", "made of sizes"])
def test_boxes_are_brought_to_their_places_in_float32(grid):
    """At 600 pixels float16 has steps of half a pixel, and a box of 3 pixels with them."""
    model = decoding(grid)
    result = convert(model)
    kinds = precision(result)
    assert {name for name, kind in kinds.items() if kind == "fp16"} >= {"layer", "bias", "distance", "line"}
    assert {name for name, kind in kinds.items() if kind == "float"} >= {"left", "right", "width", "join"}
    assert "few are left for the box" in reason(result, "left")
    feeds = {"x": own(80, 4) / 4}
    truth = run(model, feeds)["y"]

    def off(model: ir.Model) -> float:
        return np.abs(run(rounded_everywhere(model), feeds, optimization="off")["y"] - truth).max()

    assert off(result.model) < 0.01
    assert off(convert(model, keep_io=False).model) > 0.2, "else this shows nothing"


@pytest.mark.parametrize("grid", ["constant", "made of sizes"])
def test_places_that_leave_as_float16_or_that_layers_read_are_converted(grid):
    kinds = precision(convert(decoding(grid), keep_io=False))
    assert {kinds[name] for name in ("left", "right", "width", "join")} == {"fp16"}
    # Embeddings of positions, as transformers add them between layers.
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "embed"),
        node("Relu", ["a"], ["b"], "relu"),
        node("Add", ["b", "positions"], ["c"], "add"),
        node("MatMul", ["c", "v"], ["y"], "layer"),
    ]
    model = build(nodes, {"x": [9, 8]}, {"y": [9, 3]}, {"w": own(8, 8), "v": own(8, 3), "positions": own(9, 8)})
    assert set(precision(convert(model)).values()) == {"fp16"}


def suppressed_by_class(side: float) -> ir.Model:
    """Four boxes, their classes and scores, as YOLOv7's `--end2end` and ultralytics' `nms=True` suppress those of each class."""
    nodes = [
        node("Sigmoid", ["x"], ["p"], "score"),
        node("Flatten", ["p"], ["rows"], "rows", axis=0),
        node("Reshape", ["rows", "four"], ["lines"], "lines"),
        node("ReduceMax", ["lines", "last"], ["best"], "best", keepdims=0),
        node("ArgMax", ["lines"], ["class"], "class", axis=1),
        node("Cast", ["class"], ["number"], "number", to=TensorProto.FLOAT),
        node("Mul", ["number", "side"], ["offset"], "offset"),
        node("Relu", ["boxes"], ["b"], "relu"),
        node("Add", ["b", "offset"], ["apart"], "apart"),
        node("Unsqueeze", ["apart", "first"], ["each"], "each"),
        node("Unsqueeze", ["best", "ends"], ["s"], "ranked"),
        node("NonMaxSuppression", ["each", "s", "most", "iou"], ["kept"], "nms"),
    ]
    weights = {
        **{"four": np.array([4, -1]), "last": np.array([1]), "first": np.array([0]), "ends": np.array([0, 1])},
        **{"most": np.array([9]), "side": np.float32(side), "iou": np.float32(0.65)},
    }
    return build(nodes, {"x": [1, 4, 80], "boxes": [4, 4]}, {"kept": (I64, ["k", 3])}, weights)


@pytest.mark.parametrize("share", [False, True])
def test_boxes_that_their_class_moves_apart_are_suppressed_as_in_float32(share):
    """Boxes of class 79 had steps of 32 pixels: of two beside each other one was lost, and of two alike both stayed."""
    unit = 1 / 640 / 80 if share else 1.0
    result = convert(suppressed_by_class(1 / 80 if share else 640.0))
    kinds = precision(result)
    assert {name for name, kind in kinds.items() if kind == "fp16"} == {"relu", "class"}
    assert "tell the class" in reason(result, "apart")
    boxes = np.array([[20, 20, 44, 44], [36, 20, 60, 44], [300, 300, 318, 318], [302, 301, 320, 319]], np.float32) * unit
    scores = np.full((1, 4, 80), -9, np.float32)
    # The better one of two has a score that float16 makes equal to the other's.
    scores[0, :, 79] = [9, 9.01, 9, 9.01]
    feeds = {"x": scores, "boxes": boxes.astype(np.float16).astype(np.float32)}
    truth = run(suppressed_by_class(1 / 80 if share else 640.0), feeds)["kept"][:, 2].tolist()
    assert truth == [1, 3, 0], "else this shows nothing"
    assert run(rounded_everywhere(result.model), feeds, optimization="off")["kept"][:, 2].tolist() == truth


def test_an_anchor_that_is_added_to_boxes_of_no_layer_is_converted():
    nodes = [
        node("Relu", ["boxes"], ["b"], "relu"),
        node("Add", ["b", "anchors"], ["moved"], "add"),
        node("NonMaxSuppression", ["moved", "scores", "most", "iou"], ["kept"], "nms"),
    ]
    weights = {"most": np.array([2]), "iou": np.float32(0.5), "anchors": own(1, 3, 4)}
    model = build(nodes, {"boxes": [1, 3, 4], "scores": [1, 1, 3]}, {"kept": (I64, ["k", 3])}, weights)
    assert precision(convert(model)) == {"relu": "fp16", "add": "fp16", "nms": "float"}


def test_scores_of_which_the_largest_are_computed_with_are_converted():
    """As D-FINE and GFLv2 tell from the largest shares of a distribution how good a box is: nobody asks which they are."""
    nodes = [
        node("MatMul", ["x", "w"], ["d"], "distances"),
        node("Softmax", ["d"], ["p"], "shares"),
        node("TopK", ["p", "k"], ["v", "i"], "top"),
        node("MatMul", ["v", "q"], ["y"], "quality"),
    ]
    weights = {"w": own(8, 9), "q": own(3, 2), "k": np.array([3])}
    model, samples = build(nodes, {"x": [4, 8]}, {"y": [4, 2]}, weights), [{"x": own(4, 8)}]
    result = quantize_fp16(model, samples=samples)
    assert set(precision(result).values()) == {"fp16"}
    # The shares are nothing that is put out: what is made of them is held against FP32's.
    assert set(result.sqnr_db) == {"y"}


def test_a_graph_of_an_old_opset_is_converted_and_measured():
    squeezed = helper.make_node("Unsqueeze", ["m"], ["y"], "u", axes=[0])
    nodes = [node("MatMul", ["x", "w"], ["m"], "mm"), squeezed]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", F32, [2, 4])],
        [helper.make_tensor_value_info("y", F32, [1, 2, 4])],
        [numpy_helper.from_array(own(4, 4), "w")],
    )
    old = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6))
    result = quantize_fp16(old, samples=[{"x": own(2, 4)}])
    assert result.sqnr_db["y"] > 55
    assert old.opset_imports[""] == 11
    assert result.model.opset_imports[""] == 13


def attention_over_a_map(*, splits: bool) -> ir.Model:
    """FastViT's and MobileCLIP's: a map of 8 channels as tokens, two heads, `q * scale`; its parts by Split, or by Slices."""
    middles = [f"{part}5" for part in "qkv"]
    cut = [node("Split", ["turned"], middles, axis=0, num_outputs=3)]
    if not splits:
        cut = [node("Slice", ["turned", f"at{k}", f"at{k + 1}", "at0"], [middles[k]]) for k in range(3)]
    nodes = [
        *(node("Reshape", ["x", "flat"], ["channels"]), node("Transpose", ["channels"], ["tokens"], perm=[0, 2, 1])),
        *(node("MatMul", ["tokens", "w"], ["qkv"]), node("Reshape", ["qkv", "heads"], ["parts"])),
        node("Transpose", ["parts"], ["turned"], perm=[2, 0, 3, 1, 4]),
        *cut,
        *(node("Squeeze", [middle, "at0"], [middle[0]]) for middle in middles),
        *(node("Mul", ["q", "scale"], ["scaled"], "scale_of_q"), node("Transpose", ["k"], ["k_t"], perm=[0, 1, 3, 2])),
        *(node("MatMul", ["scaled", "k_t"], ["scores"]), node("Softmax", ["scores"], ["shares"], axis=-1)),
        *(node("MatMul", ["shares", "v"], ["mixed"]), node("Transpose", ["mixed"], ["joined"], perm=[0, 2, 1, 3])),
        *(node("Reshape", ["joined", "rows"], ["r"]), node("MatMul", ["r", "p"], ["m"]), node("Add", ["m", "b"], ["y"])),
    ]
    weights = {"w": own(8, 24), "p": own(8, 8), "b": own(8), "scale": np.float32(0.5)}
    shapes = {"flat": [1, 8, 4], "heads": [1, 4, 3, 2, 4], "rows": [1, 4, 8], **{f"at{k}": [k] for k in range(4)}}
    weights |= {name: np.array(value) for name, value in shapes.items()}
    return build(nodes, {"x": [1, 8, 2, 2]}, {"y": [1, 4, 8]}, weights)


@pytest.mark.parametrize("splits", [True, False])
def test_attention_over_a_map_loads_where_onnx_runtime_would_read_its_scale_as_float32(splits):
    result = check(attention_over_a_map(splits=splits), {"x": own(1, 8, 2, 2)})
    assert precision(result)["scale_of_q"] == "fp16"
    product = next(item for item in result.model.graph if item.name == "scale_of_q")
    (scale,) = [value for value in product.inputs if value.is_initializer()]
    assert (scale.dtype, list(scale.shape)) == (ir.DataType.FLOAT16, [1, 1, 1, 1])


@pytest.mark.parametrize("axes", [(1, 0, 2), (1, 2, 0), (1, 2, 0, 3)])
@pytest.mark.parametrize(("between", "kept"), [([], {}), (["Identity"], {}), ([], {"product": "asked"}), ([], {"turn": "asked"})])
def test_a_product_of_a_turned_batch_loads_where_onnx_runtime_dies_of_fusing_both(axes, between, kept):
    """Of torch's MultiheadAttention, [batch, tokens, k] -> [tokens, batch, k]: a segmentation fault without the third axis."""
    sizes = [2, 5, 6, 7][: len(axes)]
    turned = [sizes[axis] for axis in axes]
    nodes = [node("Transpose", ["x"], ["t"], "turn", perm=axes)]
    nodes += [node(op, ["t"], ["i"], "between") for op in between]
    nodes += [node("MatMul", ["i" if between else "t", "w"], ["y"], "product")]
    model = build(nodes, {"x": sizes}, {"y": [*turned[:-1], 3]}, {"w": own(turned[-1], 3)})
    result = check(model, {"x": own(*sizes)}, keep_float=kept)
    assert precision(result)["product"] == ("float" if "product" in kept else "fp16")
    (weights,) = [value for item in result.model.graph if item.name == "product" for value in item.inputs if value.is_initializer()]
    assert list(weights.shape) == [1] * (len(axes) - 2) + [turned[-1], 3]
    assert "w" not in result.model.graph.initializers


def spelled_norm() -> ir.Model:
    """A LayerNormalization as exporters before opset 17 write it, between two layers."""
    constants = {
        "two": np.float32(2),
        "eps": np.float32(1e-3),
        "scale": own(6),
        "bias": own(6),
        "w": own(6, 6),
        "axes": np.array([-1]),
    }
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "layer"),
        node("ReduceMean", ["a", "axes"], ["m"], "norm.mean"),
        node("Sub", ["a", "m"], ["d"], "norm.d"),
        node("Pow", ["d", "two"], ["p"], "norm.square"),
        node("ReduceMean", ["p", "axes"], ["v"], "norm.variance"),
        node("Add", ["v", "eps"], ["e"], "norm.eps"),
        node("Sqrt", ["e"], ["s"], "norm.root"),
        node("Div", ["d", "s"], ["n"], "norm.div"),
        node("Mul", ["n", "scale"], ["t"], "norm.scale"),
        node("Add", ["t", "bias"], ["b"], "norm.bias"),
        node("MatMul", ["b", "w"], ["y"], "next"),
    ]
    return build(nodes, {"x": [1, 5, 6]}, {"y": [1, 5, 6]}, constants)


@pytest.mark.parametrize("kept", [(), ("norm*",), ("layer",)])
def test_a_norm_spelled_out_whose_squares_are_beyond_float16_loads(kept):
    """ONNX Runtime makes a LayerNormalization of it across the Casts, whose input and weights are of two types then."""
    sample = {"x": 300 * image(1, 5, 6)}
    result = quantize_fp16(spelled_norm(), keep_float_patterns=kept, samples=[sample])
    told = precision(result)
    assert (told["layer"], told["next"]) == ("float" if "layer" in kept else "fp16", "fp16")
    assert told["norm.square"] == "float"
    assert ("keep_float" if "norm*" in kept else "reaches") in reason(result, "norm.square")
    assert next(item for item in result.model.graph if item.name == "norm.square").op_type == "Mul"
    assert result.sqnr_db["y"] > 50


def test_a_norm_in_float16_behind_a_float32_layer_loads():
    model, sample = spelled_norm(), {"x": image(1, 5, 6)}
    result = quantize_fp16(model, keep_float_patterns=["layer"], samples=[sample])
    assert (precision(result)["layer"], precision(result)["norm.square"]) == ("float", "fp16")
    assert result.sqnr_db["y"] > 50
    whole = quantize_fp16(model, samples=[sample]).model
    assert next(item for item in whole.graph if item.name == "norm.square").op_type == "Pow", "ONNX Runtime makes one kernel of it"


def test_other_products_keep_their_weights_axes():
    for axes, shape in (((0, 2, 1), [2, 5, 6]), ((1, 0), [5, 6])):
        turned = [shape[axis] for axis in axes]
        nodes = [node("Transpose", ["x"], ["t"], "turn", perm=axes), node("MatMul", ["t", "w"], ["y"], "product")]
        result = check(build(nodes, {"x": shape}, {"y": [*turned[:-1], 3]}, {"w": own(turned[-1], 3)}), {"x": own(*shape)})
        assert list(result.model.graph.initializers["w"].shape) == [turned[-1], 3]


# ---------------------------------------------------------------- weights


def test_weights_beyond_range_stay_float32_with_the_figure_and_are_not_clamped():
    model = build([node("Mul", ["x", "w"], ["y"], "mul")], {"x": [2]}, {"y": [2]}, {"w": np.array([70000, 1], np.float32)})
    result = check(model, {"x": image(2)})
    assert precision(result) == {"mul": "float"}
    assert reason(result, "mul") == "constant w reaches 70000, float16 ends at 65504"
    assert ops(result.model) == ["Mul"]


def test_weights_that_would_vanish_stay_float32_with_the_figure():
    weights = {"w": np.full((4, 4), 1e-8, np.float32), "big": np.float32(1e8)}
    nodes = [node("MatMul", ["x", "w"], ["m"], "mm"), node("Mul", ["m", "big"], ["y"], "up")]
    result = check(build(nodes, {"x": [2, 4]}, {"y": [2, 4]}, weights), {"x": image(2, 4)})
    assert precision(result) == {"mm": "float", "up": "float"}
    assert "16 of 16 values would become zero" in reason(result, "mm")


def test_dead_weights_and_small_biases_do_no_harm_and_convert():
    weights = {"w": np.full((4, 4), 1e-30, np.float32), "b": np.full(4, 1e-9, np.float32), "c": image(4)}
    nodes = [node("Gemm", ["x", "w", "b"], ["g"], "dead"), node("Add", ["g", "c"], ["y"], "add")]
    result = check(build(nodes, {"x": [2, 4]}, {"y": [2, 4]}, weights), {"x": image(2, 4)})
    assert precision(result) == {"dead": "fp16", "add": "fp16"}
    assert "too small to give anything but zero" in reason(result, "dead")


def test_a_few_tiny_values_among_normal_ones_convert_and_become_zero_not_1e_7():
    weights = image(32, 32)
    weights[0] = 1e-9
    model = build([node("MatMul", ["x", "w"], ["y"], "mm")], {"x": [2, 32]}, {"y": [2, 32]}, {"w": weights})
    result = check(model, {"x": image(2, 32)})
    assert precision(result) == {"mm": "fp16"}
    half = result.model.graph.initializers["w"].const_value.numpy()
    assert (half[0] == 0).all()
    np.testing.assert_array_equal(half, weights.astype(np.float16))


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_broken_weights_are_refused_by_name(value, word):
    weights = {"layer.weight": np.array([[1, value]], np.float32).T}
    model = build([node("MatMul", ["x", "layer.weight"], ["y"])], {"x": [1, 2]}, {"y": [1, 1]}, weights)
    with pytest.raises(QuantizationError, match=f"'layer.weight' holds {word}"):
        convert(model)


@pytest.mark.parametrize(("masked", "expected"), [(-np.inf, "fp16"), (-1e9, "float")])
def test_masks_keep_their_meaning(masked, expected):
    nodes = [node("Where", ["m", "x", "low"], ["w"], "mask"), node("Softmax", ["w"], ["y"], "softmax")]
    model = build(nodes, {"x": [1, 4], "m": (TensorProto.BOOL, [1, 4])}, {"y": [1, 4]}, {"low": np.float32(masked)})
    feeds = {"x": image(1, 4), "m": np.array([[True, False, True, True]])}
    result = check(model, feeds)
    assert precision(result)["mask"] == expected
    assert run(result.model, feeds)["y"][0, 1] == 0


def test_an_initializer_shared_by_both_precisions_is_stored_in_both():
    nodes = [node("Mul", ["x", "w"], ["a"], "keep"), node("Mul", ["a", "w"], ["y"], "half")]
    model = build(nodes, {"x": [4]}, {"y": [4]}, {"w": image(4)})
    result = check(model, {"x": image(4)}, keep_float={"keep": "asked"})
    assert {name: value.dtype.name for name, value in result.model.graph.initializers.items()} == {
        "w": "FLOAT",
        "w_fp16": "FLOAT16",
    }


def test_constants_and_initializers_that_are_listed_as_inputs_are_weights_too():
    proto = ir.to_proto(
        build(
            [
                node("Constant", [], ["k"], value=numpy_helper.from_array(image(64, 64), "k")),
                node("MatMul", ["x", "k"], ["m"], "m"),
                node("Mul", ["m", "w"], ["y"], "y"),
            ],
            {"x": [2, 64], "w": [64]},
            {"y": [2, 64]},
            {"w": image(64)},
        )
    )
    result = check(ir.from_proto(proto), {"x": image(2, 64)})
    assert [value.name for value in result.model.graph.inputs] == ["x"]
    assert {value.dtype for value in result.model.graph.initializers.values()} == {ir.DataType.FLOAT16}


# ---------------------------------------------------------------- control flow, functions, foreign ops


def test_an_if_keeps_its_branches_and_what_they_capture_in_float32():
    def branch(op, name):
        out = helper.make_tensor_value_info(name, F32, [4])
        return helper.make_graph([node(op, ["r", "w"], [name])], name, [], [out])

    nodes = [
        node("Relu", ["x"], ["r"], "relu"),
        node("If", ["c"], ["i"], "if", then_branch=branch("Add", "t"), else_branch=branch("Mul", "e")),
        node("Mul", ["i", "w"], ["y"], "mul"),
    ]
    model = build(nodes, {"x": [4], "c": (TensorProto.BOOL, [])}, {"y": [4]}, {"w": image(4)})
    for flag in (True, False):
        result = check(model, {"x": image(4), "c": np.array(flag)})
    assert precision(result) == {"relu": "fp16", "if": "float", "mul": "fp16"}
    assert "control flow" in reason(result, "if")


def test_a_model_local_function_and_a_sequence_stay_float32():
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    function = helper.make_function("local", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 18)])
    nodes = [
        node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("Twice", ["r"], ["t"], name="twice", domain="local"),
        node("SequenceConstruct", ["t", "r"], ["s"], "seq"),
        node("ConcatFromSequence", ["s"], ["c"], "join", axis=0),
        node("Tanh", ["c"], ["y"], "tanh"),
    ]
    result = check(build(nodes, {"x": [4]}, {"y": [8]}, functions=[function]), {"x": image(4)})
    assert precision(result) == {"relu": "fp16", "twice": "float", "seq": "float", "join": "float", "tanh": "fp16"}


def test_an_already_quantized_model_is_refused():
    weights = {"s": np.float32(0.1), "z": np.uint8(0)}
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["y"])]
    with pytest.raises(QuantizationError, match="already quantized"):
        convert(build(nodes, {"x": [4]}, {"y": [4]}, weights))


# ---------------------------------------------------------------- keep_float


def test_keep_float_by_name_by_op_type_and_by_pattern():
    nodes = [
        node("Relu", ["x"], ["a"], "/head/relu"),
        node("Sigmoid", ["a"], ["b"], "/head/s[0]"),
        node("Tanh", ["b"], ["y"], "/t"),
    ]
    model = build(nodes, {"x": [4]}, {"y": [4]})
    for patterns, kept in ((["/head/*"], 2), (["Tanh"], 1), (["/head/s[0]"], 1), (["Tanh", "/head/relu"], 2)):
        result = quantize_fp16(model, keep_float_patterns=patterns, samples=[{"x": image(4)}])
        assert list(precision(result).values()).count("float") == kept
    assert reason(result, "/t") == "keep_float: Tanh"


def test_a_pattern_that_matches_nothing_names_what_is_near():
    nodes = [("/model/head/conv", "Conv"), ("/model/softmax", "Softmax")]
    assert select(["Conv", "/model/*"], nodes) == {"/model/head/conv": "Conv", "/model/softmax": "/model/*"}
    with pytest.raises(QuantizationError, match="did you mean Softmax"):
        select(["softmx"], nodes)
    with pytest.raises(QuantizationError, match="/model/head/conv"):
        select(["/model/head/cnv*"], nodes)
    with pytest.raises(QuantizationError, match="op types are Conv, Softmax"):
        select(["zzz"], nodes)


def test_patterns_that_only_name_what_stays_float_anyway_ask_for_nothing():
    left_out = [("nms", "EfficientNMS_TRT"), ("tail", "Conv")]
    patterns = ["Conv", "nms", "EfficientNMS_TRT", "tail", "typo"]
    model = build(
        [node("Conv", ["x", "w"], ["y"], "first")],
        {"x": [1, 1, 2, 2]},
        {"y": [1, 1, 2, 2]},
        {"w": np.ones((1, 1, 1, 1), np.float32)},
    )
    assert asked(patterns, model, left_out) == ("Conv", "typo")


# ---------------------------------------------------------------- proof by running


def overflowing() -> ir.Model:
    weights = {"up": np.float32(30000), "down": np.float32(1 / 30000), "w": image(8, 8)}
    nodes = [
        node("MatMul", ["x", "w"], ["m"], "mm"),
        node("Mul", ["m", "up"], ["u"], "up"),
        node("Mul", ["u", "down"], ["y"], "down"),
        node("Relu", ["y"], ["z"], "relu"),
    ]
    return build(nodes, {"x": [2, 8]}, {"z": [2, 8]}, weights)


def test_an_overflow_between_finite_weights_is_found_and_kept_in_float32():
    model, feeds = overflowing(), {"x": image(2, 8)}
    unproven = convert(model).model
    # ONNX Runtime's CPU hides the overflow; rounding every tensor shows what a GPU would give.
    assert np.isfinite(run(unproven, feeds)["z"]).all()
    assert not np.isfinite(run(rounded_everywhere(unproven), feeds, optimization="off")["z"]).all()
    result = quantize_fp16(model, samples=[feeds])
    assert precision(result) == {"mm": "fp16", "up": "float", "down": "float", "relu": "fp16"}
    assert reason(result, "up").startswith("u reaches ")
    assert result.sqnr_db["z"] > 50
    proto_of(result.model)


def test_cancellation_is_traced_to_the_nodes_that_feed_it():
    weights = {"w": image(16, 16), "big": np.float32(1000)}
    nodes = [
        node("MatMul", ["x", "w"], ["m"], "mm"),
        node("Add", ["m", "big"], ["a"], "shift"),
        node("Sub", ["a", "big"], ["y"], "back"),
        node("Relu", ["y"], ["z"], "relu"),
    ]
    result = quantize_fp16(build(nodes, {"x": [4, 16]}, {"z": [4, 16]}, weights), samples=[{"x": 0.1 * image(4, 16)}])
    assert result.sqnr_db["z"] > 40
    assert precision(result)["shift"] == precision(result)["back"] == "float"
    assert precision(result)["mm"] == "fp16" or "dB" in reason(result, "mm")
    assert "dB SQNR in float16" in reason(result, "back")


def test_a_divisor_that_float16_makes_zero_is_traced_to_what_was_rounded():
    weights = {"big": np.float32(4000)}
    nodes = [
        node("Add", ["x", "big"], ["a"], "shift"),
        node("Sub", ["a", "big"], ["d"], "back"),
        node("Reciprocal", ["d"], ["r"], "divide"),
        node("Relu", ["r"], ["z"], "relu"),
    ]
    feeds = {"x": np.full((2, 4), 0.5, np.float32)}
    model = build(nodes, {"x": [2, 4]}, {"z": [2, 4]}, weights)
    assert np.isinf(run(rounded_everywhere(convert(model).model), feeds, optimization="off")["z"]).all(), "or nothing is tested"
    result = quantize_fp16(model, samples=[feeds])
    assert precision(result) | {"relu": ""} == {"shift": "float", "back": "float", "divide": "float", "relu": ""}
    assert reason(result, "divide") == "r is NaN or infinite in float16"
    assert reason(result, "back") == "feeds divide, where r is NaN or infinite in float16"
    assert result.sqnr_db["z"] > 40


def averaged() -> ir.Model:
    """What `noisy` adds to the image at 30 dB is averaged over 4096 values behind it, what `small` adds at 60 dB is magnified."""
    weights = {"big": np.float32(30), "few": np.float32(1), "large": np.float32(64), "w": 0.01 * image(16, 16)}
    nodes = [
        node("Add", ["x", "big"], ["n"], "noisy"),
        node("Sub", ["n", "big"], ["n0"], "noisy_back"),
        node("ReduceMean", ["n0"], ["mean"], "average", keepdims=1),
        node("MatMul", ["x", "w"], ["m"], "mm"),
        node("ReduceMax", ["m"], ["most"], "largest", keepdims=1),
        node("Add", ["most", "few"], ["s"], "small"),
        node("Sub", ["s", "few"], ["s0"], "small_back"),
        node("Mul", ["s0", "large"], ["s1"], "magnify"),
        node("Add", ["mean", "s1"], ["y"], "join"),
    ]
    return build(nodes, {"x": [256, 16]}, {"y": [1, 1]}, weights)


def test_what_is_averaged_away_stays_float16_and_what_is_magnified_goes_back():
    model = averaged()
    samples = [{"x": 0.05 * np.random.default_rng(seed).standard_normal((256, 16)).astype(np.float32)} for seed in range(4)]
    proof = compare(model, convert(model).model, samples, ["n0", "y"])
    assert proof["n0"].sqnr_db < proof["y"].sqnr_db < 40, "or nothing is tested"
    result = quantize_fp16(model, samples=samples)
    found = precision(result)
    assert result.sqnr_db["y"] > 40
    assert found["small"] == found["small_back"] == "float"
    assert found["noisy"] == found["noisy_back"] == found["average"] == found["mm"] == "fp16"
    assert "dB SQNR in float16 of small" in reason(result, "small")


def told(noise: dict[str, float]):
    """Nodes whose noise at `y` adds up."""
    return lambda nodes: {"y": sum(noise[name] for name in nodes)}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=200), st.floats(1e-4, 1))
def test_stretches_hold_every_node_once_and_what_is_left_is_quiet_enough(values, wanted):
    noise = {f"n{place}": value for place, value in enumerate(values)}
    runs = []

    def noise_of(nodes):
        runs.append(len(nodes))
        return told(noise)(nodes)

    found = stretches(list(noise), noise_of, wanted)
    assert sorted(name for part in found for name in part.nodes) == sorted(noise)
    order = list(noise)
    assert all(list(part.nodes) == order[order.index(part.nodes[0]) :][: len(part.nodes)] for part in found)
    assert len(runs) <= 1 + 32
    total = sum(values)
    given_back = loudest(found, {"y": total}, wanted)
    left = total - sum(part.noise["y"] for part in given_back)
    quiet = [part for part in found if part not in given_back]
    # What is not worth giving back stays, however much of it there is.
    assert left <= wanted * 0.8 + 1e-9 or all(part.noise["y"] < 0.05 * wanted + 1e-12 for part in quiet)
    if len(given_back) > 1:
        assert left + given_back[-1].noise["y"] > 0.8 * wanted - 1e-9, "the last was not needed"


def test_one_loud_node_among_many_is_found_alone():
    noise = {f"n{place}": 1e-6 for place in range(300)} | {"n137": 1.0}
    found = stretches(list(noise), told(noise), 1e-3)
    assert [part.nodes for part in loudest(found, {"y": sum(noise.values())}, 1e-3)] == [("n137",)]


def test_stretches_are_told_apart_where_something_is_found():
    """On the first samples the mask is 1e-13: rounded by whichever node, nothing is left of it."""
    nodes = [node("Add", ["x", "far"], ["u"], "up"), node("Sub", ["u", "far"], ["d"], "down")]
    nodes += [node("Mul", ["d" if not place else f"m{place - 1}", "one"], [f"m{place}"], f"quiet{place}") for place in range(40)]
    nodes.append(node("Sigmoid", ["m39"], ["y"], "mask"))
    model = build(nodes, {"x": [1, 64]}, {"y": [1, 64]}, {"far": np.float32(200), "one": np.float32(1)})
    empty, full = np.full((1, 64), -30, np.float32), np.linspace(-2, 2, 64, dtype=np.float32)[None]
    result = quantize_fp16(model, samples=[{"x": empty}, {"x": empty - 1}, {"x": full}, {"x": full * 0.7}])
    assert result.sqnr_db["y"] > 44
    in_float = {decision.node for decision in result.decisions if decision.precision == "float"}
    assert {"up", "down"} <= in_float
    assert len(in_float) < 10


def test_where_no_sample_shows_anything_a_warning_says_so():
    """Of a mask of 6e-6 float16 loses a lot, and all nodes before it go back, though nobody would see what they lose."""
    nodes = [
        node("Add", ["x", "far"], ["u"], "up"),
        node("Sub", ["u", "far"], ["d"], "down"),
        node("Sigmoid", ["d"], ["y"], "mask"),
    ]
    model = build(nodes, {"x": [1, 64]}, {"y": [1, 64]}, {"far": np.float32(200)})
    empty, full = np.linspace(-13, -12, 64, dtype=np.float32)[None], np.linspace(-2, 2, 64, dtype=np.float32)[None]
    result = quantize_fp16(model, samples=[{"x": empty}, {"x": empty - 1}])
    assert precision(result) == {"up": "float", "down": "float", "mask": "float"}
    assert "no more than 6.1e-06 at 'y' on all samples" in result.warnings[0]
    assert len(result.warnings) == 1
    assert not quantize_fp16(model, samples=[{"x": empty}, {"x": full}]).warnings
    assert not quantize_fp16(model, samples=[{"x": 0 * empty}]).warnings


def test_of_several_outputs_each_must_be_quiet_enough():
    parts = [Stretch(("a",), {"y": 1.0, "z": 0.0}), Stretch(("b",), {"y": 0.0, "z": 0.5}), Stretch(("c",), {"y": 0.01, "z": 0.01})]
    assert [part.nodes for part in loudest(parts, {"y": 1.01, "z": 0.51}, 0.1)] == [("a",), ("b",)]
    assert [part.nodes for part in loudest(parts, {"y": 1.01}, 0.1)] == [("a",)]
    # Measured again and still too loud: one more at least.
    assert [part.nodes for part in loudest(parts[2:], {"y": 0.11}, 0.1)] == [("c",)]
    assert loudest(parts[2:], {"y": 200.0}, 100.0) == []


def test_a_float16_input_or_output_that_cannot_be_is_refused():
    model = build([node("Relu", ["x"], ["y"])], {"x": [2]}, {"y": [2]})
    with pytest.raises(QuantizationError, match="keep_io: true"):
        quantize_fp16(model, keep_io=False, samples=[{"x": np.array([1e6, 1], np.float32)}])
    assert quantize_fp16(model, samples=[{"x": np.array([1e6, 1], np.float32)}]).sqnr_db == {"y": SQNR_CAP}


def test_what_only_runs_without_optimizations_is_refused_with_the_setting(monkeypatch):
    # Without the pass that mends it, attention over a map is such a graph.
    monkeypatch.setattr("octavo.quantization.fp16.fusions.ScaleOfQueriesPass._rewrite", lambda *_: False)
    with pytest.raises(QuantizationError, match=r"without its optimizations only: FP16: .*type mismatch[\s\S]*fp16\.keep_float"):
        quantize_fp16(attention_over_a_map(splits=True), samples=[{"x": own(1, 8, 2, 2)}])
    kept = quantize_fp16(attention_over_a_map(splits=True), keep_float_patterns=["scale_of_q"], samples=[{"x": own(1, 8, 2, 2)}])
    assert kept.sqnr_db["y"] > 55


def test_before_an_output_of_integers_the_nearest_float_tensor_is_measured():
    nodes = [node("Softmax", ["x"], ["p"]), node("ArgMax", ["p"], ["y"], axis=1)]
    model = build(nodes, {"x": [2, 5]}, {"y": (I64, [2, 1])})
    assert quantize_fp16(model, samples=[{"x": image(2, 5)}]).sqnr_db["p"] > 60


def chosen_by_class() -> ir.Model:
    """Places whose score is above a bound, class by class as torchvision's SSD chooses them; the last two are on no image."""
    classes = 6
    weights = {f"b{k}": np.array([k]) for k in range(classes + 1)}
    weights |= {"w": image(64, classes), "bias": np.float32([0, 0, 0, 0, -41, -41])}
    weights |= {"low": np.float32(0.001), "axis": np.array([1]), "most": np.array([8])}
    nodes = [node("Gemm", ["x", "w", "bias"], ["logits"], "head"), node("Softmax", ["logits"], ["p"])]
    for k in range(classes):
        nodes += [
            node("Slice", ["p", f"b{k}", f"b{k + 1}", "axis"], [f"p{k}"]),
            node("Greater", [f"p{k}", "low"], [f"m{k}"]),
            node("NonZero", [f"m{k}"], [f"y{k}"]),
            node("TopK", [f"p{k}", "most"], [f"s{k}", f"t{k}"], axis=0),
        ]
    outputs = {f"y{k}": (I64, [2, None]) for k in range(classes)} | {f"t{k}": (I64, [8, 1]) for k in range(classes)}
    return build(nodes, {"x": [32, 64]}, outputs, weights)


def test_classes_that_are_chosen_apart_are_judged_by_the_scores_of_all():
    model = chosen_by_class()
    samples = [{"x": np.random.default_rng(seed).standard_normal((32, 64)).astype(np.float32) / 4} for seed in range(3)]
    apart = compare(model, convert(model).model, samples, ["p0", "p5"])
    assert apart["p5"].sqnr_db < 44 < apart["p0"].sqnr_db, "or nothing is tested"
    result = quantize_fp16(model, samples=samples)
    assert set(result.sqnr_db) == {"p"}
    assert not result.warnings
    assert result.sqnr_db["p"] > 50
    assert precision(result)["head"] == "fp16"


def test_places_above_a_threshold_are_judged_with_their_class_and_not_beside_it():
    """They are of any number: 33 nodes looked at each in every graph that was tried, and counted twice."""
    weights = {"w": image(64, 3), "low": np.float32(0.2), "axis": np.array([1]), "most": np.array([4])}
    weights |= {f"b{k}": np.array([k]) for k in range(4)}
    nodes = [node("Gemm", ["x", "w"], ["logits"], "head"), node("Softmax", ["logits"], ["p"], "softmax")]
    for k in range(3):
        nodes += [
            node("Slice", ["p", f"b{k}", f"b{k + 1}", "axis"], [f"p{k}"], f"class{k}"),
            node("Greater", [f"p{k}", "low"], [f"m{k}"], f"above{k}"),
            node("NonZero", [f"m{k}"], [f"n{k}"], f"places{k}"),
            node("Transpose", [f"n{k}"], [f"t{k}"], f"rows{k}", perm=[1, 0]),
            node("GatherND", [f"p{k}", f"t{k}"], [f"s{k}"], f"sure{k}"),
            node("TopK", [f"s{k}", "most"], [f"v{k}", f"y{k}"], f"best{k}", axis=0),
        ]
    model = build(nodes, {"x": [32, 64]}, {f"y{k}": (I64, [4]) for k in range(3)}, weights)
    names = choosing(model, before_layers=False)
    assert watched(held(model, names), [value.name for value in model.graph.outputs]) == {f"p{k}": "p" for k in range(3)}


def levels(joined: bool) -> ir.Model:
    """The best two scores of each of two levels, as RetinaNet and FCOS take them; on the second level there is nothing."""
    weights = {"w": image(64, 4), "v": image(64, 4), "far": np.float32([512] * 4), "back": np.float32(-524)}
    weights |= {"flat": np.array([-1]), "low": np.float32(0.3), "most": np.array([2])}
    nodes = [node("Gemm", ["x", "w"], ["l0"], "near"), node("Gemm", ["x", "v", "far"], ["sum"], "off")]
    nodes.append(node("Add", ["sum", "back"], ["l1"], "less"))
    for k in range(2):
        nodes += [
            node("Sigmoid", [f"l{k}"], [f"p{k}"]),
            node("Reshape", [f"p{k}", "flat"], [f"f{k}"]),
            node("TopK", [f"f{k}", "most"], [f"s{k}", f"t{k}"], axis=0),
        ]
    nodes += [node("Concat", ["s0", "s1"], ["s"], axis=0), node("Greater", ["s", "low"], ["m"]), node("NonZero", ["m"], ["y"])]
    apart = {f"t{k}": (I64, [2]) for k in range(2)}
    return build(nodes if joined else nodes[:-3], {"x": [32, 64]}, apart | ({"y": (I64, [1, None])} if joined else {}), weights)


def test_levels_of_a_pyramid_are_judged_together():
    """Scores of a level without any object are below all that is kept: no layer goes back to float32 for them alone."""
    samples = [{"x": np.random.default_rng(seed).standard_normal((32, 64)).astype(np.float32) / 4} for seed in range(3)]
    alone = quantize_fp16(levels(joined=False), samples=samples)
    assert precision(alone)["off"] == "float", "or nothing is tested"
    result = quantize_fp16(levels(joined=True), samples=samples)
    assert min(result.sqnr_db.values()) > 44
    assert set(result.sqnr_db) & {"f0", "f1"} == {"f0"}
    assert precision(result)["off"] == "fp16"


def test_classes_joined_of_several_layers_are_each_judged():
    """An output that a second layer puts out beside a louder one is none of its parts."""
    weights = {"w": image(64, 4), "v": image(64, 4), "low": np.float32(0), "axis": np.array([1]), "sizes": np.array([4, 4])}
    nodes = [
        node("MatMul", ["x", "w"], ["a"], "first"),
        node("MatMul", ["x", "v"], ["b"], "second"),
        node("Concat", ["a", "b"], ["both"], axis=1),
        node("Split", ["both", "sizes"], ["l0", "l1"], axis=1),
    ]
    for k in range(2):
        nodes += [node("Greater", [f"l{k}", "low"], [f"m{k}"]), node("NonZero", [f"m{k}"], [f"y{k}"])]
    model = build(nodes, {"x": [32, 64]}, {f"y{k}": (I64, [2, None]) for k in range(2)}, weights)
    assert set(quantize_fp16(model, samples=[{"x": image(32, 64)}]).sqnr_db) == {"l0", "l1"}


def test_no_sample_is_an_error_and_a_path_is_as_good_as_a_model(tmp_path):
    model = overflowing()
    with pytest.raises(QuantizationError, match="no sample"):
        quantize_fp16(model, samples=[])
    ir.save(model, tmp_path / "m.onnx")
    result = quantize_fp16(tmp_path / "m.onnx", samples=iter([{"x": np.ones((2, 8), np.float32)}]))
    assert set(result.sqnr_db) == {"z"}


def test_loss_measures_what_it_says():
    loss = Loss()
    loss.update(1.0, 0.01)
    assert loss.sqnr_db == pytest.approx(20)
    loss.update(1.0, np.nan)
    assert loss.broken
    assert loss.sqnr_db == -SQNR_CAP


# ---------------------------------------------------------------- properties


@st.composite
def networks(draw):
    """A random chain of layers over [n, channels, 6, 6], with branches."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    nodes, weights, last, channels = [], {}, "x", 3
    for place in range(draw(st.integers(1, 6))):
        kind = draw(
            st.sampled_from(["Conv", "Relu", "Sigmoid", "BatchNormalization", "Add", "Concat", "Softmax", "MaxPool", "Transpose"])
        )
        out = f"t{place}"
        if kind == "Conv":
            wanted = draw(st.integers(1, 8))
            weights[f"w{place}"] = (rng.normal(size=(wanted, channels, 3, 3)) / np.sqrt(9 * channels)).astype(np.float32)
            nodes.append(node(kind, [last, f"w{place}"], [out], pads=[1, 1, 1, 1]))
            channels = wanted
        elif kind == "BatchNormalization":
            names = [f"{letter}{place}" for letter in "sbmv"]
            weights |= {name: rng.uniform(0.5, 1.5, channels).astype(np.float32) for name in names}
            nodes.append(node(kind, [last, *names], [out]))
        elif kind == "Add":
            nodes.append(node(kind, [last, last], [out]))
        elif kind == "Concat":
            nodes.append(node(kind, [last, last], [out], axis=1))
            channels *= 2
        elif kind == "Softmax":
            nodes.append(node(kind, [last], [out], axis=1))
        elif kind == "MaxPool":
            nodes.append(node(kind, [last], [out], kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
        else:
            extra = {"perm": [0, 1, 3, 2]} if kind == "Transpose" else {}
            nodes.append(node(kind, [last], [out], **extra))
        last = out
    kept = draw(st.lists(st.sampled_from([item.name for item in nodes]), unique=True, max_size=3))
    return build(nodes, {"x": ["n", 3, 6, 6]}, {last: ["n", "c", 6, 6]}, weights), kept, draw(st.booleans())


@settings(max_examples=30, deadline=None, derandomize=True)
@given(networks())
def test_any_network_converts_runs_and_agrees_with_any_nodes_kept(drawn):
    model, kept, keep_io = drawn
    result = check(
        model,
        {"x": np.random.default_rng(1).normal(size=(2, 3, 6, 6)).astype(np.float32)},
        keep_io=keep_io,
        keep_float=dict.fromkeys(kept, "asked"),
        close=1e-2,
    )
    casts = [item for item in result.model.graph if item.op_type == "Cast"]
    assert len({(item.inputs[0].name, item.outputs[0].dtype) for item in casts}) == len(casts)
    assert not any(item.inputs[0].producer() in casts for item in casts)


SCRIPT = """
import hashlib, sys
import numpy as np, onnx_ir as ir
from octavo.quantization.fp16 import quantize_fp16
samples = [{"x": np.random.default_rng(3).normal(size=(2, 8)).astype(np.float32)}]
result = quantize_fp16(sys.argv[1], samples=samples)
print(hashlib.sha256(ir.to_proto(result.model).SerializeToString()).hexdigest(), result.decisions)
"""


def test_equal_input_gives_equal_bytes_in_two_processes(tmp_path):
    path = Path(tmp_path) / "m.onnx"
    ir.save(overflowing(), path)
    said = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT, path], check=True, capture_output=True, text=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert len(said.pop().split()[0]) == len(hashlib.sha256().hexdigest())


def test_that_most_went_back_to_float32_is_said_with_what_asked_for_it():
    """Two products that are nearly the same, whose difference is all that is left."""
    nodes = [
        node("MatMul", ["x", "a"], ["l"], "left"),
        node("MatMul", ["x", "b"], ["r"], "right"),
        node("Sub", ["l", "r"], ["d"], "difference"),
        node("MatMul", ["d", "c"], ["y"], "last"),
    ]
    weights = {"a": own(32, 32), "b": own(32, 32), "c": own(32, 4)}
    feeds = {"x": own(4, 32)}
    assert quantize_fp16(build(nodes, {"x": [4, 32]}, {"y": [4, 4]}, weights), samples=[feeds]).warnings == []
    weights["b"] = (weights["a"] * 1.001 + 1e-4).astype(np.float32)
    result = quantize_fp16(build(nodes, {"x": [4, 32]}, {"y": [4, 4]}, weights), samples=[feeds])
    assert {precision(result)[name] for name in ("left", "right")} == {"float"}
    assert result.sqnr_db["y"] > 44
    (warning,) = result.warnings
    assert "94% of the weights" in warning
    assert "'y' had " in warning


def test_what_stays_too_far_from_fp32_is_said(monkeypatch):
    """Values that float16 makes equal change places behind a MaxPool whose indices are read."""
    nodes = [
        node("MaxPool", ["x"], ["m", "i"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("MaxUnpool", ["m", "i"], ["y"], "unpool", kernel_shape=[2, 2], strides=[2, 2]),
    ]
    model = build(nodes, {"x": [1, 2, 8, 8]}, {"y": [1, 2, 8, 8]})
    feeds = [{"x": (1 + 1e-5 * np.random.default_rng(1).random((1, 2, 8, 8))).astype(np.float32)}]
    assert quantize_fp16(model, samples=feeds).warnings == []
    monkeypatch.setattr("octavo.quantization.fp16.verify.ROUNDS", 0)
    (warning,) = quantize_fp16(model, samples=feeds).warnings
    assert warning.startswith("'y' is ")
    assert "44 are asked" in warning


def test_what_is_pasted_at_whole_pixels_is_judged_where_fp32_pastes_it():
    """Mask R-CNN: a corner rounds to the next pixel, and the mask is as exact as it was."""
    weights = {"w": image(64, 1), "v": image(64, 64), "far": np.float32([700])}
    weights |= {"one": np.array([1]), "none": np.zeros(1, np.int64), "all": np.array([1000])}
    nodes = [
        node("Gemm", ["x", "v"], ["mask"], "mask"),
        node("Gemm", ["x", "w", "far"], ["corner"], "corner", alpha=30.0),
        node("Reshape", ["corner", "one"], ["flat"]),
        node("Cast", ["flat"], ["left"], "whole", to=I64),
        node("Sub", ["all", "left"], ["right"]),
        node("Concat", ["none", "left", "none", "right"], ["around"], axis=0),
        node("Pad", ["mask", "around"], ["y"]),
    ]
    model = build(nodes, {"x": [1, 64]}, {"y": [1, None]}, weights)
    samples = [{"x": np.random.default_rng(seed).standard_normal((1, 64)).astype(np.float32) / 4} for seed in range(8)]
    assert compare(model, convert(model).model, samples, ["y"])["y"].sqnr_db < 20, "or nothing is tested"
    result = quantize_fp16(model, samples=samples)
    assert not result.warnings
    assert set(result.sqnr_db) == {"flat", "y"}
    assert pasted(model) == ["y"]
    assert min(result.sqnr_db.values()) > 44
    assert precision(result)["corner"] == precision(result)["mask"] == "fp16"


@pytest.mark.parametrize(("read", "names"), [("flat", ["whole"]), ("low", [])])
def test_whole_numbers_are_no_choice_where_the_rest_is_read_as_well(read, names):
    """Bilinear sampling, written out: where x rounds to the next place, its weight there is that of the place before."""
    nodes = [
        node("Floor", ["x"], ["low"]),
        node("Clip", ["low", "zero", "five"], ["flat"]),
        node("Cast", ["flat"], ["place"], "whole", to=I64),
        node("Gather", ["values", "place"], ["there"]),
        node("Sub", ["x", read], ["rest"]),
        node("Mul", ["there", "rest"], ["y"]),
    ]
    weights = {"zero": np.float32(0), "five": np.float32(5), "values": image(6)}
    if read == "flat":
        nodes[4] = node("Identity", ["x"], ["rest"])
    model = build(nodes, {"x": [4]}, {"y": [4]}, weights)
    assert choosing(model, before_layers=False, whole_numbers=True) == names
    assert choosing(model, before_layers=False) == []
    assert pasted(model) == [], "nothing is moved: another value is read"
