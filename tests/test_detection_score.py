"""Average precision, its resamples and the fidelity of boxes, against the library and against counting by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import DataError, ParamsError
from octavo.evidence.bootstrap import paired
from octavo.evidence.validation import Validation
from octavo.images.dataset import Item, refuse_other_names
from octavo.images.feeds import Feeds
from octavo.images.objects import Objects
from octavo.params.grammar import Detection, Input, Validate
from octavo.tasks.detection import SureBoxes
from octavo.tasks.detection.ap import average_precision
from octavo.tasks.detection.boxes import Boxes
from octavo.tasks.detection.matching import matched, overlaps
from octavo.tasks.detection.resampled import Curves
from octavo.tasks.detection.score import DetectionScore

TASK = Detection(name="detection")
SPEC = Input(size=(64, 64))
STRIDES = (8, 16, 32)
CELLS = 64 + 16 + 4
# Corners, class and score of two boxes.
SURE = [(0, 0, 20, 20, 0, 0.9), (30, 30, 60, 60, 2, 0.8)]


def scene(generator: np.random.Generator, classes: int = 3, crowds: bool = True, ties: bool = True) -> tuple[Objects, Boxes]:
    """Some annotated boxes, and found ones: shifted copies of them, wrong classes, boxes out of nowhere, scores with ties."""
    count = int(generator.integers(0, 7))
    corner = generator.uniform(0, 200, (count, 2))
    truth = np.concatenate([corner, corner + generator.uniform(5, 80, (count, 2))], axis=1)
    kinds = generator.integers(0, classes, count)
    crowd = generator.random(count) < (0.15 if crowds else 0)
    copies = np.repeat(np.arange(count), generator.integers(0, 3, count))
    shifted = truth[copies] + generator.normal(0, 3, (len(copies), 4))
    more = int(generator.integers(0, 4))
    stray = generator.uniform(0, 200, (more, 2))
    shifted[:, 2:] = np.maximum(shifted[:, 2:], shifted[:, :2] + 1)
    found = np.concatenate([shifted, np.concatenate([stray, stray + 20], axis=1)])
    wrong = generator.random(len(copies)) < 0.2
    labels = np.concatenate([np.where(wrong, generator.integers(0, classes, len(copies)), kinds[copies]), np.zeros(more, int)])
    scores = np.round(generator.random(len(found)), 1 if ties else 9)
    return Objects.of(truth, kinds, crowd), Boxes.of(found, scores, labels).best(300)


def library(scenes: list[tuple[Objects, Boxes]]) -> float:
    truth, found = [], []
    for image, (objects, boxes) in enumerate(scenes):
        for box, kind, crowd, area in zip(objects.xyxy, objects.classes, objects.crowd, objects.area, strict=True):
            row = {"image_id": image, "category_id": int(kind), "bbox": [*box[:2], *(box[2:] - box[:2])]}
            truth.append(row | {"iscrowd": int(crowd), "area": area})
        for box, score, kind in zip(boxes.xyxy, boxes.scores, boxes.classes, strict=True):
            found.append(
                {"image_id": image, "category_id": int(kind), "bbox": [*box[:2], *(box[2:] - box[:2])], "score": float(score)}
            )
    return average_precision(truth, found, range(len(scenes))).figures["ap"]


class TestResampled:
    @given(st.integers(0, 10_000), st.integers(1, 12))
    @settings(deadline=None, max_examples=60)
    def test_every_image_once_is_the_library_s_ap(self, seed, count):
        generator = np.random.default_rng(seed)
        scenes = [scene(generator) for _ in range(count)]
        curves = Curves([truth for truth, _ in scenes], [found for _, found in scenes])
        expected = library(scenes) if any((~truth.crowd).any() for truth, _ in scenes) else 0
        assert curves.resampled(np.ones((1, count), int))[0] == pytest.approx(max(expected, 0), abs=1e-9)

    @given(st.integers(0, 10_000))
    @settings(deadline=None, max_examples=30)
    def test_an_image_drawn_twice_counts_as_two_images(self, seed):
        generator = np.random.default_rng(seed)
        # Equal scores rank by their images' order, in which copies lie together or apart.
        scenes = [scene(generator, ties=False) for _ in range(5)]
        counts = generator.integers(0, 4, (3, 5))
        counts[:, 0] += 1
        curves = Curves([truth for truth, _ in scenes], [found for _, found in scenes])
        for row, value in zip(counts, curves.resampled(counts), strict=True):
            copies = [pair for pair, times in zip(scenes, row, strict=True) for _ in range(times)]
            expected = library(copies) if any((~truth.crowd).any() for truth, _ in copies) else 0
            assert value == pytest.approx(max(expected, 0), abs=1e-9)

    def test_chunks_change_nothing(self, monkeypatch):
        generator = np.random.default_rng(3)
        scenes = [scene(generator) for _ in range(8)]
        counts = generator.integers(0, 3, (50, 8))
        curves = Curves([truth for truth, _ in scenes], [found for _, found in scenes])
        whole = curves.resampled(counts)
        monkeypatch.setattr("octavo.tasks.detection.resampled._CELLS", 40)
        assert curves.resampled(counts).tolist() == whole.tolist()

    def test_a_worse_variant_has_an_interval_below_one(self):
        generator = np.random.default_rng(5)
        truth = [scene(generator, crowds=False)[0] for _ in range(120)]
        exact = [Boxes.of(objects.xyxy, np.full(len(objects), 0.9), objects.classes) for objects in truth]
        half = [boxes.taken(np.arange(len(boxes)) % 2 == 0) for boxes in exact]
        reference, variant = Curves(truth, exact).resampled, Curves(truth, half).resampled
        found = paired({"variant": variant, "same": reference}, reference, len(truth), resamples=300, seed=0).ratios()
        interval, same = found["variant"], found["same"]
        assert 0.3 < interval.low < interval.estimate < interval.high < 0.9
        assert (same.low, same.estimate, same.high) == (1, 1, 1)


class TestMatching:
    def test_overlaps(self):
        a, b = np.array([[0, 0, 10, 10.0]]), np.array([[5, 0, 15, 10.0], [20, 20, 30, 30], [0, 0, 10, 10], [3, 3, 3, 3]])
        assert overlaps(a, b)[0] == pytest.approx([50 / 150, 0, 1, 0])
        assert overlaps(a, b, np.array([True, False, False, False]))[0, 0] == pytest.approx(0.5)

    def test_each_annotated_box_is_taken_once_by_the_surest(self):
        truth = Objects.of([[0, 0, 10, 10]], [1])
        found = Boxes.of([[0, 0, 10, 9], [0, 0, 10, 10], [0, 0, 10, 10]], [0.9, 0.8, 0.7], [1, 1, 2])
        pairs = matched(found, truth)
        assert pairs.found.tolist() == [0, 1, 2]
        assert pairs.partner[0].tolist() == [0, -1, -1]
        assert pairs.partner[-1].tolist() == [-1, 0, -1], "at IoU .95 the surest is no partner any more"
        assert pairs.iou.tolist() == [pytest.approx(0.9), 0, 0]

    def test_nothing_found_and_nothing_there(self):
        empty = Boxes.of(np.zeros((0, 4)), [], [])
        assert matched(empty, Objects.of([[0, 0, 1, 1]], [0])).partner.shape == (10, 0)
        assert matched(Boxes.of([[0, 0, 1, 1]], [1], [0]), Objects.of([], [])).partner.tolist() == [[-1]] * 10


def yolo(boxes: list[tuple[float, float, float, float, int, float]], classes: int = 3) -> dict[str, np.ndarray]:
    """Outputs in YOLOv8's layout for an input of 64x64, with these boxes (corners, class, score)."""
    rows = np.zeros((4 + classes, CELLS), np.float32)
    for place, (x1, y1, x2, y2, kind, score) in enumerate(boxes):
        rows[:4, place] = (x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1
        rows[4 + kind, place] = score
    return {"output0": rows[None]}


def photo(objects: Objects | None, shape: tuple[int, int] = (64, 64)) -> Item:
    return Item(None, "a.png", "0", None, objects, shape)


class TestScore:
    truth = Objects.of([[0, 0, 20, 20], [30, 30, 60, 60]], [0, 2])
    right = yolo(SURE)

    def both(self, outputs, objects, times=1):
        reference, variant = DetectionScore(TASK, SPEC), DetectionScore(TASK, SPEC)
        for _ in range(times):
            reference.update(self.right, self.right, photo(objects))
            variant.update(outputs, self.right, photo(objects))
        return reference, variant

    def test_exact_boxes(self):
        reference, variant = self.both(self.right, self.truth)
        figures = variant.metrics(reference)
        assert figures["ap"] == figures["ap50"] == figures["ap.0"] == figures["ap.2"] == pytest.approx(1)
        assert figures["match_f1"] == figures["match_iou"] == 1
        assert figures["match_score_diff"] == 0
        assert figures["sure_boxes"] == 2
        assert figures["ap_small"] == pytest.approx(1)
        assert reference.about() == {"decoder": "yolov8"}
        assert variant.resampled(np.array([[1], [3]])) == pytest.approx([1, 1])

    def test_a_model_is_like_itself_however_many_boxes_of_a_class_there_are(self):
        corner = np.stack(np.meshgrid(np.arange(15), np.arange(10)), axis=-1).reshape(-1, 2) * 4.0
        flat = [[0, 0, 10, 0], [64, 0, 64, 10]]
        boxes = Boxes.of(np.concatenate([np.hstack([corner, corner + 3]), flat]), np.linspace(0.9, 0.5, 152), np.zeros(152))
        score = DetectionScore(TASK, SPEC)
        score.found, score.truth = [boxes], [None]
        figures = score.metrics(score)
        assert figures["match_f1"] == score.likeness(score, 0) == 1
        assert figures["sure_boxes"] == 150, "boxes without area are none"

    def test_a_missed_a_moved_and_a_false_box(self):
        moved = yolo([(0, 0, 20, 16, 0, 0.7), (5, 40, 20, 60, 1, 0.6)])
        reference, variant = self.both(moved, self.truth)
        figures = variant.metrics(reference)
        assert figures["match_f1"] == pytest.approx(2 * 1 / 4)
        assert figures["match_iou"] == pytest.approx(0.8, abs=1e-6)
        assert figures["match_score_diff"] == pytest.approx(0.2, abs=1e-6)
        assert figures["ap.2"] == 0
        assert figures["ap"] == pytest.approx(figures["ap.0"] / 2)
        assert variant.likeness(reference, 0) == pytest.approx(0.5)

    def test_a_broken_model_finds_nothing(self):
        reference, variant = self.both(yolo([]), self.truth, 2)
        figures = variant.metrics(reference)
        assert figures["ap"] == figures["ap_small"] == figures["match_f1"] == 0
        assert "match_iou" not in figures
        assert "ap_large" not in figures
        assert variant.resampled(np.ones((1, 2))).tolist() == [0]
        assert reference.resampled(np.ones((1, 2))) == pytest.approx([1])

    @pytest.mark.parametrize("found", [False, True])
    def test_where_fp32_finds_next_to_nothing_the_record_says_so(self, found):
        session = SimpleNamespace(run_finite=lambda *_: self.right if found else yolo([]))
        validation = Validation(TASK, SPEC, {"fp32": session}, Feeds("image"))
        validation.run([(photo(self.truth), np.zeros((1, 3, 64, 64), np.float32))] * 2)
        few, *rest = validation.record(Validate())["warning"].split("; ap needs 50 to say much")
        assert few == "2 labelled images"
        gate = "`gate.retained` fails for every variant: of so little of FP32's own ap nothing can be kept"
        about = "`match_f1` and `gate.agreement`"
        none = f"FP32 has no boxes of at least `task.sure`: {about} say nothing of what FP32 finds"
        some = f"; FP32's boxes of at least `task.sure` are 4; {about} need 50 to say much"
        assert rest == [some if found else f"; FP32's ap is 0.0000: {DetectionScore.doubted[1]}; {none}; {gate}"]

    @pytest.mark.parametrize(
        ("images", "mine", "theirs", "answer"),
        [
            (2, [], [], "inconclusive"),
            (2, SURE, SURE, "inconclusive"),
            (2, SURE[:1], SURE, "inconclusive"),
            (2, [], SURE, "fail"),
            (20, SURE, [], "fail"),
            (25, SURE, SURE, "pass"),
            (25, SURE[:1], SURE, "fail"),
        ],
    )
    def test_of_few_boxes_agreement_passes_nothing(self, images, mine, theirs, answer):
        """One missing of two, and of fifty; false ones where FP32 has none."""
        both = {"fp32": yolo(theirs), "int8": yolo(mine)}
        sessions = {name: SimpleNamespace(run_finite=lambda *_, found=found: found) for name, found in both.items()}
        validation = Validation(TASK, SPEC, sessions, Feeds("image"))
        validation.run([(photo(self.truth), np.zeros((1, 3, 64, 64), np.float32))] * images)
        assert validation.record(Validate())["int8.gate.agreement"] == answer

    def test_of_next_to_nothing_nothing_is_kept(self):
        """As with other preprocessing than the network's: one right box far behind hundreds of false ones."""
        corners = [(6 * x, 6 * y) for x in range(10) for y in range(8)]
        stray = [(x, y, x + 3, y + 3, 0, 0.9 - place / 1000) for place, (x, y) in enumerate(corners)]
        poor = yolo([*stray, (0, 0, 20, 11, 0, 0.1)])
        sessions = {name: SimpleNamespace(run_finite=lambda *_: poor) for name in ("fp32", "int8")}
        validation = Validation(TASK, SPEC, sessions, Feeds("image"))
        validation.run([(photo(self.truth), np.zeros((1, 3, 64, 64), np.float32))] * 2)
        record = validation.record(Validate())
        assert 0 < record["fp32.ap"] == record["int8.ap"] < 0.01
        assert record["int8.gate.retained"] == "fail"
        assert "int8.retained" not in record
        assert record["warning"].endswith("of so little of FP32's own ap nothing can be kept")

    def test_of_labels_without_any_object_the_record_does_not_say_that_there_are_no_labels(self):
        validation = Validation(TASK, SPEC, {"fp32": SimpleNamespace(run_finite=lambda *_: self.right)}, Feeds("image"))
        validation.run([(photo(Objects.of([], [])), np.zeros((1, 3, 64, 64), np.float32))] * 2)
        record = validation.record(Validate())
        assert record["labelled"] == 2
        assert record["warning"].split("; ")[0] == "2 labelled images, and nothing in them that ap counts: there is none"

    @pytest.mark.parametrize("count", [2, 50])
    def test_of_images_without_labels_the_record_says_whether_they_are_few(self, count):
        validation = Validation(TASK, SPEC, {"fp32": SimpleNamespace(run_finite=lambda *_: self.right)}, Feeds("image"))
        validation.run([(photo(None), np.zeros((1, 3, 64, 64), np.float32))] * count)
        few = "2 images without labels; fidelity to FP32, all that they tell, needs 50 to say much"
        boxes = "FP32's boxes of at least `task.sure` are 4; `match_f1` and `gate.agreement` need 50 to say much"
        assert validation.record(Validate()).get("warning") == (f"{few}; {boxes}" if count == 2 else None)

    def test_without_annotations_there_is_fidelity_alone(self):
        reference, variant = self.both(self.right, None)
        assert set(variant.metrics(reference)) == {"sure_boxes", "match_f1", "match_iou", "match_score_diff"}
        assert variant.labelled == 0

    def test_an_image_with_nothing_in_it_counts_its_false_boxes(self):
        score = DetectionScore(TASK, SPEC)
        score.update(self.right, self.right, photo(self.truth))
        alone = score.metrics(score)["ap"]
        surer = yolo([(0, 0, 20, 20, 0, 0.99)])
        score.update(surer, surer, photo(Objects.of([], [])))
        assert score.labelled == 2
        assert score.metrics(score)["ap"] < alone
        nothing = DetectionScore(TASK, SPEC)
        nothing.update(self.right, self.right, photo(Objects.of([], [])))
        assert nothing.labelled == 0
        assert "ap" not in nothing.metrics(nothing)

    def test_a_class_of_crowds_alone_has_no_figure(self):
        crowds = Objects.of(self.truth.xyxy, self.truth.classes, [False, True])
        for outputs in (self.right, yolo([])):
            reference, variant = self.both(outputs, crowds)
            assert [key for key in variant.metrics(reference) if key.startswith("ap.")] == ["ap.0"]

    def test_boxes_are_on_the_photo(self):
        score = DetectionScore(TASK, SPEC)
        score.update(self.right, self.right, photo(Objects.of([[0, 0, 40, 10]], [0]), (32, 128)))
        assert score.metrics(score)["ap.0"] == pytest.approx(1)

    def test_classes_by_name(self):
        named = TASK.model_copy(update={"classes": ("cat", "dog", "owl")})
        score = DetectionScore(named, SPEC)
        score.update(self.right, self.right, photo(self.truth))
        assert {"ap.cat", "ap.owl"} <= set(score.metrics(score))
        assert DetectionScore.classes(named, self.right, (64, 64)).names == ("cat", "dog", "owl")
        assert DetectionScore.classes(TASK, self.right, (64, 64)).count == 3

    def test_names_of_another_number_say_which_family_they_would_fit(self):
        # The last class is sure of all cells: an angle by its values, a class by the names.
        rows = np.tile(np.float32([30, 30, 8, 8, 0.1, 0.1, 0.9])[None, :, None], (1, 1, 84))
        found = DetectionScore.classes(TASK.model_copy(update={"classes": ("cat", "dog", "owl")}), {"rows": rows}, (64, 64))
        assert (found.family, found.count, found.rivals) == ("yolov8-obb", 2, ("yolov8",))
        logits = {"logits": np.full((1, 100, 6), -5, np.float32), "pred_boxes": np.full((1, 100, 4), 0.5, np.float32)}
        named = TASK.model_copy(update={"classes": ("cat", "dog", "owl", "cow", "hen")})
        found = DetectionScore.classes(named, logits, (64, 64))
        with pytest.raises(ParamsError, match=r"tells 6 apart \(outputs read as rtdetr\)\n.*`task.decoder` .*: detr would fit"):
            refuse_other_names(found)

    def test_labels_that_count_the_background_must_be_named(self):
        outputs = {"boxes": np.array([[0, 0, 20, 20.0]]), "labels": np.array([1]), "scores": np.array([0.9])}
        with pytest.raises(DataError, match="number the background 0"):
            DetectionScore(TASK, SPEC).update(outputs, outputs, photo(self.truth))
        DetectionScore(TASK, SPEC).update(outputs, outputs, photo(None))
        named = DetectionScore(TASK.model_copy(update={"classes": ("__background__", "cat")}), SPEC)
        named.update(outputs, outputs, photo(Objects.of([[0, 0, 20, 20]], [1])))
        assert named.metrics(named)["ap.cat"] == pytest.approx(1)


class TestSureBoxes:
    """What `quantize_int8` pairs is what `validate` reports as `match_f1`, though it reads boxes where the network sees them."""

    @pytest.mark.parametrize("rule", ["stretch", "letterbox"])
    def test_f1_is_that_of_validation(self, rule):
        generator = np.random.default_rng(0)
        task, spec = Detection(name="detection"), Input(size=(64, 64), resize={"rule": rule})
        reading, reference, variant = SureBoxes(task, "image"), DetectionScore(task, spec), DetectionScore(task, spec)
        pairs = boxes = 0
        for place in range(8):
            centres, sizes = generator.uniform(0.4, 0.6, (1, 30, 2)), generator.uniform(0.1, 0.2, (1, 30, 2))
            true = {"logits": generator.normal(-1, 2, (1, 30, 3)), "pred_boxes": np.concatenate([centres, sizes], axis=2)}
            moved = {name: value + generator.normal(0, 0.02 * value.std(), value.shape) for name, value in true.items()}
            # Other queries, and others' order.
            moved = {name: np.concatenate([value[:, 5:], value[:, :2]], axis=1) for name, value in moved.items()}
            item = Item(None, str(place), str(place), shape=(120, 160))
            reference.update(true, true, item)
            variant.update(moved, true, item)
            feeds = {"image": np.zeros((1, 3, 64, 64), np.float32)}
            theirs, mine = (reading.read(outputs, feeds) for outputs in (true, moved))
            pairs, boxes = pairs + reading.pairs(mine, theirs), boxes + len(mine) + len(theirs)
        assert 0.5 < 2 * pairs / boxes < 0.98
        assert 2 * pairs / boxes == pytest.approx(variant.metrics(reference)["match_f1"])

    def test_outputs_of_no_known_family_have_no_boxes(self):
        feeds, outputs = {"image": np.zeros((1, 3, 64, 64), np.float32)}, {"y": np.zeros((7, 7), np.float32)}
        assert len(SureBoxes(TASK, "image").read(outputs, feeds)) == 0
        with pytest.raises(DataError):
            SureBoxes(Detection(name="detection", decoder="rtdetr"), "image").read(outputs, feeds)
