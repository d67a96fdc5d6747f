"""Gelu and LayerNormalization: spelled out by exporters, one node again in what INT8 is made from."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network, optimized, run, sqnr, statistics_of
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import SourceError
from octavo.graph.passes.spelled import gelu as rewriting
from octavo.graph.passes.spelled.gelu import GeluPass, spells_gelu
from octavo.graph.passes.spelled.layer_norm import LayerNormPass
from octavo.graph.prepared import prepared
from octavo.params.grammar import Int8
from octavo.quantization.executed import executed
from octavo.quantization.int8 import quantize_static
from octavo.runtime.kernels import optimized_nodes

GENERATOR = np.random.default_rng(7)
IMAGES = [GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32) * 2 for _ in range(6)]
WEIGHTS = {
    "w0": he(GENERATOR, 8, 3, 3, 3),
    "w1": he(GENERATOR, 8, 8, 3, 3),
    "w2": he(GENERATOR, 5, 8),
    "scale": GENERATOR.uniform(0.5, 2, 16).astype(np.float32),
    "bias": GENERATOR.standard_normal(16).astype(np.float32),
}
SQRT_2, SLOPE = math.sqrt(2), math.sqrt(2 / math.pi)
STEM = oh.make_node("Conv", ["x", "w0"], ["c"], "stem", pads=[1, 1, 1, 1])
STEM_WITH_GELU = [
    STEM,
    oh.make_node("Div", ["c", "root"], ["d"], "d"),
    oh.make_node("Erf", ["d"], ["e"], "e"),
    oh.make_node("Add", ["e", "one"], ["s"], "s"),
    oh.make_node("Mul", ["c", "s"], ["p"], "p"),
    oh.make_node("Mul", ["p", "half"], ["g"], "g"),
]


def number(value: float, rank: int = 0) -> np.ndarray:
    return np.full([1] * rank, value, np.float32)


def pair(first: str, second: str, swapped: bool) -> list[str]:
    return [second, first] if swapped else [first, second]


@st.composite
def gelus(draw) -> ir.Model:
    """x / 2 (1 + Erf(x / sqrt(2))) behind a Conv, its products in any order."""
    rank = draw(st.sampled_from([0, 1, 4]))
    swaps = draw(st.lists(st.booleans(), min_size=5, max_size=5))
    root, half = draw(st.sampled_from(["Div", "Mul"])), draw(st.sampled_from(["Div", "Mul"]))
    tensors = {
        "root": number(math.sqrt(2) if root == "Div" else math.sqrt(0.5), rank),
        "half": number(2 if half == "Div" else 0.5, rank),
        "one": number(1, rank),
    }

    def times_half(source: str, target: str) -> onnx.NodeProto:
        return oh.make_node(half, pair(source, "half", swaps[0] and half == "Mul"), [target], target)

    nodes = [
        STEM,
        oh.make_node(root, pair("c", "root", swaps[1] and root == "Mul"), ["d"], "d"),
        oh.make_node("Erf", ["d"], ["e"], "e"),
    ]
    where = draw(st.sampled_from(["behind", "on the sum", "on x", "within"]))
    if where == "within":
        tensors["one"] = number(0.5, rank)
        nodes += [times_half("e", "eh"), oh.make_node("Add", pair("eh", "one", swaps[2]), ["s"], "s")]
    else:
        nodes.append(oh.make_node("Add", pair("e", "one", swaps[2]), ["s"], "s"))
    if where == "on the sum":
        nodes += [times_half("s", "sh"), oh.make_node("Mul", pair("c", "sh", swaps[3]), ["y"], "last")]
    elif where == "on x":
        nodes += [times_half("c", "ch"), oh.make_node("Mul", pair("ch", "s", swaps[3]), ["y"], "last")]
    elif where == "behind":
        nodes += [oh.make_node("Mul", pair("c", "s", swaps[3]), ["p"], "p"), times_half("p", "y")]
    else:
        nodes.append(oh.make_node("Mul", pair("c", "s", swaps[3]), ["y"], "last"))
    return network(nodes, WEIGHTS | tensors, ["y"], opset=draw(st.sampled_from([20, 21])))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(gelus())
def test_every_way_to_spell_gelu_is_one_node(model):
    truth, last = run(model, {"x": IMAGES[0]}, optimization="off")["y"], model.graph[-1].name
    assert spells_gelu(model)
    assert GeluPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert [node.op_type for node in model.graph] == ["Conv", "Gelu"]
    assert (model.graph[-1].name, model.graph[-1].outputs[0].name) == (last, "y")
    np.testing.assert_allclose(run(model, {"x": IMAGES[0]})["y"], truth, rtol=1e-5, atol=1e-6)
    assert not GeluPass()(model).modified
    assert not spells_gelu(model)


CUBES = {
    "power": [oh.make_node("Pow", ["c", "three"], ["k"], "k"), oh.make_node("Mul", ["k", "cubed"], ["q"], "q")],
    "products": [
        oh.make_node("Mul", ["c", "cubed"], ["k"], "k"),
        oh.make_node("Mul", ["k", "c"], ["kk"], "kk"),
        oh.make_node("Mul", ["c", "kk"], ["q"], "q"),
    ],
    "square": [
        oh.make_node("Mul", ["c", "c"], ["k"], "k"),
        oh.make_node("Mul", ["k", "c"], ["kk"], "kk"),
        oh.make_node("Mul", ["cubed", "kk"], ["q"], "q"),
    ],
    "x outside": [oh.make_node("Pow", ["c", "two"], ["k"], "k"), oh.make_node("Mul", ["cubed", "k"], ["q"], "q")],
}


def by_tanh(cube: str, *, swapped: bool = False, cubed=0.044715, root=SLOPE, plain="c", outputs=("y",)) -> ir.Model:
    """x / 2 (1 + Tanh(sqrt(2 / pi) (x + .044715 x^3))) behind a Conv."""
    outside = cube == "x outside"
    nodes = [
        STEM,
        oh.make_node("Relu", ["c"], ["r"], "relu"),
        *CUBES[cube],
        oh.make_node("Add", pair("one" if outside else plain, "q", swapped), ["i"], "i"),
        *[oh.make_node("Mul", pair("i", "c", swapped), ["o"], "o")] * outside,
        oh.make_node("Mul", pair("root", "o" if outside else "i", swapped), ["d"], "d"),
        oh.make_node("Tanh", ["d"], ["e"], "e"),
        oh.make_node("Add", pair("e", "one", swapped), ["s"], "s"),
        oh.make_node("Mul", pair("c", "half", swapped), ["h"], "h"),
        oh.make_node("Mul", pair("h", "s", swapped), ["y"], "last"),
    ]
    numbers = {"three": 3.0, "two": 2.0, "cubed": cubed, "root": root, "one": 1.0, "half": 0.5}
    used = {name for node in nodes for name in node.input}
    return network(
        nodes, WEIGHTS | {name: number(value) for name, value in numbers.items() if name in used}, list(outputs), opset=20
    )


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("cube", CUBES)
def test_its_approximation_by_tanh_is_one_node(cube, swapped):
    model = by_tanh(cube, swapped=swapped)
    truth = run(model, {"x": IMAGES[0]}, optimization="off")["y"]
    assert GeluPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert [node.op_type for node in model.graph] == ["Conv", "Relu", "Gelu"]
    assert model.graph[-1].attributes.get_string("approximate") == "tanh"
    np.testing.assert_allclose(run(model, {"x": IMAGES[0]})["y"], truth, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "changed", [{"cubed": 0.04}, {"root": 0.7}, {"plain": "r"}, {"outputs": ("y", "q")}, {"outputs": ("y", "i")}]
)
@pytest.mark.parametrize("cube", ["power", "products"])
def test_another_tanh_stays(cube, changed):
    model = by_tanh(cube, **changed)
    assert not GeluPass()(model).modified


def gelu(*, root=SQRT_2, one=1.0, half=0.5, factor="c", rank=0, outputs=("y",), opset=20) -> ir.Model:
    tensors = {"root": number(root, rank), "one": number(one), "half": number(half)}
    nodes = [
        STEM,
        oh.make_node("Relu", ["c"], ["r"], "relu"),
        oh.make_node("Div", ["c", "root"], ["d"], "d"),
        oh.make_node("Erf", ["d"], ["e"], "e"),
        oh.make_node("Add", ["e", "one"], ["s"], "s"),
        oh.make_node("Mul", [factor, "s"], ["p"], "p"),
        oh.make_node("Mul", ["p", "half"], ["y"], "last"),
    ]
    return network(nodes, WEIGHTS | tensors, list(outputs), opset=opset)


@pytest.mark.parametrize(
    "changed",
    [
        {"root": 1.5},
        {"one": 2.0},
        {"half": 1.0},
        {"factor": "r"},
        {"rank": 5},
        {"outputs": ("y", "e")},
        {"outputs": ("y", "s")},
        {"outputs": ("y", "p")},
        {"opset": 19},
        {"root": 0.0},
    ],
)
def test_what_is_not_gelu_stays(changed):
    model = gelu(**changed)
    assert not GeluPass()(model).modified
    assert [node.op_type for node in model.graph].count("Erf") == 1


def divided(swaps: list[bool]) -> list[onnx.NodeProto]:
    """(d / r) scale + bias."""
    return [
        oh.make_node("Div", ["d", "r"], ["n"], "n"),
        oh.make_node("Mul", pair("n", "scale", swaps[2]), ["ns"], "ns"),
        oh.make_node("Add", pair("ns", "bias", swaps[3]), ["y"], "last"),
    ]


def multiplied(swaps: list[bool]) -> list[onnx.NodeProto]:
    """(d (1 / r)) scale + bias."""
    nodes = [oh.make_node("Reciprocal", ["r"], ["o"], "o"), oh.make_node("Mul", pair("d", "o", swaps[1]), ["n"], "n")]
    return nodes + divided(swaps)[1:]


def factor(swaps: list[bool]) -> list[onnx.NodeProto]:
    """f = (1 / r) scale."""
    return [oh.make_node("Reciprocal", ["r"], ["o"], "o"), oh.make_node("Mul", pair("o", "scale", swaps[1]), ["f"], "f")]


def scaled_first(swaps: list[bool]) -> list[onnx.NodeProto]:
    """d f + bias, as Flax has it."""
    nodes = [oh.make_node("Mul", pair("d", "f", swaps[2]), ["ns"], "ns")]
    return [*factor(swaps), *nodes, oh.make_node("Add", pair("ns", "bias", swaps[3]), ["y"], "last")]


def keras(swaps: list[bool]) -> list[onnx.NodeProto]:
    """x f + (-mean f + bias), as Keras 3 has it."""
    return [
        *factor(swaps),
        oh.make_node("Neg", ["m"], ["minus"], "minus"),
        oh.make_node("Mul", pair("minus", "f", swaps[2]), ["mf"], "mf"),
        oh.make_node("Add", pair("mf", "bias", swaps[3]), ["shift"], "shift"),
        oh.make_node("Mul", pair("c", "f", swaps[4]), ["cf"], "cf"),
        oh.make_node("Add", pair("cf", "shift", swaps[0]), ["y"], "last"),
    ]


def keras_less(swaps: list[bool]) -> list[onnx.NodeProto]:
    """x f + (bias - mean f), as Keras 2 has it."""
    nodes = keras(swaps)
    less = [oh.make_node("Mul", pair("m", "f", swaps[2]), ["mf"], "mf"), oh.make_node("Sub", ["bias", "mf"], ["shift"], "shift")]
    return [*nodes[:2], *less, *nodes[5:]]


@st.composite
def norms(draw) -> ir.Model:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axes of a Conv's output, or over its channels."""
    opset = draw(st.sampled_from([17, 18]))
    first, sizes = draw(st.sampled_from([(2, [16, 16]), (3, [16]), (1, [8])]))
    axes = [first + place - draw(st.sampled_from([0, 4])) for place in range(len(sizes))]
    swaps = draw(st.lists(st.booleans(), min_size=5, max_size=5))
    rank = draw(st.sampled_from([4 - first, 4]))
    shape = [*[1] * (first - 4 + rank), *sizes, *[1] * (4 - first - len(sizes))]
    tensors = {
        "scale": GENERATOR.uniform(0.5, 2, shape).astype(np.float32),
        "bias": GENERATOR.standard_normal(shape).astype(np.float32),
        "epsilon": number(draw(st.sampled_from([1e-5, 1e-6, 0.1]))),
        "two": number(2),
        "axes": np.array(axes, np.int64),
    }

    pooled = first == 2 and draw(st.booleans())

    def mean(source: str, target: str) -> onnx.NodeProto:
        if pooled:
            return oh.make_node("GlobalAveragePool", [source], [target], target)
        given = {"axes": axes} if opset < 18 else {}
        inputs = [source] if opset < 18 else [source, "axes"]
        return oh.make_node("ReduceMean", inputs, [target], target, keepdims=1, **given)

    written = draw(st.sampled_from([divided, multiplied, scaled_first, keras, keras_less]))
    twice = written not in (keras, keras_less) and draw(st.booleans())
    nodes = [STEM, mean("c", "m"), oh.make_node("Sub", ["c", "m"], ["d"], "d")]
    if twice:
        nodes.append(oh.make_node("Sub", ["c", "m"], ["d2"], "d2"))
    of = "d2" if twice else "d"
    nodes.append(oh.make_node(*(("Pow", [of, "two"]) if draw(st.booleans()) else ("Mul", [of, of])), ["q"], "q"))
    nodes += [
        mean("q", "v"),
        oh.make_node("Add", pair("v", "epsilon", swaps[0]), ["ve"], "ve"),
        oh.make_node("Sqrt", ["ve"], ["r"], "r"),
    ]
    nodes += written(swaps)
    return network(nodes, {"w0": WEIGHTS["w0"]} | tensors, ["y"], opset=opset)


@settings(max_examples=160, deadline=None, derandomize=True)
@given(norms())
def test_every_way_to_spell_a_layer_norm_is_one_node(model):
    truth = run(model, {"x": IMAGES[0]}, optimization="off")["y"]
    assert LayerNormPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    over_channels = dict.fromkeys(["Transpose"] if model.graph[1].op_type == "Transpose" else [])
    assert [node.op_type for node in model.graph] == ["Conv", *over_channels, "LayerNormalization", *over_channels]
    assert (model.graph[-1].name, model.graph[-1].outputs[0].name) == ("last", "y")
    np.testing.assert_allclose(run(model, {"x": IMAGES[0]})["y"], truth, rtol=1e-4, atol=1e-5)
    assert not LayerNormPass()(model).modified


def norm(
    *, axes=(-1,), keep=1, power=2.0, square="d", divided="d", scale=(16,), bias=(16,), axes2=None, outputs=("y",), opset=18
) -> ir.Model:
    tensors = {
        "axes": np.array(axes, np.int64),
        "axes2": np.array(axes if axes2 is None else axes2, np.int64),
        "two": number(power),
        "epsilon": number(1e-5),
        "scale": np.ones(scale, np.float32),
        "bias": np.ones(bias, np.float32),
    }
    nodes = [
        STEM,
        oh.make_node("Relu", ["c"], ["other"], "other"),
        oh.make_node("ReduceMean", ["c", "axes"], ["m"], "m", keepdims=keep),
        oh.make_node("Sub", ["c", "m"], ["d"], "d"),
        oh.make_node("Pow", [square, "two"], ["q"], "q"),
        oh.make_node("ReduceMean", ["q", "axes2"], ["v"], "v"),
        oh.make_node("Add", ["v", "epsilon"], ["ve"], "ve"),
        oh.make_node("Sqrt", ["ve"], ["r"], "r"),
        oh.make_node("Div", [divided, "r"], ["n"], "n"),
        oh.make_node("Mul", ["n", "scale"], ["ns"], "ns"),
        oh.make_node("Add", ["ns", "bias"], ["y"], "last"),
    ]
    return network(nodes, {"w0": WEIGHTS["w0"]} | tensors, list(outputs), opset=opset)


@pytest.mark.parametrize(
    "changed",
    [
        {"axes": [1], "scale": (8, 1, 1), "bias": (16,)},
        {"axes": [1, 2], "scale": (8, 16, 1), "bias": (8, 16, 1)},
        {"axes": [2]},
        {"power": 3.0},
        {"square": "other"},
        {"divided": "other"},
        {"axes2": [-2]},
        {"scale": (1,)},
        {"bias": (16, 1)},
        {"scale": (16, 16)},
        {"outputs": ("y", "n")},
        {"outputs": ("y", "v")},
    ],
)
def test_what_is_no_layer_norm_stays(changed):
    model = norm(**changed)
    assert not LayerNormPass()(model).modified
    assert "LayerNormalization" not in {node.op_type for node in model.graph}


@pytest.mark.parametrize(
    "changed",
    [
        {"minus": oh.make_node("Neg", ["v"], ["minus"], "minus")},
        {"minus": oh.make_node("Relu", ["m"], ["minus"], "minus")},
        {"cf": oh.make_node("Mul", ["other", "f"], ["cf"], "cf")},
        {"mf": oh.make_node("Mul", ["minus", "o"], ["mf"], "mf")},
        {"mf": oh.make_node("Mul", ["f", "f"], ["mf"], "mf")},
        {"shift": oh.make_node("Sub", ["bias", "mf"], ["shift"], "shift")},
        {"o": oh.make_node("Sqrt", ["r"], ["o"], "o")},
        {"outputs": ["y", "f"]},
        {"outputs": ["y", "cf"]},
        {"outputs": ["y", "shift"]},
    ],
    ids=lambda changed: " ".join([*changed, *map(str, changed.get("outputs", ()))]),
)
def test_what_is_not_kerass_layer_norm_stays(changed):
    ahead = [*norm().graph][:-3]
    ahead = [ir.to_proto(node) for node in ahead]
    nodes = [*ahead, *(changed.get(node.name, node) for node in keras([False] * 5))]
    tensors = {name: value.const_value.numpy() for name, value in norm().graph.initializers.items()}
    model = network(nodes, tensors, changed.get("outputs", ["y"]))
    assert not LayerNormPass()(model).modified


def test_a_norm_over_channels_stays_where_it_was_not_measured():
    over = norm(axes=(1,), scale=(8, 1, 1), bias=(8, 1, 1))
    kinds = [{node.op_type for node in prepared(over, depthwise_norms=kernels).graph} for kernels in (True, False)]
    assert ["LayerNormalization" in one for one in kinds] == [True, False]


def test_a_norm_over_channels_between_convs_is_one_float_node():
    """ConvNeXt's LayerNorm of images: between integer Convs, the means over channels once as LayerNormalization."""
    over = norm(axes=(1,), scale=(8, 1, 1), bias=(8, 1, 1))
    nodes = [ir.to_proto(node) for node in over.graph][:-1]
    nodes += [
        oh.make_node("Add", ["ns", "bias"], ["l"], "last"),
        oh.make_node("Conv", ["l", "w1"], ["y"], "body", pads=[1, 1, 1, 1]),
    ]
    tensors = {name: value.const_value.numpy() for name, value in over.graph.initializers.items()}
    model = network(nodes, tensors | {"w1": WEIGHTS["w1"]}, ["y"])
    feeds = [{"x": image} for image in IMAGES]
    result = quantize_static(model, statistics_of(model, feeds), Int8(method="minmax", placement="all"))
    kernels = Counter(node.op_type for node in result.model.graph)
    assert (kernels["LayerNormalization"], kernels["ReduceMean"], kernels["Pow"]) == (1, 0, 0)
    assert sqnr(model, result.model, feeds)["y"] > 30
    decided = {decision.node: decision.precision for decision in result.decisions}
    assert {decided[name] for name in ("m", "d", "q", "v", "ve", "r", "n", "ns", "last")} == {"float"}
    assert decided["stem"] == "int8"


def classifier(opset: int = 18) -> ir.Model:
    """A 3x3 Conv, its Gelu spelled out, another one, and classes."""
    tensors = {"root": number(math.sqrt(2)), "one": number(1), "half": number(0.5)}
    nodes = [
        *STEM_WITH_GELU,
        oh.make_node("Conv", ["g", "w1"], ["b"], "body", pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["b"], ["br"], "br"),
        oh.make_node("GlobalAveragePool", ["br"], ["a"], "a"),
        oh.make_node("Flatten", ["a"], ["f"], "f"),
        oh.make_node("Gemm", ["f", "w2"], ["y"], "head", transB=1),
    ]
    return network(nodes, WEIGHTS | tensors, ["y"], opset=opset)


def test_an_int8_network_runs_gelu_as_one_kernel(tmp_path):
    model = classifier()
    feeds = [{"x": image} for image in IMAGES]
    result = quantize_static(model, statistics_of(model, feeds[:5]), Int8(method="minmax", placement="all"))
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)
    kernels = [node.op_type for node in optimized(result.model, tmp_path).graph.node]
    assert kernels.count("Gelu") == 1
    assert {"Erf", "Div", "Mul"}.isdisjoint(kernels)
    assert kernels.count("QLinearConv") == 2
    assert sqnr(model, result.model, feeds[5:])["y"] > 25
    decided = {decision.node: decision for decision in result.decisions}
    parts = [decided[name] for name in ("d", "e", "s", "p", "g")]
    assert {one.precision for one in parts} == {"float"}, "all five are the one node that is float"
    assert len({one.reason for one in parts}) == 1
    found = executed(model, result.decisions, optimized_nodes(ir.to_proto(result.model).SerializeToString()))
    assert not found.unexpected
    records = {record["node"]: record for record in found.nodes}
    assert [(records[name]["kernel"], records[name]["fused_into"]) for name in ("d", "e", "s", "p")] == [("Gelu", "g")] * 4


def test_what_a_gelu_by_tanh_is_spelled_with_is_float_and_the_norm_before_it_its_layer_s():
    """The norm is read three times, as the Conv is that has taken it in."""
    eight = np.random.default_rng(3).uniform(0.5, 1.5, 8).astype(np.float32)
    numbers = {"three": number(3), "cubed": number(0.044715), "slope": number(SLOPE), "one": number(1), "half": number(0.5)}
    nodes = [
        STEM,
        oh.make_node("BatchNormalization", ["c", "eight", "eight", "eight", "eight"], ["n"], "n"),
        oh.make_node("Pow", ["n", "three"], ["w"], "w"),
        oh.make_node("Mul", ["w", "cubed"], ["k"], "k"),
        oh.make_node("Add", ["n", "k"], ["i"], "i"),
        oh.make_node("Mul", ["i", "slope"], ["d"], "d"),
        oh.make_node("Tanh", ["d"], ["e"], "e"),
        oh.make_node("Add", ["e", "one"], ["s"], "s"),
        oh.make_node("Mul", ["n", "s"], ["p"], "p"),
        oh.make_node("Mul", ["p", "half"], ["g"], "g"),
        oh.make_node("Conv", ["g", "w1"], ["y"], "body", pads=[1, 1, 1, 1]),
    ]
    model = network(nodes, {"w0": WEIGHTS["w0"], "w1": WEIGHTS["w1"], "eight": eight} | numbers, ["y"])
    settings = Int8(method="minmax", placement="all", float_heads=False)
    result = quantize_static(model, statistics_of(model, [{"x": image} for image in IMAGES]), settings)
    found = executed(model, result.decisions, optimized_nodes(ir.to_proto(result.model).SerializeToString()))
    assert not found.unexpected
    records = {record["node"]: record for record in found.nodes}
    runs = {
        name: (one["precision"], one["runs"], one["kernel"], one["fused_into"])
        for name, one in records.items()
        if name in "nwkidesp"
    }
    assert runs == dict.fromkeys("wkidesp", ("float", "float", "Gelu", "g")) | {"n": ("int8", "int8", "QLinearConv", "stem")}


def test_all_parts_of_a_layer_norm_are_the_one_node_that_is_float():
    """The difference is read twice, by the square and by the division."""
    tensors = {
        "w0": WEIGHTS["w0"],
        "w1": WEIGHTS["w1"],
        "axes": np.array([-1], np.int64),
        "two": number(2),
        "epsilon": number(1e-5),
    }
    tensors |= {"scale": WEIGHTS["scale"], "bias": WEIGHTS["bias"]}
    nodes = [
        STEM,
        oh.make_node("ReduceMean", ["c", "axes"], ["m"], "m"),
        oh.make_node("Sub", ["c", "m"], ["d"], "d"),
        oh.make_node("Pow", ["d", "two"], ["q"], "q"),
        oh.make_node("ReduceMean", ["q", "axes"], ["v"], "v"),
        oh.make_node("Add", ["v", "epsilon"], ["ve"], "ve"),
        oh.make_node("Sqrt", ["ve"], ["r"], "r"),
        oh.make_node("Div", ["d", "r"], ["n"], "n"),
        oh.make_node("Mul", ["n", "scale"], ["ns"], "ns"),
        oh.make_node("Add", ["ns", "bias"], ["l"], "l"),
        oh.make_node("Conv", ["l", "w1"], ["y"], "body", pads=[1, 1, 1, 1]),
    ]
    model = network(nodes, tensors, ["y"])
    feeds = [{"x": image} for image in IMAGES]
    result = quantize_static(model, statistics_of(model, feeds), Int8(method="minmax", placement="all"))
    decided = {decision.node: decision for decision in result.decisions}
    parts = [decided[name] for name in ("m", "d", "q", "v", "ve", "r", "n", "ns", "l")]
    assert {one.precision for one in parts} == {"float"}
    assert len({one.reason for one in parts}) == 1
    assert decided["stem"].precision == "int8"


@pytest.mark.parametrize("target", ["cpu", "openvino"])
def test_a_graph_raised_for_its_gelu_is_the_same_network_with_the_same_names(target):
    # Raised from opset 17, each reduction reads a Constant without a name, and GridSample is another node.
    tensors = {
        "root": number(math.sqrt(2)),
        "one": number(1),
        "half": number(0.5),
        "grid": GENERATOR.uniform(-1, 1, (1, 16, 16, 2)).astype(np.float32),
    }
    nodes = [
        *STEM_WITH_GELU,
        oh.make_node("ReduceL2", ["g"], ["n"], "norm", axes=[1], keepdims=1),
        oh.make_node("Div", ["g", "n"], ["u"], "unit"),
        oh.make_node("GridSample", ["u", "grid"], ["v"], "warp", mode="bilinear"),
        oh.make_node("Conv", ["v", "w1"], ["b"], "body", pads=[1, 1, 1, 1]),
        oh.make_node("ReduceMax", ["b"], ["f"], "most", axes=[2, 3], keepdims=0),
        oh.make_node("Gemm", ["f", "w2"], ["y"], "head", transB=1),
    ]
    model = network(nodes, WEIGHTS | tensors, ["y"], opset=17)
    feeds = [{"x": image} for image in IMAGES]
    recipe = Int8(method="minmax", placement="all", target=target, keep_float=("warp",))
    result = quantize_static(model, statistics_of(model, feeds), recipe)
    assert result.model.opset_imports[""] == 20
    assert sqnr(model, result.model, feeds)["y"] > 30
    decided = {decision.node: decision for decision in result.decisions}
    assert (decided["warp"].precision, decided["warp"].reason) == ("float", "keep_float: warp")
    assert "no INT8 rule" in decided["norm"].reason


def test_a_graph_that_cannot_be_converted_keeps_its_parts(monkeypatch):
    class Fails:
        def __init__(self, opset):
            self.opset = opset

        def __call__(self, model):
            if self.opset > (model.opset_imports.get("") or 0):
                raise SourceError("no", "no")

    monkeypatch.setattr(rewriting, "OpsetUpPass", Fails)
    ready = prepared(classifier())
    assert ready.opset_imports[""] == 18
    assert "Erf" in {node.op_type for node in ready.graph}


def test_without_a_gelu_the_opset_stays():
    assert prepared(norm()).opset_imports[""] == 18
    assert prepared(classifier()).opset_imports[""] == 20
    assert "LayerNormalization" in {node.op_type for node in prepared(norm()).graph}
