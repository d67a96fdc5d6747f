"""`effort: high`: rounding by a layer's inputs, ranges by the error at the heads, and that neither can make a network worse."""

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import graphs
import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from conftest import small_network
from graphs import inferred, network, run
from hypothesis import given, settings
from hypothesis import strategies as st
from test_int8_choice import CALIBRATION, HELD_OUT, he, statistics_of, uneven

from octavo.errors import QuantizationError
from octavo.graph.prepared import prepared
from octavo.graph.selection import held
from octavo.params.grammar import Int8
from octavo.quantization.choices import with_choices
from octavo.quantization.int8 import Images, quantize_static
from octavo.quantization.int8.draft import Draft
from octavo.quantization.int8.fitting import cuts, refinement, rounding
from octavo.quantization.int8.fitting.cuts import searched_scales
from octavo.quantization.int8.fitting.moments import Moments, as_rows, as_weights, moment_bytes, rows_of
from octavo.quantization.int8.fitting.refinement import refined_codes
from octavo.quantization.int8.fitting.rounding import DAMPING, cost_of, rounded_codes, scales_for
from octavo.quantization.int8.noise.head_judge import HeadJudge
from octavo.quantization.int8.noise.sensitivity import joint_noise
from octavo.quantization.int8.noise.worth import images_worth, roundings_worth
from octavo.runtime.blas import one_blas_thread
from octavo.runtime.tensors import open_groups

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 9), st.integers(1, 30))


def layer(seed: int, shape: tuple[int, int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """(weights, moments) of correlated inputs, of fewer rows than columns at times."""
    generator = np.random.default_rng(seed)
    groups, rows, columns, count = shape
    inputs = generator.standard_normal((groups, count, columns)) @ generator.standard_normal((groups, columns, columns))
    return generator.standard_normal((groups, rows, columns)), inputs.transpose(0, 2, 1) @ inputs / count


def damped(moments: np.ndarray) -> np.ndarray:
    size = moments.shape[1]
    return moments + DAMPING * np.trace(moments, axis1=1, axis2=2)[:, None, None] / size * np.eye(size)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), shape=SHAPES, limit=st.sampled_from([2, 7, 64, 127]))
def test_rounding_by_the_inputs_never_costs_more_than_rounding_to_nearest(seed, shape, limit):
    weights, moments = layer(seed, shape)
    scale = (np.abs(weights).max(axis=2) / limit).astype(np.float32)
    steps = scale.astype(np.float64)
    (codes,) = rounded_codes([(weights, scale)], moments, limit)
    assert np.array_equal(codes, np.rint(codes))
    assert np.abs(codes).max() <= limit
    nearest = np.clip(np.rint(weights / steps[..., None]), -limit, limit)
    noticed = damped(moments)
    before, after = cost_of(nearest, weights, steps, noticed), cost_of(codes, weights, steps, noticed)
    assert (after <= before * (1 + 1e-9) + 1e-12).all()
    assert np.array_equal(codes, *rounded_codes([(weights, scale)], moments, limit))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), shape=SHAPES, limit=st.sampled_from([2, 127]), block=st.sampled_from([1, 3, 64]))
def test_errors_are_passed_on_as_by_the_inverse_of_the_moments(seed, shape, limit, block):
    """GPTQ as its paper has it: each column's error over what is left of the inverse, times its row, off the columns behind."""
    weights, moments = layer(seed, shape)
    moments = damped(moments)
    scale = np.abs(weights).max(axis=2) / limit
    order = np.argsort(-np.diagonal(moments, axis1=1, axis2=2), axis=1, kind="stable")
    wanted = np.empty_like(weights)
    for group, turn in enumerate(order):
        left, columns = weights[group][:, turn].copy(), list(turn)
        for place, column in enumerate(columns):
            code = np.clip(np.rint(left[:, place] / scale[group]), -limit, limit)
            wanted[group][:, column] = code
            inverse = np.linalg.inv(moments[group][np.ix_(columns[place:], columns[place:])])
            error = (left[:, place] - code * scale[group]) / inverse[0, 0]
            left[:, place:] -= error[:, None] * inverse[0]
    root = np.stack([rounding._root(own, turn) for own, turn in zip(moments, order, strict=True)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounding, "_BLOCK", block)
        assert np.array_equal(rounding._passed_on(weights, scale, order, root, limit), wanted)


def test_correlated_inputs_let_rounding_cost_far_less():
    generator = np.random.default_rng(3)
    inputs = generator.standard_normal((200, 4)) @ generator.standard_normal((4, 32)) + 0.05 * generator.standard_normal((200, 32))
    weights = generator.standard_normal((1, 8, 32))
    moments = (inputs.T @ inputs / 200)[None]
    scale = (np.abs(weights).max(axis=2) / 7).astype(np.float32)
    (codes,) = rounded_codes([(weights, scale)], moments, 7)
    nearest = np.clip(np.rint(weights / scale[..., None]), -7, 7)
    errors = [np.square(inputs @ (choice * scale[..., None] - weights)[0].T).sum() for choice in (codes, nearest)]
    assert errors[0] < errors[1] / 3


def test_no_single_code_can_be_moved_for_the_better():
    weights, moments = layer(11, (1, 2, 5, 40))
    scale = (np.abs(weights).max(axis=2) / 3).astype(np.float32).astype(np.float64)
    (codes,) = rounded_codes([(weights, scale)], moments, 3)
    least = cost_of(codes, weights, scale, damped(moments))
    for row in range(2):
        for column in range(5):
            for code in range(-3, 4):
                other = codes.copy()
                other[0, row, column] = code
                assert cost_of(other, weights, scale, damped(moments))[0, row] >= least[0, row] * (1 - 1e-9)


def test_a_scale_spans_less_where_one_large_weight_meets_nothing():
    weights = np.array([[[1.0, 0.013, 0.017, 0.011]]])
    unheard = np.diag([1e-9, 1.0, 1.0, 1.0])[None]
    assert scales_for(weights, unheard, 127)[0, 0] < np.float32(1 / 127)
    assert scales_for(weights, np.eye(4)[None] * [1e6, 1, 1, 1], 127)[0, 0] == pytest.approx(1 / 127)
    assert scales_for(np.zeros((1, 1, 4)), unheard, 127)[0, 0] == 1


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((6, 4, 3, 3), {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        ((4, 1, 3, 3), {"group": 4, "pads": [0, 1, 2, 1]}),
        ((6, 2, 3, 2), {"group": 2, "dilations": [2, 1]}),
        ((6, 4, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ((6, 4, 4, 4), {"auto_pad": "SAME_LOWER"}),
        ((6, 4, 3, 3), {"auto_pad": "VALID"}),
    ],
)
def test_rows_are_what_a_convolution_multiplies(shape, attributes):
    weights = he(*shape)
    model = network(
        [oh.make_node("Conv", ["x", "w"], ["y"], "conv", **attributes)], {"w": weights}, ["y"], inputs={"x": [1, 4, 9, 8]}
    )
    (node,) = model.graph
    x = np.random.default_rng(0).standard_normal((1, 4, 9, 8)).astype(np.float32)
    rows = rows_of(node, x, 10**6)
    product = (rows @ as_rows(node, weights).transpose(0, 2, 1)).transpose(0, 2, 1)
    true = run(model, {"x": x})["y"]
    assert np.allclose(product.reshape(true.shape), true, atol=1e-5)
    assert np.array_equal(as_weights(node, as_rows(node, weights)), weights)
    some = [rows_of(node, x, 5, turn) for turn in (0, 1)]
    assert all(0 < part.shape[1] <= 5 for part in some)
    assert not np.array_equal(*some), "images show different positions"


def test_of_a_batch_of_boxes_no_more_rows_are_taken_than_of_an_image():
    """A head behind RoIAlign has 100 boxes of 14x14 an image: 19600 rows, where 2000 were asked for."""
    model = network([oh.make_node("Conv", ["x", "w"], ["y"], "conv")], {"w": he(2, 4, 3, 3)}, ["y"], inputs={"x": [10, 4, 9, 8]})
    (node,) = model.graph
    x = np.repeat(np.arange(10, dtype=np.float32), 4 * 9 * 8).reshape(10, 4, 9, 8)
    rows = rows_of(node, x, 25)
    assert 10 <= rows.shape[1] <= 30
    # Of each box as many.
    assert np.array_equal(np.unique(rows[0, :, 0], return_counts=True)[1], [rows.shape[1] // 10] * 10)
    assert rows_of(node, x[:0], 25).shape == (1, 0, 36)


@pytest.mark.parametrize(("op", "transposed"), [("Gemm", 1), ("Gemm", 0), ("MatMul", 0)])
def test_rows_of_matrices(op, transposed):
    weights = he(5, 7) if transposed else he(7, 5)
    options = {"transB": 1} if transposed else {}
    model = network([oh.make_node(op, ["x", "w"], ["y"], "fc", **options)], {"w": weights}, ["y"], inputs={"x": [3, 7]})
    (node,) = model.graph
    x = np.random.default_rng(0).standard_normal((3, 7)).astype(np.float32)
    assert np.allclose(rows_of(node, x, 10)[0] @ as_rows(node, weights)[0].T, run(model, {"x": x})["y"], atol=1e-5)
    assert np.array_equal(as_weights(node, as_rows(node, weights)), weights)


@pytest.mark.parametrize("about_mean", [False, True])
@pytest.mark.parametrize("most", [255, 65535])
@pytest.mark.parametrize("columns", [3, 900])
def test_moments_are_those_of_all_rows_in_any_order(columns, about_mean, most):
    """Of 900 columns two images' rows are multiplied at once, and in two stripes; of 300 rows sums go beyond what float32 holds."""
    rows = [
        np.random.default_rng(seed).integers(-most, most + 1, (2, 50 + 60 * seed, columns)).astype(np.float32) for seed in range(5)
    ]
    one, other = Moments(2, columns), Moments(2, columns)
    for part in rows:
        one.add(part)
    for part in reversed(rows):
        other.add(part)
    whole = np.concatenate(rows, axis=1).astype(np.float64)
    mean, moments = one.mean, one.taken(about_mean=about_mean)
    assert np.array_equal(mean, other.mean)
    assert np.array_equal(moments, other.taken(about_mean=about_mean))
    assert np.array_equal(one.mean, mean)
    assert np.allclose(mean, whole.mean(axis=1))
    second = np.einsum("grc,grd->gcd", whole, whole) / whole.shape[1]
    wanted = [np.cov(group.T, bias=True) for group in whole] if about_mean else second
    assert np.allclose(moments, wanted, rtol=1e-12, atol=1e-12 * most**2)


def test_sums_of_products_take_four_bytes_until_they_may_not_fit():
    rows = np.full((1, 30000, 3), 255, np.float32)
    moments = Moments(1, 3)
    moments.add(rows)
    assert moments._products[0].dtype == np.int32
    moments.add(rows)
    # 3.9e9 of each pair of columns, beyond what 32 bits hold.
    assert np.array_equal(moments.taken(about_mean=False), np.full((1, 3, 3), 255.0**2))


def peak_of(work: Callable[[], object]) -> int:
    """Bytes of Python's and NumPy's memory that something takes at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_half_of_symmetric_sums_is_held_and_rounding_takes_one_copy_of_the_moments():
    columns = 2048
    rows = np.random.default_rng(0).integers(0, 256, (1, 64, columns)).astype(np.float32)
    moments = Moments(1, columns)
    moments.add(rows)
    assert sum(one.nbytes for one in moments._products) == moment_bytes(1, columns) < 0.65 * 4 * columns**2
    whole = []
    assert peak_of(lambda: whole.append(moments.taken(about_mean=True))) < 1.1 * 8 * columns**2
    weights = np.random.default_rng(1).standard_normal((1, 4, columns))
    layer = (weights, scales_for(weights, whole[0], 127))
    assert peak_of(lambda: list(rounded_codes([layer], whole[0], 127))) < 1.3 * whole[0].nbytes


@pytest.fixture(scope="module")
def draft() -> Draft:
    model = prepared(uneven())
    return Draft(model, statistics_of(model), Int8(method="minmax"), {}, CALIBRATION)


def test_refined_layers_are_nearer_to_fp32_and_biases_take_the_mean(draft, monkeypatch):
    # With minmax, plain plans also take back what rounding between layers shifts, which layers fitted one by one do not see.
    monkeypatch.setattr("octavo.quantization.int8.draft._UNCUT", frozenset())
    plan = draft.plan()
    codes = refined_codes(draft.model, plan, CALIBRATION, per_channel=True)
    assert set(codes) == {"stem", "depth", "point", "head"}
    judge = HeadJudge(draft.model, ["y"], HELD_OUT)
    noise = [judge.judge(made.written(made.plan(), judge.heads)) for made in (draft, draft.with_choices({}, codes))]
    # Held-out noise of one small random network: from one to another it spreads by a tenth.
    assert noise[1] <= noise[0] * 1.25
    # The first layer alone, on the very inputs it was fitted to: its mean output is FP32's.
    node = next(node for node in draft.model.graph if node.name == "stem")
    rows = np.concatenate([rows_of(node, draft.plan().scales["x"].rounded(feeds["x"]), 10**6)[0] for feeds in CALIBRATION])
    weights = node.inputs[1].const_value.numpy()
    bias = node.inputs[2].const_value.numpy()
    error = rows.astype(np.float64) @ (codes["stem"].restored - weights).reshape(16, -1).T + codes["stem"].bias - bias
    assert np.abs(error.mean(axis=0)).max() < 1e-2 * np.abs(error).max()


def test_a_depthwise_layer_is_fitted_to_channels_with_scales_of_their_own():
    model = prepared(uneven())
    draft = Draft(model, statistics_of(model), Int8(method="minmax", target="openvino"), {}, CALIBRATION, by_channel=True)
    plan = draft.plan()
    node = next(node for node in model.graph if node.name == "depth")
    chosen = plan.scales[node.inputs[0].name]
    assert chosen.by_channel
    code = refined_codes(model, plan, CALIBRATION, per_channel=True)["depth"]
    weights = node.inputs[1].const_value.numpy()
    name = node.inputs[0].name
    tensors = [group.read(feeds)[name] for group in open_groups(model, [[name]], threads=1) for feeds in CALIBRATION]
    rows = np.concatenate([rows_of(node, chosen.rounded(tensor), 10**6) for tensor in tensors], axis=1).astype(np.float64)
    fitted = rows @ (code.restored - weights).reshape(len(weights), -1, 1) + code.bias[:, None, None]
    plain = plan.codes["depth"].restored - weights
    nearest = rows @ plain.reshape(len(weights), -1, 1)
    assert np.abs(fitted.mean(axis=(1, 2))).max() < 1e-2 * np.abs(fitted).max()
    assert np.square(fitted).sum() < np.square(nearest).sum()


@pytest.mark.parametrize("per_channel", [True, False])
def test_codes_stay_in_range_and_biases_alone_where_asked(draft, per_channel):
    codes = refined_codes(draft.model, draft.plan(), CALIBRATION, per_channel=per_channel, correct=False)
    assert all(np.abs(code.codes.astype(int)).max() <= 127 for code in codes.values())
    assert codes["depth"].bias is None
    stem = next(node for node in draft.model.graph if node.name == "stem")
    assert np.array_equal(codes["stem"].bias, stem.inputs[2].const_value.numpy())


# uint8, int8 around zero, int8 with a zero point.
@pytest.mark.parametrize("settings", [{}, {"target": "tensorrt"}, {"symmetric": True}, {"target": "arm"}])
def test_a_range_that_was_cut_too_much_is_found_and_widened(settings):
    model = prepared(uneven())
    narrow = Draft(model, statistics_of(model), Int8(method="percentile", percentile=90, **settings), {}, CALIBRATION)
    judge = HeadJudge(model, ["y"], CALIBRATION[:4])
    plan = narrow.plan()
    unseen = HeadJudge(model, ["y"], HELD_OUT)
    found = searched_scales(model, plan, judge, unseen)
    assert found
    kinds = {scale.zero_point.dtype for scale in plan.scales.values()}
    assert {scale.zero_point.dtype for scale in found.values()} <= kinds
    assert any(found[name].high > plan.scales[name].high for name in found)
    noise = [unseen.judge(made.written(made.plan(), ["y"])) for made in (narrow, narrow.with_choices(found, {}))]
    assert noise[1] < noise[0] * 0.8
    name = min(found)
    assert name not in searched_scales(model, plan, judge, unseen, fixed={name})


def test_ranges_of_the_loudest_tensors_alone_are_searched_where_few_may_be(monkeypatch):
    model = prepared(uneven())
    draft = Draft(model, statistics_of(model), Int8(method="percentile", percentile=90), {}, CALIBRATION)
    plan = draft.plan()
    judges = HeadJudge(model, ["y"], CALIBRATION[:4]), HeadJudge(model, ["y"], HELD_OUT)
    groups = sorted(cuts.sharing(plan))
    own = dict(
        zip(
            map(tuple, groups), joint_noise(model, plan, judges[0], CALIBRATION[:4], [(names, ()) for names in groups]), strict=True
        )
    )
    loudest = sorted(own, key=own.__getitem__, reverse=True)
    searched: list[tuple[str, ...]] = []
    monkeypatch.setattr(cuts, "_searched", lambda stretch, names, *_, **__: searched.append(tuple(names)))
    share = own[loudest[1]] / sum(own.values())
    for bounds, count in (({}, len(loudest)), ({"most": 1}, 1), ({"share": share * 0.99}, 2), ({"share": share * 1.01}, 1)):
        searched.clear()
        searched_scales(model, plan, *judges, **bounds)
        assert set(searched) == {names for names in loudest[:count] if own[names] >= 0.002 * sum(own.values())}


@pytest.mark.parametrize("effort", ["default", "high"])
@pytest.mark.parametrize("far", [False, True])
def test_far_from_what_is_wanted_few_ranges_are_searched(monkeypatch, far, effort):
    model = uneven()
    statistics, images = statistics_of(model), Images(CALIBRATION, HELD_OUT)
    plain = quantize_static(model, statistics, Int8(placement="all", repair=False, effort=effort), images).measured["tried_db"]
    bounds: list[dict[str, object]] = []
    monkeypatch.setattr("octavo.quantization.int8.fitting.effort.searched_scales", lambda *_, **how: bounds.append(how) or {})
    # Equalized channels come nearer than the plain ones.
    monkeypatch.setattr("octavo.quantization.int8.choice.balanced", lambda *_, **__: {})
    best = max(plain[way] for way in ("mse", "percentile", "minmax"))
    recipe = Int8(placement="all", effort=effort, fidelity=best + (11 if far else 9))
    quantize_static(model, statistics, recipe, images)
    assert [how["share"] for how in bounds] == [0.05 if far and effort == "default" else cuts.SMALL]
    assert (bounds[0]["most"] is None) == (effort == "high")


def test_a_range_that_only_a_few_images_could_do_without_is_not_cut():
    unseen_noise = []
    for seed in range(5, 9):
        model = prepared(uneven(seed=seed))
        wide = Draft(model, statistics_of(model), Int8(method="minmax"), {}, CALIBRATION)
        dark = HeadJudge(model, ["y"], [{"x": feeds["x"] * np.float32(0.25)} for feeds in CALIBRATION[:3]])
        unseen = HeadJudge(model, ["y"], HELD_OUT)
        fooled, found = (searched_scales(model, wide.plan(), dark, others) for others in (dark, unseen))
        made = [wide.with_choices(scales, {}) for scales in (fooled, found)]
        unseen_noise.append([unseen.judge(one.written(one.plan(), ["y"])) for one in made])
    assert all(found <= fooled for fooled, found in unseen_noise)
    fooled, found = np.sum(unseen_noise, axis=0)
    assert found < fooled * 0.5


def test_what_images_live_by_that_are_not_searched_on_is_not_cut():
    """An image's mean is one value: others' lie far beyond those of the calibration images searched on, and of those held out."""
    random = np.random.default_rng(5)
    nodes = [
        oh.make_node("GlobalAveragePool", ["x"], ["pooled"], "pool"),
        oh.make_node("Flatten", ["pooled"], ["flat"], "flatten"),
        oh.make_node("Gemm", ["flat", "w"], ["y"], "last"),
    ]
    model = network(nodes, {"w": random.standard_normal((3, 10)).astype(np.float32)}, ["y"])

    def images(count: int, size: float) -> list[dict[str, np.ndarray]]:
        values = size * random.standard_normal((count, 3, 1, 1)) + 0.01 * random.standard_normal((count, 3, 16, 16))
        return [{"x": value[None].astype(np.float32)} for value in values]

    dim, bright, held_out = images(20, 1), images(4, 30), images(8, 1)
    statistics, recipe = graphs.statistics_of(model, [*dim, *bright]), Int8(effort="high", placement="all")
    result = quantize_static(model, statistics, recipe, Images([*dim, *bright], held_out))
    wanted, got = (np.concatenate([run(one, feeds)["y"] for feeds in bright]) for one in (model, result.model))
    assert np.square(wanted - got).mean() < 0.01 * np.square(wanted).mean()


def test_a_range_that_is_many_times_too_wide_is_found():
    model = prepared(uneven())
    draft = Draft(model, statistics_of(model), Int8(method="minmax"), {}, CALIBRATION)
    plan = draft.plan()
    judges = HeadJudge(model, ["y"], CALIBRATION[:4]), HeadJudge(model, ["y"], HELD_OUT)
    name = next(node for node in model.graph if node.name == "depth").inputs[0].name
    names = next(names for names in cuts.sharing(plan) if name in names)
    wide = cuts._stretched(plan.scales[name], 6.0)
    found = searched_scales(model, replace(plan, scales={**plan.scales, **dict.fromkeys(names, wide)}), *judges)
    assert found[name].scale < 0.3 * wide.scale


def test_held_out_images_tell_how_far_a_range_is_searched_too(monkeypatch):
    model = prepared(uneven())
    draft = Draft(model, statistics_of(model), Int8(method="percentile", percentile=90), {}, CALIBRATION)
    plan = draft.plan()
    mine, others = HeadJudge(model, ["y"], CALIBRATION[:4]), HeadJudge(model, ["y"], HELD_OUT)

    def noise(stretch, judge, names, chosen, *, below=np.inf):
        # Calibration images would stop at once, and the others gain far more than these lose.
        factor = float(chosen.scale / plan.scales[names[0]].scale)
        told = 1e-3 * factor if judge is mine else 1e-2 / factor**2
        return told if told < below else np.inf

    monkeypatch.setattr(cuts._Stretch, "noise", noise)
    found = searched_scales(model, plan, mine, others)
    assert found
    assert all(1.4 < chosen.scale / plan.scales[name].scale < 2.8 for name, chosen in found.items())


def test_ranges_do_not_depend_on_where_the_network_is_entered(monkeypatch):
    model = prepared(uneven())
    narrow = Draft(model, statistics_of(model), Int8(method="percentile", percentile=90), {}, CALIBRATION)
    judges = HeadJudge(model, ["y"], CALIBRATION[:4]), HeadJudge(model, ["y"], HELD_OUT)
    found = []
    for stretches in (1, 2, 100):
        monkeypatch.setattr(cuts, "_STRETCHES", stretches)
        found.append(searched_scales(model, narrow.plan(), *judges))
    assert found[0] == found[1] == found[2] != {}


def test_images_that_cannot_change_what_is_chosen_are_not_run(monkeypatch):
    model = prepared(uneven())
    narrow = Draft(model, statistics_of(model), Int8(method="percentile", percentile=90), {}, CALIBRATION)
    judges = HeadJudge(model, ["y"], CALIBRATION[:4]), HeadJudge(model, ["y"], [*CALIBRATION[4:], *HELD_OUT])
    runs: list[int] = []
    run, noise = cuts._Stretch._run, cuts._Stretch.noise
    # A lane runs ahead of what is asked for.
    monkeypatch.setattr(cuts, "in_lanes", map)
    monkeypatch.setattr(cuts._Stretch, "_run", lambda *given: runs.append(0) or run(*given))
    found = [searched_scales(model, narrow.plan(), *judges)]
    bounded, runs[:] = len(runs), []
    monkeypatch.setattr(cuts._Stretch, "noise", lambda *given, **bound: noise(*given, **dict.fromkeys(bound, np.inf)))
    found.append(searched_scales(model, narrow.plan(), *judges))
    assert found[0] == found[1] != {}
    assert bounded < len(runs)


def test_noise_is_told_to_be_no_less_by_the_first_images_that_do(draft):
    judge = HeadJudge(draft.model, ["y"], CALIBRATION[:8])
    results = [{"y": run(draft.model, feeds)["y"] + np.float32(1)} for feeds in CALIBRATION[:8]]
    by_image, asked = judge.noise_by_image(results), iter(results)
    mean = float(np.mean(by_image))
    assert judge.noise_below(results, 1.001 * mean) == by_image
    assert judge.noise_below(asked, 0.5 * sum(by_image[:2]) / 8) is None
    assert len(list(asked)) >= 6
    assert judge.noise_below(results, 1.001 * by_image[0], [1.0] + [0.0] * 7) == by_image


def test_ranges_are_searched_where_an_image_s_values_choose_how_many_rows_there_are(monkeypatch):
    # The same network whichever tests ran before.
    he = partial(graphs.he, np.random.default_rng(5))
    tensors = {"stem": he(8, 3, 3, 3), "mark": he(1, 8, 1, 1), "body": he(8, 8, 3, 3), "head": he(8, 4)}
    tensors |= {"flat": np.array([-1]), "rows": np.array([8, -1]), "zero": np.float32(0), "first": np.array([0])}
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["a"], "stem"),
        oh.make_node("Relu", ["a"], ["r"], "r"),
        oh.make_node("Conv", ["r", "mark"], ["marks"], "mark"),
        oh.make_node("Reshape", ["marks", "flat"], ["row"], "row"),
        oh.make_node("Greater", ["row", "zero"], ["above"], "above"),
        oh.make_node("NonZero", ["above"], ["where"], "where"),
        oh.make_node("Squeeze", ["where", "first"], ["index"], "index"),
        oh.make_node("Conv", ["r", "body"], ["b"], "body", pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["b"], ["br"], "br"),
        oh.make_node("Reshape", ["br", "rows"], ["all"], "all"),
        oh.make_node("Gather", ["all", "index"], ["some"], "some", axis=1),
        oh.make_node("Transpose", ["some"], ["t"], "t"),
        oh.make_node("Gemm", ["t", "head"], ["y"], "head"),
    ]
    complete = prepared(network(nodes, tensors, ["y"]))
    assert len({len(run(complete, feeds)["y"]) for feeds in CALIBRATION[:3]}) > 1
    chosen, others = (with_choices(complete, ["where"], feeds) for feeds in (CALIBRATION[:3], HELD_OUT))
    model = held(complete, ["where"])
    narrow = Draft(model, statistics_of(complete), Int8(method="percentile", percentile=80), {}, chosen)
    # Each tensor's part of the graph begins behind the indices.
    monkeypatch.setattr(cuts, "_STRETCHES", 100)
    assert searched_scales(model, narrow.plan(), HeadJudge(model, ["y"], chosen), HeadJudge(model, ["y"], others))


def test_layers_fitted_side_by_side_and_one_by_one_are_the_same(draft, monkeypatch):
    made = []
    for columns in (0, 10**6):
        monkeypatch.setattr(refinement, "_WIDE", columns)
        made.append(refined_codes(draft.model, draft.plan(), CALIBRATION, per_channel=True))
    assert made[0].keys() == made[1].keys() != set()
    for name, codes in made[0].items():
        assert codes.codes.tobytes() == made[1][name].codes.tobytes()
        assert codes.bias.tobytes() == made[1][name].bias.tobytes()


class TestImagesWorth:
    """Bounds on the work of measuring single roundings."""

    @staticmethod
    def wide(channels: int, side: int) -> ir.Model:
        nodes = [oh.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1, 1, 1, 1])]
        return network(nodes, {"w": he(channels, channels, 3, 3)}, ["y"], inputs={"x": [1, channels, side, side]})

    def test_few_roundings_of_a_small_network_are_measured_on_eight_images_or_as_many_as_there_are(self):
        assert images_worth(self.wide(4, 16), 100, 16) == 8
        assert images_worth(self.wide(4, 16), 100, 3) == 3

    def test_many_multiplications_leave_two_images(self):
        # 9 x 128^2 x 64^2 = .6e9 of them; .5 million values.
        assert images_worth(self.wide(128, 64), 100, 16) == 8
        assert images_worth(self.wide(128, 64), 500, 16) == 3
        assert images_worth(self.wide(128, 64), 5000, 16) == 2
        assert [roundings_worth(self.wide(128, 64), images) for images in (1, 2, 10**9)] == [1986, 993, 1]

    def test_large_tensors_leave_one(self):
        # 4 MB in one tensor.
        assert images_worth(self.wide(1, 1024), 100, 16) == 8
        assert images_worth(self.wide(1, 1024), 30_000, 16) == 1

    def test_masks_need_half_of_them(self):
        assert images_worth(self.wide(1, 1024), 9_000, 16) == 4
        assert images_worth(self.wide(1, 1024), 9_000, 16, masks=True) == 2
        assert images_worth(self.wide(1, 1024), 100, 16, masks=True) == 8
        assert images_worth(self.wide(1, 1024), 30_000, 16, masks=True) == 1


def test_what_shares_a_scale_goes_on_sharing_it():
    tensors = {"stem": he(8, 3, 3, 3), "point": he(8, 8, 1, 1), "head": he(4, 8, 1, 1)}
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["a"], "stem", pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["a"], ["r"], "r"),
        oh.make_node("MaxPool", ["r"], ["m"], "m", kernel_shape=[2, 2], strides=[2, 2]),
        oh.make_node("Conv", ["m", "point"], ["p"], "point"),
        oh.make_node("Conv", ["p", "head"], ["y"], "head"),
    ]
    model = prepared(network(nodes, tensors, ["y"]))
    draft = Draft(model, statistics_of(model), Int8(method="percentile", percentile=80), {}, CALIBRATION)
    found = searched_scales(model, draft.plan(), HeadJudge(model, ["y"], CALIBRATION[:3]), HeadJudge(model, ["y"], HELD_OUT))
    assert {"r", "m"} <= set(found)
    assert found["r"] == found["m"]


@pytest.mark.parametrize("correction", ["bias", "none"])
def test_high_effort_is_never_worse_on_held_out_images_and_gives_the_same_bytes(correction):
    generator = np.random.default_rng(2)
    feeds = [{"image": generator.standard_normal((1, 3, 32, 32)).astype(np.float32)} for _ in range(14)]
    model = inferred(small_network())
    statistics = graphs.statistics_of(model, feeds[:10])
    images = Images(feeds[:10], feeds[10:])
    # Measured times may place such small layers otherwise the next time.
    recipe = Int8(placement="all", repair=False, correction=correction)
    results = {
        effort: quantize_static(model, statistics, recipe.model_copy(update={"effort": effort}), images)
        for effort in ("default", "high")
    }
    tried = results["high"].measured["tried_db"]
    assert any(label.endswith(", rounded") for label in tried)
    assert set(results["default"].measured["tried_db"]) < set(tried)
    assert results["high"].measured["db"] == max(tried.values()) >= results["default"].measured["db"]
    assert results["high"].measured["fidelity_db"] > results["default"].measured["fidelity_db"]
    again = quantize_static(model, statistics, recipe.model_copy(update={"effort": "high"}), images)
    assert ir.to_proto(again.model).SerializeToString() == ir.to_proto(results["high"].model).SerializeToString()


def test_a_chosen_method_keeps_its_ranges():
    model = uneven()
    statistics, images = statistics_of(model), Images(CALIBRATION, HELD_OUT)
    result = quantize_static(model, statistics, Int8(method="percentile", percentile=90, effort="high", repair=False), images)
    assert any(label.endswith("rounded") for label in result.measured["tried_db"])
    assert not any(label.endswith("ranges") for label in result.measured["tried_db"])


def test_layers_that_repair_gives_back_leave_the_refined_ones_as_they_are():
    model = uneven()
    statistics, images = statistics_of(model), Images(CALIBRATION, HELD_OUT)
    left = quantize_static(model, statistics, Int8(effort="high", repair=False, placement="all"), images)
    recipe = Int8(effort="high", fidelity=left.measured["db"] + 0.5, placement="all")
    result = quantize_static(model, statistics, recipe, images)
    assert "float" in {decision.precision for decision in result.decisions}
    assert result.measured["db"] >= left.measured["db"] + 0.5
    codes = [
        {name: value.const_value.numpy() for name, value in made.model.graph.initializers.items() if name.endswith("weight_codes")}
        for made in (left, result)
    ]
    assert set() < set(codes[1]) < set(codes[0])
    assert all(np.array_equal(codes[0][name], codes[1][name]) for name in codes[1])


def test_high_effort_without_held_out_images_says_what_to_do():
    model = uneven()
    with pytest.raises(QuantizationError, match=r"effort: high.*held-out") as caught:
        quantize_static(model, statistics_of(model), Int8(effort="high"), Images(CALIBRATION, []))
    assert "calibrate.held_out" in str(caught.value)


def test_blas_is_given_its_threads_back():
    from octavo.runtime.blas import _controls

    before = [get() for get, _ in _controls()]
    with pytest.raises(KeyError), one_blas_thread():
        assert [get() for get, _ in _controls()] == [1] * len(before)
        raise KeyError
    assert [get() for get, _ in _controls()] == before


def test_layers_that_read_the_same_have_one_set_of_moments_and_the_codes_that_each_has_alone(monkeypatch):
    """Two heads and a strided branch on one map: heads read the same rows of it, the branch others."""
    weights = {"stem": he(8, 3, 3, 3), "boxes": he(4, 8, 3, 3), "scores": he(6, 8, 3, 3), "branch": he(8, 8, 3, 3)}
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["a"], "stem"),
        oh.make_node("Relu", ["a"], ["r"], "r"),
        oh.make_node("Conv", ["r", "boxes"], ["yb"], "boxes", pads=[1, 1, 1, 1]),
        oh.make_node("Conv", ["r", "branch"], ["b"], "branch", pads=[1, 1, 1, 1], strides=[2, 2]),
        oh.make_node("Conv", ["r", "scores"], ["ys"], "scores", pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["b"], ["yr"], "yr"),
    ]
    model = prepared(network(nodes, weights, ["yb", "ys", "yr"]))
    plan = Draft(model, statistics_of(model), Int8(method="minmax", float_heads=False), {}, CALIBRATION).plan()
    assert set(plan.codes) == set(weights)
    made: list[Moments] = []

    def counted(*shape: int) -> Moments:
        made.append(Moments(*shape))
        return made[-1]

    monkeypatch.setattr(refinement, "Moments", counted)
    together = refined_codes(model, plan, CALIBRATION, per_channel=True)
    assert len(made) == 3
    monkeypatch.setattr(refinement, "_by_rows", lambda layers: [[units] for units in layers])
    alone = refined_codes(model, plan, CALIBRATION, per_channel=True)
    assert len(made) == 3 + 4
    assert set(together) == set(alone) == set(weights)
    for name, codes in together.items():
        assert np.array_equal(codes.codes, alone[name].codes)
        assert np.array_equal(codes.scale, alone[name].scale)
        assert np.array_equal(codes.bias, alone[name].bias)
