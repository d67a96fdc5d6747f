"""`target: cpu-no-vnni`, `openvino-no-vnni`: 16 bits hold any two neighbouring products of a file, so that no kernel saturates."""

from __future__ import annotations

import itertools
from functools import partial

import graphs
import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, session_of, sqnr, statistics_of
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from octavo.manifest import session_entries
from octavo.params.grammar import Int8
from octavo.quantization.int8 import Images, dynamic_target, made_here, quantize_static
from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.numbers.sums16 import least_scales, peaks_of, within
from octavo.quantization.int8.numbers.weights import codes_of
from octavo.quantization.int8.structure import targets
from octavo.runtime import entries
from octavo.runtime.host import has_vnni
from octavo.runtime.session import Session

GENERATOR = np.random.default_rng(16)
IMAGES = [{"x": GENERATOR.uniform(-1, 1, (1, 3, 24, 24)).astype(np.float32)} for _ in range(10)]
he = partial(graphs.he, GENERATOR)
EXACT = {"session.x64quantprecision": "1"}

# Operator, its weights' shape, groups.
LAYERS = [
    ("Conv", (6, 4, 3, 3), 1),
    ("Conv", (8, 3, 3, 2), 1),
    ("Conv", (5, 7, 1, 1), 1),
    ("Conv", (6, 1, 5, 5), 6),
    ("Conv", (6, 5, 3, 3), 2),
    ("Conv", (4, 3, 3), 1),
    ("Gemm", (9, 5), 1),
    ("Gemm transB", (5, 9), 1),
    ("MatMul", (9, 5), 1),
]


def layer_of(op: str, weights: np.ndarray, groups: int) -> ir.Node:
    channels = weights.shape[1] * groups if op == "Conv" else weights.shape[op.endswith("transB")]
    attributes = {"group": groups} if op == "Conv" else {"transB": 1} if op.endswith("transB") else {}
    node = oh.make_node(op.split(maxsplit=1)[0], ["x", "w"], ["y"], "y", **attributes)
    sizes = [8] * (weights.ndim - 2) if op == "Conv" else []
    return network([node], {"w": weights}, ["y"], inputs={"x": [1, channels, *sizes]}).graph[0]


def beyond(op: str, codes: np.ndarray, groups: int, peaks: np.ndarray) -> int:
    """How many sums of two neighbouring products do not fit in int16, one weight at a time as a kernel meets them."""
    rows = codes if op in ("Conv", "Gemm transB") else codes.T
    channels = rows.shape[1]
    found = 0
    for place, row in enumerate(rows.astype(int)):
        base = place // (len(rows) // groups) * channels
        met = []
        for tap in np.ndindex(row.shape[1:]):
            met += [(int(row[(channel, *tap)]), float(peaks[base + channel])) for channel in range(channels)]
        odd = channels > 1 and channels % 2 == 1 and row.size > channels
        starts = (0, 1) if op == "Conv" and ((groups == 1 and channels <= 4) or odd) else (0,)
        for start in starts:
            for (one, most), (other, its) in zip(met[start::2], met[start + 1 :: 2], strict=False):
                most_, least_ = max(one, 0) * most + max(other, 0) * its, min(one, 0) * most + min(other, 0) * its
                found += most_ > 32767 or least_ < -32768
    return found


@pytest.mark.parametrize(("op", "shape", "groups"), LAYERS)
@given(seed=st.integers(0, 2**31), wide=st.sampled_from([0.5, 1.0, 4.0]))
@settings(max_examples=15, deadline=None)
def test_no_two_products_overflow_and_codes_only_shrink(op, shape, groups, seed, wide):
    generator = np.random.default_rng(seed)
    codes = np.clip(np.rint(generator.standard_normal(shape) * 60 * wide), -127, 127).astype(np.int8)
    layer = layer_of(op, codes.astype(np.float32), groups)
    inputs = shape[1] * groups if op == "Conv" else shape[op.endswith("transB")]
    peaks = generator.integers(0, 256, inputs).astype(float)
    kept = within(layer, codes, peaks)
    assert kept.dtype == np.int8
    assert beyond(op, kept, groups, peaks) == 0
    assert (np.abs(kept.astype(int)) <= np.abs(codes.astype(int))).all()
    assert (np.sign(kept) * np.sign(codes) >= 0).all()
    assert (kept is codes) == (beyond(op, codes, groups, peaks) == 0)
    # Rounded to nearest with the least scale everything fits as it is.
    rounded = codes_of(layer, per_channel=True, least=least_scales(layer, peaks))
    assert within(layer, rounded.codes, peaks) is rounded.codes
    # With silent inputs nothing needs room.
    assert within(layer, codes, np.zeros(inputs)) is codes


def test_scales_grow_only_where_a_pair_asks_for_it():
    weights = np.zeros((4, 4, 1, 1), np.float32)
    weights[0, :2, 0, 0] = 1  # neighbours
    weights[1, [0, 2], 0, 0] = 1  # apart
    weights[2, :2, 0, 0] = 1, -1  # one product up, one down
    weights[3, 2:, 0, 0] = 1  # neighbours, of channels that reach little
    layer = layer_of("Conv", np.concatenate([weights, np.zeros((4, 4, 1, 1), np.float32)], axis=1), 1)
    peaks = np.array([255.0, 255, 100, 100, 0, 0, 0, 0])
    plain, roomy = (codes_of(layer, per_channel=True, least=least) for least in (None, least_scales(layer, peaks)))
    assert list(np.abs(roomy.codes).max(axis=(1, 2, 3))) == [64, 127, 127, 127]
    assert np.array_equal(plain.codes[1:], roomy.codes[1:])


@pytest.mark.parametrize(("outputs", "bound"), [(6, False), (12, True)])
def test_depthwise_layers_are_bound_where_a_product_of_matrices_computes_them(outputs, bound):
    assert (peaks_of(layer_of("Conv", he(outputs, 1, 3, 3), 6), QParams.spanning(0, 1), None) is not None) == bound


@pytest.mark.parametrize("kind", ["unknown", "seen", "int8"])
def test_the_largest_codes_are_those_of_the_images_with_room(kind):
    model = network([oh.make_node("Conv", ["x", "w"], ["y"], "y")], {"w": he(2, 3, 1, 1)}, ["y"], inputs={"x": [1, 3, 8, 8]})
    image = np.zeros((1, 3, 8, 8), np.float32)
    image[0, 0], image[0, 1] = -1, 1.2
    image[0, 2, 0, 0] = 2.8
    seen = statistics_of(model, [{"x": image}]).tensors["x"]
    chosen = QParams.spanning(-1, 4.1, signed=kind == "int8")
    found = peaks_of(model.graph[0], chosen, None if kind == "unknown" else seen)
    if kind == "int8":
        assert found is None
    elif kind == "unknown":
        assert list(found) == [255, 255, 255]
    else:
        # A fiftieth a code, zero at 50: what was never positive is left some room, too.
        assert list(found) == [64, 125, 225]


def saturating() -> ir.Model:
    """A stem, a depthwise Conv, one with groups, a Gemm: weights of one sign, inputs near their ends."""
    tensors = {"stem": np.abs(he(16, 3, 3, 3)), "depth": np.abs(he(16, 1, 3, 3)), "split": np.abs(he(16, 4, 3, 3))}
    tensors |= {"point": np.abs(he(24, 16, 1, 1)), "head": np.abs(he(10, 24))}
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["a"], "stem", pads=[1, 1, 1, 1], strides=[2, 2]),
        oh.make_node("Relu", ["a"], ["ra"], "ra"),
        oh.make_node("Conv", ["ra", "depth"], ["b"], "depth", pads=[1, 1, 1, 1], group=16),
        oh.make_node("Relu", ["b"], ["rb"], "rb"),
        oh.make_node("Conv", ["rb", "split"], ["c"], "split", group=4),
        oh.make_node("Relu", ["c"], ["rc"], "rc"),
        oh.make_node("Conv", ["rc", "point"], ["d"], "point"),
        oh.make_node("GlobalAveragePool", ["d"], ["g"], "g"),
        oh.make_node("Flatten", ["g"], ["f"], "f"),
        oh.make_node("Gemm", ["f", "head"], ["y"], "y", transB=1),
    ]
    return network(nodes, tensors, ["y"], inputs={"x": [1, 3, 24, 24]})


@pytest.mark.parametrize("images", [None, Images(IMAGES[:6], IMAGES[6:])], ids=["rounded", "fitted"])
def test_the_file_needs_no_session_entry_on_any_x86(images):
    model = saturating()
    recipe = {"placement": "all", "method": "minmax"} | ({"effort": "high", "repair": False} if images else {})
    files = {
        target: quantize_static(model, statistics_of(model, IMAGES[:6]), Int8(target=target, **recipe), images).model
        for target in ("cpu", "cpu-no-vnni")
    }
    exact, plain = (
        {target: sqnr(model, file, IMAGES[6:], entries=entries)["y"] for target, file in files.items()} for entries in (EXACT, {})
    )
    assert plain["cpu-no-vnni"] == pytest.approx(exact["cpu-no-vnni"], abs=0.05)
    assert plain["cpu-no-vnni"] > 25
    as_operators = quantize_static(
        model, statistics_of(model, IMAGES[:6]), Int8(target="cpu-no-vnni", format="qoperator", **recipe), images
    ).model
    assert sqnr(model, as_operators, IMAGES[6:], optimization="off", entries={})["y"] > 25
    # The other file breaks there, and nowhere else.
    assert (plain["cpu"] < exact["cpu"] - 6) == (not has_vnni())


@pytest.mark.parametrize("target", ["openvino", "openvino-no-vnni"])
def test_openvino_meets_no_sum_that_overflows(target):
    """By the codes that come to each layer: ONNX Runtime runs this layout in float."""
    model = saturating()
    recipe = Int8(target=target, placement="all", method="minmax")
    made = ir.to_proto(quantize_static(model, statistics_of(model, IMAGES[:6]), recipe).model)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
    makers = {name: node for node in made.graph.node for name in node.output}
    read = {}
    for node in made.graph.node:
        if node.op_type in ("Conv", "Gemm"):
            ahead, weights = (makers.get(name) for name in node.input[:2])
            while ahead is not None and ahead.op_type == "Flatten":
                ahead = makers[ahead.input[0]]
            if ahead is not None and ahead.op_type == "DequantizeLinear" and node.name != "depth":
                read[node.name] = ahead.input[0], constants[weights.input[0]]
    assert read.keys() == {"stem", "split", "point", "y"}
    made.graph.output.extend(oh.make_empty_tensor_value_info(name) for name in {name for name, _ in read.values()})
    runs = Session(made.SerializeToString(), optimization="off")
    seen = [runs.run(feeds) for feeds in IMAGES[:6]]
    found = 0
    for name, (codes, weights) in read.items():
        peaks = np.max([each[codes].max(axis=(0, 2, 3)) for each in seen], axis=0).astype(float)
        op = "Gemm transB" if name == "y" else "Conv"
        found += beyond(op, weights, 4 if name == "split" else 1, peaks)
    assert (found == 0) == (target == "openvino-no-vnni")


@pytest.mark.parametrize("vnni", [True, False])
def test_for_openvino_a_machine_without_vnni_makes_the_file_that_does_not_saturate(monkeypatch, vnni):
    """OpenVINO has no switch for exact kernels."""
    monkeypatch.setattr(targets, "has_vnni", lambda: vnni)
    made = {name: made_here(Int8(target=name, method="percentile", percentile=99)) for name in targets.TARGETS}
    assert {recipe.percentile for recipe in made.values()} == {99}
    changed = {name: recipe.target for name, recipe in made.items() if recipe.target != name}
    assert changed == ({} if vnni else {"openvino": "openvino-no-vnni"})
    assert [dynamic_target(name) for name in ("openvino", "openvino-no-vnni")] == ["cpu", "cpu-no-vnni"]


@pytest.mark.parametrize(
    ("channels", "kernel", "groups"), [(4, 1, 1), (5, 1, 1), (3, 3, 1), (1, 3, 8), (2, 3, 8), (1, 3, 16), (1, 5, 16)]
)
def test_neighbours_are_what_onnx_runtime_adds_in_16_bits(channels, kernel, groups):
    columns = [(channel, *tap) for tap in np.ndindex(kernel, kernel) for channel in range(channels)]
    pairs = list(itertools.combinations(range(len(columns)), 2))
    saturated = []
    outputs = 16
    for start in range(0, len(pairs), outputs):
        asked = pairs[start : start + outputs]
        weights = np.zeros((outputs, channels, kernel, kernel), np.int8)
        for row, (one, other) in enumerate(asked):
            weights[(row, *columns[one])] = weights[(row, *columns[other])] = 127
        plain, exact = (session_of(_layer(weights, groups), entries=entries) for entries in ({}, EXACT))
        feeds = {"x": np.full((1, channels * groups, 6, 6), 255, np.float32)}
        lost = exact.run(feeds)["y"][0, :, 3, 3] - plain.run(feeds)["y"][0, :, 3, 3]
        saturated += [pair for row, pair in enumerate(asked) if lost[row] > 0]
    exactly = has_vnni() or channels * groups == groups == outputs
    assert saturated == ([] if exactly else [(place, place + 1) for place in range(0, len(columns) - 1, 2)])


def _layer(weights: np.ndarray, groups: int) -> ir.Model:
    """Q, DQ, Conv, Q, DQ with these codes, activations' codes as they are fed."""
    outputs, _, kernel, _ = weights.shape
    one, coarse = np.float32(1), np.float32(400)
    tensors = {"one": one, "none": np.uint8(0), "coarse": coarse, "w": weights, "ones": np.ones(outputs, np.float32)}
    nodes = [
        oh.make_node("QuantizeLinear", ["x", "one", "none"], ["xq"], "q"),
        oh.make_node("DequantizeLinear", ["xq", "one", "none"], ["xd"], "d"),
        oh.make_node("DequantizeLinear", ["w", "ones"], ["wd"], "wd", axis=0),
        oh.make_node("Conv", ["xd", "wd"], ["c"], "c", pads=[kernel // 2] * 4, group=groups),
        oh.make_node("QuantizeLinear", ["c", "coarse", "none"], ["cq"], "cq"),
        oh.make_node("DequantizeLinear", ["cq", "coarse", "none"], ["y"], "y"),
    ]
    return network(nodes, tensors, ["y"], inputs={"x": [1, weights.shape[1] * groups, 6, 6]})


def test_stages_and_services_open_it_with_the_default_kernels(monkeypatch):
    monkeypatch.setattr(entries, "has_vnni", lambda: False)
    names = ("cpu-no-vnni", "openvino-no-vnni", None, "cpu", "openvino")
    made_for = {target: session_entries({"target": target}) for target in names}
    assert made_for == {"cpu-no-vnni": {}, "openvino-no-vnni": {}, None: {}, "cpu": EXACT, "openvino": EXACT}
    # What nobody knows, or an older package does not say, may be any file.
    assert session_entries(None) == session_entries({}) == EXACT
    assert entries.session_warning([{}, made_for["cpu-no-vnni"]]) is None
    assert entries.session_words([{}, EXACT, EXACT]) == "session.x64quantprecision=1"
    assert entries.session_words([{}, {}]) == "defaults"
    assert "no VNNI" in entries.session_warning([{}, EXACT])
