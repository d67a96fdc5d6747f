"""GatedSumPass: the same values in fewer passes over them."""

import numpy as np
import onnx.helper as oh
import pytest
from graphs import he, network, run, sqnr, statistics_of

from octavo.graph.passes.affine.gated_sum import GatedSumPass
from octavo.params.grammar import Int8
from octavo.quantization.int8 import Images, quantize_static
from octavo.quantization.int8.begun import begin

GENERATOR = np.random.default_rng(47)
IMAGES = [{"x": GENERATOR.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(6)]
CHANNELS = 8
TENSORS = {
    "stem": he(GENERATOR, CHANNELS, 3, 3, 3),
    "pixels": np.array([1, 2]),
    "places": np.array([2, 3]),
    "factor": GENERATOR.standard_normal((1, 1, 1, CHANNELS)).astype(np.float32),
    "shift": GENERATOR.standard_normal((1, 1, 1, CHANNELS)).astype(np.float32),
    "narrow": he(GENERATOR, CHANNELS, 4),
    "bias": GENERATOR.standard_normal(4).astype(np.float32),
    "squeeze": he(GENERATOR, CHANNELS, CHANNELS, 1, 1),
    "last": he(GENERATOR, 5, CHANNELS, 1, 1),
}
STEM = [oh.make_node("Conv", ["x", "stem"], ["a"], "a", pads=[1, 1, 1, 1]), oh.make_node("Relu", ["a"], ["r"], "r")]
# The global response norm of ConvNeXt V2, channels last, and the linear layer behind it.
NORM = [
    oh.make_node("Transpose", ["r"], ["t"], "t", perm=[0, 2, 3, 1]),
    oh.make_node("ReduceL2", ["t", "pixels"], ["g"], "g", keepdims=1),
    oh.make_node("Mul", ["t", "g"], ["tg"], "tg"),
    oh.make_node("Mul", ["factor", "tg"], ["ftg"], "ftg"),
    oh.make_node("Add", ["ftg", "shift"], ["s"], "s"),
    oh.make_node("Add", ["s", "t"], ["u"], "u"),
]
LAYER = [oh.make_node("MatMul", ["u", "narrow"], ["v"], "v"), oh.make_node("Add", ["bias", "v"], ["y"], "y")]
# A gate with a shortcut around it.
GATE = [
    oh.make_node("ReduceMean", ["r", "places"], ["m"], "m", keepdims=1),
    oh.make_node("Conv", ["m", "squeeze"], ["e"], "e"),
    oh.make_node("Sigmoid", ["e"], ["g"], "g"),
    oh.make_node("Mul", ["r", "g"], ["rg"], "rg"),
    oh.make_node("Add", ["r", "rg"], ["u"], "u"),
    oh.make_node("Conv", ["u", "last"], ["y"], "y"),
]


def of(nodes, *, outputs=("y",), sizes=(1, 3, 8, 8)):
    nodes = [*STEM, *nodes]
    used = {name: TENSORS[name] for node in nodes for name in node.input if name in TENSORS}
    return network(nodes, used, list(outputs), inputs={"x": list(sizes)})


def rewritten(model, kinds):
    """The graph's operators of these kinds, once it puts out the same."""
    before = run(model, IMAGES[0])
    assert GatedSumPass()(model).modified
    for name, values in run(model, IMAGES[0]).items():
        np.testing.assert_allclose(values, before[name], atol=1e-4, rtol=1e-4)
    return [(node.op_type, node.name) for node in model.graph if node.op_type in kinds]


@pytest.mark.parametrize("sizes", [(1, 3, 8, 8), ("n", 3, "h", "w")])
def test_a_response_norm_is_one_product_and_its_shift_is_the_next_layers_bias(sizes):
    model = of([*NORM, *LAYER], sizes=sizes)
    assert rewritten(model, {"Add", "Mul"}) == [("Mul", "u.gate0"), ("Add", "u.gate_and_one"), ("Mul", "u"), ("Add", "y")]
    # Statistics are found by name, and these know `u` with the shift.
    assert {"u", "v"}.isdisjoint(value.name for node in model.graph for value in node.outputs)


def test_a_shift_that_others_read_stays():
    model = of([*NORM, *LAYER, oh.make_node("Relu", ["u"], ["z"], "z")], outputs=("y", "z"))
    assert rewritten(model, {"Add"}) == [("Add", "u.gate_and_one"), ("Add", "u"), ("Add", "y")]


def test_a_gate_with_a_shortcut_is_one_product():
    model = of(GATE)
    assert rewritten(model, {"Add", "Mul"}) == [("Add", "u.gate_and_one"), ("Mul", "u")]


def test_int8_of_a_gate_with_a_shortcut():
    model = of(GATE)
    result = quantize_static(model, statistics_of(model, IMAGES), Int8(placement="all"), Images(IMAGES[:4], IMAGES[4:]))
    assert {decision.node: decision.precision for decision in result.decisions}["u"] == "int8"
    assert sqnr(model, result.model, IMAGES[4:])["y"] > 25
    assert "u.gate_and_one" in {node.name for node in begin(model, Int8()).complete.graph}
    # Nothing tells the range of a new tensor where there are no images.
    assert "u.gate_and_one" not in {node.name for node in begin(model, Int8(), observes=False).complete.graph}


@pytest.mark.parametrize(
    "nodes",
    [
        [oh.make_node("Mul", ["r", "a"], ["p"], "p"), oh.make_node("Add", ["p", "r"], ["y"], "y")],
        [*GATE[:3], oh.make_node("Mul", ["r", "g"], ["p"], "p"), oh.make_node("Add", ["p", "a"], ["y"], "y")],
        [*GATE[:4], oh.make_node("Add", ["rg", "r"], ["y"], "y"), oh.make_node("Neg", ["rg"], ["z"], "z")],
        [oh.make_node("Mul", ["m", "m"], ["p"], "p"), oh.make_node("Add", ["p", "m"], ["y"], "y")],
    ],
    ids=["as large", "of another", "read by others", "squared"],
)
def test_what_is_no_gate_with_a_shortcut_is_left_alone(nodes):
    nodes = nodes if nodes[0].input[0] != "m" else [GATE[0], *nodes]
    model = of(nodes, outputs=("y", "z") if nodes[-1].output[0] == "z" else ("y",))
    assert not GatedSumPass()(model).modified


def test_a_node_that_is_named_keeps_its_form():
    assert not GatedSumPass(["rg"])(of(GATE)).modified
