"""HardSwish and HardSigmoid: spelled out by exporters, made one node again, and run in integers with what stands around them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir
import pytest
from graphs import network, run, sqnr, statistics_of
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.graph.passes.spelled.hard_sigmoid_to_clip import HardSigmoidToClipPass
from octavo.graph.passes.spelled.hard_swish import HardSwishPass
from octavo.graph.prepared import prepared
from octavo.params.grammar import Int8
from octavo.quantization.executed import executed
from octavo.quantization.int8 import quantize_static
from octavo.quantization.int8.pricing.measuring import measure
from octavo.quantization.int8.structure.units import affine_of, units_of
from octavo.runtime.kernels import optimized_nodes

GENERATOR = np.random.default_rng(5)
IMAGES = [GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32) * 2 for _ in range(6)]
ALL = {"method": "minmax", "placement": "all"}
WEIGHTS = {
    "w0": GENERATOR.standard_normal((8, 3, 3, 3)).astype(np.float32) / 3,
    "w1": GENERATOR.standard_normal((8, 8, 1, 1)).astype(np.float32) / 2,
    "w2": GENERATOR.standard_normal((8, 8, 1, 1)).astype(np.float32) / 2,
    "w3": GENERATOR.standard_normal((5, 8, 1, 1)).astype(np.float32) / 3,
    "b": GENERATOR.standard_normal(8).astype(np.float32),
}
STEM = oh.make_node("Conv", ["x", "w0", "b"], ["c"], "stem", pads=[1, 1, 1, 1])


def number(value: float, rank: int = 0) -> np.ndarray:
    return np.full([1] * rank, value, np.float32)


def constants(**numbers: float) -> dict[str, np.ndarray]:
    return {name: number(value) for name, value in numbers.items()}


def pair(first: str, second: str, swapped: bool) -> list[str]:
    return [second, first] if swapped else [first, second]


@st.composite
def spelled(draw) -> ir.Model:
    """x * Clip(x + 3, 0, 6) / 6 in one of the ways that exporters have for it, behind a Conv."""
    sixth = draw(st.sampled_from(["Div", "Mul"]))
    rank = draw(st.sampled_from([0, 1, 4]))
    tensors = {"three": number(3, rank), "zero": number(0), "top": number(6), "last": number(6 if sixth == "Div" else 1 / 6, rank)}
    swaps = draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))

    def scaled(source: str, target: str) -> onnx.NodeProto:
        return oh.make_node(sixth, pair(source, "last", swaps[2] and sixth == "Mul"), [target], "scaled")

    if draw(st.booleans()):
        gate, made = [oh.make_node("HardSigmoid", ["c"], ["g"], "gate", alpha=1 / 6, beta=0.5)], "g"
    else:
        gate = [
            oh.make_node("Add", pair("c", "three", swaps[0]), ["a"], "sum"),
            oh.make_node("Clip", ["a", "zero", "top"], ["k"], "cut"),
        ]
        made = "k"
        if draw(st.booleans()):
            gate, made = [*gate, scaled("k", "g")], "g"
    product = oh.make_node("Mul", pair("c", made, swaps[1]), ["y" if made == "g" else "p"], "product")
    behind = [] if made == "g" else [scaled("p", "y")]
    return network([STEM, *gate, product, *behind], WEIGHTS | tensors, ["y"])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(spelled())
def test_every_way_to_spell_it_is_one_node(model):
    truth, last = run(model, {"x": IMAGES[0]})["y"], model.graph[-1].name
    assert HardSwishPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert [node.op_type for node in model.graph] == ["Conv", "HardSwish"]
    assert (model.graph[-1].name, model.graph[-1].outputs[0].name) == (last, "y")
    np.testing.assert_allclose(run(model, {"x": IMAGES[0]})["y"], truth, rtol=1e-5, atol=1e-6)
    assert not HardSwishPass()(model).modified


def parts(*, shift=3.0, top=6.0, low=0.0, last=6.0, factor="c", rank=0, outputs=("y",), opset=18) -> ir.Model:
    tensors = {"shift": number(shift, rank), "low": number(low), "top": number(top), "last": number(last)}
    nodes = [
        STEM,
        oh.make_node("Relu", ["c"], ["r"], "relu"),
        oh.make_node("Add", ["c", "shift"], ["a"], "sum"),
        oh.make_node("Clip", ["a", "low", "top"], ["k"], "cut"),
        oh.make_node("Mul", [factor, "k"], ["p"], "product"),
        oh.make_node("Div", ["p", "last"], ["y"], "scaled"),
    ]
    return network(nodes, WEIGHTS | tensors, list(outputs), opset=opset)


@pytest.mark.parametrize(
    "changed",
    [
        {"shift": 2.0},
        {"top": 5.0, "last": 5.0},
        {"last": 3.0},
        {"low": -1.0},
        {"factor": "r"},
        {"rank": 5},
        {"outputs": ("y", "k")},
        {"outputs": ("y", "p")},
        {"opset": 13},
        {"last": 0.0},
    ],
)
def test_what_computes_something_else_stays(changed):
    model = parts(**changed)
    assert not HardSwishPass()(model).modified
    assert "HardSwish" not in {node.op_type for node in model.graph}


def gates() -> ir.Model:
    """Squeeze and excitation, its gate spelled out in one block and not in the other."""
    nodes = [
        STEM,
        oh.make_node("HardSwish", ["c"], ["s"], "swish"),
        oh.make_node("GlobalAveragePool", ["s"], ["m"], "pool"),
        oh.make_node("Conv", ["m", "w1"], ["h"], "squeeze"),
        oh.make_node("HardSigmoid", ["h"], ["g"], "gate", alpha=0.25, beta=0.4),
        oh.make_node("Mul", ["s", "g"], ["e"], "excite"),
        oh.make_node("GlobalAveragePool", ["e"], ["m2"], "pool2"),
        oh.make_node("Conv", ["m2", "w2", "b"], ["h2"], "squeeze2"),
        oh.make_node("Add", ["h2", "three"], ["a2"], "sum2"),
        oh.make_node("Clip", ["a2", "zero", "six"], ["k2"], "cut2"),
        oh.make_node("Div", ["k2", "six"], ["g2"], "gate2"),
        oh.make_node("Mul", ["e", "g2"], ["e2"], "excite2"),
        oh.make_node("Conv", ["e2", "w3"], ["y"], "head"),
    ]
    return network(nodes, WEIGHTS | constants(three=3, zero=0, six=6), ["y"])


def test_gates_of_blocks_go_into_their_convs():
    model = gates()
    ready = prepared(model)
    assert [node.op_type for node in ready.graph if node.op_type in ("HardSigmoid", "Clip", "Add", "Div")] == ["Clip", "Clip"]
    assert {value.name for node in ready.graph for value in node.outputs} >= {"g", "g2", "h.scaled", "h2.scaled"}
    np.testing.assert_allclose(run(ready, {"x": IMAGES[0]})["y"], run(model, {"x": IMAGES[0]})["y"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("layer", "columns"),
    [
        (oh.make_node("Gemm", ["x", "w", "b"], ["y"], "layer"), True),
        (oh.make_node("Gemm", ["x", "v", "b"], ["y"], "layer", transB=1), True),
        (oh.make_node("MatMul", ["x", "w"], ["y"], "layer"), True),
        (oh.make_node("ConvTranspose", ["x", "t", "b"], ["y"], "layer"), False),
    ],
    ids=["gemm", "transposed", "matmul", "deconv"],
)
def test_hard_sigmoid_goes_into_any_layer_whose_outputs_are_not_as_many_as_its_inputs(layer, columns):
    """As a gate behind a linear layer (squeeze and excitation on vectors)."""
    shapes = {"w": (6, 4), "v": (4, 6), "t": (6, 4, 2, 2), "b": (4,)}
    tensors = {name: GENERATOR.standard_normal(shapes[name]).astype(np.float32) for name in layer.input[1:]}
    image = GENERATOR.standard_normal((1, 6) if columns else (1, 6, 5, 5)).astype(np.float32)
    model = network([layer, oh.make_node("HardSigmoid", ["y"], ["g"], "gate")], tensors, ["g"], inputs={"x": list(image.shape)})
    expected = run(model, {"x": image})["g"]
    assert HardSigmoidToClipPass()(model).modified
    np.testing.assert_allclose(run(model, {"x": image})["g"], expected, atol=1e-6)


def test_a_gate_of_what_another_node_reads_stays():
    model = network([STEM, oh.make_node("HardSigmoid", ["c"], ["g"], "gate")], WEIGHTS, ["g", "c"])
    assert not HardSigmoidToClipPass()(model).modified


def blocks(*between: onnx.NodeProto, **tensors: np.ndarray) -> ir.Model:
    """Conv, the nodes that make `a` of `c`, Conv."""
    return network([STEM, *between, oh.make_node("Conv", ["a", "w3"], ["y"], "head")], WEIGHTS | tensors, ["y"])


NUMBERS = constants(half=0.5, two=2, minus=-0.7, some=0.3, nothing=0)
FORMS = {
    "swish": ([oh.make_node("HardSwish", ["c"], ["a"], "act")], {"QLinearAdd", "QLinearMul"}),
    "sigmoid": (
        [oh.make_node("Relu", ["c"], ["r"], "relu"), oh.make_node("HardSigmoid", ["r"], ["a"], "act", alpha=0.3, beta=0.2)],
        {"QLinearAdd"},
    ),
    "factor and shift": (
        [
            oh.make_node("HardSwish", ["c"], ["s"], "swish"),
            oh.make_node("Mul", ["half", "s"], ["m"], "act"),
            oh.make_node("Add", ["m", "minus"], ["a"], "shift"),
        ],
        {"QLinearAdd"},
    ),
    "factor": ([oh.make_node("HardSwish", ["c"], ["s"], "swish"), oh.make_node("Mul", ["s", "two"], ["a"], "act")], {"QLinearAdd"}),
    "shift": ([oh.make_node("HardSwish", ["c"], ["s"], "swish"), oh.make_node("Add", ["some", "s"], ["a"], "act")], {"QLinearAdd"}),
    "no shift": (
        [
            oh.make_node("HardSwish", ["c"], ["s"], "swish"),
            oh.make_node("Mul", ["s", "two"], ["m"], "act"),
            oh.make_node("Add", ["m", "nothing"], ["a"], "shift"),
        ],
        {"QLinearAdd"},
    ),
}


def quantized(model: ir.Model, **recipe):
    feeds = [{"x": image} for image in IMAGES]
    return quantize_static(model, statistics_of(model, feeds), Int8(**{**ALL, **recipe}))


@pytest.mark.parametrize("form", FORMS)
def test_they_run_in_integers(form):
    between, kernels = FORMS[form]
    model = blocks(*between, **NUMBERS)
    result = quantized(model)
    found = executed(model, result.decisions, optimized_nodes(ir.to_proto(result.model).SerializeToString()))
    assert found.integer == found.layers == 2
    assert (found.unexpected, found.unresolved) == ([], [])
    assert kernels <= set(found.counts["int8"])
    assert "float" not in {each["runs"] for each in found.nodes if "runs" in each}
    assert sqnr(model, result.model, [{"x": image} for image in IMAGES])["y"] > 30


@pytest.mark.parametrize("recipe", [{"symmetric": True}, {"format": "qoperator"}, {"bits16": ["c"]}, {"target": "cpu-no-vnni"}])
@pytest.mark.parametrize("form", FORMS)
def test_whatever_the_codes_are(form, recipe):
    model = blocks(*FORMS[form][0], **NUMBERS)
    assert sqnr(model, quantized(model, **recipe).model, [{"x": image} for image in IMAGES])["y"] > 22


@pytest.mark.parametrize("target", ["cpu", "arm"])
@pytest.mark.parametrize("form", FORMS)
def test_symmetric_zero_is_the_middle_code_of_all_that_is_rounded(form, target):
    model = blocks(*FORMS[form][0], **NUMBERS)
    result = quantized(model, symmetric=True, target=target).model
    proto = ir.to_proto(result)
    constants = {tensor.name: onh.to_array(tensor) for tensor in proto.graph.initializer}
    zeros = [constants[node.input[2]].flat[0] for node in proto.graph.node if "uantizeLinear" in node.op_type]
    middles = {np.dtype(np.uint8): 128, np.dtype(np.int8): 0, np.dtype(np.int32): 0}
    assert all(zero == middles[zero.dtype] for zero in zeros)
    assert sqnr(model, result, [{"x": image} for image in IMAGES])["y"] > 22


def test_in_float_behind_a_gemm_its_time_is_found():
    """ONNX Runtime takes such a one apart, into nodes without names."""
    nodes = [
        STEM,
        oh.make_node("GlobalAveragePool", ["c"], ["p"], "pool"),
        oh.make_node("Flatten", ["p"], ["f"], "flat"),
        oh.make_node("Gemm", ["f", "m"], ["v"], "hidden"),
        oh.make_node("HardSwish", ["v"], ["s"], "act"),
        oh.make_node("Gemm", ["s", "m"], ["y"], "out"),
    ]
    model = network(nodes, WEIGHTS | {"m": WEIGHTS["w1"].reshape(8, 8)}, ["y"])
    (unit,) = (unit for unit in units_of(model) if unit.kind == "hard_swish")
    cost = measure(model, [unit]).cost(unit)
    assert min(cost.float_ms, cost.int8_ms) > 0
    result = quantized(model, keep_float=["act"])
    found = executed(model, result.decisions, optimized_nodes(ir.to_proto(result.model).SerializeToString()))
    assert [each["runs"] for each in found.nodes if each["node"] == "act"] == ["float"]


def test_kept_float_it_is_float():
    model = blocks(*FORMS["swish"][0])
    result = quantized(model, keep_float=["act"])
    found = executed(model, result.decisions, optimized_nodes(ir.to_proto(result.model).SerializeToString()))
    assert found.unexpected == []
    assert not {"QLinearAdd", "QLinearMul"} & set(found.counts["int8"])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.floats(0.05, 4), st.floats(-2, 2), st.integers(0, 100))
def test_factor_and_shift_err_by_one_rounding(factor, shift, seed):
    """The code that comes out is that of alpha x + beta, x being what its own code stands for."""
    tensors = {"w": np.ones((1, 1, 1, 1), np.float32), "f": number(factor), "s": number(shift)}
    nodes = [
        oh.make_node("Conv", ["x", "w"], ["c"], "in"),
        oh.make_node("Mul", ["c", "f"], ["m"], "act"),
        oh.make_node("Add", ["m", "s"], ["a"], "shift"),
        oh.make_node("Conv", ["a", "w"], ["y"], "out"),
    ]
    model = network(nodes, tensors, ["y"], inputs={"x": [1, 1, 8, 8]})
    assert [affine_of(unit) for unit in units_of(model) if unit.kind == "affine"] == [(np.float32(factor), np.float32(shift))]
    images = [np.random.default_rng(seed + place).uniform(-3, 3, (1, 1, 8, 8)).astype(np.float32) for place in range(3)]
    result = quantize_static(model, statistics_of(model, [{"x": image} for image in images]), Int8(**ALL, float_heads=False))
    wanted, got = (run(graph, {"x": images[0]})["y"] for graph in (model, result.model))
    # Three roundings of x come in with the factor, then one of the sum and one of the output.
    step = 6.2 / 255
    assert np.abs(wanted - got).max() <= (3 * 0.5 * step) * factor + (6.2 * factor + 2 * abs(shift)) / 255 * 1.5 + 1e-4


@pytest.mark.parametrize("recipe", [{}, {"symmetric": True}, {"target": "arm"}, {"target": "openvino"}, {"bits16": ["a"]}], ids=str)
@pytest.mark.parametrize("cut", ["Relu", "Clip"])
@pytest.mark.parametrize("steps", [["Add"], ["Mul"], ["Mul", "Add"]], ids="".join)
def test_a_relu_or_clip_behind_factor_and_shift(steps, cut, recipe):
    """MobileOne's blocks begin their sums with 0: `0 + x`, then Relu."""
    nodes, source = [STEM], "c"
    for place, op in enumerate(steps):
        nodes.append(oh.make_node(op, [f"n{op}", source], [f"s{place}"], f"step{place}"))
        source = f"s{place}"
    bounds = ["low", "high"] if cut == "Clip" else []
    nodes += [oh.make_node(cut, [source, *bounds], ["a"], "cut"), oh.make_node("Conv", ["a", "w1"], ["y"], "out")]
    tensors = {"nAdd": number(0.25), "nMul": number(0.5), "low": number(-0.5), "high": number(1.5)}
    model = network(nodes, WEIGHTS | tensors, ["y"])
    result = quantized(model, **recipe)
    assert sqnr(model, result.model, [{"x": image} for image in IMAGES])["y"] > 22
    precision = "16-bit" if "bits16" in recipe else "int8"
    assert {decision.node: decision.precision for decision in result.decisions}["step0"] == precision
    (unit, *others) = (unit for unit in units_of(model) if unit.kind == "affine")
    assert not others
    assert (unit.nodes[-1].op_type == cut) == (steps != ["Mul"])
    assert measure(model, [unit]).cost(unit).int8_ms > 0


@pytest.mark.parametrize(
    "nodes",
    [
        [oh.make_node("Mul", ["c", "minus"], ["a"], "act")],
        [oh.make_node("Mul", ["c", "channels"], ["a"], "act")],
        [oh.make_node("HardSigmoid", ["c"], ["a"], "act", alpha=-0.2)],
        [oh.make_node("HardSigmoid", ["c"], ["a"], "act", beta=0.0)],
    ],
)
def test_without_a_form_they_stay_float(nodes):
    tensors = {**NUMBERS, "channels": np.ones((1, 8, 1, 1), np.float32)}
    model = network([oh.make_node("Relu", ["x"], ["c"], "relu"), *nodes], tensors, ["a"], inputs={"x": [1, 8, 4, 4]})
    assert {unit.kind for unit in units_of(model)} == {"Relu", nodes[0].op_type}
