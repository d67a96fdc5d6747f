"""BendBeforeConcatPass: the same values, and OpenVINO's layers write the codes that a Concat copies."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run, sqnr, statistics_of

from octavo.graph.passes.affine.bend_before_concat import BendBeforeConcatPass
from octavo.graph.prepared import prepared
from octavo.params.grammar import Int8
from octavo.quantization.int8 import quantize_static

GENERATOR = np.random.default_rng(31)
IMAGES = [{"x": GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(4)]


def normal(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def numbers(channels: int, name: str = "") -> dict[str, np.ndarray]:
    """Of a norm and of a PRelu."""
    found = {"gain": normal(channels) + 2, "shift": normal(channels), "mean": normal(channels)}
    found |= {"variance": np.abs(normal(channels)) + 1, "slopes": np.abs(normal(channels, 1, 1)) / 4}
    return {f"{name}{key}": value for key, value in found.items()}


def conv(source: str, target: str, weights: str) -> onnx.NodeProto:
    return oh.make_node("Conv", [source, weights], [target], target, pads=[1, 1, 1, 1])


def norm(source: str, target: str) -> onnx.NodeProto:
    return oh.make_node("BatchNormalization", [source, "gain", "shift", "mean", "variance"], [target], target)


def rewritten(model: ir.Model) -> list[str]:
    """Rewrite, hold every output, and give the operators that are left."""
    before = run(model, IMAGES[0], optimization="off")
    assert BendBeforeConcatPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    after = run(model, IMAGES[0], optimization="off")
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
    assert not BendBeforeConcatPass()(model).modified
    return [node.op_type for node in model.graph]


def test_a_norm_and_prelu_go_before_a_concat_of_a_bent_layer_and_an_image():
    """CGNet's way to hand the image on; each part has its own numbers, and what is not used any more goes."""
    nodes = [
        conv("x", "a", "w"),
        oh.make_node("PRelu", ["a", "first"], ["p"], "p"),
        oh.make_node("Concat", ["p", "x"], ["c"], "c", axis=1),
        norm("c", "n"),
        oh.make_node("PRelu", ["n", "slopes"], ["y"], "y"),
    ]
    model = network(nodes, {"w": normal(5, 3, 3, 3), "first": normal(5, 1, 1)} | numbers(8), ["y"])
    kinds = ["BatchNormalization"] * 2 + ["PRelu"] * 2
    assert sorted(rewritten(model)) == sorted(["Conv", "PRelu", *kinds, "Concat"])
    assert model.graph[-1].op_type == "Concat"
    assert not set(numbers(8)) & set(model.graph.initializers)
    assert {model.graph.initializers[f"slopes.part{place}"].shape[0] for place in (0, 1)} == {5, 3}


@pytest.mark.parametrize(
    "behind",
    [
        [["LeakyRelu", "c", "y"]],
        [["PRelu", "c", "one", "y"]],
        [["Sigmoid", "c", "s"], ["Mul", "s", "c", "y"]],
        [["Softplus", "c", "s"], ["Tanh", "s", "t"], ["Mul", "c", "t", "y"]],
        [["Clip", "c", "one", "", "k"], ["HardSwish", "k", "y"]],
    ],
)
@pytest.mark.parametrize("axis", [1, -2])
def test_other_activations_go_too_and_along_any_axis_where_they_have_no_numbers_by_channel(behind, axis):
    """One part is the sum of a layer and what others read."""
    nodes = [
        conv("x", "a", "w"),
        conv("x", "b", "w"),
        oh.make_node("Add", ["b", "x"], ["r"], "r"),
        oh.make_node("Concat", ["a", "r"], ["c"], "c", axis=axis),
        *(oh.make_node(op, reads[:-1], reads[-1:], reads[-1]) for op, *reads in behind),
    ]
    model = network(nodes, {"w": normal(3, 3, 3, 3), "one": np.float32(0.25)}, ["y"])
    made = rewritten(model)
    assert made[-1] == "Concat"
    assert len(made) == 4 + 2 * len(behind)


@pytest.mark.parametrize(
    "case",
    ["no layer alone", "another reader", "an output", "computed slopes", "slopes by row", "another axis", "the other operand"],
)
def test_it_stays_where_it_pays_nothing_or_does_not_fit(case):
    axis, outputs, inputs = 1, ["y", "z"], {"x": [1, 3, 16, 16]}
    tensors = {"slopes": normal(6, 1, 1)}
    bend, other = oh.make_node("PRelu", ["c", "slopes"], ["y"], "y"), oh.make_node("Neg", ["x"], ["z"], "z")
    if case == "no layer alone":
        other = oh.make_node("Add", ["a", "b"], ["z"], "z")
    elif case == "another reader":
        other = oh.make_node("Neg", ["c"], ["z"], "z")
    elif case == "an output":
        outputs = ["y", "z", "c"]
    elif case == "computed slopes":
        tensors, inputs["slopes"] = {}, [6, 1, 1]
    elif case == "slopes by row":
        tensors = {"slopes": normal(1, 16, 1)}
    elif case == "another axis":
        axis, tensors = 2, {"slopes": normal(3, 1, 1)}
    else:
        bend, inputs["given"] = oh.make_node("PRelu", ["given", "c"], ["y"], "y"), [1, 6, 16, 16]
    nodes = [conv("x", "a", "w"), conv("x", "b", "w"), oh.make_node("Concat", ["a", "b"], ["c"], "c", axis=axis)]
    model = network([*nodes, bend, other], {"w": normal(3, 3, 3, 3)} | tensors, outputs, inputs=inputs)
    assert not BendBeforeConcatPass()(model).modified


def split() -> ir.Model:
    """CGNet's block: two layers side by side, a norm and a PRelu behind both, and a layer behind that."""
    nodes = [
        conv("x", "stem", "w0"),
        conv("stem", "a", "w1"),
        conv("stem", "b", "w3"),
        oh.make_node("Concat", ["a", "b"], ["c"], "c", axis=1),
        norm("c", "n"),
        oh.make_node("PRelu", ["n", "slopes"], ["p"], "p"),
        conv("p", "y", "w2"),
    ]
    tensors = {"w0": normal(4, 3, 3, 3) / 4, "w2": normal(4, 8, 3, 3) / 8} | {name: normal(4, 4, 3, 3) / 6 for name in ("w1", "w3")}
    return network(nodes, tensors | numbers(8), ["y"])


@pytest.mark.parametrize("target", ["openvino", "openvino-no-vnni"])
def test_for_openvino_a_concat_copies_the_codes_of_the_layers_before_it(target):
    model = split()
    recipe = Int8(target=target, placement="all", repair=False)
    made = quantize_static(model, statistics_of(model, IMAGES), recipe)
    kinds = [node.op_type for node in made.model.graph]
    assert "BatchNormalization" not in kinds
    concat = next(node for node in made.model.graph if node.op_type == "Concat")
    ahead = [value.producer() for value in concat.inputs]
    assert [node.op_type for node in ahead] == ["DequantizeLinear"] * 2
    assert [node.inputs[0].producer().inputs[0].producer().op_type for node in ahead] == ["PRelu"] * 2
    assert len({float(node.inputs[1].const_value.numpy()) for node in ahead}) == 1
    assert sqnr(model, made.model, IMAGES)["y"] > 30
    decided = {decision.node: decision.precision for decision in made.decisions}
    assert decided["c"] == "int8"
    assert {"n", "p"} <= decided.keys()
    kept = quantize_static(model, statistics_of(model, IMAGES), recipe.model_copy(update={"keep_float": ["c"]}))
    assert next(node for node in kept.decisions if node.node == "c").precision == "float"


def test_other_runtimes_keep_it_behind():
    assert [node.op_type for node in prepared(split(), depthwise_norms=False).graph][-3:] == ["Concat", "PRelu", "Conv"]
