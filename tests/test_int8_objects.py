"""A detector's noise is what happens to the boxes and scores that it is sure of, wherever heads and outputs tell."""

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import inferred, network, statistics_of
from grid_detector import BINS, CELL, grid_detector
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from octavo.errors import DataError
from octavo.graph.prepared import prepared
from octavo.params.grammar import Detection, Int8
from octavo.quantization.int8 import Images, quantize_static
from octavo.quantization.int8.noise.head_judge import HeadJudge
from octavo.quantization.int8.noise.judge import with_outputs
from octavo.quantization.int8.noise.objects import BOX, SCORE, SURE, ObjectJudge, judge_of
from octavo.quantization.int8.structure.heads import heads_of
from octavo.quantization.int8.structure.units import units_of
from octavo.runtime.session import Session
from octavo.tasks.detection import FAMILIES, row_reader

SIDE, IMAGES = 128, 12
# What a box that is lost counts before it is `BOX`: squares up to .05, a straight line from there.
LOST = 0.05 * (2 - 0.05)


def scene(seed: int, squares: int = 5) -> np.ndarray:
    """Grey noise with coloured squares on the grid, 1 x 3 x SIDE x SIDE, 0 to 1."""
    generator = np.random.default_rng(seed)
    image = generator.normal(0.43, 0.05, (1, 3, SIDE, SIDE)).astype(np.float32)
    for cell in generator.choice((SIDE // CELL) ** 2, squares, replace=False):
        row, column = divmod(int(cell), SIDE // CELL)
        colour = np.full((3, 1, 1), 0.15, np.float32)
        colour[generator.integers(2)] = 0.87
        image[0, :, row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL] = colour
    return image


@pytest.fixture(scope="module")
def feeds() -> list[dict[str, np.ndarray]]:
    return [{"image": scene(seed)} for seed in range(IMAGES)]


@pytest.fixture(scope="module")
def model() -> ir.Model:
    return prepared(inferred(grid_detector(size=SIDE)), 0)


@pytest.fixture(scope="module")
def judge(model, feeds) -> ObjectJudge:
    found = judge_of(model, heads_of(units_of(model)), feeds, reader())
    assert isinstance(found, ObjectJudge)
    return found


@pytest.fixture(scope="module")
def true(model, judge, feeds) -> list[dict[str, np.ndarray]]:
    """FP32's heads on each image."""
    session = Session(ir.to_proto(with_outputs(model, judge.heads)).SerializeToString())
    return [{name: value.copy() for name, value in session.run(each).items()} for each in feeds]


def reader():
    return row_reader(Detection(name="detection"), "image")


def head(judge: ObjectJudge, true: list[dict[str, np.ndarray]], channels: int) -> str:
    """The finest head with so many channels: 2 scores, 32 of distances."""
    return max((name for name in judge.heads if true[0][name].shape[1] == channels), key=lambda name: true[0][name].size)


def moved(true: list[dict[str, np.ndarray]], name: str, change) -> list[dict[str, np.ndarray]]:
    """The same heads, one of them changed on each image."""
    return [{**heads, name: change(heads[name])} for heads in true]


def sure(scores: np.ndarray) -> np.ndarray:
    """Of each position of a head of scores, whether a class is sure."""
    return (1 / (1 + np.exp(-scores))).max(axis=1, keepdims=True) > SURE


class TestNoise:
    def test_equal_heads_lose_nothing(self, judge, true):
        assert judge.noise(true) == 0

    def test_background_counts_for_nothing(self, model, judge, feeds, true):
        scores, distances = head(judge, true, 2), head(judge, true, 32)
        seen = [sure(heads[scores]) for heads in true]
        assert 0 < sum(map(np.sum, seen)) < 0.1 * sum(map(np.size, seen))
        generator = np.random.default_rng(0)
        changed = [
            {
                **heads,
                scores: np.where(here, heads[scores], heads[scores] - 1),
                distances: heads[distances] + np.where(here, 0, generator.normal(0, 2, heads[distances].shape)).astype(np.float32),
            }
            for heads, here in zip(true, seen, strict=True)
        ]
        assert judge.noise(changed) == 0
        assert HeadJudge(model, judge.heads, feeds).noise(changed) > 0.01

    @pytest.mark.parametrize(("moves", "costs"), [(0.05, 0.05**2), (0.25, 0.1 * (2 * 0.25 - 0.1))])
    def test_a_score_costs_the_square_of_its_logit_s_move_and_far_moves_cost_less(self, judge, true, moves, costs):
        name = head(judge, true, 2)
        changed = moved(true, name, lambda scores: scores - np.float32(moves) * sure(scores))
        assert judge.noise(changed) == pytest.approx(SCORE * costs, rel=1e-3)

    def test_a_box_costs_the_square_of_what_its_iou_lacks(self, judge, true):
        # The right side is half a cell away, two bins sharing the weight: at .45 and .55 of it the box is 1.05 cells wide.
        right = np.zeros((1, 32, 1, 1), np.float32)
        right[0, 2 * BINS + 1] = np.log(0.55 / 0.45)
        measured = judge.noise(moved(true, head(judge, true, 4 * BINS), lambda distances: distances + right))
        assert measured == pytest.approx(BOX * (1 - 1 / 1.05) ** 2 / LOST, rel=1e-3)

    def test_what_becomes_an_object_of_background_counts(self, judge, true):
        name = head(judge, true, 2)

        def flash(scores: np.ndarray) -> np.ndarray:
            changed = scores.copy()
            changed[0, 0, 0, 0] = 3
            return changed

        assert judge.noise(moved(true, name, flash)) > 0.01

    def test_numbers_that_are_none_lose_the_object(self, judge, true):
        boxes = judge.noise(moved(true, head(judge, true, 32), lambda distances: np.full_like(distances, np.nan)))
        scores = judge.noise(moved(true, head(judge, true, 2), lambda values: np.full_like(values, np.nan)))
        assert boxes == pytest.approx(BOX, rel=1e-6)
        # A logit that is four away or more.
        assert scores == pytest.approx(SCORE * 0.1 * (2 * 4 - 0.1), rel=1e-6)

    @settings(max_examples=25, deadline=None)
    @given(order=st.permutations(range(IMAGES)), noise=st.tuples(st.integers(0, 99), st.floats(0.0, 3.0)))
    def test_it_is_a_mean_over_images_in_any_order(self, judge, model, true, *, order, noise):
        generator, much = np.random.default_rng(noise[0]), noise[1]
        changed = [
            {name: value + generator.normal(0, much, value.shape).astype(np.float32) for name, value in heads.items()}
            for heads in true
        ]
        by_image = judge.noise_by_image(changed)
        assert judge.noise(changed) == pytest.approx(np.mean(by_image))
        other = judge.on(model, [judge.samples[place] for place in order])
        assert other.noise_by_image([changed[place] for place in order]) == [by_image[place] for place in order]
        assert min(by_image) >= 0
        assert much > 0 or not any(by_image)
        assert other.noise([changed[place] for place in order]) == pytest.approx(np.mean(by_image), rel=1e-9)

    def test_some_images_are_held_against_what_all_have(self, judge, model, true):
        name = head(judge, true, 2)
        changed = moved(true, name, lambda scores: scores - np.float32(0.25) * sure(scores))
        parts = [judge.on(model, [feeds]).noise([heads]) for feeds, heads in zip(judge.samples, changed, strict=True)]
        assert np.mean(parts) == pytest.approx(judge.noise(changed), rel=1e-9)

    def test_an_image_of_nothing_loses_nothing(self, judge, model):
        empty = judge.on(model, [{"image": scene(5, squares=0)}])
        session = Session(ir.to_proto(with_outputs(model, judge.heads)).SerializeToString())
        assert empty.noise([session.run(empty.samples[0])]) == 0


class TestChoice:
    @pytest.mark.parametrize("why", ["no reader", "blind", "too few objects"])
    def test_heads_are_compared_where_there_are_no_objects(self, model, feeds, why):
        graph = prepared(inferred(grid_detector(size=SIDE, blind=True)), 0) if why == "blind" else model
        images = feeds[:2] if why == "too few objects" else feeds
        found = judge_of(graph, heads_of(units_of(graph)), images, None if why == "no reader" else reader())
        assert isinstance(found, HeadJudge)

    def test_a_network_that_is_sure_of_every_place_is_judged_by_heads(self, feeds):
        proto = grid_detector(size=SIDE)
        for tensor in proto.graph.initializer:
            if tensor.name.startswith("score") and tensor.name.endswith("bias"):
                tensor.CopyFrom(numpy_helper.from_array(np.full(2, 2, np.float32), tensor.name))
        graph = prepared(inferred(proto), 0)
        assert isinstance(judge_of(graph, heads_of(units_of(graph)), feeds, reader()), HeadJudge)

    def test_outputs_that_depend_on_more_than_heads_cannot_be_decoded(self):
        weights = np.random.default_rng(0).normal(0, 0.5, (2, 3, 3, 1, 1)).astype(np.float32)
        nodes = [
            oh.make_node("Conv", ["x", "first"], ["a"], "a"),
            oh.make_node("Relu", ["a"], ["inner"], "relu"),
            oh.make_node("Conv", ["inner", "last"], ["head"], "last"),
            oh.make_node("Add", ["head", "inner"], ["y"], "add"),
        ]
        graph = network(nodes, {"first": weights[0], "last": weights[1]}, ["y"])
        images = [{"x": np.ones((1, 3, 16, 16), np.float32)}]

        def never(outputs, feeds):
            raise AssertionError("there is nothing to read")

        head = next(value for node in graph.graph for value in node.outputs if value.name == "head")
        assert isinstance(judge_of(graph, [head], images, never), HeadJudge)

    def test_sizes_of_inner_tensors_are_those_of_the_image(self):
        """A graph of any size asks inner tensors for theirs, which are no values that a rounding changes."""
        generator = np.random.default_rng(0)
        weights = {
            "first": generator.normal(0, 0.5, (6, 3, 1, 1)).astype(np.float32),
            "last": generator.normal(0, 0.5, (6, 6, 1, 1)).astype(np.float32),
        }
        nodes = [
            oh.make_node("Conv", ["x", "first"], ["a"], "a"),
            oh.make_node("Relu", ["a"], ["inner"], "relu"),
            oh.make_node("Conv", ["inner", "last"], ["head"], "last"),
            oh.make_node("Shape", ["inner"], ["size"], "size"),
            oh.make_node("Reshape", ["head", "size"], ["y"], "reshape"),
        ]
        graph = network(nodes, weights, ["y"], inputs={"x": [1, 3, "height", "width"]})
        images = [{"x": generator.normal(0, 1, (1, 3, side, 16)).astype(np.float32)} for side in (16, 24, 16)]
        seen = []

        def read(outputs, feeds):
            seen.append((outputs["y"].shape[2:], feeds["x"].shape[2:]))
            scores = outputs["y"][0, :1].reshape(1, -1).T
            return np.tile(np.float32([0, 0, 8, 8]), (len(scores), 1)), np.where(scores > np.quantile(scores, 0.95), 0.9, 0.01)

        head = next(value for node in graph.graph for value in node.outputs if value.name == "head")
        found = judge_of(graph, [head], images, read)
        assert isinstance(found, ObjectJudge)
        assert found.judge(with_outputs(graph, ["head"])) == 0
        assert seen == [((side, 16), (side, 16)) for side in (16, 24, 16)] * 2

    def test_sizes_that_follow_from_values_are_taken_anew(self):
        """As many rows as are positive, whose number a graph asks: an image's own, although all images have one size."""
        nodes = [
            oh.make_node("Conv", ["x", "weight"], ["head"], "conv"),
            oh.make_node("Relu", ["head"], ["positive"], "relu"),
            oh.make_node("NonZero", ["positive"], ["places"], "places"),
            oh.make_node("Shape", ["places"], ["size"], "size"),
            oh.make_node("ConstantOfShape", ["size"], ["y"], "ones"),
        ]
        weights = {"weight": np.float32([1, 1, 1]).reshape(1, 3, 1, 1)}
        graph = network(nodes, weights, ["y"])
        images = [{"x": np.full((1, 3, 16, 16), -1, np.float32)} for _ in range(3)]
        for count, feeds in enumerate(images):
            feeds["x"][0, :, 0, :count] = 1
        seen = []
        head = next(value for node in graph.graph for value in node.outputs if value.name == "head")
        found = judge_of(graph, [head], images, lambda outputs, feeds: seen.append(outputs["y"].shape[1]))
        assert isinstance(found, HeadJudge)
        assert seen == [0, 1, 2]


class TestReader:
    def test_rows_are_what_boxes_are_made_of(self, model, feeds):
        outputs = Session(ir.to_proto(model).SerializeToString()).run(feeds[0])
        corners, scores = reader()(outputs, feeds[0])
        assert corners.shape == (256 + 64 + 16, 4)
        assert scores.shape == (256 + 64 + 16, 2)
        boxes = FAMILIES["nanodet"].boxes(outputs, (SIDE, SIDE), 0.25)
        place, kind = np.nonzero(scores > 0.25)
        assert len(boxes) == 5
        np.testing.assert_array_equal(boxes.xyxy, corners[place])
        np.testing.assert_array_equal(boxes.classes, kind)

    def test_the_first_outputs_tell_the_family(self):
        read = row_reader(Detection(name="detection"), "image")
        image = {"image": np.zeros((1, 3, 32, 32), np.float32)}
        rows = np.zeros((1, 63, 7), np.float32)
        assert read({"y": rows}, image)[1].shape == (63, 2)
        # Scores of a broken network leave 0 to 1: they are read all the same.
        assert read({"y": rows + 5}, image)[1].max() == 25

    def test_channels_may_come_last(self):
        read = row_reader(Detection(name="detection"), "image", "nhwc")
        image = {"image": np.zeros((1, 32, 64, 3), np.float32)}
        assert read({"y": np.zeros((1, 126, 7), np.float32)}, image)[0].shape == (126, 4)

    @pytest.mark.parametrize("name", ["torchvision", "efficientnms", "yolov10", "rtdetr"])
    def test_what_a_graph_chose_has_no_places(self, name):
        assert FAMILIES[name].rows is None

    def test_unknown_outputs_are_no_rows(self):
        read = row_reader(Detection(name="detection"), "image")
        unknown, image = {"y": np.zeros((1, 3), np.float32)}, {"image": np.zeros((1, 3, 32, 32), np.float32)}
        assert read(unknown, image) is None
        with pytest.raises(DataError, match=r"`task\.decoder: yolov8` reads"):
            row_reader(Detection(name="detection", decoder="yolov8"), "image")(unknown, image)


def test_a_detector_is_held_to_the_ap_that_it_is_expected_to_lose(model, feeds):
    graph = inferred(grid_detector(size=SIDE))
    statistics = statistics_of(graph, feeds[:6])
    others = [{"image": scene(100 + seed)} for seed in range(8)]
    result = quantize_static(graph, statistics, Int8(placement="all"), Images(feeds[:6], others, reader()))
    assert result.measured["fidelity_db"] == 20
    assert result.measured["expected_loss"] == pytest.approx(10 ** (-result.measured["db"] / 10), abs=1e-4)
    assert result.measured["expected_loss"] <= 0.01
    by_heads = quantize_static(graph, statistics, Int8(placement="all"), Images(feeds[:6], others))
    assert "expected_loss" not in by_heads.measured
