"""Where a detector's objects are, places of the tensors before its heads count; elsewhere they do not."""

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from conftest import small_network
from graphs import inferred, network, statistics_of
from grid_detector import grid_detector
from hypothesis import given, settings
from hypothesis import strategies as st
from test_int8_objects import IMAGES, SIDE, scene

from octavo.calibration.collector import collect
from octavo.graph.prepared import prepared
from octavo.params.grammar import Detection, Int8
from octavo.quantization.int8 import Images, quantize_static
from octavo.quantization.int8.draft import Draft
from octavo.quantization.int8.noise.head_judge import HeadJudge
from octavo.quantization.int8.noise.objects import SURE, judge_of
from octavo.quantization.int8.noise.places import Places
from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.numbers.shifts import before_heads, own_shifts, rounding_shifts
from octavo.quantization.int8.structure.heads import heads_of
from octavo.quantization.int8.structure.units import units_of
from octavo.runtime.session import Session
from octavo.tasks.detection import row_reader


def sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))


class TestPlaces:
    @given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=3), st.integers(1, 3), st.integers(0, 99))
    @settings(max_examples=30)
    def test_of_any_levels_and_anchors_in_any_order_each_row_is_found(self, sizes, anchors, seed):
        """Boxes and scores in heads of their own; rows are shuffled, so that nothing but their values tells."""
        shapes = {}
        for level, (height, width) in enumerate(sizes):
            shapes |= {f"boxes{level}": (1, 4 * anchors, height, width), f"scores{level}": (1, 3 * anchors, height, width)}
        order = np.random.default_rng(seed).permutation(sum(anchors * height * width for height, width in sizes))
        places = np.concatenate([np.tile(np.arange(height * width), anchors) for height, width in sizes])[order]
        levels = np.concatenate([np.full(anchors * height * width, level) for level, (height, width) in enumerate(sizes)])[order]

        def read(heads):
            def rows(name: str, columns: int) -> np.ndarray:
                parts = [heads[f"{name}{level}"].reshape(anchors, columns, -1).transpose(0, 2, 1) for level in range(len(sizes))]
                return np.concatenate([part.reshape(-1, columns) for part in parts])[order]

            return rows("boxes", 4), sigmoid(rows("scores", 3))

        found = Places.of(shapes, read)
        assert set(found.rows) == set(shapes)
        for name, rows in found.rows.items():
            assert np.array_equal(rows, np.where(levels == int(name[-1]), places, -1))
        scores = np.random.default_rng(seed).random(len(places))
        weights = found.weights([scores])
        for name, (height, width) in found.shapes.items():
            assert weights[name][0].shape == (1, 1, height, width)
            assert weights[name][0].sum() == pytest.approx(scores[levels == int(name[-1])].sum(), rel=1e-5)

    @pytest.mark.parametrize("mixes", ["neighbours", "all", "none can be read", "no images"])
    def test_nothing_is_told_where_rows_do_not_each_come_from_one_place(self, mixes):
        def read(heads):
            rows = next(iter(heads.values())).reshape(5, -1).T
            if mixes == "neighbours":
                rows = rows + np.roll(rows, 1, axis=0)
            elif mixes == "all":
                rows = rows - rows.max(axis=0)
            return None if mixes == "none can be read" else (rows[:, :4], sigmoid(rows[:, 4:]))

        shape = (1, 5, 36) if mixes == "no images" else (1, 5, 6, 6)
        assert Places.of({"head": shape}, read).weights([np.ones(36)]) == {}


@pytest.fixture(scope="module")
def model() -> ir.Model:
    return prepared(inferred(grid_detector(size=SIDE)), 0)


def test_a_detector_s_judge_tells_where_its_objects_are(model):
    feeds = [{"image": scene(seed)} for seed in range(IMAGES)]
    heads = heads_of(units_of(model))
    judge = judge_of(model, heads, feeds, row_reader(Detection(name="detection"), "image"))
    found = judge.attended()
    assert found.keys() == set(judge.heads)
    session = Session(ir.to_proto(model).SerializeToString())
    reader = row_reader(Detection(name="detection"), "image")
    for place, each in enumerate(feeds):
        best = reader(session.run(each), each)[1].max(axis=1)
        sums = {name: float(weights[place].sum()) for name, weights in found.items()}
        # A head of scores and one of distances for each of the sizes: each row has its place in two heads.
        assert sum(sums.values()) == pytest.approx(2 * best[best > SURE].sum(), rel=1e-4)
    # Others of the same judge, on other images.
    others = judge.on(model, feeds[:2]).attended()
    assert all(np.array_equal(others[name][1], found[name][1]) and len(others[name]) == 2 for name in found)
    assert HeadJudge(model, judge.heads, feeds).attended() == {}


def test_a_network_without_objects_is_not_run_to_learn_where_they_are(monkeypatch):
    """FP32 on eight images: 7 of SSD300's processor seconds."""
    model, asked, on = inferred(small_network()), [], HeadJudge.on
    monkeypatch.setattr(HeadJudge, "on", lambda self, model, samples: asked.extend(samples) or on(self, model, samples))
    generator = np.random.default_rng(0)
    feeds = [{"image": generator.standard_normal((1, 3, 32, 32)).astype(np.float32)} for _ in range(6)]
    statistics = collect(model, lambda: [(str(place), dict(each)) for place, each in enumerate(feeds[:4])])
    quantize_static(model, statistics, Int8(method="minmax", repair=False), Images(feeds[:4], feeds[4:]))
    # Single roundings are measured on held-out images.
    assert asked
    assert not any(one is other for one in asked for other in feeds[:4])


def test_of_images_of_several_sizes_no_place_is_told():
    """Rows stand elsewhere on each; the judge itself does not mind."""
    model = prepared(inferred(grid_detector()), 0)
    feeds = [{"image": scene(seed)} for seed in range(6)]
    reader = row_reader(Detection(name="detection"), "image")
    judge = judge_of(model, heads_of(units_of(model)), feeds, reader)
    small = [{"image": np.ascontiguousarray(each["image"][:, :, : SIDE // 2])} for each in feeds]
    assert judge.attended().keys() == set(judge.heads)
    other = judge.on(model, small).attended()
    assert {weights[0].shape[2] * 2 for weights in other.values()} == {weights[0].shape[2] for weights in judge.attended().values()}
    assert judge.on(model, [*small, *feeds]).attended() == {}


def two_heads(also: str = "") -> ir.Model:
    """Two 1x1 heads on one tensor, and one of 3x3 in steps of two."""
    random = np.random.default_rng(3)
    nodes = [
        oh.make_node("Conv", ["x", "w0"], ["y"], "stem", pads=[1, 1, 1, 1]),
        oh.make_node("Conv", ["y", "w1"], ["a"], "scores"),
        oh.make_node("Conv", ["y", "w2"], ["b"], "boxes"),
    ]
    tensors = {
        "w0": random.standard_normal((6, 3, 3, 3)).astype(np.float32),
        "w1": random.standard_normal((2, 6, 1, 1)).astype(np.float32),
        "w2": random.standard_normal((4, 6, 1, 1)).astype(np.float32),
    }
    outputs = ["a", "b"]
    if also:
        nodes.append(oh.make_node("Conv", ["y", "w3"], ["c"], "also", strides=[2, 2]))
        tensors["w3"] = random.standard_normal((4, 6, 3, 3)).astype(np.float32)
        outputs.append("c")
    return network(nodes, tensors, outputs, inputs={"x": [1, 3, 8, 8]})


SEEN = {name: [np.full((1, 1, 8, 8), 0.2, np.float32), np.zeros((1, 1, 8, 8), np.float32)] for name in "ab"}


def test_what_heads_alone_read_counts_as_they_do_together():
    found = before_heads(units_of(two_heads()), SEEN)
    assert found.keys() == {"y"}
    assert np.allclose(found["y"][0], 0.4)
    assert not found["y"][1].any()


@pytest.mark.parametrize("case", ["another reader", "another size", "too little", "one head of two"])
def test_elsewhere_all_places_count_alike(case):
    units = units_of(two_heads("reader" if case in ("another reader", "another size") else ""))
    seen = dict(SEEN)
    if case == "another size":
        seen = {"c": [np.ones((1, 1, 3, 3), np.float32)] * 2}
    elif case == "too little":
        seen = {name: [each * np.float32(0.1) for each in weights] for name, weights in SEEN.items()}
    elif case == "one head of two":
        del seen["b"]
    assert before_heads(units, seen) == {}


def test_shifts_are_means_over_the_places_that_count():
    """Values that round up on one half of the image and down on the other."""
    model = two_heads()
    units = units_of(model)
    generator = np.random.default_rng(5)
    feeds = [{"x": generator.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(2)]
    scales = {"y": QParams(np.float32(2.5), np.uint8(128))}
    weights = [generator.random((1, 1, 8, 8)).astype(np.float32) for _ in feeds]
    session = Session(ir.to_proto(model_with(model, "y")).SerializeToString())
    values = [session.run(each)["y"].astype(np.float64) for each in feeds]
    off = [np.rint(value / 2.5) * 2.5 - value for value in values]
    total = sum(float(weight.sum()) for weight in weights)
    wanted = sum((each * weight).sum(axis=(0, 2, 3)) for each, weight in zip(off, weights, strict=True)) / total
    alike = np.mean([each.mean(axis=(0, 2, 3)) for each in off], axis=0)
    assert np.abs(wanted - alike).max() > 0.02, "or nothing is tested"
    attended = {"y": weights}
    assert np.allclose(rounding_shifts(model, units, scales, feeds, attended=attended)["y"], wanted, atol=1e-5)
    assert np.allclose(rounding_shifts(model, units, scales, feeds)["y"], alike, atol=1e-5)
    assert np.allclose(own_shifts(model, units, scales, feeds, attended)["y"].shift.reshape(-1), wanted, atol=1e-5)
    # All objects on a third image, which is not looked at.
    elsewhere = {"y": [*(np.zeros_like(weight) for weight in weights), weights[0]]}
    assert np.allclose(rounding_shifts(model, units, scales, feeds, attended=elsewhere)["y"], alike, atol=1e-5)


def model_with(model: ir.Model, name: str) -> ir.Model:
    copy = ir.from_proto(ir.to_proto(model))
    copy.graph.outputs.clear()
    copy.graph.outputs.append(next(value for node in copy.graph for value in node.outputs if value.name == name))
    return copy


def test_a_draft_takes_back_what_shifts_where_objects_are():
    model = two_heads()
    generator = np.random.default_rng(6)
    feeds = [{"x": generator.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(8)]
    weights = [(generator.random((1, 1, 8, 8)) > 0.8).astype(np.float32) for _ in feeds]
    ready = prepared(model, 0)
    statistics = statistics_of(ready, feeds)
    plans = [
        Draft(ready, statistics, Int8(method="peaks"), {}, feeds, attended=attended).plan()
        for attended in (None, dict.fromkeys("ab", weights))
    ]
    assert plans[0].taken.keys() == plans[1].taken.keys() >= {"scores", "boxes"}
    assert np.abs(plans[0].taken["scores"] - plans[1].taken["scores"]).max() > 0
    assert np.array_equal(plans[0].taken["stem"], plans[1].taken["stem"]), "the image's own rounding counts everywhere"
