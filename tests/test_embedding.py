"""Vectors and what they tell of pairs: decoding, flips, verification metrics, the bootstrap over identities, gates and pictures."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from octavo.errors import DataError, ModelRunError, ParamsError
from octavo.evidence.bootstrap import Interval, paired
from octavo.evidence.gates import judge_drop
from octavo.evidence.remarks import remarks
from octavo.evidence.report import headings
from octavo.evidence.roc import POINTS, roc_rows
from octavo.evidence.validation import Validation
from octavo.images.dataset import Item
from octavo.images.feeds import Feeds
from octavo.images.pairs import Pair
from octavo.images.preprocess import preprocess
from octavo.params.grammar import Embedding, Gates, Input, Int8, Validate
from octavo.runtime.session import Session
from octavo.tasks.embedding.decode import vector_of, vectors_of
from octavo.tasks.embedding.flip import Flipped, answering, mirrored
from octavo.tasks.embedding.pairs import pairs_of
from octavo.tasks.embedding.resampled import Areas
from octavo.tasks.embedding.score import EmbeddingScore
from octavo.tasks.embedding.verification import area, best_accuracy, equal_error_rate, folds_of, nearest, roc, similarities, tar_at
from octavo.tasks.registry import compared_outputs, model_classes
from octavo.tasks.score import Shown

TASK = Embedding(name="embedding")
SPEC = Input(size=(16, 16))


def item(name: str, label: int | None = None, pairs: Sequence[Pair] | None = None, path: Path = Path()) -> Item:
    return Item(path, name, name, label, pairs=None if pairs is None else tuple(pairs))


class TestDecode:
    @pytest.mark.parametrize("shape", [(1, 4), (1, 4, 1, 1), (1, 1, 1, 4)])
    def test_any_place_of_the_numbers_and_length_one(self, shape):
        values = np.array([3, 0, -4, 0], np.float32).reshape(shape)
        assert vector_of({"y": values}, TASK) == pytest.approx([0.6, 0, -0.8, 0])
        assert vector_of({"y": values}, Embedding(name="embedding", normalise=False)).tolist() == [3, 0, -4, 0]
        assert vector_of({"y": values}, TASK).dtype == np.float32

    def test_extreme_and_zero_vectors(self):
        found = vectors_of({"y": np.array([[1e-40, 1e-40], [3e38, 3e38], [0, 0]], np.float32)}, TASK)
        assert found == pytest.approx(np.array([[0.5**0.5] * 2] * 2 + [[0, 0]]), abs=1e-4)

    def test_which_output_and_which_shape(self):
        outputs = {"a": np.ones((1, 4), np.float32), "b": np.zeros((1, 8), np.float32)}
        assert len(vector_of(outputs, Embedding(name="embedding", output="b"))) == 8
        for task in (TASK, Embedding(name="embedding", output="c")):
            with pytest.raises(DataError, match=r"which output holds the embedding\? the graph has a, b"):
                vector_of(outputs, task)
        for wrong in (np.ones((1, 4, 7, 7), np.float32), np.ones((1, 1), np.float32), np.ones(4, np.float32), np.ones((1, 4), int)):
            with pytest.raises(DataError, match="is not one vector an image"):
                vector_of({"y": wrong}, TASK)
        with pytest.raises(DataError, match="of 2 images, not of one"):
            vector_of({"y": np.ones((2, 4), np.float32)}, TASK)

    def test_fidelity_is_about_the_named_output(self):
        assert compared_outputs(Embedding(name="embedding", output="b")) == ["b"]
        assert compared_outputs(TASK) == []


def network(channels: int = 6, *, seed: int = 0, nhwc: bool = False, two: bool = False, noise: float = 0.0) -> onnx.ModelProto:
    """Convolution, ReLU, a weight for each column (so that a mirrored image gives another vector), mean: N x channels x 1 x 1."""
    generator = np.random.default_rng(seed)
    weights = generator.standard_normal((channels, 3, 3, 3)).astype(np.float32)
    if noise:
        weights += np.random.default_rng(99).normal(0, noise, weights.shape).astype(np.float32)
    tensors = {"w": weights, "ramp": np.linspace(0, 2, 16, dtype=np.float32).reshape(1, 1, 1, 16)}
    nodes = [oh.make_node("Transpose", ["image"], ["x"], perm=[0, 3, 1, 2])] if nhwc else []
    nodes += [
        oh.make_node("Conv", ["x" if nhwc else "image", "w"], ["c"], "conv", pads=[1] * 4),
        oh.make_node("Relu", ["c"], ["r"]),
        oh.make_node("Mul", ["r", "ramp"], ["m"]),
        oh.make_node("GlobalAveragePool", ["m"], ["vector"]),
    ]
    outputs = [oh.make_tensor_value_info("vector", 1, ["n", channels, 1, 1])]
    if two:
        nodes.append(oh.make_node("ReduceMax", ["r"], ["top"], keepdims=0))
        outputs.append(oh.make_tensor_value_info("top", 1, []))
    graph = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info("image", 1, ["n", 16, 16, 3] if nhwc else ["n", 3, 16, 16])],
        outputs,
        [onh.from_array(value, name) for name, value in tensors.items()],
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8)


class TestFlip:
    @pytest.mark.parametrize("layout", ["nchw", "nhwc"])
    def test_the_mean_of_both_before_length_one(self, layout):
        spec = Input(size=(16, 16), layout=layout)
        session = Session(network(nhwc=layout == "nhwc").SerializeToString())
        photo = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        straight, mirror = (preprocess(one, spec) for one in (photo, np.ascontiguousarray(photo[:, ::-1])))
        assert np.array_equal(mirrored(straight, spec), mirror)
        a, b = (session.run({"image": tensor})["vector"] for tensor in (straight, mirror))
        assert not np.allclose(a, b, rtol=0.05)
        task = Embedding(name="embedding", flip=True)
        flipped = Flipped(session, task, spec, "image")
        for found in (flipped.run({"image": straight}), flipped.run_finite({"image": straight}, "here")):
            assert found["vector"].shape == a.shape
            assert found["vector"] == pytest.approx((a + b) / 2, rel=1e-6)
            assert np.linalg.norm(vector_of(found, task)) == pytest.approx(1)
        assert flipped.run({"image": mirror})["vector"] == pytest.approx(found["vector"])
        assert flipped.input_shapes == session.input_shapes
        assert flipped.outputs == ["vector"]
        with pytest.raises(AttributeError, match="nothing"):
            _ = flipped.nothing

    def test_other_outputs_are_the_image_s_own(self):
        session = Session(network(two=True).SerializeToString())
        task = Embedding(name="embedding", flip=True, output="vector")
        flipped = Flipped(session, task, SPEC, "image")
        feeds = {"image": np.random.default_rng(1).standard_normal((2, 3, 16, 16)).astype(np.float32)}
        assert flipped.run(feeds)["top"] == session.run(feeds)["top"]
        assert list(flipped.run(feeds, ["top"])) == ["top"]

    def test_only_where_the_task_says_so(self):
        sessions = {"fp32": Session(network().SerializeToString())}
        assert answering(sessions, TASK, SPEC, "image") == sessions
        found = answering(sessions, Embedding(name="embedding", flip=True), SPEC, "image")
        assert isinstance(found["fp32"], Flipped)

    def test_nan_on_the_mirror_names_it(self):
        class Broken:
            def run_finite(self, feeds, where):
                if feeds["image"][0, 0, 0, 0] > 0:
                    raise ModelRunError(f"holds NaN on {where}", "")
                return {"vector": np.ones((1, 4), np.float32)}

        image = np.zeros((1, 3, 2, 2), np.float32)
        image[..., -1] = 1
        with pytest.raises(ModelRunError, match=r"NaN on a\.png, mirrored"):
            Flipped(Broken(), Embedding(name="embedding", flip=True), SPEC, "image").run_finite({"image": image}, "a.png")


class TestPairs:
    def test_all_pairs_of_identities_whatever_the_order(self):
        items = [item(name, label) for name, label in (("a", 0), ("b", 0), ("c", 1), ("d", 2), ("e", 2), ("f", 2), ("g", None))]
        for order in (items, items[::-1]):
            table = pairs_of(order)
            assert table.counts == table.possible == (1 + 3, 15 - 4)
            found = {
                frozenset((order[i].name, order[j].name)): same
                for i, j, same in zip(table.first, table.second, table.same, strict=True)
            }
            assert found == {
                frozenset((a.name, b.name)): a.label == b.label for a, b in combinations(items, 2) if b.label is not None
            }

    @pytest.mark.parametrize("sizes", [[40, 3, 3], [20, 20, 20]])
    def test_a_seeded_sample_of_too_many(self, sizes):
        items = [item(f"{label}_{place:02d}", label) for label, size in enumerate(sizes) for place in range(size)]
        table, again = pairs_of(items, most=50), pairs_of(items[::-1], most=50)
        assert table.counts == (50, 50)
        assert table.possible == pairs_of(items).counts
        names = [
            {frozenset((order[i].name, order[j].name)) for i, j in zip(one.first, one.second, strict=True)}
            for one, order in ((table, items), (again, items[::-1]))
        ]
        assert len(names[0]) == 100, "no pair twice"
        assert names[0] == names[1]
        for i, j, same in zip(table.first, table.second, table.same, strict=True):
            assert (items[i].label == items[j].label) == same
            assert i != j

    def test_a_sample_is_drawn_evenly(self):
        """Of 3 x 28 genuine pairs each is drawn about as often, over seeds."""
        items = [item(f"{label}_{place}", label) for label in range(3) for place in range(8)]
        drawn = np.zeros((24, 24), int)
        for seed in range(400):
            table = pairs_of(items, most=21, seed=seed)
            np.add.at(drawn, (table.first[table.same], table.second[table.same]), 1)
        counts = (drawn + drawn.T)[np.triu_indices(24, 1)]
        counts = counts[counts > 0]
        assert len(counts) == 84
        assert counts.sum() == 400 * 21
        assert 60 < counts.min() < counts.max() < 145

    def test_a_list_s_pairs_with_its_folds_and_without_those_that_are_gone(self):
        items = [
            item("a", 0, [Pair("b", True, 0), Pair("c", False, 1), Pair("gone", False, 1)]),
            item("b", 0, []),
            item("c", 1, [Pair("b", False, 0)]),
        ]
        table = pairs_of(items)
        assert list(zip(table.first, table.second, table.same, table.fold, strict=True)) == [
            (0, 1, True, 0),
            (0, 2, False, 1),
            (2, 1, False, 0),
        ]
        assert (table.left_out, table.counts) == (1, (1, 2))
        without = [item("a", 0, [Pair("b", True), Pair("c", False)]), *items[1:2], item("c", 1, [])]
        assert pairs_of(without).fold is None


class TestVerification:
    @given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=40))
    @settings(deadline=None)
    def test_against_counting(self, pairs):
        scores, same = np.array([score / 3 for score, _ in pairs]), np.array([kind for _, kind in pairs])
        if same.all() or not same.any():
            return
        far, tar, _ = roc(scores, same)
        won = [(g > i) + (g == i) / 2 for g in scores[same] for i in scores[~same]]
        assert area(far, tar) == pytest.approx(np.mean(won))
        for bound in (0.1, 0.3, 0.5):
            accepted = [t for t in [*scores, np.inf] if (scores[~same] >= t).mean() <= bound]
            assert tar_at(far, tar, bound) == pytest.approx(max((scores[same] >= t).mean() for t in accepted))
        rate = equal_error_rate(far, tar)
        assert 0 <= rate <= 1
        # Between the thresholds on both sides of it.
        pairs = [((scores[~same] >= t).mean(), (scores[same] < t).mean()) for t in [*np.unique(scores), np.inf]]
        assert max(min(pair) for pair in pairs) - 1e-9 <= rate <= min(max(pair) for pair in pairs) + 1e-9

    def test_perfect_reversed_and_all_alike(self):
        same = np.array([True] * 5 + [False] * 5)
        for scores, expected, rate in ((same * 1.0, 1, 0), (~same * 1.0, 0, 1), (np.ones(10), 0.5, 0.5)):
            far, tar, _ = roc(scores, same)
            assert (area(far, tar), equal_error_rate(far, tar)) == pytest.approx((expected, rate))
        assert best_accuracy(same * 1.0, same, folds_of(same)) == 1
        assert best_accuracy(np.ones(10), same, folds_of(same)) == 0.5

    def test_thresholds_come_from_other_folds(self):
        """A threshold that fits a fold alone does not help it; both kinds weigh the same."""
        same = np.array([True, False] * 2)
        scores = np.array([0.9, 0.5, 0.4, 0.1])
        # Learned on fold 1 (0.4 against 0.1): 0.25, above which both of fold 0 lie. On fold 0: 0.7, below which both of fold 1 lie.
        assert best_accuracy(scores, same, np.array([0, 0, 1, 1])) == 0.5
        unequal = np.array([True] * 2 + [False] * 8)
        assert best_accuracy(np.zeros(10), unequal, np.arange(10) % 2) == 0.5
        assert best_accuracy(np.zeros(4), same, np.array([0, 1, 0, 1])) is None, "outside of each fold there is one kind"

    def test_folds_hold_both_kinds_alike(self):
        same = np.arange(100) < 35
        fold = folds_of(same)
        assert len(np.unique(fold)) == 10
        assert {int((fold[same] == one).sum()) for one in range(10)} == {3, 4}
        assert np.array_equal(fold, folds_of(same))
        assert len(np.unique(folds_of(np.arange(100) < 3))) == 3
        assert folds_of(np.arange(100) < 1) is None

    def test_nearest_leaves_the_row_itself_out(self, monkeypatch):
        vectors = np.random.default_rng(0).standard_normal((30, 5))
        products = vectors @ vectors.T
        np.fill_diagonal(products, -np.inf)
        for cells in (16_000_000, 90):
            monkeypatch.setattr("octavo.tasks.embedding.verification._CELLS", cells)
            places, values = nearest(vectors)
            assert places.tolist() == products.argmax(1).tolist()
            assert values == pytest.approx(products.max(1))
            first, second = np.triu_indices(30, 1)
            assert similarities(vectors, first, second) == pytest.approx((vectors @ vectors.T)[first, second])


class TestResampled:
    @given(st.integers(0, 10_000))
    @settings(deadline=None, max_examples=40)
    def test_a_drawn_identity_is_a_copy_of_its_images(self, seed):
        """Against copying each identity's images as often as it is drawn, pairs between copies of one identity left out."""
        generator = np.random.default_rng(seed)
        labels = generator.integers(0, 4, 9)
        # Few values, so that there are ties.
        matrix = generator.integers(0, 5, (9, 9))
        matrix = matrix + matrix.T
        first, second = np.triu_indices(9, 1)
        scores, same = matrix[first, second] / 4, labels[first] == labels[second]
        if same.all() or not same.any():
            return
        kinds, places = np.unique(labels, return_inverse=True)
        areas = Areas(scores, same, places[first], places[second])
        counts = generator.integers(0, 4, (5, len(kinds)))
        counts[0] = 1
        far, tar, _ = roc(scores, same)
        for row, value in zip(counts, areas.resampled(counts), strict=True):
            copies = [(image, copy) for image in range(9) for copy in range(row[places[image]])]
            genuine, impostor = [], []
            for (a, one), (b, other) in combinations(copies, 2):
                if labels[a] != labels[b]:
                    impostor.append(matrix[a, b] / 4)
                elif one == other:
                    genuine.append(matrix[a, b] / 4)
            if genuine and impostor:
                assert value == pytest.approx(np.mean([(g > i) + (g == i) / 2 for g in genuine for i in impostor]))
            else:
                assert np.isnan(value)
        assert areas.resampled(counts[:1])[0] == pytest.approx(area(far, tar))

    def test_in_parts_it_is_the_same(self, monkeypatch):
        generator = np.random.default_rng(3)
        scores, first, second = generator.random(60), generator.integers(0, 6, 60), generator.integers(0, 6, 60)
        areas = Areas(scores, first == second, first, second)
        counts = generator.integers(0, 3, (50, 6))
        whole = areas.resampled(counts)
        monkeypatch.setattr("octavo.tasks.embedding.resampled._CELLS", 40)
        np.testing.assert_array_equal(areas.resampled(counts), whole)

    def test_drops_and_ratios_come_of_the_same_draws_and_leave_out_what_has_no_meaning(self):
        values = np.array([0.9, 0.8, 1.0])
        reference = lambda counts: np.where(counts[:, 0] > 0, counts @ values / counts.sum(1), np.nan)  # noqa: E731
        worse = lambda counts: reference(counts) - 0.1  # noqa: E731
        found = paired({"int8": worse}, reference, 3, resamples=300, seed=0)
        (drop,), (ratio,) = found.drops().values(), found.ratios().values()
        assert (drop.estimate, drop.low, drop.high) == pytest.approx((0.1, 0.1, 0.1))
        assert ratio.estimate == pytest.approx(0.8 / 0.9)
        assert ratio.low < ratio.estimate < ratio.high
        nothing = paired({"int8": worse}, reference, 0, resamples=300, seed=0)
        assert nothing.drops() == nothing.ratios() == {"int8": None}


class TestGates:
    def test_a_drop_has_three_answers(self):
        assert judge_drop(Interval(0.005, 0.0, 0.02), 0.01) == "pass"
        assert judge_drop(Interval(-0.005, -0.01, 0.0), 0.0) == "pass"
        assert judge_drop(Interval(0.02, 0.005, 0.04), 0.01) == "inconclusive"
        assert judge_drop(Interval(0.02, 0.015, 0.04), 0.01) == "fail"
        assert judge_drop(None, 0.01, labelled=0) == "no-labels"

    def test_defaults_are_the_task_s(self):
        assert (Gates().of_task("embedding").similarity_min, Gates().of_task("embedding").auc_drop) == (0.98, 0.01)
        assert (Gates().of_task("detection").similarity_min, Gates().of_task("detection").auc_drop) == (None, None)
        assert [Gates().of_task(task).similarity for task in ("embedding", "segmentation", "detection")] == [0.995, 0.995, 0.99]
        assert Gates(similarity=0.999).of_task("detection").similarity == 0.999
        given = Gates(similarity=0.9, similarity_min=0.9, auc_drop=None)
        assert given.of_task("embedding") == given
        assert given.of_task("classification").similarity_min == 0.9


def test_fidelity_of_embeddings_leaves_room_for_other_images():
    assert Int8().of_task("embedding").fidelity == 25.5
    for told in (Int8(fidelity=20), Int8(effort="high")):
        assert told.of_task("embedding") == told
    assert Int8().of_task("classification") == Int8()


def clouds(labels: Sequence[int | None], spread: float, seed: int = 0) -> tuple[list[Item], np.ndarray]:
    """Vectors around a centre for each label."""
    generator = np.random.default_rng(seed)
    centres = generator.standard_normal((10, 8))
    vectors = [centres[9 if label is None else label] + generator.normal(0, spread, 8) for label in labels]
    return [item(f"{place:02d}", label) for place, label in enumerate(labels)], np.array(vectors, np.float32)


def scored(
    items: Sequence[Item], vectors: np.ndarray, reference: np.ndarray | None = None, task: Embedding = TASK
) -> EmbeddingScore:
    score = EmbeddingScore(task, SPEC)
    for one, vector, truth in zip(items, vectors, vectors if reference is None else reference, strict=True):
        score.update({"y": vector[None]}, {"y": truth[None]}, one)
    return score


class TestScore:
    def test_all_figures_against_other_ways_to_them(self):
        labels = [place // 3 for place in range(24)] + [8, None, None]
        items, vectors = clouds(labels, 0.9)
        noisy = vectors + np.random.default_rng(5).normal(0, 0.2, vectors.shape).astype(np.float32)
        reference, variant = scored(items, vectors), scored(items, noisy, vectors)
        unit = noisy / np.linalg.norm(noisy, axis=1, keepdims=True)
        true = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        known = [place for place, label in enumerate(labels) if label is not None]
        genuine = [unit[i] @ unit[j] for i, j in combinations(known, 2) if labels[i] == labels[j]]
        impostor = [unit[i] @ unit[j] for i, j in combinations(known, 2) if labels[i] != labels[j]]
        figures = variant.metrics(reference)
        assert figures["auc"] == pytest.approx(np.mean(np.array(genuine)[:, None] > np.array(impostor)))
        assert 0.6 < figures["auc"] < 1
        cosines = (unit * true).sum(1)
        assert figures["cosine_p1"] == pytest.approx(np.percentile(cosines, 1))
        assert figures["mean_abs_diff"] == pytest.approx(np.abs(unit - true).mean(), rel=1e-4)
        # The lone image of identity 8 is no probe, but stands in the gallery; those without identity do neither.
        products = unit[known] @ unit[known].T
        np.fill_diagonal(products, -np.inf)
        kinds = np.array([labels[place] for place in known])
        hits = kinds[products.argmax(1)] == kinds
        assert figures["rank1"] == pytest.approx(hits[kinds < 8].mean())
        assert "tar_1e-2" in figures, f"{len(impostor)} impostor pairs"
        assert "tar_1e-3" not in figures
        assert variant.labelled == 25
        assert variant.units == 9
        assert variant.about() == {"genuine_pairs": 24, "impostor_pairs": 276, "identities": 9}
        assert variant.resampled(np.ones((1, 9), int))[0] == pytest.approx(figures["auc"])
        assert variant.likeness(reference, 3) == pytest.approx(cosines[3])
        assert variant.row(0)["nearest"] == f"{np.argsort(-(unit @ unit[0]))[1]:02d}"
        ours, theirs = (np.argmax(one @ one.T - 9 * np.eye(27), axis=1) for one in (unit, true))
        assert figures["neighbours"] == pytest.approx((ours == theirs).mean())

    def test_without_length_one_products_count(self):
        items, vectors = clouds([0, 0, 1, 1], 0.1)
        vectors[1] *= 5
        plain = Embedding(name="embedding", normalise=False)
        score = scored(items, vectors, task=plain)
        found = score.curve()
        first, second = np.triu_indices(4, 1)
        expected = roc((vectors @ vectors.T).astype(float)[first, second], np.array([1, 0, 0, 0, 0, 1], bool))
        assert area(*found[:2]) == pytest.approx(area(*expected[:2]))

    def test_a_list_of_pairs_is_all_that_is_compared(self):
        _, vectors = clouds([0, 0, 1, 1], 0.01)
        items = [
            item("a", 0, [Pair("b", True, 0), Pair("c", False, 0), Pair("gone", False, 1)]),
            item("b", 0, [Pair("d", False, 1)]),
            item("c", 1, [Pair("d", True, 1)]),
            item("d", 1, []),
        ]
        score = scored(items, vectors)
        figures = score.metrics(score)
        assert (figures["auc"], figures["accuracy"]) == (1, 1)
        assert "rank1" not in figures
        assert score.about()["pairs"] == "1 listed pairs left out, of which an image is not among these"
        assert (score.about()["genuine_pairs"], score.about()["impostor_pairs"]) == (2, 2)

    @pytest.mark.parametrize("labels", [[None] * 3, [0] * 3, [0, 1, 2]])
    def test_without_both_kinds_of_pairs_there_is_fidelity_alone(self, labels):
        score = scored(*clouds(labels, 0.1))
        assert set(score.metrics(score)) == {"cosine_p1", "mean_abs_diff", "neighbours"}
        assert score.labelled == score.units == 0
        assert score.about() == {}

    def test_zero_vectors_are_alike_and_like_nothing_else(self):
        vectors = np.array([[0, 0], [0, 0], [1, 0]], np.float32)
        score = scored([item(str(place)) for place in range(3)], vectors, np.array([[0, 0], [1, 0], [1, 0]], np.float32))
        assert score.cosines == [1, 0, 1]

    def test_pictures_show_who_is_nearest(self, tmp_path):
        items, vectors = clouds([0, 0, 1], 0.05)
        for place, colour in enumerate(((255, 0, 0), (0, 255, 0), (0, 0, 255))):
            Image.new("RGB", (30, 60), colour).save(tmp_path / f"{place}.png")
            items[place] = item(items[place].name, items[place].label, path=tmp_path / f"{place}.png")
        score = scored(items, vectors)
        shown = Shown(items[0], np.zeros((40, 40, 3), np.uint8), 1.0)
        ((words, drawn),) = score.panels(shown, {"y": vectors[:1]}, {"y": vectors[:1]})
        assert words.startswith("nearest ")
        assert words.endswith(", same: 01")
        assert drawn.shape == (40, 40, 3)
        assert drawn[20, 20].tolist() == [0, 255, 0]
        assert drawn[20, 2].tolist() == [255, 255, 255]
        ((words, _),) = score.panels(shown, {"y": vectors[2:]}, {"y": vectors[:1]})
        assert words.endswith(", another: 02")
        assert score.first_panels(shown, {})[0][0] == "00"

    def test_that_the_model_gives_a_vector_is_seen_before_an_image_is_opened(self):
        session = Session(network().SerializeToString())
        run = lambda image: session.run({"image": image})  # noqa: E731
        assert model_classes(TASK, SPEC, run).count is None
        warp = Input.model_validate({"size": [16, 16], "resize": {"rule": "similarity", "template": [[2, 3], [9, 3]]}})
        assert model_classes(TASK, warp, run).count is None, "a warp needs no landmarks there"
        with pytest.raises(DataError, match="which output holds the embedding"):
            model_classes(Embedding(name="embedding", output="x"), SPEC, run)


class TestEvidence:
    @pytest.fixture(scope="class")
    def validation(self) -> Validation:
        graphs = {"fp32": network(), "int8": network(noise=0.1), "qat": network(seed=7)}
        sessions = {name: Session(graph.SerializeToString()) for name, graph in graphs.items()}
        validation = Validation(TASK, SPEC, sessions, Feeds("image"))
        generator = np.random.default_rng(0)
        bases = generator.standard_normal((6, 3, 16, 16))
        validation.run(
            (item(f"{place:02d}", place % 6), (bases[place % 6] + generator.normal(0, 1.2, (3, 16, 16))).astype(np.float32)[None])
            for place in range(60)
        )
        return validation

    def test_the_record_has_drops_gates_and_pairs(self, validation):
        record = validation.record(Validate(bootstrap=300))
        assert record["metric"] == "auc"
        assert (record["genuine_pairs"], record["impostor_pairs"], record["identities"]) == (6 * 45, 1770 - 270, 6)
        drop = record["fp32.auc"] - record["int8.auc"]
        assert record["int8.auc_drop"] == pytest.approx(drop, abs=2e-6)
        assert record["int8.auc_drop_low"] <= record["int8.auc_drop"] <= record["int8.auc_drop_high"]
        assert record["int8.gate.similarity_min"] == "pass"
        assert record["qat.gate.similarity_min"] == "fail"
        assert record["int8.gate.auc_drop"] in ("pass", "inconclusive", "fail")
        assert {"fp32.tar_1e-3", "fp32.rank1", "int8.neighbours"} <= set(record)
        assert not {"fp32.cosine_p1", "fp32.neighbours", "fp32.mean_abs_diff", "fp32.auc_drop"} & set(record)
        assert "warning" not in record
        assert remarks(record)[0].startswith("gate ")
        table = headings(record)
        assert table[3:9] == ("AUC", "EER", "TAR@FAR=.01", "accuracy", "rank-1", "kept [95 % interval]")
        assert table[9:12] == ("AUC drop", "neighbours", "cosine P1")

    def test_a_bound_of_ones_own(self, validation):
        for bound, answer in ((1.0, "pass"), (None, None)):
            record = validation.record(Validate(bootstrap=100, gates={"auc_drop": bound, "similarity_min": None}))
            assert record.get("qat.gate.auc_drop") == answer
            assert "qat.gate.similarity_min" not in record

    def test_curves_of_all_variants_thinned(self, validation):
        rows = roc_rows(validation)
        assert [*dict.fromkeys(row["variant"] for row in rows)] == ["fp32", "int8", "qat"]
        for variant in ("fp32", "int8", "qat"):
            far, tar = np.array([(row["fpr"], row["tpr"]) for row in rows if row["variant"] == variant]).T
            assert (far[0], tar[0], far[-1], tar[-1]) == (0, 0, 1, 1)
            assert len(far) <= POINTS
            assert (np.diff(far) >= 0).all()
            assert (np.diff(tar) >= 0).all()
            assert area(far, tar) == pytest.approx(validation.scores[variant].metrics(validation.scores["fp32"])["auc"], abs=0.01)

    def test_flipped_sessions_validate_too(self, validation):
        task = Embedding(name="embedding", flip=True)
        sessions = answering(validation.sessions, task, SPEC, "image")
        flipped = Validation(task, SPEC, sessions, Feeds("image"))
        tensor = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)
        flipped.run([(item("a", 0), tensor), (item("b", 0), mirrored(tensor, SPEC))])
        a, b = flipped.scores["fp32"].vectors
        assert a == pytest.approx(b, abs=1e-6), "an image and its mirror have one vector"
        assert flipped.record(Validate(bootstrap=100))["flip"] == "mean of the image's and its mirror's vector"


def test_pooled_features_are_held_to_the_vector_not_to_the_map():
    import onnx_ir as ir
    from graphs import inferred

    from octavo.quantization.int8.structure.heads import heads_of, map_heads
    from octavo.quantization.int8.structure.units import units_of

    def heads(*tail: onnx.NodeProto, output: str, shape: list[int] | None) -> tuple[list[str], dict[str, str]]:
        tensors = {
            "w": np.ones((4, 3, 3, 3), np.float32),
            "v": np.ones((5, 4, 1, 1), np.float32),
            "axes": np.array([-1, -2]),
            "places": np.array([1, 2]),
        }
        nodes = [oh.make_node("Conv", ["x", "w"], ["a"], "a", pads=[1] * 4), oh.make_node("Conv", ["a", "v"], ["b"], "b"), *tail]
        graph = oh.make_graph(
            nodes,
            "g",
            [oh.make_tensor_value_info("x", 1, [1, 3, 8, 8])],
            [oh.make_tensor_value_info(output, 1, shape)],
            [onh.from_array(value, name) for name, value in tensors.items()],
        )
        model = inferred(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8))
        assert isinstance(model, ir.Model)
        units = units_of(model)
        return [value.name for value in heads_of(units)], map_heads(units)

    relu = oh.make_node("Relu", ["b"], ["r"])
    assert heads(relu, oh.make_node("GlobalAveragePool", ["r"], ["y"]), output="y", shape=[1, 5, 1, 1]) == (["y"], {})
    mean = oh.make_node("ReduceMean", ["r", "axes"], ["y"], keepdims=0)
    assert heads(relu, mean, output="y", shape=[1, 5]) == (["y"], {})
    whole = oh.make_node("AveragePool", ["r"], ["y"], kernel_shape=[8, 8])
    assert heads(relu, whole, output="y", shape=[1, 5, 1, 1]) == (["y"], {})
    bend = [oh.make_node("Sigmoid", ["b"], ["s"]), oh.make_node("Mul", ["b", "s"], ["m"]), oh.make_node("Add", ["m", "b"], ["r"])]
    assert heads(*bend, mean, output="y", shape=[1, 5]) == (["y"], {})
    last = oh.make_node("Transpose", ["b"], ["r"], perm=[0, 2, 3, 1])
    assert heads(last, oh.make_node("ReduceMean", ["r", "places"], ["y"], keepdims=0), output="y", shape=[1, 5]) == (["y"], {})
    for node in (
        oh.make_node("ReduceMean", ["b", "places"], ["y"], keepdims=0),
        oh.make_node("AveragePool", ["b"], ["y"], kernel_shape=[4, 4]),
        oh.make_node("Softmax", ["b"], ["y"], axis=1),
    ):
        names, kept = heads(node, output="y", shape=None)
        assert names == ["b"]
        assert list(kept) == ["b"]
    names, kept = heads(relu, output="r", shape=[1, 5, 8, 8])
    assert names == ["r"]
    assert list(kept) == ["b"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"task": "classification", "data": {"validation": {"format": "identities", "path": "v"}}},
            "has identities, which no output",
        ),
        ({"validate": {"gates": {"auc_drop": 0.1}}, "task": "classification"}, "auc_drop: is of `task: embedding`"),
        ({"input": {"size": [112, 112], "resize": {"rule": "similarity"}}}, "needs `template`: arcface, arcface_112x96"),
        (
            {"input": {"size": [112, 96], "resize": {"rule": "similarity", "template": "arcface"}}},
            "`template: arcface_112x96` does",
        ),
        ({"input": {"size": [64, 50], "resize": {"rule": "similarity", "template": "arcface"}}}, "give the points themselves"),
        ({"input": {"size": [9, 9], "resize": {"rule": "similarity", "template": [[1, 1], [1, 1]]}}}, "takes two or more"),
        (
            {
                "input": {
                    "size": [112, 112],
                    "resize": {"rule": "similarity", "template": "arcface", "points": [[0.1, 0.2], [0.5, 0.5]]},
                }
            },
            "`points` has 2 points, `template` 5",
        ),
        (
            {
                "input": {
                    "size": [9, 9],
                    "resize": {"rule": "similarity", "template": [[1, 1], [5, 1]], "points": [[30, 40], [0, 0]]},
                }
            },
            "shares of the image's width and height",
        ),
        (
            {"input": {"size": [9, 9], "resize": {"rule": "stretch", "template": "arcface"}}},
            "`template` belongs to rule 'similarity'",
        ),
        (
            {"input": {"size": [112, 112], "resize": {"rule": "similarity", "template": "arcface"}}},
            "name their file in `landmarks`",
        ),
        (
            {"data": {"calibration": {"format": "folder", "path": "c", "landmarks": "l.csv"}}},
            "data.calibration.landmarks: nothing uses them",
        ),
        (
            {
                "task": "detection",
                "input": {
                    "size": [9, 9],
                    "resize": {"rule": "similarity", "template": [[1, 1], [5, 1]], "points": [[0, 0], [1, 1]]},
                },
            },
            "no way back for boxes and masks",
        ),
    ],
)
def test_mistakes_in_params_are_named(tmp_path, changes, message):
    import yaml
    from conftest import project_params

    from octavo.params import load

    data = {"calibration": {"format": "folder", "path": "c"}, "validation": {"format": "folder", "path": "v"}}
    blocks = {"task": "embedding", **changes, "data": data | changes.get("data", {})}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(project_params(**blocks)))
    with pytest.raises(ParamsError) as raised:
        load(tmp_path / "params.yaml")
    assert message in str(raised.value)
