"""Statistics merge exactly whatever the order and partition; ranges do what their methods promise."""

import itertools
import math
from functools import partial

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir
import pytest
from conftest import small_network
from graphs import inferred
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from octavo.calibration.choice import chosen_ranges
from octavo.calibration.collector import GROUP_BYTES, collect
from octavo.calibration.histogram import BINS, COUNTED, add_counts, bin_edges, bin_middles, stride
from octavo.calibration.observed import observed, quantizable
from octavo.calibration.probes import Probes
from octavo.calibration.ranges import METHODS, tensor_range
from octavo.calibration.statistics import Statistics, TensorStatistics
from octavo.errors import CalibrationError, ModelRunError, OutputError
from octavo.params.grammar import Int8
from octavo.runtime.tensors import float_activations, group_names, open_groups, read_tensors

FINITE = st.floats(-(2.0**40), 2.0**40, width=32)


def tensor(*images: np.ndarray) -> TensorStatistics:
    statistics = TensorStatistics()
    for image in images:
        statistics.update("t", np.asarray(image, np.float32), "image")
    return statistics


def as_bytes(statistics: Statistics, folder) -> bytes:
    statistics.save(folder)
    return (folder / "statistics.npz").read_bytes() + (folder / "statistics.json").read_bytes()


def bin_counts(values: np.ndarray) -> np.ndarray:
    """Bin b holds the values whose upper 16 bits are b."""
    counts = np.zeros(BINS, np.int64)
    add_counts(values, counts)
    return counts


class TestHistogram:
    @given(hnp.arrays(np.float32, st.integers(1, 50), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
    @settings(deadline=None)
    def test_every_value_lies_between_its_bin_s_edges(self, values):
        for value in values:
            (number,) = np.flatnonzero(bin_counts(np.array([value])))
            low, high = bin_edges(np.array([number]))
            assert low[0] <= value <= high[0]
            assert low[0] <= bin_middles(np.array([number]))[0] <= high[0] or value == 0 or abs(value) < 1e-38

    def test_counts_add_up_and_zero_is_exact(self):
        values = np.random.default_rng(0).standard_normal((3, 5, 7)).astype(np.float32)
        counts = bin_counts(values)
        assert counts.sum() == values.size
        assert len(counts) == BINS
        assert bin_middles(np.flatnonzero(bin_counts(np.zeros(3, np.float32)))).tolist() == [0.0]

    def test_a_non_contiguous_view_counts_right(self):
        values = np.arange(24, dtype=np.float32).reshape(4, 6)
        assert np.array_equal(bin_counts(values[:, ::2]), bin_counts(values[:, ::2].copy()))


class TestLargeTensors:
    """Of a large tensor the histogram counts a part; everything else is of all values."""

    images = np.random.default_rng(6).standard_normal((3, 3, 80, 100)).astype(np.float32)

    @given(st.lists(st.integers(1, 700), min_size=1, max_size=3))
    @settings(deadline=None)
    def test_the_step_bounds_the_count_and_meets_every_column(self, shape):
        step = stride(tuple(shape))
        size = math.prod(shape)
        assert len(range(0, size, step)) <= COUNTED
        assert step == 1 or size > COUNTED
        # A row longer than one is met at each of its places where there are rows enough.
        row = next((length for length in reversed(shape) if length > 1), 1)
        assert size < row * step or len(np.unique(np.arange(0, size, step) % row)) == row

    def test_batch_and_order_do_not_show_and_the_part_is_bounded(self, tmp_path):
        single, batched = Statistics(), Statistics()
        for image in self.images[::-1]:
            single.update({"t": image[None]}, "i")
        batched.update({"t": self.images}, "i")
        assert as_bytes(single, tmp_path / "a") == as_bytes(batched, tmp_path / "b")
        counted = single.tensors["t"].counts.sum()
        assert counted == 3 * 24000 // 3, "a step of 2 would meet every other column only"
        assert single.tensors["t"].values == self.images.size

    @pytest.mark.parametrize("place", range(5))
    def test_extremes_and_means_see_a_value_that_is_not_counted(self, place):
        images = self.images[:1].copy()
        images.reshape(-1)[place] = 50
        statistics = tensor(images)
        assert statistics.high == statistics.channel_high[0] == 50
        assert np.allclose(statistics.means(), images.mean(axis=(0, 2, 3), dtype=np.float64), atol=1e-6)
        assert tensor_range(statistics, "percentile", percentile=100) == tensor_range(statistics, "minmax")
        images.reshape(-1)[place] = np.inf
        with pytest.raises(CalibrationError, match="tensor 't' holds NaN or infinite values"):
            tensor(images)

    @pytest.mark.parametrize("method", METHODS)
    def test_ranges_are_those_of_all_values(self, method):
        whole = TensorStatistics(float(self.images.min()), float(self.images.max()), bin_counts(self.images), self.images.size)
        low, high = tensor_range(tensor(*[image[None] for image in self.images]), method)
        expected = tensor_range(whole, method)
        assert np.allclose([low, high], expected, atol=0.06 * (expected[1] - expected[0]))


class TestMerge:
    @given(
        images=st.lists(hnp.arrays(np.float32, (2, 3, 4), elements=FINITE), min_size=1, max_size=8),
        order=st.randoms(use_true_random=False),
        data=st.data(),
    )
    @settings(max_examples=50, deadline=None)
    def test_any_partition_order_and_batch_gives_the_same_bytes(self, images, order, data, tmp_path_factory):
        folder = tmp_path_factory.mktemp("s")
        whole = Statistics(origin={"model": "m"})
        for image in images:
            whole.update({"t": image}, "i")
        shuffled = list(images)
        order.shuffle(shuffled)
        merged = Statistics(origin={"model": "m"})
        while shuffled:
            taken = data.draw(st.integers(1, len(shuffled)))
            part = Statistics(origin={"model": "m"})
            if data.draw(st.booleans()):
                part.update({"t": np.concatenate(shuffled[:taken])}, "i")
            else:
                for image in shuffled[:taken]:
                    part.update({"t": image}, "i")
            shuffled = shuffled[taken:]
            merged = part.merge(merged) if data.draw(st.booleans()) else merged.merge(part)
        assert as_bytes(whole, folder / "a") == as_bytes(merged, folder / "b")

    def test_means_extremes_and_counts_are_right(self):
        images = np.random.default_rng(1).standard_normal((5, 4, 6, 7)).astype(np.float32)
        statistics = tensor(*[image[None] for image in images])
        assert statistics.low == images.min()
        assert statistics.high == images.max()
        assert statistics.values == images.size
        assert np.allclose(statistics.means(), images.mean(axis=(0, 2, 3)), atol=1e-6)

    def test_the_channels_of_tokens_are_on_the_last_axis(self):
        tokens = np.random.default_rng(4).standard_normal((3, 7, 5)).astype(np.float32)
        statistics = TensorStatistics(axis=-1)
        for image in tokens:
            statistics.update("t", image[None], "image")
        assert np.allclose(statistics.means(), tokens.mean(axis=(0, 1)), atol=1e-6)
        assert np.array_equal(statistics.channel_low, tokens.min(axis=(0, 1)))
        assert np.array_equal(statistics.channel_high, tokens.max(axis=(0, 1)))

    def test_values_too_large_for_sums_have_a_range_and_no_means(self):
        for shape in ((1, 2, 2), (1, 4)):
            statistics = tensor(np.full(shape, -3e38), np.ones(shape))
            assert (statistics.low, statistics.high) == (np.float32(-3e38), 1)
            assert statistics.means() is statistics.channel_low is None

    def test_shapes_that_change_size_keep_means_shapes_that_change_channels_lose_them(self):
        grown = tensor(np.ones((1, 2, 3, 3)), 3 * np.ones((1, 2, 5, 5)))
        assert np.allclose(grown.means(), (9 + 75) / 34)
        mixed = tensor(np.ones((1, 2, 3)), np.ones((1, 4, 3)))
        assert mixed.means() is None
        assert mixed.values == 18
        assert tensor(np.ones((1, 4, 3))).merge(mixed).means() is None

    def test_empty_and_scalar_tensors(self):
        assert tensor(np.zeros((0, 4))).values == 0
        assert tensor(np.float32(3)).high == 3
        assert tensor(np.zeros((0, 4))).merge(tensor(np.ones((2, 4)))).means().tolist() == [1, 1, 1, 1]
        with pytest.raises(CalibrationError, match="was empty on every"):
            tensor_range(tensor(np.zeros((0, 4))), "minmax")

    def test_nan_is_named(self):
        with pytest.raises(CalibrationError, match="tensor 'conv1' holds NaN or infinite values on cat.jpg"):
            Statistics().update({"conv1": np.array([[1, np.nan]], np.float32)}, "cat.jpg")


class TestSaving:
    def test_what_is_saved_is_what_is_loaded(self, tmp_path):
        statistics = Statistics(origin={"model": "a", "samples": 3})
        statistics.update({"x": np.random.default_rng(0).standard_normal((1, 3, 8)).astype(np.float32), "s": np.float32(2)}, "i")
        statistics.save(tmp_path / "s")
        loaded = Statistics.load(tmp_path / "s")
        assert loaded.origin == statistics.origin
        for name, expected in statistics.tensors.items():
            got = loaded.tensors[name]
            assert (got.low, got.high, got.values) == (expected.low, expected.high, expected.values)
            assert np.array_equal(got.counts, expected.counts)
            for kind in ("channel_low", "channel_high"):
                assert np.array_equal(getattr(got, kind), getattr(expected, kind)) or getattr(expected, kind) is None
            assert np.array_equal(got.means(), expected.means()) or expected.means() is got.means() is None
        assert as_bytes(loaded, tmp_path / "t") == as_bytes(statistics, tmp_path / "u")

    def test_missing_damaged_and_foreign_statistics(self, tmp_path):
        with pytest.raises(CalibrationError, match=r"has no statistics.*\n.*run the calibrate stage"):
            Statistics.load(tmp_path / "none")
        statistics = Statistics(origin={"model": "a" * 64})
        statistics.update({"x": np.ones((1, 2), np.float32)}, "i")
        statistics.save(tmp_path / "s")
        statistics.require({"model": "a" * 64}, "there")
        with pytest.raises(CalibrationError, match="there was made for another model"):
            statistics.require({"model": "b" * 64}, "there")
        archive = tmp_path / "s/statistics.npz"
        archive.write_bytes(archive.read_bytes()[:100])
        with pytest.raises(CalibrationError, match="damaged"):
            Statistics.load(tmp_path / "s")

    def test_no_byte_that_changes_ends_in_anything_but_that_error(self, tmp_path):
        statistics = Statistics(origin={"model": "a"})
        statistics.update({"x": np.arange(64, dtype=np.float32).reshape(1, 2, 32)}, "i")
        statistics.save(tmp_path / "s")
        archive = tmp_path / "s/statistics.npz"
        whole, kinds = archive.read_bytes(), set()
        # A zip's headers hold the method of compression and flags; what lies between is guarded by checksums.
        for place in range(0, len(whole), 7):
            archive.write_bytes(whole[:place] + bytes([whole[place] ^ 0x29]) + whole[place + 1 :])
            try:
                Statistics.load(tmp_path / "s")
            except CalibrationError as error:
                kinds.add(type(error.__cause__))
        assert len(kinds) > 3, "they fail in several ways"
        archive.write_bytes(whole)
        (tmp_path / "s/statistics.json").write_text("[]")
        with pytest.raises(CalibrationError, match="damaged"):
            Statistics.load(tmp_path / "s")

    def test_statistics_of_other_images_or_of_none_are_refused(self):
        statistics = Statistics(origin={"images": "list", "files": [["a.png", "1"]], "held_out": [["b.png", "2"]]})
        statistics.require_images("list", ["2"], "there")
        with pytest.raises(CalibrationError, match="there was made from other images"):
            statistics.require_images("another", ["2"], "there")
        with pytest.raises(CalibrationError, match="there leaves out other images"):
            statistics.require_images("list", ["1", "2"], "there")
        for origin in ({}, {"held_out": None}, {"held_out": [["a"]]}):
            with pytest.raises(CalibrationError, match="no list 'held_out' of names and hashes"):
                Statistics(origin=origin).files("held_out")

    def test_statistics_that_cannot_be_written(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(OutputError, match="could not be written"):
            Statistics().save(tmp_path / "file/s")


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-np.clip(x, -80, 80)))


class TestRanges:
    normal = np.random.default_rng(2).standard_normal((1, 4, 64, 64)).astype(np.float32)

    @pytest.mark.parametrize("method", METHODS)
    @given(values=hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-1e6, 1e6, width=32)))
    @settings(max_examples=40, deadline=None)
    def test_a_range_holds_zero_and_stays_within_the_extremes(self, method, values):
        low, high = tensor_range(tensor(values), method)
        assert min(values.min(), 0) <= low <= 0 <= high <= max(values.max(), 0)
        low, high = tensor_range(tensor(values), method, symmetric=True)
        assert low == -high

    def test_minmax_is_exact(self):
        assert tensor_range(tensor(self.normal), "minmax") == (float(self.normal.min()), float(self.normal.max()))

    @pytest.mark.parametrize("share", [90, 99, 99.9])
    def test_percentile_covers_its_share_within_a_bin(self, share):
        low, high = tensor_range(tensor(self.normal), "percentile", percentile=share)
        expected = np.percentile(self.normal, [(100 - share) / 2, 100 - (100 - share) / 2])
        assert np.allclose([low, high], expected, rtol=0.01)
        assert tensor_range(tensor(self.normal), "percentile", percentile=100) == tensor_range(tensor(self.normal), "minmax")

    @pytest.mark.parametrize("method", ["percentile", "entropy", "mse"])
    def test_a_long_tail_is_cut_off(self, method):
        # One outlier in 400,000: its clipping costs less than the rounding of all others over its range.
        values = np.append(np.random.default_rng(3).standard_normal(400_000), 20).astype(np.float32)
        low, high = tensor_range(tensor(values), method)
        assert 2 < high < 15
        assert low < -2

    @pytest.mark.parametrize("draw", ["standard_t", "laplace", "exponential"])
    def test_mse_is_the_best_of_a_dense_search(self, draw):
        generator = np.random.default_rng(3)
        values = (generator.standard_t(3, 20000) if draw == "standard_t" else getattr(generator, draw)(size=20000)).astype(
            np.float32
        )

        def error(low: float, high: float) -> float:
            scale = (high - low) / 255
            zero = round(-low / scale)
            return float((((np.clip(np.rint(values / scale) + zero, 0, 255) - zero) * scale - values) ** 2).mean())

        statistics = tensor(values)
        best = error(*tensor_range(statistics, "mse"))
        bottom = min(float(values.min()), 0.0)
        dense = [error(bottom * a, values.max() * b) for a in np.linspace(0.2, 1, 25) for b in np.linspace(0.2, 1, 25)]
        assert best <= 1.03 * min(dense)
        assert best <= error(*tensor_range(statistics, "minmax"))

    def test_what_peaks_cut_off_below_silu_does_not_add_up(self):
        """64 channels that fall silent together: their sum, as the next layer makes it, errs less than by least squares."""
        generator = np.random.default_rng(3)
        values = (generator.normal(-2, 1.5, (4000, 64)) + generator.normal(0, 3, (4000, 1))).astype(np.float32)
        strong = generator.random(values.shape) < 0.02
        values[strong] = generator.normal(4, 2, int(strong.sum()))
        statistics, low, high = tensor(values), {}, {}
        for method in ("mse", "peaks"):
            low[method], high[method] = tensor_range(statistics, method, behind=silu)
        assert high["peaks"] == values.max() >= high["mse"]
        assert values.min() <= low["peaks"] < low["mse"] < 0

        def error_of_sums(low: float, high: float) -> float:
            scale = (high - low) / 255
            rounded = np.clip(np.rint(values / scale), np.rint(low / scale), np.rint(high / scale)) * scale
            apart = (silu(rounded) - silu(values)).sum(axis=1)
            return float(apart.var())

        assert error_of_sums(low["peaks"], high["peaks"]) < 0.6 * error_of_sums(low["mse"], high["peaks"])

    def test_peaks_cut_as_mse_does_where_values_below_keep_their_slope(self):
        def leaky(x: np.ndarray) -> np.ndarray:
            return np.where(x < 0, 0.1 * x, x)

        statistics = tensor(self.normal)
        assert tensor_range(statistics, "peaks", behind=leaky)[0] == tensor_range(statistics, "mse", behind=leaky)[0]

    @pytest.mark.parametrize("draw", ["laplace", "exponential", "standard_cauchy"])
    def test_entropy_is_the_least_divergence_of_the_published_method(self, draw):
        """Against Migacz's pseudocode on the values' own histogram of equal bins; outliers are cut, the bulk is kept."""
        values = getattr(np.random.default_rng(8), draw)(size=60000).astype(np.float32)
        values = np.append(values, np.abs(values).max() * 8).astype(np.float32)
        statistics = tensor(values)
        high = tensor_range(statistics, "entropy")[1]
        assert 0 < high < values.max(), "ONNX Runtime's defaults leave the extremes as they are"
        top, resolution = float(max(-values.min(), values.max())), 2048
        levels = 256 if values.min() >= 0 else 128
        histogram = np.histogram(np.abs(values[values != 0]), resolution, (0, top))[0].tolist()
        divergences = {stop: self.divergence(histogram, stop, levels) for stop in range(levels, resolution + 1, levels // 8)}
        assert high == pytest.approx(top * min(divergences, key=divergences.get) / resolution, rel=1e-6)

    @staticmethod
    def divergence(histogram: list[int], stop: int, levels: int) -> float:
        reference = [float(count) for count in histogram[:stop]]
        reference[-1] += sum(histogram[stop:])
        groups: dict[int, list[int]] = {}
        for place in range(stop):
            groups.setdefault(place * levels // stop, []).append(place)
        quantized = [0.0] * stop
        for places in groups.values():
            filled = [place for place in places if histogram[place]]
            for place in filled:
                quantized[place] = sum(histogram[place] for place in filled) / len(filled)
        p, q = sum(reference), sum(quantized)
        if not q:
            return math.inf
        return sum(
            one / p * math.log(one / p / (other / q or 1e-9)) for one, other in zip(reference, quantized, strict=True) if one
        )

    def test_constant_tensors(self):
        for method in METHODS:
            assert tensor_range(tensor(np.zeros(10)), method) == (0, 0)
            low, high = tensor_range(tensor(np.full(10, 5.0)), method)
            assert low == 0
            assert high == pytest.approx(5, rel=0.01)


class TestChoice:
    @pytest.fixture(scope="class")
    def statistics(self) -> Statistics:
        return collect(inferred(small_network()), feeds(3))

    def test_one_method_for_all_and_a_choice_for_some(self, statistics):
        plain = chosen_ranges(statistics, Int8(method="minmax"))
        assert plain == {name: tensor_range(tensor, "minmax") for name, tensor in statistics.tensors.items()}
        recipe = Int8(
            method="minmax",
            percentile=60,
            ranges={"po*": {"method": "percentile"}, "sum": [-1, 2], "image": {"method": "percentile", "percentile": 90}},
        )
        chosen = chosen_ranges(statistics, recipe)
        for name in ("point", "pooled"):
            assert chosen[name] == tensor_range(statistics.tensors[name], "percentile", percentile=60) != plain[name]
        assert chosen["image"] == tensor_range(statistics.tensors["image"], "percentile", percentile=90)
        assert chosen["sum"] == (-1, 2)
        assert chosen["logits"] == plain["logits"]
        assert list(chosen_ranges(statistics, recipe, ["sum", "unseen"])) == ["sum"]

    def test_a_name_goes_before_a_pattern_and_holds_for_what_shares_its_q(self, statistics):
        chosen = chosen_ranges(statistics, Int8(method="minmax", ranges={"*": {"method": "mse"}, "stem": [0, 3]}))
        assert chosen["stem"] == chosen["stem.relu"] == (0, 3), "the Conv's output and its ReLU's are one Q"
        assert chosen["point"] == tensor_range(statistics.tensors["point"], "mse")

    def test_fixed_bounds_hold_zero_and_mirror_where_the_recipe_does(self, statistics):
        assert chosen_ranges(statistics, Int8(ranges={"sum": [1, 2]}))["sum"] == (0, 2)
        assert chosen_ranges(statistics, Int8(symmetric=True, ranges={"sum": [-1, 2]}))["sum"] == (-2, 2)

    def test_a_pattern_that_matches_nothing_names_near_matches(self, statistics):
        with pytest.raises(CalibrationError, match=r"`int8.ranges` names 'pont'.*\n.*did you mean point"):
            chosen_ranges(statistics, Int8(ranges={"pont": [0, 1]}))
        with pytest.raises(CalibrationError, match=r"names 'xyz\*'.*\n.*named like .*image"):
            chosen_ranges(statistics, Int8(ranges={"xyz*": [0, 1]}))


def feeds(count: int, size: int = 32):
    generator = np.random.default_rng(5)
    images = [generator.standard_normal((1, 3, size, size)).astype(np.float32) for _ in range(count)]
    return lambda: ((f"image {place}", {"image": image}) for place, image in enumerate(images))


class TestObserved:
    """Which tensors are read, on small graphs: (nodes, read, aliases)."""

    weight = onh.from_array(np.ones((3, 3, 1, 1), np.float32), "w")

    @classmethod
    def graph(cls, *nodes: onnx.NodeProto, outputs: str = "y", weights: dict[str, np.ndarray] | None = None) -> ir.Model:
        image = oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 8, 8])
        ends = [oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs.split()]
        constants = [cls.weight, *(onh.from_array(value, name) for name, value in (weights or {}).items())]
        model = oh.make_model(
            oh.make_graph(list(nodes), "g", [image], ends, constants), opset_imports=[oh.make_opsetid("", 18)], ir_version=8
        )
        return inferred(model)

    def test_silu_and_prelu_need_all_their_tensors(self):
        silu = self.graph(
            oh.make_node("Conv", ["x", "w"], ["c"]),
            oh.make_node("Sigmoid", ["c"], ["s"]),
            oh.make_node("Mul", ["c", "s"], ["m"]),
            oh.make_node("PRelu", ["m", "slope"], ["y"]),
            weights={"slope": np.ones((3, 1, 1), np.float32)},
        )
        assert observed(silu).tensors == quantizable(silu) == ["x", "c", "s", "m", "y"]
        assert observed(silu).aliases == {}

    def test_relu_and_clip_fold_unless_something_else_reads_before_them(self):
        clip = [oh.make_node("Conv", ["x", "w"], ["c"]), oh.make_node("Clip", ["c", "low"], ["y"])]
        low = {"low": np.float32(0)}
        assert observed(self.graph(*clip, weights=low)).aliases == {"c": "y"}
        assert observed(self.graph(*clip, outputs="y c", weights=low)).aliases == {}
        assert observed(self.graph(*clip, oh.make_node("Conv", ["c", "w"], ["z"]), outputs="y z", weights=low)).aliases == {}
        computed = self.graph(oh.make_node("ReduceMin", ["x"], ["low"], keepdims=0), *clip)
        assert "c" in observed(computed).tensors
        assert observed(self.graph(oh.make_node("Relu", ["x"], ["y"]))).tensors == ["x", "y"]

    def test_layout_is_an_alias_where_no_means_are_needed(self):
        shape = {"flat": np.array([1, 3, 64], np.int64), "square": np.array([1, 3, 8, 8], np.int64)}
        moved = self.graph(
            oh.make_node("Conv", ["x", "w"], ["c"]),
            oh.make_node("Reshape", ["c", "flat"], ["r"]),
            oh.make_node("Transpose", ["r"], ["t"], perm=[0, 2, 1]),
            oh.make_node("Softmax", ["t"], ["s"]),
            oh.make_node("Transpose", ["s"], ["u"], perm=[0, 2, 1]),
            oh.make_node("Reshape", ["u", "square"], ["v"]),
            oh.make_node("Conv", ["v", "w"], ["y"]),
            weights=shape,
        )
        assert observed(moved).tensors == ["x", "c", "s", "v", "y"]
        assert observed(moved).aliases == {"r": "c", "t": "c", "u": "s"}

    def test_tokens_have_their_channels_last_and_images_do_not(self):
        tokens = self.graph(
            oh.make_node("Conv", ["x", "w"], ["c"]),
            oh.make_node("Reshape", ["c", "flat"], ["r"]),
            oh.make_node("MatMul", ["r", "square"], ["m"]),
            oh.make_node("Add", ["m", "bias"], ["y"]),
            weights={
                "flat": np.array([1, 3, 64], np.int64),
                "square": np.ones((64, 64), np.float32),
                "bias": np.ones(64, np.float32),
            },
        )
        assert observed(tokens).tensors == ["x", "c", "r", "m", "y"]
        assert observed(tokens).axes == {"r": -1, "m": -1, "y": -1}

    def test_shape_arithmetic_and_weights_are_left_out(self):
        sized = self.graph(
            oh.make_node("Shape", ["x"], ["shape"]),
            oh.make_node("Cast", ["shape"], ["sizes"], to=onnx.TensorProto.FLOAT),
            oh.make_node("Mul", ["sizes", "two"], ["doubled"]),
            oh.make_node("Cast", ["doubled"], ["target"], to=onnx.TensorProto.INT64),
            oh.make_node("Resize", ["x", "", "", "target"], ["y"], mode="nearest"),
            weights={"two": np.float32(2)},
        )
        assert observed(sized).tensors == ["x", "y"]
        with pytest.raises(CalibrationError, match="no float32 tensor to calibrate"):
            observed(self.graph(oh.make_node("Exp", ["x"], ["e"]), oh.make_node("Log", ["e"], ["y"])))


class TestCollector:
    def test_the_image_pass_sees_every_activation_once(self):
        model = inferred(small_network())
        names = float_activations(model)
        assert names == "image stem stem.relu depth depth.relu6 point sum pooled logits".split()
        statistics = collect(model, feeds(3))
        assert set(statistics.tensors) == set(names), "what is not read is an alias"
        assert statistics.aliases == {"stem": "stem.relu", "depth": "depth.relu6"}
        assert tensor_range(statistics.tensors["stem"], "minmax") == tensor_range(statistics.tensors["stem.relu"], "minmax")
        assert statistics.tensors["stem"].means() is None
        assert statistics.tensors["image"].values == 3 * 3 * 32 * 32
        assert statistics.tensors["stem.relu"].low == 0
        assert statistics.tensors["depth.relu6"].high <= 6

    @pytest.fixture(scope="class")
    def at_once(self) -> tuple[ir.Model, Statistics]:
        """A model and its statistics of five images in one run on one thread."""
        model = inferred(small_network())
        return model, collect(model, feeds(5), lanes=1)

    @given(
        order=st.permutations(range(5)),
        cuts=st.sets(st.integers(1, 4)),
        merges=st.lists(st.booleans(), min_size=5, max_size=5),
        lanes=st.integers(1, 3),
    )
    @settings(max_examples=12, deadline=None)
    def test_order_batch_partition_and_lanes_do_not_show(self, *, order, cuts, merges, lanes, at_once, tmp_path_factory):
        """Images 0..4 in any order, cut into batches and into runs that are merged, on any number of threads."""
        folder = tmp_path_factory.mktemp("c")
        model, expected = at_once
        pictures = [feed["image"] for _, feed in feeds(5)()]
        pieces = np.split(np.array(order), sorted(cuts))
        runs: list[list[tuple[str, dict]]] = [[]]
        for piece, split in zip(pieces, merges, strict=False):
            runs[-1].append((str(piece), {"image": np.concatenate([pictures[place] for place in piece])}))
            if split:
                runs.append([])
        parts = [collect(model, lambda run=run: run, lanes=lanes) for run in runs if run]
        merged = parts[-1]
        for part in parts[:-1]:
            merged = merged.merge(part)
        assert as_bytes(merged, folder / "a") == as_bytes(expected, folder / "b")

    def test_where_an_image_begins_in_memory_does_not_show(self, tmp_path):
        """Images of an odd number of bytes: in a batch, or as views of a larger array, they do not begin as arrays of their own."""
        model = ir.from_onnx_text(
            """<ir_version: 9, opset_import: ["": 18]> g (float[n,3,33,17] x) => (float[n,1] y)
            <int64[2] axes = {2,3}, float[3,1] w = {1,2,3}> {
            m = ReduceMean<keepdims=0>(x, axes) r = Relu(m) y = MatMul(r, w) }"""
        )
        model = inferred(ir.to_proto(model))
        batch = np.random.default_rng(4).standard_normal((5, 3, 33, 17), np.float32)
        alone = [(str(place), {"x": image[None].copy()}) for place, image in enumerate(batch)]
        views = [(str(place), {"x": image[None]}) for place, image in enumerate(batch)]
        expected = as_bytes(collect(model, lambda: alone), tmp_path / "a")
        assert as_bytes(collect(model, lambda: [("all", {"x": batch})]), tmp_path / "b") == expected
        assert as_bytes(collect(model, lambda: views), tmp_path / "c") == expected

    def test_another_grouping_gives_the_same_up_to_rounding(self):
        model = inferred(small_network())
        whole, grouped = collect(model, feeds(4)), collect(model, feeds(4), group_bytes=1)
        assert whole.tensors.keys() == grouped.tensors.keys()
        for name, expected in whole.tensors.items():
            got = grouped.tensors[name]
            assert np.allclose([expected.low, expected.high], [got.low, got.high], atol=1e-5)
            assert got.values == expected.values

    @pytest.mark.parametrize("opset", [17, 18])
    @pytest.mark.parametrize("batch", [1, "n"])
    def test_what_is_reduced_in_the_graph_is_what_arrays_tell(self, opset, batch, monkeypatch, tmp_path):
        """Images and tokens with their channels last, some counted in part, in graphs of fixed and of open sizes."""
        random = np.random.default_rng(3)
        weights = {
            "w": random.standard_normal((5, 3, 3, 3)),
            "m": random.standard_normal((5, 7)),
            "flat": np.array([0, 5, -1], np.int64),
        }
        nodes = [
            oh.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
            oh.make_node("Reshape", ["c", "flat"], ["r"], "flatten"),
            oh.make_node("Transpose", ["r"], ["t"], "turn", perm=[0, 2, 1]),
            oh.make_node("MatMul", ["t", "m"], ["y"], "tokens"),
        ]

        def model(size: int | str) -> ir.Model:
            graph = oh.make_graph(
                nodes,
                "g",
                [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [batch, 3, size, size])],
                [oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
                [onh.from_array(v if v.dtype == np.int64 else v.astype(np.float32), name) for name, v in weights.items()],
            )
            return inferred(oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=8))

        images = [(str(place), {"x": random.standard_normal((1, 3, 70, 70)).astype(np.float32) - 0.1}) for place in range(3)]
        arrays: list[str] = []
        update = TensorStatistics.update

        def noted(self: TensorStatistics, name: str, *rest: object, **settings: object) -> None:
            arrays.append(name)
            update(self, name, *rest, **settings)

        monkeypatch.setattr(TensorStatistics, "update", noted)
        static = collect(model(70), lambda: images)
        assert set(arrays) == {"x"}, "inputs are there already; everything else is reduced in the graph"
        opened = collect(model("s"), lambda: images)
        assert set(arrays) == {"x"}, "sizes follow from the image's"
        assert as_bytes(opened, tmp_path / "a") == as_bytes(static, tmp_path / "b")
        monkeypatch.setattr(Probes, "_probed", lambda *_: None)
        dynamic = collect(model("s"), lambda: images)
        assert {"c", "y"} <= set(arrays)
        assert {"c", "t", "y"} <= static.tensors.keys()
        assert stride((5, 70, 70)) > 1
        for name, expected in dynamic.tensors.items():
            got = static.tensors[name]
            assert (got.low, got.high, got.values, got.axis) == (expected.low, expected.high, expected.values, expected.axis), name
            assert np.array_equal(got.counts, expected.counts), name
            if name in static.aliases:
                continue
            assert np.array_equal(got.channel_low, expected.channel_low), name
            assert np.array_equal(got.channel_high, expected.channel_high), name
            assert np.allclose(got.means(), expected.means(), atol=1e-5), name

    @pytest.mark.parametrize("batch", [1, "n"])
    def test_windows_along_the_first_axis_are_of_one_image(self, batch, monkeypatch):
        """As Swin's are, whose attention was read as arrays: four times what calibrating another transformer takes."""
        random = np.random.default_rng(3)
        tensors = {
            "parts": np.array([0, 4, 8, 16, 8, 16], np.int64),
            "rows": np.array([-1, 256, 4], np.int64),
            "m": random.standard_normal((4, 6)).astype(np.float32),
        }
        nodes = [
            oh.make_node("Reshape", ["x", "parts"], ["p"], "parts"),
            oh.make_node("Transpose", ["p"], ["t"], "turn", perm=[0, 2, 4, 3, 5, 1]),
            oh.make_node("Reshape", ["t", "rows"], ["w"], "windows"),
            oh.make_node("MatMul", ["w", "m"], ["q"], "query"),
            oh.make_node("Softmax", ["q"], ["y"], "softmax"),
        ]
        graph = oh.make_graph(
            nodes,
            "g",
            [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [batch, 4, 128, 128])],
            [oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
            [onh.from_array(value, name) for name, value in tensors.items()],
        )
        model = inferred(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8))
        images = [(str(place), {"x": random.standard_normal((1, 4, 128, 128)).astype(np.float32)}) for place in range(3)]
        arrays: list[str] = []
        update = TensorStatistics.update
        monkeypatch.setattr(
            TensorStatistics, "update", lambda self, name, *rest, **more: (arrays.append(name), update(self, name, *rest, **more))
        )
        found = collect(model, lambda: images).tensors["q"]
        assert "q" not in arrays
        windows = np.concatenate(
            [each["x"].reshape(4, 8, 16, 8, 16).transpose(1, 3, 2, 4, 0).reshape(64, 256, 4) for _, each in images]
        )
        expected = windows @ tensors["m"]
        assert found.values == expected.size
        assert found.counts.sum() == 3 * -(-64 * 256 * 6 // stride((64, 256, 6)))
        assert np.allclose(found.channel_low, expected.min(axis=(0, 1)), atol=1e-5)
        assert np.allclose(found.channel_high, expected.max(axis=(0, 1)), atol=1e-5)
        assert np.allclose(found.means(), expected.mean(axis=(0, 1)), atol=1e-4)

    @given(sizes=st.lists(st.sampled_from([(8, 8), (6, 11), (90, 70)]), min_size=1, max_size=5), data=st.data())
    @settings(max_examples=15, deadline=None)
    def test_no_partition_of_images_of_several_sizes_shows(self, sizes, data, tmp_path_factory):
        """A graph of open sizes, part of which depends on values: as many rows as there are positive values."""
        folder = tmp_path_factory.mktemp("s")
        weight = onh.from_array(np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32), "w")
        nodes = [
            oh.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
            oh.make_node("Shape", ["c"], ["shape"], "shape", start=2),
            oh.make_node("Concat", ["lead", "shape"], ["target"], "target", axis=0),
            oh.make_node("Reshape", ["c", "target"], ["r"], "reshape"),
            oh.make_node("Relu", ["r"], ["y"], "relu"),
            oh.make_node("NonZero", ["y"], ["places"], "places"),
            oh.make_node("Transpose", ["places"], ["rows"], "rows", perm=[1, 0]),
            oh.make_node("GatherND", ["y", "rows"], ["z"], "z"),
        ]
        info = [
            oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
            for name, shape in (("x", ["n", 3, "h", "w"]), ("z", None))
        ]
        graph = oh.make_graph(nodes, "g", info[:1], info[1:], [weight, onh.from_array(np.array([1, 2, 2], np.int64), "lead")])
        model = inferred(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=9))
        random = np.random.default_rng(len(sizes))
        images = [(str(place), {"x": random.standard_normal((1, 3, *size), np.float32)}) for place, size in enumerate(sizes)]
        whole = collect(model, lambda: images)
        assert {"x", "c", "r", "y"} <= whole.tensors.keys()
        assert whole.tensors["c"].values == sum(4 * h * w for h, w in sizes)
        shuffled, parts = data.draw(st.permutations(images)), []
        while shuffled:
            taken = data.draw(st.integers(1, len(shuffled)))
            parts.append(collect(model, partial(list, shuffled[:taken])))
            shuffled = shuffled[taken:]
        merged = parts[0]
        for part in parts[1:]:
            merged = merged.merge(part)
        assert as_bytes(whole, folder / "a") == as_bytes(merged, folder / "b")

    @pytest.mark.parametrize("large", [1e10, 3e38])
    def test_channels_whose_sums_are_of_no_use_keep_the_range(self, large):
        """Sums beyond the limit, and beyond float32."""
        nodes = [oh.make_node("Relu", ["x"], ["a"], "a"), oh.make_node("Sigmoid", ["a"], ["y"], "b")]
        info = [oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 2, 4, 4]) for name in "xy"]
        graph = oh.make_graph(nodes, "g", info[:1], info[1:])
        model = inferred(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8))
        image = np.full((1, 2, 4, 4), large, np.float32)
        statistics = collect(model, lambda: [("0", {"x": image}), ("1", {"x": image * 0})])
        assert (statistics.tensors["a"].low, statistics.tensors["a"].high) == (0, np.float32(large))
        assert statistics.tensors["a"].means() is None
        assert statistics.tensors["y"].means() is not None

    def test_images_of_several_sizes_several_inputs_and_side_tensors(self):
        """A fully convolutional graph with a shared initializer, an int64 input and a constant branch."""
        weight = onh.from_array(np.full((3, 3, 1, 1), 0.5, np.float32), "w")
        nodes = [
            oh.make_node("Conv", ["image", "w"], ["a"], "first"),
            oh.make_node("Conv", ["a", "w"], ["b"], "second"),
            oh.make_node("Gather", ["table", "index"], ["picked"], "pick", axis=0),
            oh.make_node("Mul", ["b", "picked"], ["c"], "scale"),
            oh.make_node("Mul", ["c", "zero"], ["nothing"], "constant"),
            oh.make_node("Slice", ["c", "start", "start"], ["empty"], "cut"),
            oh.make_node("Relu", ["empty"], ["empty.relu"], "empty.relu"),
        ]
        outputs = [oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in ("nothing", "empty.relu")]
        inputs = [
            oh.make_tensor_value_info("image", onnx.TensorProto.FLOAT, ["n", 3, "h", "w"]),
            oh.make_tensor_value_info("index", onnx.TensorProto.INT64, [1]),
        ]
        constants = {"table": np.array([1, 2], np.float32), "zero": np.zeros((3, 1, 1), np.float32), "start": np.zeros(1, np.int64)}
        initializers = [weight, *(onh.from_array(value, name) for name, value in constants.items())]
        proto = oh.make_model(
            oh.make_graph(nodes, "g", inputs, outputs, initializers), opset_imports=[oh.make_opsetid("", 18)], ir_version=8
        )
        sizes = [(1, 4, 6), (2, 5, 3), (1, 4, 6)]
        generator = np.random.default_rng(0)
        samples = [
            (str(place), {"image": generator.random((n, 3, h, w), np.float32), "index": np.array([place % 2])})
            for place, (n, h, w) in enumerate(sizes)
        ]
        statistics = collect(inferred(proto), lambda: samples)
        assert statistics.tensors["image"].values == 3 * (24 + 30 + 24)
        images = np.concatenate([feed["image"].transpose(1, 0, 2, 3).reshape(3, -1) for _, feed in samples], axis=1)
        assert np.allclose(statistics.tensors["image"].means(), images.mean(axis=1), atol=1e-6)
        assert np.array_equal(statistics.tensors["image"].channel_low, images.min(axis=1))
        assert np.array_equal(statistics.tensors["image"].channel_high, images.max(axis=1))
        assert tensor_range(statistics.tensors["nothing"], "mse") == (0, 0)
        assert statistics.tensors["empty.relu"].values == 0
        assert (statistics.tensors["picked"].low, statistics.tensors["picked"].high) == (1, 2)
        assert "index" not in statistics.tensors

    def test_an_input_in_a_group_of_its_own_behind_others(self):
        model = inferred(small_network())
        expected = collect(model, feeds(2))
        found = collect(model, feeds(2), tensors=["stem.relu", "image"], group_bytes=1)
        assert found.tensors["image"].values == expected.tensors["image"].values
        assert found.tensors["stem.relu"].values == expected.tensors["stem.relu"].values

    def test_the_model_is_left_as_it_was(self):
        model = inferred(small_network())
        collect(model, feeds(1))
        assert [value.name for value in model.graph.outputs] == ["logits"]

    def test_of_a_graph_only_what_leads_to_the_group_runs(self):
        """`never` fails whenever it runs; what a subgraph reads from outside is no input of its node, and has to stay."""
        branches = [
            oh.make_graph([oh.make_node(op, ["pooled"], ["out"])], op, [], [oh.make_empty_tensor_value_info("out")])
            for op in ("Neg", "Abs")
        ]
        network = small_network()
        network.graph.initializer.append(onh.from_array(np.array(True), "yes"))
        network.graph.initializer.append(onh.from_array(np.array([7, 7], np.int64), "seven"))
        network.graph.node.extend(
            [
                oh.make_node("If", ["yes"], ["chosen"], "chosen", then_branch=branches[0], else_branch=branches[1]),
                oh.make_node("Reshape", ["chosen", "seven"], ["never"], "never"),
            ]
        )
        model = ir.from_proto(network)
        groups = [["stem.relu"], ["chosen"], ["stem.relu", "pooled"]]
        (_, sample), *_ = feeds(1)()
        found = [group.read(sample) for group in open_groups(model, groups)]
        assert [list(one) for one in found] == groups
        np.testing.assert_array_equal(found[1]["chosen"], -found[2]["pooled"])
        assert len(model.graph) == len(network.graph.node), "the model is left as it was"
        with pytest.raises(ModelRunError, match="does not run"):
            [group.read(sample) for group in open_groups(model, [["never"]])]

    @pytest.mark.parametrize("activation", ["Relu", "Sigmoid"])
    def test_what_a_conv_gives_a_sum_is_read_where_onnx_runtime_fuses_the_two(self, activation):
        """RepVGG's branches in D-FINE-N, of 21 channels: no multiple of what the blocked layout holds."""
        generator = np.random.default_rng(0)
        shapes = {"p": (21, 21, 3, 3), "q": (21, 21, 1, 1), "b": (21,)}
        text = f"""<ir_version: 9, opset_import: ["": 18]> g (float[1,21,8,8] x) => (float[1,21,8,8] y)
            <float[21,21,3,3] p, float[21,21,1,1] q, float[21] b>
            {{ [a] a = Conv<pads=[1,1,1,1]>(x, p, b) [c] c = Conv(x, q, b) [s] s = Add(a, c) [y] y = {activation}(s) }}"""
        model = ir.from_onnx_text(
            text,
            initializers=[
                ir.tensor(generator.standard_normal(shape).astype(np.float32), name=name) for name, shape in shapes.items()
            ],
        )
        sample = {"x": generator.standard_normal((1, 21, 8, 8)).astype(np.float32)}
        found, alone = (next(group.read(sample) for group in open_groups(model, [names])) for names in (["a", "y"], ["a"]))
        np.testing.assert_allclose(found["a"], alone["a"], rtol=1e-5)
        assert list(found) == ["a", "y"]

    @pytest.mark.parametrize(
        ("sizes", "count"),
        [
            (["boxes", "classes", 4], 1),
            ([None, None, None, 2], 1),
            (["batch", 64, "height", "width"], 4),
            (None, 4),
        ],
    )
    def test_boxes_whose_number_nobody_knows_are_read_in_one_run(self, sizes, count):
        """A tail of boxes is dozens of small tensors; maps of open height and width are large."""
        shape = ir.Shape(sizes) if sizes is not None else None
        values = [ir.Value(name=f"v{place}", shape=shape, type=ir.TensorType(ir.DataType.FLOAT)) for place in range(40)]
        nodes = [ir.node("Relu", [one], outputs=[other]) for one, other in itertools.pairwise(values)]
        graph = ir.Graph(values[:1], values[-1:], nodes=nodes, opset_imports={"": 18})
        assert len(group_names(ir.Model(graph, ir_version=9), [value.name for value in values], GROUP_BYTES)) == count

    def test_nan_no_images_and_unknown_tensors(self):
        broken = small_network(weights={"stem.bias": np.full(8, np.nan, np.float32)})
        with pytest.raises(CalibrationError, match="tensor 'stem.relu' holds NaN or infinite values on image 0"):
            collect(inferred(broken), feeds(1))
        model = inferred(small_network())
        with pytest.raises(CalibrationError, match="no image to calibrate on"):
            collect(model, lambda: [])
        with pytest.raises(ModelRunError, match="no tensor 'nothing'"):
            list(read_tensors(model, ["nothing"], feeds(1)))
        with pytest.raises(ModelRunError, match=r"does not run on image \[1, 3, 16, 16\] float32 of image 0: "):
            collect(model, feeds(1, size=16))

    def test_integer_side_tensors_are_left_out(self):
        graph = oh.make_graph(
            [oh.make_node("Shape", ["x"], ["shape"]), oh.make_node("Reshape", ["x", "shape"], ["y"])],
            "g",
            [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4])],
            [oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 4])],
        )
        model = onnx.shape_inference.infer_shapes(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8))
        assert float_activations(ir.from_proto(model)) == ["x", "y"]


class TestInfinity:
    """A tensor that is infinite for some images, as masked scores are: no layer reads or makes it."""

    nodes = [
        oh.make_node("Conv", ["x", "w"], ["c"], "c"),
        oh.make_node("Greater", ["c", "four"], ["far"], "far"),
        oh.make_node("Where", ["far", "mask", "c"], ["masked"], "masked"),
        oh.make_node("Sigmoid", ["masked"], ["s"], "s"),
        oh.make_node("Conv", ["s", "w"], ["y"], "y"),
    ]

    def model(self, mask: float, *, outputs: str = "y", size: int | str = 8) -> ir.Model:
        weights = {"four": np.float32(4), "mask": np.float32(mask)}
        model = ir.to_proto(TestObserved.graph(*self.nodes, outputs=outputs, weights=weights))
        for axis in (2, 3):
            model.graph.input[0].type.tensor_type.shape.dim[axis].Clear()
            if isinstance(size, int):
                model.graph.input[0].type.tensor_type.shape.dim[axis].dim_value = size
        return inferred(model)

    def images(self) -> list[tuple[str, dict[str, np.ndarray]]]:
        """The third of five has one value above four."""
        images = np.random.default_rng(3).uniform(-1, 1, (5, 1, 3, 8, 8)).astype(np.float32)
        images[2, 0, 0, 4, 4] = 9
        return [(str(place), {"x": image}) for place, image in enumerate(images)]

    @pytest.mark.parametrize("size", [8, "open"])
    def test_it_has_no_range_whatever_the_order_and_the_parts(self, size, tmp_path):
        model, images = self.model(-np.inf, size=size), self.images()
        whole = collect(model, lambda: images)
        assert [name for name, one in whole.tensors.items() if one.infinite] == ["masked"]
        assert not whole.tensors["masked"].values
        wanted = as_bytes(whole, tmp_path / "whole")
        for at, order in ((1, [2, 0, 1, 3, 4]), (3, [0, 1, 2, 3, 4]), (3, [4, 3, 1, 2, 0])):
            shown = [images[place] for place in order]
            parts = [collect(model, lambda part=part: part) for part in (shown[:at], shown[at:])]
            parts[1].save(tmp_path / "part")
            merged = parts[0].merge(Statistics.load(tmp_path / "part"))
            assert as_bytes(merged, tmp_path / "merged") == wanted
        assert not collect(model, lambda: images[:2]).tensors["masked"].infinite

    @pytest.mark.parametrize("size", [8, "open"])
    def test_it_is_an_error_at_a_layer_at_an_output_and_where_it_is_no_number(self, size):
        refused = "holds NaN or infinite values on 2"
        with pytest.raises(CalibrationError, match=f"'masked' {refused}"):
            collect(self.model(-np.inf, outputs="y masked", size=size), self.images)
        with pytest.raises(CalibrationError, match=f"'masked' {refused}"):
            collect(self.model(np.nan, size=size), self.images)
        # What is computed of a bad input is bad, too: the input is named.
        images = self.images()
        for bad in (np.inf, np.nan):
            images[2][1]["x"][0, 0, 4, 4] = bad
            with pytest.raises(CalibrationError, match=f"'x' {refused}"):
                collect(self.model(-np.inf, size=size), lambda: images)


def test_entropy_keeps_the_extremes_of_a_tensor_of_which_only_zeros_were_counted():
    tensor = TensorStatistics(low=-1.0, high=8.0, counts=bin_counts(np.zeros(64, np.float32)), values=1 << 20)
    assert tensor_range(tensor, "entropy") == (-1.0, 8.0)
