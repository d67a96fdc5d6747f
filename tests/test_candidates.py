"""A detector that suppresses boxes itself is judged by the boxes that it chooses among, as the same one without suppression is."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir
import pytest
from graphs import inferred, statistics_of
from grid_detector import pair_detector
from test_custom_ops import my_scale
from test_int8_objects import SIDE, scene

from octavo.graph.custom_ops import resolve
from octavo.params.grammar import Classification, Detection, Int8
from octavo.quantization.int8 import Images, quantize_static
from octavo.runtime.session import Session
from octavo.tasks.detection import SureBoxes, readers_of
from octavo.tasks.detection.candidates import Candidates
from octavo.tasks.detection.family import centres

PLUGIN = {"score_threshold": 0.001, "iou_threshold": 0.65, "max_output_boxes": 100}
CELLS = 256 + 64 + 16
TENSORS = {
    "most": np.int64([100]),
    "iou": np.float32([0.65]),
    "low": np.float32([0.001]),
    "ends": np.int64([0, 2]),
    "last": np.int64([2]),
    "first": np.int64([0]),
    "one": np.int64([1]),
    "wide": np.float32(1024),
    "both": np.int64([0, 1]),
}
node = oh.make_node
FOUND = [("b", 1, ["k", 4]), ("l", 7, ["k"]), ("s", 1, ["k"])]


def with_tail(nodes: list[onnx.NodeProto], outputs: list[tuple]) -> onnx.ModelProto:
    """`pair_detector` with nodes behind its boxes and scores."""
    model = pair_detector(SIDE)
    model.graph.node.extend(nodes)
    read = {name for each in nodes for name in each.input}
    model.graph.initializer.extend(onh.from_array(value, name) for name, value in TENSORS.items() if name in read)
    del model.graph.output[:]
    model.graph.output.extend(oh.make_tensor_value_info(*output) for output in outputs)
    return model


def efficient_nms() -> onnx.ModelProto:
    """What TensorRT's plugin makes of them."""
    kinds = [("n", 6, [1, 1]), ("b", 1, [1, 100, 4]), ("s", 1, [1, 100]), ("c", 6, [1, 100])]
    return with_tail([node("EfficientNMS_TRT", ["boxes", "scores"], list("nbsc"), "nms", **PLUGIN)], kinds)


def by_class() -> onnx.ModelProto:
    """ONNX's suppression of each class."""
    nodes = [
        node("Transpose", ["scores"], ["by_class"], "by_class", perm=[0, 2, 1]),
        node("NonMaxSuppression", ["boxes", "by_class", "most", "iou", "low"], ["chosen"], "nms"),
        node("Gather", ["chosen", "ends"], ["places"], "places", axis=1),
        node("GatherND", ["boxes", "places"], ["b"], "b"),
        node("GatherND", ["by_class", "chosen"], ["s"], "s"),
        node("Gather", ["chosen", "one"], ["l2"], "l2", axis=1),
        node("Squeeze", ["l2", "one"], ["l"], "l"),
    ]
    return with_tail(nodes, FOUND)


def batched(*, objectness: bool = False) -> onnx.ModelProto:
    """torchvision's batched_nms of the best class at each place: classes are moved apart before one suppression of all.

    Args:
        objectness: what counts is the best class's score times something else, as in YOLOX's demo.
    """
    nodes = [
        node("Squeeze", ["boxes", "first"], ["places"], "places"),
        node("Squeeze", ["scores", "first"], ["points"], "points"),
        node("ReduceMax", ["points", "one"], ["best"], "best", keepdims=0),
        node("ArgMax", ["points"], ["classes"], "classes", axis=1, keepdims=0),
        node("Mul", ["best", "best"], ["counted"], "counted") if objectness else node("Identity", ["best"], ["counted"], "counted"),
        node("Greater", ["counted", "low"], ["sure"], "sure"),
        node("NonZero", ["sure"], ["where2"], "where2"),
        node("Squeeze", ["where2", "first"], ["where"], "where"),
        node("Gather", ["places", "where"], ["near"], "near"),
        node("Gather", ["counted", "where"], ["points_near"], "points_near"),
        node("Gather", ["classes", "where"], ["classes_near"], "classes_near"),
        node("Cast", ["classes_near"], ["numbers"], "numbers", to=1),
        node("Mul", ["numbers", "wide"], ["shift"], "shift"),
        node("Unsqueeze", ["shift", "one"], ["shift2"], "shift2"),
        node("Add", ["near", "shift2"], ["apart"], "apart"),
        node("Unsqueeze", ["apart", "first"], ["apart3"], "apart3"),
        node("Unsqueeze", ["points_near", "both"], ["points3"], "points3"),
        node("NonMaxSuppression", ["apart3", "points3", "most", "iou"], ["chosen"], "nms"),
        node("Gather", ["chosen", "last"], ["kept2"], "kept2", axis=1),
        node("Squeeze", ["kept2", "one"], ["kept"], "kept"),
        node("Gather", ["near", "kept"], ["b"], "b"),
        node("Gather", ["classes_near", "kept"], ["l"], "l"),
        node("Gather", ["points_near", "kept"], ["s"], "s"),
    ]
    return with_tail(nodes, FOUND)


@pytest.fixture(scope="module")
def feeds() -> list[dict[str, np.ndarray]]:
    return [{"image": scene(seed)} for seed in range(14)]


def quantized(proto: onnx.ModelProto, feeds: list[dict[str, np.ndarray]], custom_ops: dict[str, str] | None = None):
    """As the stage does it."""
    whole = inferred(proto)
    custom, _ = resolve(whole, custom_ops or {}, 18)
    part = custom.part(whole)
    cut = [value.name for value in part.graph.outputs] != [value.name for value in whole.graph.outputs]
    images = Images(feeds[:6], feeds[6:], *readers_of(Detection(name="detection"), "image", cut=cut))
    return quantize_static(part, statistics_of(part, feeds[:6]), Int8(placement="all"), images)


@pytest.fixture(scope="module")
def without(feeds):
    return quantized(pair_detector(SIDE), feeds)


@pytest.mark.parametrize("tail", [efficient_nms, by_class, batched])
def test_with_suppression_and_without_a_detector_is_quantized_alike(feeds, without, tail):
    result = quantized(tail(), feeds)
    assert "expected_loss" in result.measured
    assert result.measured == without.measured
    precisions = {one.node: one.precision for one in result.decisions}
    assert {one.node: precisions[one.node] for one in without.decisions} == {one.node: one.precision for one in without.decisions}
    weights, others = ({name: v.const_value for name, v in r.model.graph.initializers.items()} for r in (without, result))
    for name, value in weights.items():
        np.testing.assert_array_equal(value.numpy(), others[name].numpy())


def test_boxes_are_found_again_where_what_suppression_reads_is_not_read(feeds):
    """As where a detector chooses level by level, before it decodes (RetinaNet, FCOS)."""
    model = inferred(by_class())
    sure = SureBoxes(Detection(name="detection", sure=0.1), "image")
    alone, both = (
        quantize_static(
            model,
            statistics_of(model, feeds[:6]),
            Int8(placement="all"),
            Images(feeds[:6], feeds[6:], candidates=lambda *_: None, sure=each),
        )
        for each in (None, sure)
    )
    assert "expected_loss" not in both.measured
    assert "found_f1" not in alone.measured
    assert both.measured["found_f1"] > 0.9
    assert both.measured["db"] >= alone.measured["db"]


def test_an_operator_with_a_body_amid_the_graph_leaves_its_outputs_boxes(feeds, without, tmp_path):
    """Pixels are no less than 0, so that the operator changes nothing."""
    model = pair_detector(SIDE)
    for each in model.graph.node:
        each.input[:] = ["scaled" if name == "image" else name for name in each.input]
    model.graph.node.insert(0, node("MyScale", ["image"], ["scaled"], "scale", domain="acme", alpha=1.0))
    model.graph.value_info.append(oh.make_tensor_value_info("scaled", 1, ["batch", 3, SIDE, SIDE]))
    model.opset_import.append(oh.make_opsetid("acme", 1))
    (tmp_path / "body.onnx").write_bytes(my_scale())
    above = [{"image": np.maximum(feed["image"], 0)} for feed in feeds]
    result = quantized(model, above, {"MyScale": str(tmp_path / "body.onnx")})
    assert result.measured["expected_loss"] == pytest.approx(without.measured["expected_loss"], abs=2e-3)


def cut_outputs(proto: onnx.ModelProto, names: list[str], feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    del proto.graph.output[:]
    proto.graph.output.extend(oh.make_empty_tensor_value_info(name) for name in names)
    return Session(ir.to_proto(inferred(proto)).SerializeToString()).run(feeds)


def test_what_an_objectness_is_multiplied_into_counts(feeds):
    outputs = cut_outputs(batched(objectness=True), ["points", "counted", "places"], feeds[0])
    told = Candidates.told(outputs, (SIDE, SIDE))
    assert told.best == "counted"
    corners, scores = told.rows(outputs)
    assert (corners.shape, scores.shape) == ((CELLS, 4), (CELLS, 2))
    np.testing.assert_allclose(scores.max(axis=1), outputs["counted"], rtol=1e-5)
    # The best score beside all scores changes nothing.
    assert Candidates.told(outputs | {"counted": outputs["points"].max(axis=1)}, (SIDE, SIDE)).best is None


class TestForms:
    """Boxes and scores as exporters lay them before suppression."""

    @pytest.fixture(scope="class")
    def pair(self, feeds) -> tuple[np.ndarray, np.ndarray]:
        outputs = Session(pair_detector(SIDE).SerializeToString()).run(feeds[0])
        return outputs["boxes"], outputs["scores"]

    def told(self, boxes, scores, **more):
        outputs = {"p": scores, "q": boxes, **more}
        found = Candidates.told(outputs, (SIDE, SIDE))
        return found.rows(outputs) if found is not None else None

    def test_shapes(self, pair):
        boxes, scores = pair
        expected = self.told(boxes, scores)
        for box, score in (
            (boxes[0], scores[0]),
            (boxes[:, :, None], scores),
            (boxes, scores.swapaxes(1, 2)),
            (boxes, scores[0].T),
        ):
            for got, wanted in zip(self.told(box, score), expected, strict=True):
                np.testing.assert_array_equal(got, wanted)
        assert self.told(boxes, scores[..., :1])[1].shape == (CELLS, 1)
        assert self.told(boxes, scores, most=scores.max(axis=2), number=np.int64([3]))[1].shape == (CELLS, 2)
        # As many places as boxes: maps are no scores of theirs.
        assert self.told(boxes, scores, maps=np.zeros((1, 9, 16, CELLS // 16), np.float32))[1].shape == (CELLS, 2)

    def test_coding(self, pair):
        boxes, scores = pair
        centred = np.concatenate([(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]], -1)
        np.testing.assert_allclose(self.told(centred, scores)[0], boxes[0], atol=1e-4)
        np.testing.assert_array_equal(self.told(boxes / SIDE, scores)[0], boxes[0] / SIDE)
        np.testing.assert_array_equal(self.told(boxes[..., [1, 0, 3, 2]], scores)[0], boxes[0][:, [1, 0, 3, 2]])

    @pytest.mark.parametrize("size", [(128, 256), (256, 128)])
    def test_either_axis_may_come_first(self, size):
        places, step = centres(size, (8, 16, 32), 0.5)
        boxes = np.float32(np.concatenate([places * step - step, places * step + step], axis=1))[None]
        scores = np.random.default_rng(0).uniform(0, 1, (1, boxes.shape[1], 3)).astype(np.float32)
        for axes in ([0, 1, 2, 3], [1, 0, 3, 2]):
            outputs = {"boxes": boxes[..., axes], "scores": scores}
            np.testing.assert_array_equal(Candidates.told(outputs, size).rows(outputs)[0], boxes[0][:, axes])

    def test_what_scores_are(self, pair):
        boxes, scores = pair
        np.testing.assert_allclose(self.told(boxes, np.log(scores / (1 - scores)))[1], scores[0], rtol=1e-4)
        rest = 1 - scores.sum(axis=2, keepdims=True)
        for places in ([2, 0, 1], [0, 1, 2]):
            softmax = np.concatenate([scores, rest], -1)[..., places]
            np.testing.assert_array_equal(self.told(boxes, softmax)[1], scores[0])

    def test_four_classes(self, pair):
        boxes, scores = pair
        assert self.told(boxes, np.concatenate([scores, scores / 2], -1))[1].shape == (CELLS, 4)

    def test_what_is_told_holds_for_other_variants(self, pair):
        boxes, scores = pair
        outputs = {"q": boxes, "p": scores}
        told = Candidates.told(outputs, (SIDE, SIDE))
        broken = {"q": boxes[..., ::-1], "p": scores * 3 - 1}
        np.testing.assert_array_equal(told.rows(broken)[0], broken["q"][0])
        np.testing.assert_array_equal(told.rows(broken)[1], broken["p"][0])

    def test_what_are_no_boxes_of_a_grid(self, pair):
        boxes, scores = pair
        corrections = np.random.default_rng(0).normal(0, 1, boxes.shape).astype(np.float32)
        assert self.told(corrections, scores) is None
        assert self.told(boxes, scores[:, :-1]) is None
        assert self.told(np.zeros_like(boxes), scores) is None


class TestReaders:
    def test_rows_of_both_are_read_by_their_family(self):
        _, candidates, _ = readers_of(Detection(name="detection", decoder="efficientnms"), "image")
        image = {"image": np.zeros((1, 3, 32, 32), np.float32)}
        assert candidates({"y": np.zeros((1, 63, 7), np.float32), "objectness": np.zeros((1, 63), np.float32)}, image)[1].shape == (
            63,
            2,
        )

    def test_scores_beside_what_is_no_box_are_no_rows(self):
        _, candidates, _ = readers_of(Detection(name="detection"), "image")
        image = {"image": np.zeros((1, 3, 32, 32), np.float32)}
        assert candidates({"scores": np.zeros((1, 63, 7), np.float32), "boxes": np.zeros((1, 63, 1, 4), np.float32)}, image) is None

    def test_other_tasks_have_none(self):
        assert readers_of(Classification(name="classification"), "image") == (None, None, None)
