"""Fidelity, task scores, bootstrap, gates and tables against figures worked out another way."""

import json
import tracemalloc
from dataclasses import replace

import numpy as np
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir
import pytest
import yaml
from conftest import ROOT, project_params, small_network
from graphs import inferred
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from octavo.calibration.collector import collect
from octavo.errors import DataError, ModelRunError
from octavo.evidence import layers
from octavo.evidence.bootstrap import Interval, paired
from octavo.evidence.cost import kernel_gates
from octavo.evidence.fidelity import Fidelity
from octavo.evidence.gates import judge, judge_interval, judge_share
from octavo.evidence.layers import layer_noise
from octavo.evidence.report import headings, markdown, rows
from octavo.evidence.series import resolutions, tradeoff
from octavo.evidence.validation import Validation
from octavo.images.dataset import Item
from octavo.images.feeds import Feeds
from octavo.params.grammar import Classification, Gates, Input, Int8, ModelSpec, Segmentation, Validate
from octavo.quantization.int8 import quantize_static
from octavo.runtime import noise
from octavo.runtime.noise import SQNR_CAP, cosine, distance, sqnr_db
from octavo.runtime.session import Session
from octavo.tasks.classification import ClassificationScore
from octavo.tasks.exported import as_read
from octavo.tasks.ranking import class_scores
from octavo.tasks.registry import compared_outputs
from octavo.verdicts import verdicts

TASK = Classification(name="classification")
SPEC = Input(size=(32, 32))
# Outputs are float32: what double precision alone can hold (5e-324, which halves to zero) is none of theirs.
VECTORS = hnp.arrays(np.float64, 5, elements=st.floats(-1e3, 1e3, width=32, allow_subnormal=False))


class TestFidelity:
    def test_outputs_without_a_value_are_not_identical(self):
        """RetinaNet without a box: 200 dB and a cosine of 1, with a gate passed."""
        nothing, boxes = np.zeros((0, 4), np.float32), np.ones((2, 4), np.float32)
        running = Fidelity()
        running.update({"boxes": nothing}, {"boxes": nothing})
        running.update({"boxes": nothing}, {"boxes": boxes})
        assert running.metrics() == {}
        running.update({"boxes": nothing, "scores": boxes}, {"boxes": nothing, "scores": boxes})
        assert set(running.metrics()) == {"sqnr_db", "cosine_mean", "cosine_min", "max_abs_diff"}
        running.update({"boxes": boxes}, {"boxes": boxes})
        assert running.metrics()["sqnr_db.boxes"] == 200

    def test_sqnr_is_the_textbook_s(self):
        assert sqnr_db(100, 1) == pytest.approx(20)
        assert sqnr_db(1, 0) == SQNR_CAP
        assert sqnr_db(0, 1) == 0

    @given(VECTORS, VECTORS, st.floats(0.1, 10))
    @settings(deadline=None)
    def test_cosine_is_bounded_symmetric_and_blind_to_scale(self, a, b, factor):
        assert -1 <= cosine([(a, b)]) <= 1
        assert cosine([(a, b)]) == pytest.approx(cosine([(b, a)]), abs=1e-9)
        assert cosine([(a, a * factor)]) == pytest.approx(1, abs=1e-6)

    def test_sums_part_by_part_are_those_of_the_whole(self, monkeypatch):
        monkeypatch.setattr(noise, "_BLOCK", 7)
        generator = np.random.default_rng(0)
        a, b = generator.standard_normal((2, 3, 5, 4)).astype(np.float32)
        found = distance(a[:, ::2], b[:, ::2])
        one, two = (each[:, ::2].astype(np.float64).ravel() for each in (a, b))
        assert vars(found) == pytest.approx(
            {"first": one @ one, "second": two @ two, "noise": ((one - two) ** 2).sum(), "largest": np.abs(one - two).max()}
        )
        expected = one @ two / np.linalg.norm(one) / np.linalg.norm(two)
        assert cosine([(a[:2, ::2], b[:2, ::2]), (a[2:, ::2], b[2:, ::2])]) == pytest.approx(expected)
        assert vars(distance(a[:0], b[:0])) == {"first": 0, "second": 0, "noise": 0, "largest": 0}

    def test_masks_are_not_all_in_memory_as_float64(self):
        """A mask a box: each float64 copy of 100 of 320x320 pixels is 82 MB, and an image's sums held ten."""
        truth = {"masks": np.random.default_rng(0).random((40, 1, 320, 320), np.float32)}
        other = {"masks": truth["masks"] + np.float32(0.01)}
        tracemalloc.start()
        try:
            Fidelity().update(truth, other)
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert most < 3 * truth["masks"].nbytes

    def test_running_sums_equal_the_whole(self):
        generator = np.random.default_rng(0)
        truth = generator.standard_normal((6, 1, 10))
        other = truth + generator.standard_normal((6, 1, 10)) * 0.1
        running = Fidelity()
        for first, second in zip(truth, other, strict=True):
            running.update({"y": first, "count": np.array([3])}, {"y": second, "count": np.array([4])})
        metrics = running.metrics()
        assert metrics["sqnr_db"] == pytest.approx(10 * np.log10((truth**2).sum() / ((truth - other) ** 2).sum()))
        assert metrics["max_abs_diff"] == pytest.approx(np.abs(truth - other).max())
        assert metrics["cosine_min"] == pytest.approx(min(cosine([pair]) for pair in zip(truth, other, strict=True)))
        assert "sqnr_db.y" not in metrics

    @pytest.mark.parametrize("wild", [1, 1e4])
    def test_maps_of_nothing_point_nowhere(self, wild):
        """A heat map's values of 1e-4 on a photo without text differ in direction by rounding alone."""
        generator = np.random.default_rng(0)
        running = Fidelity()
        something = [np.abs(generator.standard_normal(1000)) for _ in range(12)]
        # One image with more than all others together says nothing of what is blank on them.
        something[0] = something[0] * wild
        nothing = [1e-3 * generator.standard_normal(1000) for _ in range(20)]
        for truth in (*something, *nothing):
            running.update({"map": truth}, {"map": truth + 1e-3 * generator.standard_normal(1000)})
        assert running.metrics()["cosine_min"] > 0.999
        assert len(running.cosines) == 32
        # What a variant alone sees is no likeness, nor what it alone misses.
        running.update({"map": nothing[0]}, {"map": something[1]})
        running.update({"map": something[1]}, {"map": nothing[0]})
        assert max(running.cosines[-2:]) < 0.1

    def test_the_worst_output_counts_and_each_is_named(self):
        fidelity = Fidelity()
        fidelity.update({"a": np.ones(4), "b": np.ones(4)}, {"a": np.ones(4), "b": np.full(4, 1.1)})
        assert fidelity.metrics()["sqnr_db"] == fidelity.metrics()["sqnr_db.b"] == pytest.approx(20)
        assert fidelity.metrics()["sqnr_db.a"] == SQNR_CAP

    def test_rows_of_zeros_on_all_images_say_nothing(self):
        """Suppression that puts out as many rows whatever it finds."""
        fidelity, one = Fidelity(), Fidelity()
        for _ in range(3):
            fidelity.update({"boxes": np.zeros((1, 300, 6))}, {"boxes": np.zeros((1, 300, 6))})
            one.update({"boxes": np.zeros((1, 300, 6))}, {"boxes": np.ones((1, 300, 6))})
        assert fidelity.metrics() == {}
        assert one.metrics()["cosine_mean"] == 0

    def test_a_different_number_of_boxes_compares_the_common_part(self):
        fidelity = Fidelity()
        fidelity.update({"boxes": np.ones((3, 4))}, {"boxes": np.ones((2, 4))})
        assert fidelity.metrics()["cosine_min"] == pytest.approx(1)
        with pytest.raises(ValueError, match="ranks"):
            fidelity.update({"boxes": np.ones((3, 4))}, {"boxes": np.ones(4)})


def ratio(variant: np.ndarray, reference: np.ndarray, **settings) -> Interval | None:
    """Of two arrays of scores, one an image."""
    of = [lambda counts, scores=scores: counts @ scores / counts.sum(axis=1) for scores in (variant, reference)]
    return paired({"variant": of[0]}, of[1], len(reference), **settings).ratios()["variant"]


class TestBootstrap:
    def test_equal_scores_keep_everything_for_sure(self):
        right = np.array([1, 0, 1, 1, 0])
        assert ratio(right, right, resamples=500, seed=0) == Interval(1.0, 1.0, 1.0)

    def test_few_images_prove_little_many_prove_much(self):
        few, many = np.ones(20), np.ones(5000)
        worse_few, worse_many = few.copy(), many.copy()
        worse_few[:1], worse_many[:250] = 0, 0
        wide = ratio(worse_few, few, resamples=2000, seed=0)
        narrow = ratio(worse_many, many, resamples=2000, seed=0)
        assert wide.estimate == narrow.estimate == 0.95
        assert wide.low <= 0.86
        assert wide.high == 1.0
        assert 0.940 < narrow.low < 0.947
        assert 0.953 < narrow.high < 0.960

    def test_the_interval_covers_the_truth_about_as_often_as_it_says(self):
        generator = np.random.default_rng(4)
        hits = 0
        for trial in range(200):
            reference = generator.random(150) < 0.8
            variant = reference & (generator.random(150) < 0.9)
            interval = ratio(variant, reference, resamples=400, seed=trial)
            hits += interval.low <= 0.9 <= interval.high
        assert 180 <= hits <= 199

    def test_seeded_paired_and_without_a_reference(self):
        a, b = np.array([1, 1, 0, 1]), np.array([1, 1, 1, 1])
        assert ratio(a, b, resamples=300, seed=1) == ratio(a, b, resamples=300, seed=1)
        assert ratio(np.zeros(3), np.zeros(3), resamples=100, seed=0) is None
        assert ratio(np.zeros(0), np.zeros(0), resamples=100, seed=0) is None


def test_gates():
    assert judge(0.996, 0.995) == "pass"
    assert judge(0.99, 0.995) == "fail"
    assert judge_interval(Interval(0.995, 0.9, 1.0), 0.99) == "pass"
    assert judge_interval(Interval(0.95, 0.9, 1.0), 0.99) == "inconclusive"
    assert judge_interval(Interval(0.95, 0.93, 0.97), 0.99) == "fail"
    assert judge_interval(None, 0.99, labelled=0) == "no-labels"
    assert judge_interval(None, 0.99) == "fail"


def test_a_share_of_few_things_passes_nothing_and_fails_where_chance_would_hardly_leave_it():
    assert judge_share(None, 0, 0.9) == judge_share(1.0, 3, 0.9) == judge_share(1.0, 49, 0.9) == "inconclusive"
    # Of three with .9 each, two or fewer come in .27 of all cases, none in .001.
    assert judge_share(2 / 3, 3, 0.9) == judge_share(0.0, 1, 0.9) == "inconclusive"
    assert judge_share(0.0, 3, 0.9) == judge_share(0.7, 40, 0.9) == judge_share(0.0, 20_000, 0.9) == "fail"


def labelled(label: int | None) -> Item:
    return Item(None, "", "", label)


class TestClassification:
    def test_top1_top5_agreement_and_kl(self):
        truth, variant = ClassificationScore(TASK, SPEC), ClassificationScore(TASK, SPEC)
        logits = np.eye(8)[:3] * 5 + np.arange(8) * 0.1
        worse = logits.copy()
        worse[0, 1] = 9
        for place in range(3):
            truth.update({"y": logits[place : place + 1]}, {"y": logits[place : place + 1]}, labelled(place))
            variant.update({"y": worse[place : place + 1]}, {"y": logits[place : place + 1]}, labelled(place))
        variant.update({"y": logits[:1]}, {"y": logits[:1]}, labelled(None))
        truth.update({"y": logits[:1]}, {"y": logits[:1]}, labelled(None))
        assert truth.metrics(truth) == {"top1": 1.0, "top5": 1.0, "agreement": 1.0, "kl": 0.0}
        metrics = variant.metrics(truth)
        assert metrics["top1"] == pytest.approx(2 / 3)
        assert metrics["top5"] == 1.0
        assert metrics["agreement"] == pytest.approx(3 / 4)
        p, q = np.exp(logits[0]) / np.exp(logits[0]).sum(), np.exp(worse[0]) / np.exp(worse[0]).sum()
        assert metrics["kl"] == pytest.approx((p * np.log(p / q)).sum() / 4)
        assert variant.labelled == 3
        assert variant.resampled(np.array([[1, 1, 1], [2, 0, 1]])) == pytest.approx([2 / 3, 1 / 3])

    def test_an_image_whose_class_changed_is_the_least_alike(self):
        """Two classes that are nearly as likely change places by next to nothing: no picture showed the image that INT8 lost."""
        truth, variant = ClassificationScore(TASK, SPEC), ClassificationScore(TASK, SPEC)
        pairs = (([3.0, 2.99, 0], [3.0, 3.01, 0]), ([3.0, 1.0, 0], [3.0, 2.0, 0]), ([3.0, 1.0, 0], [3.0, 1.0, 0]))
        for theirs, mine in pairs:
            truth.update({"y": np.array([theirs])}, {"y": np.array([theirs])}, labelled(0))
            variant.update({"y": np.array([mine])}, {"y": np.array([theirs])}, labelled(0))
        assert variant.divergences[0] < variant.divergences[1]
        changed, moved, same = (variant.likeness(truth, place) for place in range(3))
        assert changed < moved < same == 1

    def test_kl_of_a_graph_that_ends_in_a_softmax(self):
        score = ClassificationScore(TASK, SPEC)
        p, q = np.array([0.9, 0.1, 0.0]), np.array([0.5, 0.5, 0.0])
        score.update({"y": q[None]}, {"y": p[None]}, labelled(None))
        expected = 0.9 * np.log(0.9 / 0.5) + 0.1 * np.log(0.1 / 0.5)
        assert score.metrics(score)["kl"] == pytest.approx(expected, abs=1e-5)

    def test_fidelity_is_about_the_named_outputs(self):
        assert compared_outputs(Classification(name="classification", output="logits")) == ["logits"]
        assert compared_outputs(Segmentation(name="segmentation", output="main")) == ["main"]
        several = Segmentation(name="segmentation", heads={"lane": {}, "road": {"output": "da"}})
        assert compared_outputs(several) == ["lane", "da"]
        assert compared_outputs(TASK) == compared_outputs(Segmentation(name="segmentation")) == []

    def test_what_the_best_class_says_little_of(self):
        def warned(*scores: list[float]) -> str:
            score = ClassificationScore(TASK, SPEC)
            for one in scores:
                score.update({"y": np.array([one])}, {"y": np.array([one])}, labelled(None))
            return score.about().get("warning", "")

        assert warned([3.0, 0.5, -1.0], [0.1, 0.6, 0.2]) == warned([0.9, 0.1], [0.2, 0.8]) == ""
        assert "do not sum to 1" in warned([0.9, 0.8, 0.1], [0.1, 0.6, 0.2])
        assert warned([3.0, 0.5], [4.0, 1.0]).startswith("FP32 calls all 2 images class 0: `agreement` tells no variants apart")

    def test_without_labels_there_is_no_accuracy(self):
        score = ClassificationScore(TASK, SPEC)
        score.update({"y": np.eye(2)[:1]}, {"y": np.eye(2)[:1]}, labelled(None))
        assert set(score.metrics(score)) == {"agreement", "kl"}

    def test_which_output(self):
        outputs = {"aux": np.zeros((1, 4)), "logits": np.ones((1, 4))}
        assert class_scores(outputs, Classification(name="classification", output="logits")).tolist() == [1, 1, 1, 1]
        assert class_scores({"y": np.ones((1, 4, 1, 1))}, TASK).shape == (4,)
        with pytest.raises(DataError, match="which output"):
            class_scores(outputs, TASK)
        with pytest.raises(DataError, match="not one image's class scores"):
            class_scores({"y": np.ones((2, 4))}, TASK)
        with pytest.raises(DataError, match=r"is one score; class scores are one a class\n.*\[1 - p, p\]"):
            class_scores({"y": np.ones((1, 1))}, TASK)

    @pytest.mark.parametrize(
        ("task", "told"),
        [
            ({"name": "classification", "output": "logits"}, ""),
            ({"name": "classification", "output": "logit"}, "which output holds the class scores? the graph has logits"),
            ({"name": "classification", "classes": ["cat", "dog"]}, "`task.classes` names 2 classes, the model tells 4 apart"),
            ({"name": "embedding", "output": "vector"}, "which output holds the embedding? the graph has logits"),
        ],
    )
    def test_export_tells_what_validate_refuses(self, task, told):
        # A set of identities or classes is not what this is about: folders without labels fit every task.
        data = {purpose: {"format": "folder", "path": purpose} for purpose in ("calibration", "validation")}
        spec = ModelSpec.model_validate(project_params(task=task, data=data)["models"]["small"])
        network = small_network()
        session = Session(network.SerializeToString())
        _, notes = as_read(spec, ir.from_proto(network), lambda image: session.run({session.inputs[0]: image}))
        assert [note.split(": ", 1)[0] for note in notes] == (["validate is going to refuse this model"] if told else [])
        assert told in "".join(notes)


def images(count: int, labelled: bool = True):
    generator = np.random.default_rng(1)
    for place in range(count):
        yield (
            Item(None, f"{place}.png", f"{place:064x}", place % 4 if labelled else None),
            generator.standard_normal((1, 3, 32, 32)).astype(np.float32),
        )


@pytest.fixture(scope="module")
def graphs() -> dict[str, ir.Model]:
    model = inferred(small_network())
    statistics = collect(model, lambda: ((item.name, {"image": tensor}) for item, tensor in images(6)))
    return {"fp32": model, "int8": quantize_static(model, statistics, Int8()).model}


@pytest.fixture(scope="module")
def sessions(graphs) -> dict[str, Session]:
    return {name: Session(ir.to_proto(graph).SerializeToString()) for name, graph in graphs.items()}


class TestValidation:
    def test_the_record_is_flat_and_complete(self, sessions):
        validation = Validation(TASK, SPEC, sessions, Feeds("image"))
        validation.run(images(12))
        record = validation.record(Validate(bootstrap=200))
        assert all(isinstance(value, (int, float, str)) for value in record.values())
        assert record["images"] == record["labelled"] == 12
        keys = "top1 top5 retained retained_low retained_high agreement kl sqnr_db cosine_mean cosine_min max_abs_diff".split()
        if record["fp32.top1"] == 0:
            keys = [key for key in keys if "retained" not in key]
        assert {f"int8.{key}" for key in keys} <= set(record)
        assert {key for key in record if key.startswith("fp32.")} == {"fp32.top1", "fp32.top5"}
        assert record["int8.gate.similarity"] == "pass"
        assert record["int8.sqnr_db"] > 20
        assert [row["image"] for row in validation.rows()] == [f"{place}.png" for place in range(12)]

    def test_where_fp32_has_nothing_right_the_record_blames_no_variant(self, sessions):
        def wrong():
            for item, tensor in images(4):
                best = int(sessions["fp32"].run({"image": tensor})["logits"].argmax())
                yield replace(item, label=(best + 1) % 4), tensor

        validation = Validation(TASK, SPEC, sessions, Feeds("image"))
        validation.run(wrong())
        record = validation.record(Validate(bootstrap=200))
        gate = "`gate.retained` fails for every variant: of so little of FP32's own top1 nothing can be kept"
        assert record["warning"].split("; ")[-1] == gate
        (found,) = [one for one in verdicts(record, None) if one.gate == "retained"]
        assert str(found) == "int8.gate.retained: fail: FP32's own metric is 0 or next to it, of which nothing can be kept"

    def test_the_order_of_images_changes_nothing(self, sessions):
        records = []
        for order in (1, -1):
            validation = Validation(TASK, SPEC, sessions, Feeds("image"))
            validation.run(list(images(8))[::order])
            record = validation.record(Validate(bootstrap=200))
            records.append({key: value for key, value in record.items() if "retained" not in key})
        assert records[0] == records[1]

    def test_without_labels_gates_say_so(self, sessions):
        validation = Validation(TASK, SPEC, sessions, Feeds("image"))
        validation.run(images(4, labelled=False))
        record = validation.record(Validate(bootstrap=200))
        assert record["int8.gate.retained"] == "no-labels"
        assert "int8.top1" not in record

    def test_where_no_outputs_can_be_scored_there_is_fidelity_alone(self, sessions):
        validation = Validation(TASK, SPEC, sessions, Feeds("image"), scored=None)
        validation.run(images(3))
        record = validation.record(Validate(bootstrap=200))
        assert record["int8.cosine_min"] > 0.9
        assert "int8.agreement" not in record
        assert record["int8.gate.retained"] == "no-labels"
        assert record["warning"].startswith("3 labelled images, and no top1: what it is read from lies behind the operator")

    def test_an_output_that_is_nan_is_an_error_with_the_image_s_name(self, sessions):
        broken = small_network(weights={"head.bias": np.array([np.nan, 0, 0, 0], np.float32)})
        with pytest.raises(ModelRunError, match=r"output 'logits' holds NaN on 0\.png"):
            Validation(TASK, SPEC, sessions | {"int8": Session(broken.SerializeToString())}, Feeds("image")).run(images(1))


def test_layer_noise_finds_the_layer_that_loses(graphs):
    samples = lambda: ((item.name, {"image": tensor}) for item, tensor in images(2))  # noqa: E731
    layers = layer_noise(graphs["fp32"], graphs["int8"], samples)
    found = {layer.layer: layer.sqnr_db for layer in layers}
    assert {"stem.relu", "point", "residual", "head"} <= set(found)
    assert min(found.values()) > 15
    assert [layer.index for layer in layers] == list(range(len(layers)))
    # A far too wide range on one tensor shows at that layer.
    spoiled = ir.from_proto(ir.to_proto(graphs["int8"]))
    quantizers = [node for node in spoiled.graph if node.op_type == "QuantizeLinear"]
    scale = next(node for node in quantizers if node.inputs[0].name == "point.raw").inputs[1]
    scale.const_value = ir.tensor(np.float32(scale.const_value.numpy() * 40))
    worse = {layer.layer: layer.sqnr_db for layer in layer_noise(graphs["fp32"], spoiled, samples)}
    assert worse["point"] < found["point"] - 15
    assert worse["stem.relu"] == found["stem.relu"]


def test_layer_noise_reads_images_once_where_tensors_are_small(graphs, monkeypatch):
    """It took two thirds of `validate`'s processor time on a YOLOv9t: sixteen tensors at a time, whatever their size."""
    asked = []

    def samples():
        asked.append(1)
        return ((item.name, {"image": tensor}) for item, tensor in images(2))

    whole = layer_noise(graphs["fp32"], graphs["int8"], samples)
    assert len(asked) == 1
    monkeypatch.setattr("octavo.evidence.layers._BYTES", 1 << 10)
    monkeypatch.setattr("octavo.evidence.layers._TOGETHER", 2)
    assert [layer.layer for layer in layer_noise(graphs["fp32"], graphs["int8"], samples)] == [layer.layer for layer in whole]
    # Large ones are read two at a time here, none alone.
    assert 2 < len(asked) <= 2 + len(whole) // 2


@pytest.mark.parametrize("rows", [[2, 0], [0], [], [0, 1, 2, 1]])
def test_layer_noise_pairs_rows_that_the_graphs_chose_in_other_numbers(rows):
    truth = np.float32([[0, 5, 9], [0, 50, 90], [0, 500, 900]])
    expected, got = layers._side_by_side(truth, truth[np.array(rows, int)])
    assert expected.shape == got.shape
    assert sorted(expected[:, 1]) == [5, 50, 500]
    found = got.any(axis=1)
    assert np.array_equal(got[found], expected[found])
    assert found.sum() == min(3, len(set(rows)))


class TestReport:
    accuracy = {
        "images": 10,
        "labelled": 10,
        "metric": "top1",
        "fp32.top1": 0.9,
        "int8.top1": 0.8,
        "int8.retained": 0.89,
        "int8.retained_low": 0.7,
        "int8.retained_high": 1.0,
        "int8.gate.retained": "inconclusive",
        "int8.gate.similarity": "pass",
        "int8.cosine_mean": 0.99,
    }
    latency = {
        "host.id": "abc",
        "host.cpu": "cpu",
        "host.cores": 2,
        "host.vnni": True,
        "host.session": "defaults",
        **{f"fp32.{key}": value for key, value in {"size_mb": 4.0, "size_ratio": 1.0}.items()},
        **{f"int8.{key}": value for key, value in {"size_mb": 1.0, "size_ratio": 0.25}.items()},
        **{"fp32.cpu.t1.b1.median_ms": 20.0, "fp32.cpu.t1.b1.images_per_s": 50.0, "fp32.cpu.t1.b1.speedup": 1.0},
        **{"fp32.cpu.t2.b1.median_ms": 10.0, "fp32.cpu.t2.b1.images_per_s": 100.0, "fp32.cpu.t2.b1.speedup": 1.0},
        **{"int8.cpu.t2.b1.median_ms": 5.0, "int8.cpu.t2.b1.images_per_s": 200.0, "int8.cpu.t2.b1.speedup": 2.0},
    }

    def test_rows_take_the_fastest_setting_and_leave_gaps(self):
        fp32, int8 = (dict(zip(headings(self.accuracy), row, strict=True)) for row in rows(self.accuracy, self.latency))
        assert fp32["Top-1"] == "0.900"
        assert fp32["gates"] == "-"
        assert int8["speed"] == "2.00x"
        assert int8["kept [95 % interval]"] == "0.890 [0.700, 1.000]"
        assert int8["gates"] == "inconclusive"
        assert "SQNR dB" not in int8, "no variant has it"
        assert "AP" not in int8

    def test_how_much_of_a_file_is_int8(self):
        manifests = {
            variant: {"target": "cpu", "made": {"executed": {"int8_layers": 2, "int8_layers_integer": 2, "int8_share": share}}}
            for variant, share in (("int8", 0.9231), ("int8_dynamic", 0.004))
        }
        record = kernel_gates(Gates(), manifests | {"fp32": None, "fp16": {"made": {}}})
        assert record == {"int8.int8_share": 0.9231, "int8.gate.integer_layers": "pass", "int8_dynamic.int8_share": 0.004}
        assert "; multiplications in INT8: int8 92%, int8_dynamic 0%" in markdown("m", self.accuracy | record, self.latency)

    @pytest.mark.parametrize(("target", "word"), [("cpu", "fail"), ("cpu-no-vnni", "fail"), ("openvino", None), ("tensorrt", None)])
    def test_layers_in_float_fail_a_file_whose_runtime_this_is(self, target, word):
        ran = {"int8_layers": 51, "int8_layers_integer": 16, "int8_share": 1.0}
        record = kernel_gates(Gates(), {"int8": {"target": target, "made": {"executed": ran}}})
        assert record.get("int8.gate.integer_layers") == word

    def test_markdown_names_host_provider_and_threads(self):
        text = markdown("m", self.accuracy, self.latency)
        assert "| int8 | 1.00 | 25% |" in text
        assert "host abc" in text
        assert "cpu, threads 2, batch 1" in text

    @pytest.mark.parametrize(
        ("record", "told"),
        [
            ({}, []),
            ({"compared": "logits"}, ["- fidelity is that of logits"]),
            (
                {"pasted": "masks"},
                [
                    "- masks: pasted at whole pixels, and a rounding moves all that is pasted by one: low `sqnr_db` and cosines "
                    "there need not mean a worse mask"
                ],
            ),
            ({"custom_ops.My": "body (my.onnx)"}, ["- custom operator My: body (my.onnx)"]),
            (
                {"custom_ops.My": "cut, with all that lies behind it", "compared": "a, b"},
                [
                    "- custom operator My: cut, with all that lies behind it",
                    "- every figure and time here is of the part before the cut",
                    "- fidelity is that of a, b",
                ],
            ),
        ],
    )
    def test_markdown_says_what_figures_are_about(self, record, told):
        lines = markdown("m", self.accuracy | record, self.latency).splitlines()
        assert [line for line in lines if line.startswith("- ")] == told

    def test_tradeoff(self):
        assert [(point["variant"], point["latency_ms"], point["accuracy"]) for point in tradeoff(self.accuracy, self.latency)] == [
            ("fp32", 10.0, 0.9),
            ("int8", 5.0, 0.8),
        ]

    def test_further_resolutions_go_from_small_to_large(self):
        sizes = ("1024x1024", "320x320", "640x480", "480x640")
        accuracy = {"metric": "ap", "fp32.ap": 0.5} | {f"fp32.{size}.ap": 0.5 for size in sizes}
        found = [row["resolution"] for row in resolutions(accuracy, {"fp32.size_mb": 1.0, "fp32.cpu.t2.b1.median_ms": 3.0})]
        assert found == ["own", "320x320", "480x640", "640x480", "1024x1024"]

    def test_further_resolutions_of_images_without_labels(self):
        accuracy = {"metric": "ap", "int8.cosine_mean": 0.99, "int8.64x32.cosine_mean": 0.98, "int8.ap.96x96": 0.5}
        latency = self.latency | {"fp32.cpu.t2.b1.64x32.median_ms": 7.0, "int8.cpu.t2.b1.64x32.median_ms": 4.0}
        found = [(row["resolution"], row["variant"], row["accuracy"], row["latency_ms"]) for row in resolutions(accuracy, latency)]
        own = [("own", "fp32", 1.0, 10.0), ("own", "int8", 0.99, 5.0)]
        assert found == [*own, ("64x32", "fp32", 1.0, 7.0), ("64x32", "int8", 0.98, 4.0)]

    @pytest.mark.parametrize("name", ["tradeoff.csv", "resolutions.csv"])
    def test_a_point_of_the_plots_tells_its_variant_and_size(self, name):
        """DVC's own scatter colours points by the revision, and names nothing else of them."""
        stages = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
        plots = {path: settings for plot in stages["report"]["do"]["plots"] for path, settings in plot.items()}
        shown = plots[f"metrics/${{key}}/{name}"]
        template = json.loads((ROOT / f".dvc/plots/{shown['template']}.json").read_text(encoding="utf-8"))
        (size,) = template["transform"]
        encoded = {channel: one["field"] for channel, one in template["encoding"].items()}
        assert encoded == {
            "x": "<DVC_METRIC_X>",
            "y": "<DVC_METRIC_Y>",
            "color": "variant",
            "shape": size["as"],
            "strokeDash": "rev",
        }
        table = tradeoff(self.accuracy, self.latency) if name == "tradeoff.csv" else resolutions(self.accuracy, self.latency)
        assert {"variant", shown["x"], shown["y"]} <= set(table[0])
        assert "resolution" in size["calculate"]


def test_layers_whose_channels_were_filled_up_are_compared_by_their_own():
    generator = np.random.default_rng(2)
    shapes = {"first": (30, 3, 1, 1), "deep": (30, 1, 3, 3), "last": (8, 30, 1, 1)}
    tensors = {name: (generator.standard_normal(shape) * 0.5).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        oh.make_node("Conv", ["x", "first"], ["a"], "a"),
        oh.make_node("LeakyRelu", ["a"], ["b"], "b", alpha=0.1),
        oh.make_node("Conv", ["b", "deep"], ["c"], "c", group=30, pads=[1] * 4),
        oh.make_node("Conv", ["c", "last"], ["d"], "d"),
        oh.make_node("GlobalAveragePool", ["d"], ["y"], "y"),
    ]
    graph = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info("x", 1, [1, 3, 16, 16])],
        [oh.make_tensor_value_info("y", 1, [1, 8, 1, 1])],
        [onh.from_array(value, name) for name, value in tensors.items()],
    )
    model = inferred(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=10))
    feeds = [(str(place), {"x": generator.standard_normal((1, 3, 16, 16)).astype(np.float32)}) for place in range(4)]
    everything = Int8(placement="all", repair=False, method="minmax", float_heads=False)
    made = quantize_static(model, collect(model, lambda: iter(feeds)), everything).model
    widths = {tuple(value.const_value.shape) for value in made.graph.initializers.values()}
    assert (32, 1, 3, 3) in widths, "the depthwise layer was filled up, else this shows nothing"
    noise = {layer.layer: layer.sqnr_db for layer in layer_noise(model, made, lambda: iter(feeds))}
    assert noise["c"] > 20
    # Equalized, these channels have factors, too.
    grown = dict.fromkeys("abc", np.ones(32))
    equalized = layer_noise(model, made, lambda: iter(feeds), grown)
    assert {layer.layer: layer.sqnr_db for layer in equalized} == noise
