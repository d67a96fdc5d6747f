"""Layers that multiply by the same weights: both branches of a siamese network, a detector's head on every level."""

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import as_bytes, he, network, run, statistics_of

from octavo.graph.macs import stored_in
from octavo.graph.prepared import prepared
from octavo.graph.readable import readable
from octavo.params.grammar import Int8
from octavo.quantization.int8 import Images, quantize_dynamic, quantize_static
from octavo.quantization.int8.draft import Draft
from octavo.quantization.int8.fitting.refinement import refined_codes
from octavo.quantization.int8.structure.alike import alike
from octavo.quantization.int8.structure.streams import streams_of
from octavo.runtime.kernels import optimized_nodes
from octavo.runtime.noise import sqnr_db

WIDTH = 32
random = np.random.default_rng(4)
FEEDS = [
    {name: random.standard_normal((1, 3, 16, 16), np.float32) * size for name, size in (("a", 1), ("b", 3))} for _ in range(24)
]


def siamese(*, copied: bool = False) -> ir.Model:
    """Two images through the same layers, whose channels differ in size, and how far apart they come out."""
    generator = np.random.default_rng(0)
    size = np.exp(generator.uniform(-3, 0, WIDTH)).astype(np.float32).reshape(-1, 1, 1, 1)
    weights = {
        "w0": he(generator, WIDTH, 3, 3, 3) * size,
        "w1": he(generator, WIDTH, 1, 3, 3),
        "w2": he(generator, 4 * WIDTH, WIDTH, 1, 1),
        "w3": he(generator, 16, 4 * WIDTH, 3, 3),
    }
    tensors: dict[str, np.ndarray] = {"zero": np.float32(0), "six": np.float32(6)}
    nodes, ends = [], []
    for branch in "ab":
        own = branch if copied else ""
        for name, value in weights.items():
            tensors[own + name] = value
            tensors[f"{own}bias{name}"] = np.linspace(-0.1, 0.1, len(value), dtype=np.float32)
        value = branch
        for place, name in enumerate(weights):
            layer = f"{branch}.{place}"
            around = {"pads": [1, 1, 1, 1]} if name != "w2" else {}
            group = WIDTH if name == "w1" else 1
            nodes.append(
                oh.make_node("Conv", [value, own + name, f"{own}bias{name}"], [f"{layer}.c"], layer, group=group, **around)
            )
            nodes.append(oh.make_node("Clip", [f"{layer}.c", "zero", "six"], [f"{layer}.r"], f"{layer}.clip"))
            value = f"{layer}.r"
        nodes.append(oh.make_node("GlobalAveragePool", [value], [f"{branch}.pool"], f"{branch}.pool"))
        nodes.append(oh.make_node("Flatten", [f"{branch}.pool"], [f"{branch}.flat"], f"{branch}.flat"))
        ends.append(f"{branch}.flat")
    tensors["fc"] = he(generator, 4, 16)
    nodes.append(oh.make_node("Sub", ends, ["apart"], "apart"))
    nodes.append(oh.make_node("Gemm", ["apart", "fc"], ["y"], "fc", transB=1))
    return network(nodes, tensors, ["y"], inputs={"a": [1, 3, 16, 16], "b": [1, 3, 16, 16]})


def quantized(model: ir.Model, **settings: object) -> ir.Model:
    recipe = Int8(**{"placement": "all", "repair": False, **settings})
    return quantize_static(model, statistics_of(model, FEEDS[:8]), recipe, Images(FEEDS[:8], FEEDS[8:16])).model


def sizes_of(model: ir.Model, shape: tuple[int, ...]) -> list[bytes]:
    found = (value.const_value for value in model.graph.initializers.values())
    return [tensor.tobytes() for tensor in found if tensor.dtype == ir.DataType.INT8 and tuple(tensor.shape.numpy()) == shape]


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("settings", [{}, {"effort": "high", "method": "mse"}, {"format": "qoperator"}])
def test_the_file_has_their_codes_once_and_every_kernel_gets_them(copied, settings):
    model = siamese(copied=copied)
    result = quantized(model, **settings)
    # The others are too small for what would copy them.
    assert len(sizes_of(result, (16, 4 * WIDTH, 3, 3))) == len(sizes_of(result, (4 * WIDTH, WIDTH, 1, 1))) == 1
    wanted = np.stack([run(model, feeds)["y"] for feeds in FEEDS[16:]])
    # As any service loads it, as one on a CPU without VNNI should, and as written (where kernels saturate in operator form).
    ways = [{}, {"entries": {"session.x64quantprecision": "1"}}, {"optimization": "off"}]
    for options in ways if settings.get("format") != "qoperator" else ways[:2]:
        got = np.stack([run(result, feeds, **options)["y"] for feeds in FEEDS[16:]])
        assert sqnr_db(float(np.square(wanted).sum()), float(np.square(wanted - got).sum())) > 24
    kernels = optimized_nodes(as_bytes(result))
    assert not [node for node in kernels if node.op_type in ("Tile", "Split")], "folded while loading"
    assert len([node for node in kernels if node.op_type == "QLinearConv"]) == 8


@pytest.mark.parametrize("copied", [False, True])
def test_so_has_the_file_without_activation_ranges(copied):
    model = siamese(copied=copied)
    result = quantize_dynamic(model, Int8(), statistics_of(model, FEEDS[:8])).model
    assert len(sizes_of(result, (16, 4 * WIDTH, 3, 3))) == len(sizes_of(result, (4 * WIDTH, WIDTH, 1, 1))) == 1
    wanted = np.stack([run(model, feeds)["y"] for feeds in FEEDS[16:]])
    # As written, products saturate without VNNI.
    for options in ({}, {"entries": {"session.x64quantprecision": "1"}}):
        got = np.stack([run(result, feeds, **options)["y"] for feeds in FEEDS[16:]])
        assert sqnr_db(float(np.square(wanted).sum()), float(np.square(wanted - got).sum())) > 24
    assert not [node for node in optimized_nodes(as_bytes(result)) if node.op_type in ("Tile", "Split", "Cast")]


def test_products_with_ranges_of_run_time_share_their_weights():
    generator = np.random.default_rng(3)
    weights = he(generator, WIDTH, WIDTH)
    nodes = [
        oh.make_node("MatMul", ["x", "w"], ["first"], "first"),
        oh.make_node("Relu", ["first"], ["between"], "between"),
        oh.make_node("MatMul", ["between", "w"], ["second"], "second"),
        oh.make_node("Gemm", ["second", "w", "bias"], ["y"], "last", transB=0),
    ]
    model = network(nodes, {"w": weights, "bias": np.ones(WIDTH, np.float32)}, ["y"], inputs={"x": [4, WIDTH]})
    result = quantize_dynamic(model, Int8()).model
    assert len(sizes_of(result, (WIDTH, WIDTH))) == 1
    feeds = {"x": generator.standard_normal((4, WIDTH), np.float32)}
    wanted = run(model, feeds)["y"]
    for options in ({}, {"entries": {"session.x64quantprecision": "1"}}):
        got = run(result, feeds, **options)["y"]
        assert sqnr_db(float(np.square(wanted).sum()), float(np.square(wanted - got).sum())) > 24


def test_their_weights_are_found_where_the_file_has_them():
    nodes = {node.name: node for node in readable(quantized(siamese())).graph}
    for layer in ("2", "3"):
        one, other = (stored_in(nodes[f"{branch}.{layer}"].inputs[1]) for branch in "ab")
        assert one is other is not None
        assert one.dtype == ir.DataType.INT8


def test_they_are_found_whether_written_once_or_for_each_layer():
    for copied in (False, True):
        units = [unit for unit in Draft(*_parts(siamese(copied=copied))).units if unit.kind == "linear"]
        assert [[unit.main.name for unit in units] for units in alike(units)] == [
            *([f"a.{place}", f"b.{place}"] for place in range(4)),
            ["fc"],
        ]


def _parts(model: ir.Model) -> tuple:
    ready = prepared(model)
    return ready, statistics_of(ready, FEEDS[:8]), Int8(method="minmax"), {}, FEEDS[:8]


def test_equalizing_leaves_them_the_same():
    draft = Draft(*_parts(siamese()))
    streams = streams_of(draft.model, draft.units)
    other = draft.equalized_by({stream.name: 0.6 for stream in streams})
    assert other.growth
    for name, growth in other.growth.items():
        twin = ("b" if name[0] == "a" else "a") + name[1:]
        assert np.array_equal(growth, other.growth[twin])
    for feeds in FEEDS[16:]:
        assert np.allclose(run(draft.model, feeds)["y"], run(other.model, feeds)["y"], atol=1e-4)
    codes = other.plan().codes
    assert all(np.array_equal(codes[f"a.{place}"].codes, codes[f"b.{place}"].codes) for place in range(4))


def test_fitted_as_one_each_with_a_bias_of_its_own():
    draft = Draft(*_parts(siamese()))
    plan = draft.plan()
    codes = refined_codes(draft.model, plan, FEEDS[:8], per_channel=True)
    for place in range(4):
        one, other = codes[f"a.{place}"], codes[f"b.{place}"]
        assert np.array_equal(one.codes, other.codes)
        assert np.array_equal(one.scale, other.scale)
        assert not np.array_equal(one.bias, other.bias)
    assert any((codes[f"a.{place}"].codes != plan.codes[f"a.{place}"].codes).any() for place in range(4))
