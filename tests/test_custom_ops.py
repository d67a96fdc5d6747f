"""Operators that ONNX Runtime lacks: run by a body or cut off, kept in every file."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir
import pytest
import torch
from conftest import project_params
from graphs import choosing_rows, he, network, statistics_of
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from test_stages import params, refuse, succeed
from torchvision.ops import batched_nms, box_convert

from octavo.deploy.package import package
from octavo.errors import OutputError, QuantizationError, SourceError
from octavo.graph.clean import clean
from octavo.graph.custom_ops import Body, CustomOps, as_in_file, resolve, serialized
from octavo.graph.custom_ops.bodies import read_body
from octavo.graph.io import load, save
from octavo.graph.passes.shapes import InferShapesPass
from octavo.manifest import write_manifest
from octavo.params.grammar import Int8, ModelSpec
from octavo.quantization.decisions import left_out
from octavo.quantization.int8 import quantize_static
from octavo.quantization.verification import verified
from octavo.runtime.session import Session

PLUGIN = {"plugin_version": "1", "score_threshold": 0.3, "iou_threshold": 0.5, "max_output_boxes": 10, "background_class": -1}
DETECTIONS = (
    ("num_detections", TensorProto.INT32, ["batch", 1]),
    ("detection_boxes", TensorProto.FLOAT, ["batch", 10, 4]),
    ("detection_scores", TensorProto.FLOAT, ["batch", 10]),
    ("detection_classes", TensorProto.INT32, ["batch", 10]),
)


def detector(*, domain="", op_type="EfficientNMS_TRT", attributes=PLUGIN, outputs=DETECTIONS, seed=0, opset=18):
    """A backbone of two convolutions, a box and a class head on its 8 x 8 cells, and a plugin on both."""
    generator = np.random.default_rng(seed)

    def he(*shape):
        return (generator.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)

    cells = np.stack(np.meshgrid(np.arange(8), np.arange(8)), -1).reshape(1, 64, 2).astype(np.float32) * 4
    tensors = {
        "stem.weight": he(16, 3, 3, 3),
        "body.weight": he(16, 16, 3, 3),
        "boxes.weight": he(4, 16, 1, 1),
        "classes.weight": he(3, 16, 1, 1) * np.float32(2),
        "cells": np.concatenate([cells, cells + 6], -1),
        "as_boxes": np.array([0, 64, 4], np.int64),
        "as_classes": np.array([0, 64, 3], np.int64),
    }
    nodes = [
        oh.make_node("Conv", ["image", "stem.weight"], ["stem"], "stem", pads=[1, 1, 1, 1], strides=[2, 2]),
        oh.make_node("Relu", ["stem"], ["stem.relu"], "stem.relu"),
        oh.make_node("Conv", ["stem.relu", "body.weight"], ["body"], "body", pads=[1, 1, 1, 1], strides=[2, 2]),
        oh.make_node("Relu", ["body"], ["body.relu"], "body.relu"),
        oh.make_node("Conv", ["body.relu", "boxes.weight"], ["offsets"], "head.boxes"),
        oh.make_node("Transpose", ["offsets"], ["offsets.last"], "offsets.last", perm=[0, 2, 3, 1]),
        oh.make_node("Reshape", ["offsets.last", "as_boxes"], ["offsets.flat"], "offsets.flat"),
        oh.make_node("Add", ["offsets.flat", "cells"], ["boxes"], "decode"),
        oh.make_node("Conv", ["body.relu", "classes.weight"], ["logits"], "head.classes"),
        oh.make_node("Transpose", ["logits"], ["logits.last"], "logits.last", perm=[0, 2, 3, 1]),
        oh.make_node("Reshape", ["logits.last", "as_classes"], ["logits.flat"], "logits.flat"),
        oh.make_node("Sigmoid", ["logits.flat"], ["scores"], "scores"),
        oh.make_node(op_type, ["boxes", "scores"], [name for name, _, _ in outputs], "plugin", domain=domain, **attributes),
    ]
    graph = oh.make_graph(
        nodes,
        "detector",
        [oh.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 32, 32])],
        [oh.make_tensor_value_info(*output) for output in outputs],
        [onh.from_array(value, name) for name, value in tensors.items()],
    )
    opsets = [oh.make_opsetid("", opset)] + ([oh.make_opsetid(domain, 1)] if domain else [])
    return oh.make_model(graph, opset_imports=opsets, ir_version=8)


def with_plugin(source=None, **changes):
    """params.yaml of the project for a detector in small.onnx."""
    params(task="detection", source={"kind": "onnx", "file": "small.onnx", **(source or {})}, **changes)


def op_nodes(path, op_type):
    return [node for node in onnx.load(path).graph.node if node.op_type == op_type]


def nms(boxes, scores, anchors=None, opset=18, **attributes):
    """EfficientNMS_TRT alone, run by the shipped body."""
    feeds = {"boxes": boxes, "scores": scores} | ({} if anchors is None else {"anchors": anchors})
    kind = oh.np_dtype_to_tensor_dtype(scores.dtype)
    node = oh.make_node("EfficientNMS_TRT", list(feeds), ["n", "b", "s", "c"], "nms", **attributes)
    graph = oh.make_graph(
        [node],
        "g",
        [oh.make_tensor_value_info(name, kind, [None] * value.ndim) for name, value in feeds.items()],
        [oh.make_tensor_value_info(name, made, None) for name, made in zip("nbsc", (6, kind, kind, 6), strict=True)],
    )
    model = ir.from_proto(oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=9))
    custom, _ = resolve(model, {}, opset)
    outputs = Session(ir.to_proto(custom.attached(model)).SerializeToString()).run(feeds)
    return tuple(outputs[name] for name in "nbsc")


def reference(boxes, scores, *, score, iou, most, background=-1, sigmoid=False, agnostic=False, centre=False):
    """The same by torchvision, an image and a (box, class) pair at a time; boxes [B, N, C, 4]."""
    found = []
    for image_boxes, image_scores in zip(boxes, scores, strict=True):
        points = torch.from_numpy(image_scores)
        points = torch.sigmoid(points) if sigmoid else points
        box, label = [grid.ravel() for grid in np.meshgrid(*map(np.arange, image_scores.shape), indexing="ij")]
        usable = (points.numpy().ravel() >= np.float32(score)) & (label != background)
        box, label = box[usable], label[usable]
        corners = torch.from_numpy(image_boxes)
        corners = (box_convert(corners, "cxcywh", "xyxy") if centre else corners)[box, label]
        values, groups = points[box, label], torch.from_numpy(label * (not agnostic))
        kept = batched_nms(corners, values, groups, iou)[:most].numpy()
        found.append((corners.numpy()[kept], values.numpy()[kept], label[kept]))
    return found


class TestEfficientNms:
    @settings(max_examples=60, deadline=None)
    @given(
        seed=st.integers(0, 2**32 - 1),
        shape=st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 4)),
        own_boxes=st.booleans(),
        sigmoid=st.booleans(),
        agnostic=st.booleans(),
        centre=st.booleans(),
        background=st.integers(-1, 3),
        most=st.sampled_from([1, 7, 200]),
        bounds=st.tuples(st.floats(0.05, 0.9), st.floats(0.1, 0.9)),
        opset=st.sampled_from([18, 21]),
    )
    def test_it_equals_torchvision(self, *, seed, shape, own_boxes, sigmoid, agnostic, centre, background, most, bounds, opset):
        generator = np.random.default_rng(seed)
        batch, count, classes = shape
        boxes = generator.uniform(0, 30, (batch, count, classes if own_boxes else 1, 4)).astype(np.float32)
        if not centre:
            boxes[..., 2:] += boxes[..., :2] + 1
        scores = generator.uniform(0, 1, shape).astype(np.float32)
        scores = np.log(scores / (1 - scores)).astype(np.float32) if sigmoid else scores
        score, iou = bounds
        got = nms(
            boxes if own_boxes else boxes[:, :, 0],
            scores,
            opset=opset,
            plugin_version="1",
            score_threshold=score,
            iou_threshold=iou,
            max_output_boxes=most,
            background_class=background,
            score_activation=int(sigmoid),
            class_agnostic=int(agnostic),
            box_coding=int(centre),
        )
        expected = reference(
            np.broadcast_to(boxes, (*shape, 4)).copy(), scores, score=score, iou=iou, most=most, background=background,
            sigmoid=sigmoid, agnostic=agnostic, centre=centre,
        )  # fmt: skip
        assert [value.shape for value in got] == [(batch, 1), (batch, most, 4), (batch, most), (batch, most)]
        assert [value.dtype for value in got] == [np.int32, np.float32, np.float32, np.int32]
        for image, (corners, values, labels) in enumerate(expected):
            number = got[0][image, 0]
            assert number == len(labels)
            np.testing.assert_allclose(got[1][image, :number], corners, rtol=1e-5, atol=1e-4)
            np.testing.assert_allclose(got[2][image, :number], values, rtol=1e-5)
            np.testing.assert_array_equal(got[3][image, :number], labels)
            for value in got[1:]:
                assert not value[image, number:].any(), "unused places hold zeros"

    def test_both_bounds_are_met_by_equality(self):
        boxes = np.array([[[0, 0, 4, 4], [0, 0, 4, 2], [8, 8, 9, 9]]], np.float32)  # the first two have an IoU of 1/2
        scores = np.array([[[0.9], [0.8], [0.5]]], np.float32)
        number, _, values, _ = nms(boxes, scores, score_threshold=0.5, iou_threshold=0.5, max_output_boxes=3)
        assert number.item() == 2
        np.testing.assert_array_equal(values, np.array([[0.9, 0.5, 0]], np.float32))

    def test_nothing_found_and_negative_scores(self):
        boxes = np.array([[[0, 0, 4, 4]], [[0, 0, 4, 4]]], np.float32)
        for agnostic in (0, 1):
            scores = np.array([[[0.1, 0.2]], [[0.1, 0.1]]], np.float32)
            for value in nms(boxes, scores, score_threshold=0.3, class_agnostic=agnostic):
                assert not value.any()
            assert nms(boxes, scores, score_threshold=0.2, class_agnostic=agnostic)[0].ravel().tolist() == [1, 0]
            number, _, values, _ = nms(boxes, -scores, score_threshold=-0.15, max_output_boxes=3, class_agnostic=agnostic)
            assert number.ravel().tolist() == ([1, 2] if not agnostic else [1, 1])
            np.testing.assert_array_equal(values[0], np.array([-0.1, 0, 0], np.float32))

    @pytest.mark.parametrize("anchored", [False, True])
    def test_float16_comes_out_as_it_went_in(self, anchored):
        generator = np.random.default_rng(5)
        boxes = generator.integers(0, 8, (2, 9, 4)).astype(np.float16) + np.array([0, 0, 9, 9], np.float16)
        scores = generator.uniform(0, 1, (2, 9, 3)).astype(np.float16)
        halves = [boxes, scores, *([np.ones((1, 9, 4), np.float16)] if anchored else [])]
        options = {"score_threshold": 0.25, "iou_threshold": 0.5, "max_output_boxes": 12}
        got, expected = nms(*halves, **options), nms(*(value.astype(np.float32) for value in halves), **options)
        assert [value.dtype for value in got] == [np.int32, np.float16, np.float16, np.int32]
        assert got[0].min() > 1
        for value, as_float in zip(got, expected, strict=True):
            np.testing.assert_array_equal(value, as_float.astype(value.dtype))

    def test_every_run_writes_the_same_bytes(self):
        """The body lies in models/<model>/fp32, which all later stages depend on."""
        script = (
            "import hashlib; from octavo.graph.custom_ops import efficient_nms as shipped, serialized\n"
            "print([hashlib.sha256(serialized(shipped.efficient_nms(inputs))).hexdigest() for inputs in (2, 3)])"
        )
        command, seeded = [sys.executable, "-c", script], [os.environ | {"PYTHONHASHSEED": seed} for seed in "123"]
        found = {subprocess.run(command, env=env, capture_output=True, check=True).stdout for env in seeded}
        assert len(found) == 1

    def test_defaults_are_the_plugins(self):
        boxes = np.array([[[0, 0, 4, 4], [9, 9, 12, 12]]], np.float32)
        number, corners, *_ = nms(boxes, np.array([[[0.6], [0.4]]], np.float32))
        assert number.item() == 1
        assert corners.shape == (1, 100, 4)

    def test_boxes_relative_to_anchors(self):
        generator = np.random.default_rng(3)
        anchors = generator.uniform(10, 20, (1, 5, 4)).astype(np.float32)
        corrections = generator.uniform(-0.2, 0.2, (2, 5, 4)).astype(np.float32)
        scores = generator.uniform(0.5, 1, (2, 5, 2)).astype(np.float32)
        options = {"score_threshold": 0.1, "iou_threshold": 0.4, "max_output_boxes": 10}
        middle = corrections[..., :2] * anchors[..., 2:] + anchors[..., :2]
        decoded = np.concatenate([middle, np.exp(corrections[..., 2:]) * anchors[..., 2:]], -1)
        for got, expected in zip(
            nms(corrections, scores, anchors, box_coding=1, **options), nms(decoded, scores, box_coding=1, **options), strict=True
        ):
            np.testing.assert_allclose(got, expected, rtol=1e-5)
        anchors[..., 2:] += anchors[..., :2]
        corners = np.sort(corrections.reshape(2, 5, 2, 2), axis=2).reshape(2, 5, 4)
        for got, expected in zip(
            nms(corrections, scores, anchors, **options), nms(corners + anchors, scores, **options), strict=True
        ):
            np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("domain", ["", "TRT"])
def test_a_detector_with_efficient_nms_goes_through_all_stages(project, domain):
    onnx.save(detector(domain=domain), "small.onnx")
    with_plugin()
    succeed("export", "calibrate", "quantize_fp16", "quantize_int8", "validate", "benchmark", "report")
    original = detector(domain=domain).graph
    for variant in ("fp32", "fp16", "int8", "int8_dynamic"):
        (node,) = op_nodes(f"models/small/{variant}/model.onnx", "EfficientNMS_TRT")
        assert node.domain == domain
        assert {a.name: oh.get_attribute_value(a) for a in node.attribute} == {
            a.name: oh.get_attribute_value(a) for a in original.node[-1].attribute
        }
        assert list(node.output) == list(original.node[-1].output)
        file = onnx.load(f"models/small/{variant}/model.onnx")
        assert not file.functions
        assert [value.name for value in file.graph.output] == [name for name, _, _ in DETECTIONS]
        assert {entry.domain for entry in file.opset_import} <= {"", domain}
        manifest = json.loads(Path(f"models/small/{variant}/manifest.json").read_text())
        assert manifest["custom_ops"]["EfficientNMS_TRT"]["origin"] == "shipped"
        assert [output["name"] for output in manifest["outputs"]] == [name for name, _, _ in DETECTIONS]
        if variant != "fp32":
            reasons = {record["node"]: record for record in manifest["made"]["nodes"]}
            assert reasons["plugin"] == {
                "node": "plugin", "op_type": "EfficientNMS_TRT", "precision": "float", "reason": "custom operator"
            }  # fmt: skip
    assert len(op_nodes("models/small/int8/model.onnx", "QuantizeLinear")) >= 3
    accuracy = json.loads(Path("metrics/small/accuracy.json").read_text())
    assert accuracy["custom_ops.EfficientNMS_TRT"] == "body (shipped)"
    assert accuracy["compared"] == "boxes, scores"
    assert accuracy["decoder"] == "efficientnms"
    assert accuracy["int8.cosine_mean"] > 0.99
    assert set(accuracy) >= {"int8.sqnr_db.boxes", "int8.sqnr_db.scores"}
    latency = json.loads(Path("metrics/small/latency.json").read_text())
    assert latency["custom_ops.EfficientNMS_TRT"] == "body (shipped)"
    assert latency["int8.cpu.t1.b1.median_ms"] > 0

    first = Path("models/small/fp32/model.onnx").read_bytes()
    succeed("export")
    assert Path("models/small/fp32/model.onnx").read_bytes() == first


def test_detections_of_the_exported_model_are_those_of_its_heads(tmp_path):
    """The whole graph with the body gives what the cut graph's outputs give under the operator alone."""
    onnx.save(detector(), tmp_path / "d.onnx")
    model = load(tmp_path / "d.onnx")
    custom, notes = resolve(model, {}, 18)
    assert len(notes) == 1, "by plugin_version the parser finds the plugin: nothing is left out"
    assert "runs by its body (shipped" in notes[0]
    image = {"image": np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32)}
    save(custom.whole(model), tmp_path / "whole.onnx")
    save(custom.part(model), tmp_path / "part.onnx")
    heads = Session(tmp_path / "part.onnx").run(image)
    assert list(heads) == ["boxes", "scores"]
    expected = nms(heads["boxes"], heads["scores"], **PLUGIN)
    assert expected[0].min() > 0
    for got, value in zip(Session(tmp_path / "whole.onnx").run(image).values(), expected, strict=True):
        np.testing.assert_array_equal(got, value)


def test_what_a_body_has_no_word_for_is_told():
    proto = detector()
    plugin = next(node for node in proto.graph.node if node.op_type == "EfficientNMS_TRT")
    plugin.attribute.extend([oh.make_attribute("plugin_namespace", "acme"), oh.make_attribute("soft_sigma", 0.5)])
    _, notes = resolve(ir.from_proto(proto), {}, 18)
    assert notes[1:] == ["EfficientNMS_TRT's body takes no account of its attribute 'soft_sigma'"]


def test_a_temporary_folder_without_room_is_an_error_in_words(tmp_path):
    onnx.save(detector(), tmp_path / "d.onnx")
    custom, _ = resolve(load(tmp_path / "d.onnx"), {}, 18)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))
    try:
        with (
            pytest.raises(OutputError, match=r"temporary folder .* could not be written"),
            custom.files({"fp32": tmp_path / "d.onnx"}),
        ):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_package_says_what_its_plugin_s_outputs_were_read_as(tmp_path):
    for folder in ("fp32", "package"):
        (tmp_path / folder).mkdir()
    onnx.save(detector(), tmp_path / "fp32/model.onnx")
    custom, _ = resolve(load(tmp_path / "fp32/model.onnx"), {}, 18)
    spec = ModelSpec.model_validate(project_params(task="detection")["models"]["small"])
    write_manifest(tmp_path / "fp32", name="small", variant="fp32", spec=spec, image_input="image", made={}, custom_ops=custom)
    written = package(tmp_path / "package", {"fp32": tmp_path / "fp32"}, {"decoder": "efficientnms"}, {})
    assert written["fp32"]["decoder"] == "efficientnms"
    (tmp_path / "cut").mkdir()
    written = package(tmp_path / "cut", {"fp32": tmp_path / "fp32"}, {"decoder": "EfficientNMS_TRT-cut"}, {})
    assert written["fp32"]["decoder"] is None, "the file does not put out what was read"


@pytest.mark.slow
def test_without_a_body_the_graph_is_cut_and_files_keep_the_operator(project):
    outputs = (("found", TensorProto.FLOAT, ["batch", "n"]),)
    model = detector(op_type="MyPlugin", attributes={"level": 3}, outputs=outputs)
    # Something behind the plugin, that also reads a tensor and a weight of the part before it.
    model.graph.node[-1].output[0] = "selected"
    model.graph.node.append(oh.make_node("MatMul", ["selected", "cells"], ["mixed"], "behind"))
    model.graph.node.append(oh.make_node("Add", ["mixed", "boxes"], ["found"], "last"))
    onnx.save(model, "small.onnx")
    photos = {kind: {"format": "folder", "path": f"images/{kind}"} for kind in ("calibration", "validation")}
    with_plugin(data=photos)
    succeed("export", "calibrate", "quantize_fp16", "quantize_int8", "validate", "benchmark")
    notes = json.loads(Path("models/small/fp32/manifest.json").read_text())["made"]["notes"]
    assert "custom operator MyPlugin (1 node) has no body: the graph is cut before it to run, files keep it" in notes
    assert "1 layers lie behind a custom operator without a body and will not be quantized" in notes
    for variant in ("fp32", "fp16", "int8", "int8_dynamic"):
        file = load(f"models/small/{variant}/model.onnx")
        nodes = {node.name: node for node in file.graph}
        assert nodes["plugin"].op_type == "MyPlugin"
        assert nodes["plugin"].domain == ""
        assert nodes["plugin"].attributes["level"].as_int() == 3
        assert [value.name for value in file.graph.outputs] == ["found"]
        assert nodes["behind"].inputs[0] is nodes["plugin"].outputs[0]
        np.testing.assert_array_equal(
            nodes["behind"].inputs[1].const_value.numpy(), onh.to_array(model.graph.initializer[4]), "the tail's weights stay FP32"
        )
        for value in (*nodes["plugin"].inputs, *nodes["last"].inputs[1:]):
            assert value.dtype == ir.DataType.FLOAT
            assert value.name in ("boxes", "scores")
        manifest = json.loads(Path(f"models/small/{variant}/manifest.json").read_text())
        assert manifest["custom_ops"] == {"MyPlugin": {"body": None}}
        if variant != "fp32":
            reasons = {record["node"]: record["reason"] for record in manifest["made"]["nodes"]}
            assert reasons["plugin"] == "custom operator"
            assert reasons["behind"] == reasons["last"] == "lies behind a custom operator"
    accuracy = json.loads(Path("metrics/small/accuracy.json").read_text())
    assert accuracy["custom_ops.MyPlugin"] == "cut, with all that lies behind it"
    assert accuracy["compared"] == "boxes, scores"
    assert accuracy["decoder"] == "MyPlugin-cut", "its inputs are boxes of a grid and their scores"
    assert accuracy["int8.match_f1"] > 0.5
    assert accuracy["int8.cosine_mean"] > 0.99
    assert accuracy["fp16.sqnr_db"] > 40

    with_plugin(data=photos, fp16={"keep_io": False})
    succeed("quantize_fp16")
    file = load("models/small/fp16/model.onnx")
    assert file.graph.inputs[0].dtype == ir.DataType.FLOAT16
    (plugin,) = [node for node in file.graph if node.name == "plugin"]
    for value in plugin.inputs:
        assert value.dtype == ir.DataType.FLOAT, "the tail is of float32: what it reads comes back to it"
        assert value.producer().op_type == "Cast"
    succeed("validate")
    assert json.loads(Path("metrics/small/accuracy.json").read_text())["fp16.sqnr_db"] > 40


def test_sizes_that_data_decide_are_told_of_what_lies_before_the_cut(tmp_path):
    """Rows behind NonZero have the sizes of an image, on which the graph was run with the operator in it."""
    generator = np.random.default_rng(0)
    model = choosing_rows(generator)
    found = ir.val("found", ir.DataType.FLOAT, ["n"])
    model.graph.append(ir.node("MyPlugin", list(model.graph.outputs), outputs=[found], name="plugin"))
    model.graph.outputs[:] = [found]
    custom = CustomOps({"MyPlugin": None})
    save(model, tmp_path / "fp32.onnx")
    images = [{"x": generator.standard_normal((1, 1, 16, 8)).astype(np.float32)} for _ in range(6)]
    part = custom.part(model)
    result = quantize_static(part, statistics_of(part, images), Int8(placement="all", repair=False))
    save(custom.restore(result.model, model), tmp_path / "int8.onnx")
    about = {"name": "int8", "custom": custom, "sizes": (2, 1), "original": model}
    decisions = [*result.decisions, *left_out(custom.untouched(model))]
    made = verified(tmp_path / "int8.onnx", tmp_path / "fp32.onnx", decisions, [("photo", images[0])], **about)
    assert made["executed"]["int8_share"] > 0


def my_scale(*, inputs=("x",), outputs=("y",), name="MyScale", nodes=None, default=True, opset=18):
    """A function y = alpha * relu(x) as the bytes of a file."""
    nodes = nodes or [
        oh.make_node("Relu", ["x"], ["r"]),
        oh.make_node("Mul", ["r", "a"], ["y"]),
    ]
    alpha = onnx.AttributeProto(name="value_float", type=onnx.AttributeProto.FLOAT, ref_attr_name="alpha")
    constant = oh.make_node("Constant", [], ["a"])
    constant.attribute.append(alpha)
    declared = {"attribute_protos": [oh.make_attribute("alpha", 0.5)]} if default else {"attributes": ["alpha"]}
    function = oh.make_function(
        "any.domain", name, list(inputs), list(outputs), [constant, *nodes], [oh.make_opsetid("", opset)], **declared
    )
    return serialized([function])


def test_a_file_may_hold_a_function_alone(tmp_path):
    """What onnxscript's `to_function_proto` gives, written as it is: it was no ONNX file."""
    whole = my_scale()
    path = tmp_path / "scale.onnx"
    path.write_bytes(onnx.load_from_string(whole).functions[0].SerializeToString())
    assert read_body("MyScale", path, "source.custom_ops.MyScale").data == whole


def scaled_network(project, alpha=None, domain=""):
    """small.onnx with MyScale in place of its first ReLU: layers lie behind it."""
    model = onnx.load("small.onnx")
    node = model.graph.node[1]
    node.op_type, node.domain = "MyScale", domain
    if alpha is not None:
        node.attribute.append(oh.make_attribute("alpha", alpha))
    if domain:
        model.opset_import.append(oh.make_opsetid(domain, 2))
    onnx.save(model, "small.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("domain", ["", "acme"])
def test_layers_behind_an_operator_with_a_body_are_quantized(project, domain):
    scaled_network(project, 0.75, domain)
    Path("scale.onnx").write_bytes(my_scale())
    params(source={"kind": "onnx", "file": "small.onnx", "custom_ops": {"MyScale": "scale.onnx"}})
    succeed("export", "calibrate", "quantize_fp16", "quantize_int8")
    Path("scale.onnx").unlink()  # later stages need models/small/fp32 only
    succeed("validate", "benchmark")
    manifest = json.loads(Path("models/small/fp32/manifest.json").read_text())
    record = manifest["custom_ops"]["MyScale"]
    assert record["origin"] == "scale.onnx"
    assert Path("models/small/fp32", record["body"]).read_bytes() == my_scale()
    custom = CustomOps.read("models/small/fp32", manifest)
    for variant in ("fp32", "fp16", "int8", "int8_dynamic"):
        (node,) = op_nodes(f"models/small/{variant}/model.onnx", "MyScale")
        assert (node.domain, node.attribute[0].f) == (domain, 0.75)
    nodes = {r["node"]: r for r in json.loads(Path("models/small/int8/manifest.json").read_text())["made"]["nodes"]}
    assert nodes["depth"]["precision"] == nodes["head"]["precision"] == "int8"
    assert nodes["stem.relu"]["precision"] == "float"
    accuracy = json.loads(Path("metrics/small/accuracy.json").read_text())
    assert accuracy["compared"] == "logits"
    assert accuracy["int8.cosine_mean"] > 0.98
    assert accuracy["int8.top1"] >= 0, "the task's score reads the model's own outputs"

    save(custom.whole(load("models/small/fp32/model.onnx")), "runs.onnx")
    image = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)
    hand = load("models/small/fp32/model.onnx")
    for node in list(hand.graph):
        if node.op_type == "MyScale":
            relu = ir.node("Relu", [node.inputs[0]])
            half = ir.Value(name="factor", const_value=ir.tensor(np.float32(0.75), name="factor"))
            hand.graph.register_initializer(half)
            scale = ir.node("Mul", [relu.outputs[0], half])
            ir.convenience.replace_nodes_and_values(hand.graph, node, [node], [relu, scale], node.outputs, scale.outputs)
    save(hand, "by_hand.onnx")
    np.testing.assert_allclose(
        Session("runs.onnx").run({"image": image})["logits"], Session("by_hand.onnx").run({"image": image})["logits"], rtol=1e-6
    )


class TestBadBodies:
    def export(self, *parts, **body):
        return self.export_any("small.onnx: ", *parts, **body)

    def export_any(self, *parts, body=None, **ops):
        if body is not None:
            Path("scale.onnx").write_bytes(body)
        params(source={"kind": "onnx", "file": "small.onnx", "custom_ops": ops or {"MyScale": "scale.onnx"}})
        return refuse("export", *parts)

    def test_files(self, project):
        scaled_network(project)
        self.export("source.custom_ops.MyScale: nowhere.onnx: no such file", MyScale="nowhere.onnx")
        self.export("source.custom_ops.MyScale: scale.onnx: is not an ONNX file", body=b"\xff\xff no protobuf")
        self.export("has no function 'MyScale'; its functions: MyScael", "did you mean 'MyScael'?", body=my_scale(name="MyScael"))
        self.export("has no function 'MyScale'; its functions: none", body=serialized([]))
        Path("scale.py").write_text("raise SystemExit('run')")
        self.export("scale.py: is not an ONNX file; Python is not run", MyScale="scale.py")

    def test_forms(self, project):
        scaled_network(project)
        self.export("has 2 inputs (x, z), node 'stem.relu' has 1", body=my_scale(inputs=("x", "z")))
        two = [oh.make_node("Mul", ["x", "a"], ["y"]), oh.make_node("Neg", ["y"], ["z"])]
        self.export("has 2 outputs (y, z), node 'stem.relu' has 1", body=my_scale(outputs=("y", "z"), nodes=two))
        self.export("needs the attribute 'alpha', which node 'stem.relu' does not set", body=my_scale(default=False))

    def test_operators_in_it(self, project):
        scaled_network(project)
        old = [oh.make_node("ReduceMax", ["x"], ["r"], axes=[1]), oh.make_node("Mul", ["r", "a"], ["y"])]
        self.export("uses ReduceMax with attribute 'axes', which opset 18 does not have", body=my_scale(nodes=old, opset=17))
        later = [oh.make_node("Gelu", ["x"], ["r"]), oh.make_node("Mul", ["r", "a"], ["y"])]
        self.export("uses Gelu, which is no operator of opset 18", body=my_scale(nodes=later, opset=20))
        foreign = [oh.make_node("Other", ["x"], ["y"], domain="acme")]
        self.export("uses acme.Other, which is neither ONNX nor in the file", body=my_scale(nodes=foreign))

    def test_one_that_onnx_runtime_cannot_load(self, project):
        scaled_network(project)
        own = [oh.make_node("MyScale", ["x"], ["y"], domain="any.domain")]
        self.export_any("the graph with the body of source.custom_ops.MyScale: scale.onnx", body=my_scale(nodes=own))

    @pytest.mark.parametrize(
        ("nodes", "says"),
        [
            ([oh.make_node("Add", ["x", "nothing"], ["y"])], "is not valid ONNX: .* input 'nothing'"),
            ([oh.make_node("Neg", ["t"], ["y"]), oh.make_node("Mul", ["x", "a"], ["t"])], "topologically sorted, .* input 't'"),
            ([oh.make_node("Mul", ["x", "a"], ["z"])], "makes no output 'y'"),
        ],
    )
    def test_one_that_is_no_function(self, nodes, says):
        with pytest.raises(SourceError, match=f"scale.onnx: the function 'MyScale' .*{says}"):
            Body("MyScale", my_scale(nodes=nodes), "file", "scale.onnx").check([], 18)

    @pytest.mark.parametrize(
        ("left_out", "says"),
        [((), "has 2 inputs .x, b., node 'bare' has 1"), ((None,), "computes Add of its input 'b', which node 'bare' leaves out")],
    )
    def test_an_input_that_some_nodes_leave_out(self, left_out, says):
        x, b = ir.val("x"), ir.val("b")
        calls = [ir.node("HasOpt", [x, b], name="full"), ir.node("HasOpt", [x, *left_out], name="bare")]
        forms = [[oh.make_node(op_type, ["x", "b"], ["y"])] for op_type in ("Add", "Clip")]
        add, clip = (my_scale(inputs=("x", "b"), name="HasOpt", nodes=nodes) for nodes in forms)
        with pytest.raises(SourceError, match=f"{says}\n.*`source.custom_ops: {{HasOpt: null}}`"):
            Body("HasOpt", add, "file", "f").check(calls, 18)
        if left_out:
            assert not Body("HasOpt", clip, "file", "f").check(calls, 18), "Clip does without"

    def test_an_operator_that_the_graph_has_not(self, project):
        scaled_network(project)
        self.export(
            "source.custom_ops.MyScal: the graph has no such custom operator; it has: MyScale", "did you mean 'MyScale'?",
            MyScal="scale.onnx",
        )  # fmt: skip

    def test_an_operator_of_a_later_opset_is_no_plugin(self, project):
        scaled_network(project)
        model = onnx.load("small.onnx")
        model.graph.node[1].op_type = "Gelu"
        onnx.save(model, "small.onnx")
        params()
        refuse("export", "op 'Gelu' (node 'stem.relu') is ONNX's own from opset 20 on, and the graph is of opset 18")

    def test_the_shipped_body_at_an_opset_that_it_is_not_for(self, project):
        onnx.save(detector(opset=17), "small.onnx")
        with_plugin({"opset": 17})
        refuse("export", "the shipped body of EfficientNMS_TRT", "opset 17 does not have", "source.opset")

    def test_nothing_before_the_operator(self, project):
        model = onnx.load("small.onnx")
        model.graph.node.insert(0, oh.make_node("MyResize", ["image"], ["resized"], "first"))
        model.graph.node[1].input[0] = "resized"
        onnx.save(model, "small.onnx")
        refuse("export", "nothing lies before the custom operator 'MyResize' (node 'first')", "{MyResize: file.onnx}")

    def test_a_body_that_was_changed_behind_the_manifest(self, project):
        onnx.save(detector(), "small.onnx")
        with_plugin()
        succeed("export")
        Path("models/small/fp32/custom_ops/EfficientNMS_TRT.onnx").write_bytes(my_scale())
        refuse("calibrate", "is not the body that the manifest describes")


@pytest.mark.parametrize("body", [None, Body("Colour", my_scale(name="Colour"), "file", "body.onnx")])
def test_before_an_operator_on_integers_the_nearest_floats_are_put_out(body):
    """Colours of an ArgMax's classes: what tells two models apart are the logits."""
    text = """<ir_version: 8, opset_import: ["": 18, "acme": 1]> g (float[1, 3, 4, 4] x) => (float[1, 4, 4] y) {
        [conv] logits = Conv(x, w) [best] classes = ArgMax<axis = 1, keepdims = 0>(logits) [colour] y = acme.Colour(classes) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onh.from_array(he(np.random.default_rng(0), 4, 3, 1, 1), "w"))
    model = ir.from_proto(proto)
    InferShapesPass()(model)
    custom = CustomOps({"Colour": body})
    assert custom.compared(model) == ["classes", "logits"]
    assert [value.name for value in custom.whole(model).graph.outputs] == (["classes"] if body is None else ["y"])
    back = custom.restore(custom.part(model), model)
    assert [node.op_type for node in back.graph] == ["Conv", "ArgMax", "Colour"]
    assert [value.name for value in back.graph.outputs] == ["y"]


def test_null_cuts_what_has_a_shipped_body(tmp_path):
    model = ir.from_proto(detector())
    custom, notes = resolve(model, {"EfficientNMS_TRT": None}, 18)
    assert custom.record() == {"EfficientNMS_TRT": {"body": None}}
    assert [value.name for value in custom.whole(model).graph.outputs] == ["boxes", "scores"]
    assert len(list(model.graph)) == 13, "the model itself is left as it is"
    assert "has no body" in notes[0]


def test_a_body_may_spell_the_domain_of_onnx_and_have_operators_of_onnx_runtime(tmp_path):
    nodes = [
        oh.make_node("Relu", ["x"], ["r"], domain="ai.onnx"),
        oh.make_node("Binarizer", ["r"], ["y"], domain="ai.onnx.ml", threshold=1.5),
    ]
    opsets = [oh.make_opsetid("ai.onnx", 18), oh.make_opsetid("ai.onnx.ml", 3)]
    function = oh.make_function("d", "Steps", ["x"], ["y"], nodes, opsets)
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[2] x) => (float[2] y) { a = Neg(x) [steps] y = Steps(a) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    (tmp_path / "steps.onnx").write_bytes(serialized([function]))
    custom, _ = resolve(model, {"Steps": str(tmp_path / "steps.onnx")}, 18)
    whole = custom.whole(model)
    assert "ai.onnx" not in whole.opset_imports
    outputs = Session(ir.to_proto(whole).SerializeToString()).run({"x": np.array([-1, -2], np.float32)})
    np.testing.assert_array_equal(outputs["y"], np.array([0, 1], np.float32))


def test_each_operator_has_a_file_and_statistics_are_of_one_body(tmp_path):
    half, whole = (Body("My_Scale", my_scale(name="My_Scale", default=default), "file", "f.onnx") for default in (True, False))
    dotted = Body("My.Scale", my_scale(name="My.Scale"), "file", "f.onnx")
    custom = CustomOps({"My_Scale": half, "My.Scale": dotted})
    custom.write(tmp_path)
    assert CustomOps.read(tmp_path, {"custom_ops": custom.record()}).bodies["My.Scale"].data == dotted.data
    origins = [CustomOps({"My_Scale": body}).origin()["custom_ops"] for body in (half, whole, None)]
    assert len(set(origins)) == 3
    assert CustomOps().origin() == {}


def steps(tmp_path, *functions):
    """A file of functions (domain, name, ONNX operator of one input)."""
    made = [
        oh.make_function(domain, name, ["x"], ["y"], [oh.make_node(op_type, ["x"], ["y"])], [oh.make_opsetid("", 18)])
        for domain, name, op_type in functions
    ]
    path = tmp_path / f"{'-'.join(op_type for _, _, op_type in functions)}.onnx"
    path.write_bytes(serialized(made))
    return str(path)


class TestOperatorsOfOneNameInTwoDomains:
    def model(self):
        text = """<ir_version: 8, opset_import: ["": 18, "acme": 1, "other": 1]> g (float[2] x) => (float[2] y) {
            z = Neg(x) [one] a = acme.Relu(z) [two] b = other.Relu(a) [three] y = Relu(b) }"""
        return ir.from_proto(onnx.parser.parse_model(text))

    def answer(self, custom):
        outputs = Session(ir.to_proto(custom.whole(self.model())).SerializeToString()).run({"x": np.array([-4, 9], np.float32)})
        return outputs["y"].tolist()

    def test_each_has_the_body_of_its_domain_and_a_name_alone_is_of_the_others(self, tmp_path):
        size, root = steps(tmp_path, ("d", "Relu", "Abs")), steps(tmp_path, ("d", "Relu", "Sqrt"))
        assert self.answer(resolve(self.model(), {"Relu": size}, 18)[0]) == [4, 9]
        for asked in ({"acme::Relu": size, "other::Relu": root}, {"acme::Relu": size, "Relu": root}):
            custom, notes = resolve(self.model(), asked, 18)
            assert [note.split()[2] for note in notes] == sorted(asked)
            custom.write(tmp_path)
            custom = CustomOps.read(tmp_path, {"custom_ops": custom.record()})
            assert self.answer(custom) == [2, 3]
            back = custom.restore(custom.part(self.model()), self.model())
            assert [(node.domain, node.op_type) for node in back.graph][1:] == [("acme", "Relu"), ("other", "Relu"), ("", "Relu")]

    def test_one_is_cut_and_the_other_runs(self, tmp_path):
        custom, _ = resolve(self.model(), {"acme::Relu": steps(tmp_path, ("d", "Relu", "Abs")), "other::Relu": None}, 18)
        assert [value.name for value in custom.whole(self.model()).graph.outputs] == ["a"]
        assert custom.record()["other::Relu"] == {"body": None}

    def test_a_file_with_functions_of_both_domains(self, tmp_path):
        file = steps(tmp_path, ("acme", "Relu", "Abs"), ("other", "Relu", "Sqrt"))
        assert self.answer(resolve(self.model(), {"acme::Relu": file, "other::Relu": file}, 18)[0]) == [2, 3]
        with pytest.raises(SourceError, match=r"in each of the domains 'acme', 'other', and which is meant") as error:
            resolve(self.model(), {"Relu": file}, 18)
        assert "`acme::Relu`" in str(error.value)

    def test_a_domain_that_the_graph_has_not(self, tmp_path):
        file = steps(tmp_path, ("d", "Relu", "Abs"))
        with pytest.raises(SourceError, match="no such custom operator; it has: acme::Relu, other::Relu") as error:
            resolve(self.model(), {"acm::Relu": file}, 18)
        assert "did you mean 'acme::Relu'?" in str(error.value)
        with pytest.raises(SourceError, match="all of these operators in the graph are named with their domain beside it"):
            resolve(self.model(), {"acme::Relu": file, "other::Relu": file, "Relu": file}, 18)

    def test_onnx_s_own_domain_is_called_ai_onnx(self):
        custom, notes = resolve(ir.from_proto(detector()), {"ai.onnx::EfficientNMS_TRT": None}, 18)
        assert "has no body" in notes[0]
        assert [value.name for value in custom.whole(ir.from_proto(detector())).graph.outputs] == ["boxes", "scores"]


def test_two_bodies_with_different_helpers_of_one_name():
    def body(name, op_type):
        helper = oh.make_function(
            "helpers", "inner", ["x"], ["y"], [oh.make_node(op_type, ["x"], ["y"])], [oh.make_opsetid("", 18)]
        )
        calls = oh.make_node("inner", ["x"], ["y"], domain="helpers")
        return serialized([oh.make_function("d", name, ["x"], ["y"], [calls], [oh.make_opsetid("", 18)]), helper])

    text = """<ir_version: 8, opset_import: ["": 18]> g (float[2] x) => (float[2] y) {
        a = Abs(x) b = First(a) c = Second(b) y = Neg(c) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))

    def custom(second):
        pairs = (("First", body("First", "Neg")), ("Second", body("Second", second)))
        return CustomOps({name: Body(name, data, "file", f"{name}.onnx") for name, data in pairs})

    runs = Session(ir.to_proto(custom("Neg").attached(model)).SerializeToString())
    np.testing.assert_array_equal(runs.run({"x": np.array([1, -2], np.float32)})["y"], np.array([-1, -2], np.float32))
    with pytest.raises(SourceError, match="two bodies have different functions 'inner'"):
        custom("Exp").attached(model)


def test_a_plugin_inside_a_branch(tmp_path):
    """The If that holds it counts as the operator; what the branch reads from outside is an output of the cut graph."""
    text = """<ir_version: 8, opset_import: ["": 18, "trt": 1]> g (float[2] x, bool c) => (float[2] y) {
        a = Abs(x) b = Exp(x)
        y = If (c) <then_branch = t () => (float[2] o) { [deep] o = trt.Plugin(a) },
                    else_branch = e () => (float[2] p) { p = Neg(b) }> }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    custom, _ = resolve(model, {}, 18)
    part = custom.part(model)
    assert {value.name for value in part.graph.outputs} == {"a", "b"}
    back = custom.restore(part, model)
    save(back, tmp_path / "back.onnx")
    expected = onnx.parser.parse_model(text).graph
    got = onnx.load(tmp_path / "back.onnx").graph
    assert [(n.op_type, list(n.input), list(n.output)) for n in got.node] == [
        (n.op_type, list(n.input), list(n.output)) for n in expected.node
    ]
    branch = next(a.g for a in got.node[-1].attribute if a.name == "then_branch")
    assert (branch.node[0].op_type, list(branch.node[0].input)) == ("Plugin", ["a"])


def test_what_comes_back_is_of_the_opset_that_int8_needed():
    """Gelu is of opset 20, at which GridSample's modes have other names."""
    weights = [onh.from_array(he(np.random.default_rng(0), 4, 4, 3, 3), name) for name in ("v", "w")]
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[1, 4, 8, 8] x, float[1, 8, 8, 2] at) => (float[1, 4, 8, 8] y) {
        root = Constant<value_float = 1.4142135>() one = Constant<value_float = 1.0>() half = Constant<value_float = 0.5>()
        [first] a = Conv<pads = [1, 1, 1, 1]>(x, v)
        d = Div(a, root) e = Erf(d) s = Add(e, one) p = Mul(a, s) g = Mul(p, half)
        [second] b = Conv<pads = [1, 1, 1, 1]>(g, w)
        [plugin] c = MyPlugin(b)
        y = GridSample<mode = "bilinear">(c, at) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.extend(weights)
    model = ir.from_proto(proto)
    custom, _ = resolve(model, {}, 18)
    part = custom.part(model)
    InferShapesPass()(part)
    clean(part, 18)
    feeds = [{"x": np.random.default_rng(place).standard_normal((1, 4, 8, 8)).astype(np.float32)} for place in range(4)]
    feeds = [feed | {"at": np.zeros((1, 8, 8, 2), np.float32)} for feed in feeds]
    made = quantize_static(part, statistics_of(part, feeds), Int8(placement="all", method="minmax")).model
    back = custom.restore(made, model)
    assert back.opset_imports[""] == 20
    found = {node.op_type: node for node in back.graph}
    assert found["Gelu"] is not None
    assert found["MyPlugin"].domain == ""
    assert found["GridSample"].attributes["mode"].as_string() == "linear"


def test_int8_neither_converts_nor_fuses_a_graph_with_bodies(tmp_path):
    weights = {"v": he(np.random.default_rng(0), 8, 3, 1, 1), "w": he(np.random.default_rng(1), 4, 8, 1, 1)}
    nodes = [
        oh.make_node("Conv", ["x", "v"], ["a"], "first"),
        oh.make_node("Relu", ["a"], ["r"], "scale"),
        oh.make_node("Conv", ["r", "w"], ["y"], "last"),
    ]
    model = network(nodes, weights, ["y"])
    model.graph[1].op_type = "MyScale"
    custom = CustomOps({"MyScale": Body("MyScale", my_scale(), "file", "my_scale.onnx")})
    part = custom.part(model)
    feeds = [{"x": np.random.default_rng(place).standard_normal((1, 3, 16, 16)).astype(np.float32)} for place in range(4)]
    statistics = statistics_of(part, feeds)
    back = custom.restore(quantize_static(part, statistics, Int8(placement="all")).model, model)
    assert "MyScale" in [node.op_type for node in back.graph]
    with pytest.raises(QuantizationError, match="`int8.bits16` needs opset 21"):
        quantize_static(part, statistics, Int8(placement="all", bits16=("x",)))
    with pytest.raises(QuantizationError, match=r"`int8.format: qoperator` .* 'MyScale' .* node 'scale'\n.*`int8.format: qdq`"):
        quantize_static(part, statistics, Int8(placement="all", format="qoperator"))


@pytest.mark.parametrize(("op_type", "inputs"), [("Relu", 1), ("HardSwish", 1), ("Concat", 2), ("PRelu", 2)])
def test_an_operator_of_another_domain_with_a_name_of_onnx_is_none(op_type, inputs):
    """INT8 takes it for no activation, and its file and what is told of it have its own name."""
    weights = {"v": he(np.random.default_rng(0), 8, 3, 1, 1), "w": he(np.random.default_rng(1), 4, 8, 1, 1)}
    nodes = [
        oh.make_node("Conv", ["x", "v"], ["a"], "first"),
        oh.make_node("Tanh", ["a"], ["b"], "tanh"),
        oh.make_node("Sum", ["a", "b"][:inputs], ["r"], "odd"),
        oh.make_node("Conv", ["r", "w"], ["y"], "last"),
    ]
    model = network(nodes, weights, ["y"])
    odd = next(node for node in model.graph if node.name == "odd")
    odd.op_type, odd.domain = op_type, "com.acme"
    model.graph.opset_imports["com.acme"] = 1
    names = ("x", "z")[:inputs]
    body = my_scale(name=op_type, inputs=names, nodes=[oh.make_node("Sum", names, ["r"]), oh.make_node("Mul", ["r", "a"], ["y"])])
    custom = CustomOps({op_type: Body(op_type, body, "file", "body.onnx")})
    part = custom.part(model)
    feeds = [{"x": np.random.default_rng(place).standard_normal((1, 3, 16, 16)).astype(np.float32)} for place in range(4)]
    made = quantize_static(part, statistics_of(part, feeds), Int8(placement="all", method="minmax"))
    back = custom.restore(made.model, model)
    assert [(node.op_type, node.name) for node in back.graph if node.domain == "com.acme"] == [(op_type, "odd")]
    assert as_in_file(next(one.reason for one in made.decisions if one.node == "odd")) == f"no INT8 rule for com.acme.{op_type}"
    exact, rounded = (Session(ir.to_proto(custom.whole(one)).SerializeToString()).run(feeds[0])["y"] for one in (model, back))
    assert np.abs(exact - rounded).max() < 0.05 * np.abs(exact).max()


def test_what_was_made_without_one_of_the_operators_is_refused():
    text = """<ir_version: 8, opset_import: ["": 18, "acme": 1]> g (float[2, 2] x) => (float[2, 2] y) {
        a = Abs(x) [odd] b = acme.Relu(a) y = MatMul(b, b) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    custom = CustomOps({"Relu": Body("Relu", my_scale(name="Relu"), "file", "body.onnx")})
    made = ir.from_proto(onnx.parser.parse_model(text.replace("acme.Relu", "Relu")))
    with pytest.raises(SourceError, match="quantization lost 1 of the nodes of the custom operator 'Relu'"):
        custom.restore(made, model)


def test_the_setting_is_part_of_the_grammar(project):
    from octavo.params import load_model

    params(source={"kind": "onnx", "file": "small.onnx", "custom_ops": {"A": "a.onnx", "B": None}})
    assert load_model("params.yaml", "small").source.custom_ops == {"A": "a.onnx", "B": None}
    assert project_params()["models"]["small"]["source"]["kind"] == "onnx"
