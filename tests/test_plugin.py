"""Graphs that are cut before a plugin that suppresses boxes: read as that plugin goes on."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import yaml
from conftest import project_params
from forked import run_stage
from grid_detector import NAMES, pair_detector, write_squares
from hypothesis import given, settings
from hypothesis import strategies as st
from test_custom_ops import nms

from octavo.params.grammar import Detection
from octavo.tasks.detection import family_of
from octavo.tasks.detection.boxes import Boxes
from octavo.tasks.detection.families import FAMILIES
from octavo.tasks.detection.family import centres
from octavo.tasks.detection.plugin import Plugin, plugin_of

SIDE = 64
TASK = Detection(name="detection", score=0.0001)
EFFICIENT = {"score_threshold": 0.3, "iou_threshold": 0.5, "max_output_boxes": 20, "box_coding": 0}
BATCHED = {"scoreThreshold": 0.3, "iouThreshold": 0.5, "keepTopK": 20, "backgroundLabelId": -1, "isNormalized": 1}


def operator(op_type: str, *inputs: ir.Value | None, **attributes: float) -> ir.Node:
    names = inputs or (ir.val("boxes"), ir.val("scores"))
    return ir.node(op_type, list(names), attributes)


def read(node: ir.Node, outputs: dict[str, np.ndarray], task: Detection = TASK) -> Boxes:
    plugin = plugin_of([node], outputs, (SIDE, SIDE), task)
    return family_of(outputs, (SIDE, SIDE), "auto", plugin.families).boxes(outputs, (SIDE, SIDE), task.score)


def random(seed: int = 0, count: int = 40, classes: int = 3, own: int = 1) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    boxes = generator.uniform(0, 30, (1, count, own, 4)).astype(np.float32)
    boxes[..., 2:] += boxes[..., :2] + 1
    scores = generator.uniform(0, 1, (1, count, classes)).astype(np.float32)
    return {"boxes": boxes if own > 1 else boxes[:, :, 0], "scores": scores}


def same(found: Boxes, expected: Boxes) -> None:
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)
    np.testing.assert_array_equal(found.classes, expected.classes)
    np.testing.assert_allclose(found.xyxy, expected.xyxy, rtol=1e-4, atol=1e-3)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(2, 40), st.integers(1, 4)),
    own=st.booleans(),
    sigmoid=st.booleans(),
    agnostic=st.booleans(),
    centred=st.booleans(),
    anchored=st.booleans(),
    background=st.integers(-1, 3),
    most=st.sampled_from([1, 7, 200]),
    bounds=st.tuples(st.floats(0.05, 0.9), st.floats(0.1, 0.9)),
)
def test_it_goes_on_as_the_shipped_body(*, seed, shape, own, sigmoid, agnostic, centred, anchored, background, most, bounds):
    count, classes = shape
    outputs = random(seed, count, classes, classes if own else 1)
    anchors = random(seed + 1, count)["boxes"] if anchored else None
    if anchored and centred:
        # Sizes are exponents then.
        outputs["boxes"] = outputs["boxes"] / 30
    if sigmoid:
        outputs["scores"] = np.log(outputs["scores"] / (1 - outputs["scores"])).astype(np.float32)
    attributes = {
        "score_threshold": bounds[0], "iou_threshold": bounds[1], "max_output_boxes": most, "background_class": background,
        "score_activation": int(sigmoid), "class_agnostic": int(agnostic), "box_coding": int(centred),
    }  # fmt: skip
    written = dict(zip("nbsc", nms(*outputs.values(), anchors, **attributes), strict=True))
    expected = FAMILIES["efficientnms"].boxes(written, (SIDE, SIDE), TASK.score)
    inputs = [ir.val(name) for name in outputs]
    if anchored:
        inputs.append(ir.val("anchors", const_value=ir.tensor(anchors)))
    plugin = plugin_of([operator("EfficientNMS_TRT", *inputs, **attributes)], outputs, (SIDE, SIDE), TASK)
    same(plugin.families[0].boxes(outputs, (SIDE, SIDE), TASK.score), expected)


def test_scores_below_zero_are_suppressed_too():
    outputs = random()
    outputs["scores"] -= 2
    low = EFFICIENT | {"score_threshold": -1.5, "score_activation": 0}
    plugin = plugin_of([operator("EfficientNMS_TRT", **low)], outputs, (SIDE, SIDE), TASK)
    number, _, scores, classes = nms(*outputs.values(), **low)
    found = plugin.families[0].boxes(outputs, (SIDE, SIDE), -9)
    assert len(found) == number.item() > 3
    np.testing.assert_allclose(found.scores, scores[0, : len(found)], rtol=1e-6)
    np.testing.assert_array_equal(found.classes, classes[0, : len(found)])


class TestSpellings:
    def test_batched_nms_says_the_same_in_other_words(self):
        outputs = random()
        expected = read(operator("EfficientNMS_TRT", **EFFICIENT), outputs)
        assert len(expected) > 5
        same(read(operator("BatchedNMS_TRT", **BATCHED), outputs), expected)
        apart = {"boxes": outputs["boxes"][:, :, None], "scores": outputs["scores"]}
        same(read(operator("TRTBatchedNMS", **BATCHED), apart), expected)
        turned = outputs | {"scores": outputs["scores"].transpose(0, 2, 1)}
        same(read(operator("AcmeNMS", iou_threshold=0.5, score_threshold=0.3, keep_top_k=20), turned), expected)

    def test_of_each_class_only_the_best_are_looked_at(self):
        outputs = random()
        found = read(operator("BatchedNMS_TRT", **BATCHED | {"topK": 2, "iouThreshold": 0.99}), outputs)
        best = np.sort(outputs["scores"][0], axis=0)[-2:]
        np.testing.assert_allclose(np.sort(found.scores), np.sort(best.ravel()))

    def test_whole_pixels_count_both_ends(self):
        # IoU 8 * 10 / (10 * 10) and, with ends, 9 * 11 / (11 * 11).
        outputs = {"boxes": np.float32([[[0, 0, 10, 10], [0, 0, 8, 10]]]), "scores": np.float32([[[0.9], [0.8]]])}
        bound = BATCHED | {"iouThreshold": 0.81}
        assert len(read(operator("BatchedNMS_TRT", **bound), outputs)) == 2
        assert len(read(operator("BatchedNMS_TRT", **bound | {"isNormalized": 0}), outputs)) == 1

    def test_of_each_class_only_so_many_come_out(self):
        """As ONNX's NonMaxSuppression counts, and TensorFlow's: behind suppression."""
        outputs = random()
        expected = read(operator("EfficientNMS_TRT", **EFFICIENT), outputs)
        bounds = {"iou_threshold": 0.5, "score_threshold": 0.3}
        turned = outputs | {"scores": outputs["scores"].transpose(0, 2, 1)}
        for name in ("max_output_boxes_per_class", "max_output_size_per_class"):
            found = read(operator("EfficientNMS_ONNX_TRT", **bounds, **{name: 2}), turned)
            first = [np.flatnonzero(expected.classes == kind)[:2] for kind in range(3)]
            assert [len(each) for each in first] == [2, 2, 2]
            same(found, expected.taken(np.sort(np.concatenate(first))))
            assert len(read(operator("EfficientNMS_ONNX_TRT", **bounds, **{name: 2}, max_total_size=5), turned)) == 5

    @pytest.mark.parametrize("size", [(128, 256), (256, 128)])
    @pytest.mark.parametrize("shares", [False, True])
    @pytest.mark.parametrize("anchored", [False, True])
    def test_y_before_x_is_told_by_the_order_of_cells(self, size, shares, anchored):
        """TensorFlow's graphs: suppression does not ask, what reads its boxes does."""
        places, step = (np.float32(np.repeat(each, 2, axis=0)) for each in centres(size, (8, 16), 0.5))
        boxes = np.concatenate([places * step, step * [2, 3]], axis=1, dtype=np.float32)
        scores = np.random.default_rng(0).uniform(0, 1, (1, len(boxes), 3)).astype(np.float32)
        swapped = boxes[:, [1, 0, 3, 2]] / (np.float32([*size, *size]) if shares else np.float32(1))
        found = []
        for written in (boxes, swapped):
            outputs, inputs = {"boxes": written[None], "scores": scores}, [ir.val("boxes"), ir.val("scores")]
            if anchored:
                inputs.append(ir.val("anchors", const_value=ir.tensor(written[None])))
                outputs["boxes"] = np.zeros_like(written[None])
            plugin = plugin_of([operator("EfficientNMS_TRT", *inputs, **EFFICIENT | {"box_coding": 1})], outputs, size, TASK)
            found.append(family_of(outputs, size, "auto", plugin.families).boxes(outputs, size, TASK.score))
        assert len(found[0]) == 20
        same(found[1], found[0])

    def test_boxes_in_shares_come_out_in_pixels(self):
        outputs = random()
        expected = read(operator("BatchedNMS_TRT", **BATCHED), outputs)
        shares = outputs | {"boxes": outputs["boxes"] / np.float32(SIDE)}
        same(read(operator("BatchedNMS_TRT", **BATCHED), shares), expected)

    def test_the_background_is_said_where_it_is_class_0(self):
        first, none = (
            plugin_of([operator("BatchedNMS_TRT", **BATCHED | {"backgroundLabelId": place})], random(), (SIDE, SIDE), TASK)
            for place in (0, -1)
        )
        assert first.families[0].background
        assert not none.families[0].background
        assert 0 not in first.families[0].boxes(random(), (SIDE, SIDE), 0.0).classes


class TestUnknown:
    """Operators that say nothing of themselves."""

    grid = np.stack(np.meshgrid(np.arange(8), np.arange(8)), -1).reshape(1, 64, 2).astype(np.float32) * 8
    boxes = np.concatenate([grid, grid + 8], -1)

    def scores(self, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).uniform(0, 1, (1, 64, 3)).astype(np.float32)

    @pytest.mark.parametrize("centred", [False, True])
    def test_a_grid_s_boxes_and_their_scores_are_told_by_values(self, centred):
        written = np.concatenate([self.grid + 4, np.full_like(self.grid, 8)], -1) if centred else self.boxes
        outputs = {"scores": self.scores(), "boxes": written}
        found = read(operator("AcmeSuppress"), outputs, Detection(name="detection", score=0.5, max_detections=9))
        assert len(found) == 9
        place = outputs["scores"][0].max(axis=1).argmax()
        np.testing.assert_allclose(found.xyxy[0], self.boxes[0, place])

    def test_an_image_without_candidates_has_no_boxes(self):
        """Where the graph leaves unlikely places out before its plugin."""
        node = operator("AcmeNMS", ir.val("boxes"), ir.val("scores"), ir.val("bound"), iou_threshold=0.5)
        outputs = random() | {"bound": np.float32(0.3)}
        plugin = plugin_of([node], outputs, (SIDE, SIDE), TASK)
        nothing = {"boxes": outputs["boxes"][:, :0], "scores": outputs["scores"][:, :0]}
        assert len(plugin.families[0].boxes(outputs, (SIDE, SIDE), 0.1)) > 0
        assert len(plugin.families[0].boxes(nothing, (SIDE, SIDE), 0.1)) == 0
        assert plugin_of([node], nothing, (SIDE, SIDE), TASK) is None

    def test_what_is_no_suppression_is_left_alone(self):
        noise = np.random.default_rng(0).standard_normal((1, 64, 4)).astype(np.float32)
        for outputs in ({"boxes": noise, "scores": self.scores()}, {"boxes": self.boxes}, {"scores": self.scores()}):
            assert plugin_of([operator("AcmeColour")], outputs, (SIDE, SIDE), TASK) is None
        assert plugin_of([], {"boxes": self.boxes, "scores": self.scores()}, (SIDE, SIDE), TASK) is None

    def test_the_first_that_suppresses_is_read(self):
        outputs = random()
        plugin = plugin_of([operator("AcmeColour"), operator("AcmeNMS", iou_threshold=0.5)], outputs, (SIDE, SIDE), TASK)
        assert isinstance(plugin, Plugin)
        assert plugin.reads == ("boxes", "scores")
        assert plugin.families[0].name == "AcmeNMS-cut"


def test_a_cut_graph_is_validated_as_the_one_with_the_body(tmp_path, monkeypatch):
    """By the stages; the graph's own outputs are the plugin's in both."""
    monkeypatch.chdir(tmp_path)
    attributes = {"score_threshold": 0.05, "iou_threshold": 0.6, "max_output_boxes": 100}
    kinds = [("n", 6, [1, 1]), ("b", 1, [1, 100, 4]), ("s", 1, [1, 100]), ("c", 6, [1, 100])]
    plugin = onnx.helper.make_node("EfficientNMS_TRT", ["boxes", "scores"], list("nbsc"), "nms", **attributes)
    model = pair_detector(SIDE)
    model.graph.node.append(plugin)
    del model.graph.output[:]
    model.graph.output.extend(onnx.helper.make_tensor_value_info(*kind) for kind in kinds)
    onnx.save(model, "small.onnx")
    write_squares(Path("squares/calibration"), 8, seed=1, annotated=False)
    write_squares(Path("squares/validation"), 12, seed=2)
    records = []
    for ops in ({}, {"EfficientNMS_TRT": None}):
        changes = {
            "task": {"name": "detection", "classes": list(NAMES)},
            "source": {"kind": "onnx", "file": "small.onnx", "custom_ops": ops},
            "input": {"size": [SIDE, SIDE], "resize": {"rule": "letterbox", "antialias": False}},
            "data": {
                "calibration": {"format": "folder", "path": "squares/calibration"},
                "validation": {"format": "coco", "path": "squares/validation"},
            },
        }
        changes["int8"] = {"placement": "all", "repair": False}
        Path("params.yaml").write_text(yaml.safe_dump(project_params(**changes)), encoding="utf-8")
        for stage in ("export", "calibrate", "quantize_int8", "validate"):
            done = run_stage(stage, "--model", "small")
            assert done.returncode == 0, done.stderr
        records.append(json.loads(Path("metrics/small/accuracy.json").read_text()))
        assert len(list(Path("metrics/small/pictures").iterdir())) == 6
    body, cut = records
    assert cut["fp32.ap"] > 0.3
    assert cut["int8.ap"] > 0.3
    assert {key: (body.get(key), cut.get(key)) for key in body.keys() | cut.keys() if body.get(key) != cut.get(key)} == {
        "custom_ops.EfficientNMS_TRT": ("body (shipped)", "cut, with all that lies behind it"),
        "decoder": ("efficientnms", "EfficientNMS_TRT-cut"),
    }
