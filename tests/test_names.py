"""FP32 may have any names, those that quantization derives from others among them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network, run, statistics_of

from octavo.graph.names import added_apart, names_held
from octavo.graph.passes import node_pass
from octavo.graph.passes.node_pass import NodePass, SpelledPass
from octavo.graph.passes.qdq import new_constant
from octavo.params.grammar import Int8
from octavo.quantization.fp16 import convert
from octavo.quantization.int8 import quantize_dynamic, quantize_static, static

GENERATOR = np.random.default_rng(11)
IMAGES = [{"x": GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(3)]


def of_many_forms() -> onnx.ModelProto:
    """Layers between all that is written in a form of its own: pads, slopes, gates, bounds, sums, means, norms, heads of maps."""
    node = oh.make_node
    nodes = [
        node("Pad", ["x", "pads"], ["padded"], "pad"),
        node("Conv", ["padded", "w0", "b0"], ["a"], "stem"),
        node("PRelu", ["a", "slopes"], ["b"], "slope"),
        node("Conv", ["b", "w1", "b1"], ["c"], "one"),
        node("HardSwish", ["c"], ["d"], "swish"),
        node("Conv", ["d", "w2", "b1"], ["e"], "two"),
        node("Clip", ["e", "low", "high"], ["f"], "six"),
        node("Add", ["f", "d"], ["g"], "sum"),
        node("ReduceMean", ["g", "axes"], ["h"], "mean", keepdims=1),
        node("Conv", ["h", "w2", "b1"], ["i"], "squeezed"),
        node("HardSigmoid", ["i"], ["j"], "gate", alpha=1 / 6, beta=0.5),
        node("Mul", ["g", "j"], ["k"], "scaled"),
        node("Concat", ["k", "b"], ["l"], "join", axis=1),
        node("BatchNormalization", ["l", "s", "t", "m", "v"], ["n"], "norm"),
        node("Relu", ["n"], ["o"], "relu"),
        node("Conv", ["o", "w3", "b3"], ["p"], "three"),
        node("Sigmoid", ["p"], ["q"], "share"),
        node("Mul", ["p", "q"], ["r"], "silu"),
        node("MaxPool", ["r"], ["u"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["u", "w4", "b4"], ["boxes"], "head"),
        node("ReduceMean", ["r", "axes"], ["y"], "average", keepdims=0),
        node("MatMul", ["y", "w5"], ["z"], "product"),
        node("Add", ["z", "b5"], ["classes"], "classes"),
    ]
    weights = {"w0": he(GENERATOR, 8, 3, 3, 3), "w1": he(GENERATOR, 8, 8, 1, 1), "w2": he(GENERATOR, 8, 8, 1, 1)}
    weights |= {"w3": he(GENERATOR, 16, 16, 1, 1), "w4": he(GENERATOR, 12, 16, 1, 1), "w5": he(GENERATOR, 16, 5)}
    vectors = {"b0": 8, "b1": 8, "b3": 16, "b4": 12, "b5": 5, "s": 16, "t": 16, "m": 16, "v": 16}
    tensors = {name: GENERATOR.uniform(0.1, 1, size).astype(np.float32) for name, size in vectors.items()}
    tensors |= {"slopes": GENERATOR.uniform(0, 0.5, (8, 1, 1)).astype(np.float32), "low": np.float32(0), "high": np.float32(6)}
    tensors |= {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "axes": np.array([2, 3])}
    return ir.to_proto(network(nodes, weights | tensors, ["boxes", "classes"]))


def renamed(proto: onnx.ModelProto, names: dict[str, str]) -> ir.Model:
    """The graph with other names of nodes (`node:<name>`) and tensors."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for node in copy.graph.node:
        node.name = names.get(f"node:{node.name}", node.name)
        for tensors in (node.input, node.output):
            tensors[:] = [names.get(name, name) for name in tensors]
    for value in (*copy.graph.initializer, *copy.graph.value_info):
        value.name = names.get(value.name, value.name)
    return ir.from_proto(copy)


def names_of(model: ir.Model) -> tuple[set[str], set[str]]:
    """Of its tensors and of its nodes."""
    tensors = {value.name for node in model.graph for value in node.outputs} | set(model.graph.initializers)
    return {name for name in tensors if name}, {node.name for node in model.graph if node.name}


def static_int8(model: ir.Model) -> tuple[ir.Model, list[str]]:
    recipe = Int8(method="minmax", placement="all", repair=False)
    result = quantize_static(model, statistics_of(model, IMAGES), recipe)
    return result.model, [decision.precision for decision in result.decisions]


def dynamic_int8(model: ir.Model) -> tuple[ir.Model, list[str]]:
    result = quantize_dynamic(model, Int8())
    return result.model, [decision.precision for decision in result.decisions]


def fp16(model: ir.Model) -> tuple[ir.Model, list[str]]:
    result = convert(model)
    return result.model, [decision.precision for decision in result.decisions]


FP32 = of_many_forms()
MADE = {name for node in FP32.graph.node for name in node.output}
CONSTANTS = sorted(tensor.name for tensor in FP32.graph.initializer)


@pytest.mark.parametrize("quantize", [static_int8, dynamic_int8, fp16])
def test_what_is_made_does_not_depend_on_names(quantize, monkeypatch):
    """Constants and some nodes are called what quantization calls what it adds, as many at a time as there are."""
    added: list[tuple[set[str], set[str]]] = []
    # Before these are shortened.
    monkeypatch.setattr(static, "shorten_names", lambda made, _: added.append(names_of(made)))
    plain = ir.from_proto(FP32)
    made, decided = quantize(plain)
    wanted = [run(made, image) for image in IMAGES]
    monkeypatch.undo()
    tensors, nodes = added[0] if added else names_of(made)
    tensors -= {*MADE, *CONSTANTS}
    nodes -= {node.name for node in plain.graph}
    random = np.random.default_rng(0)
    for _ in range(3):
        theirs = dict(zip(CONSTANTS, random.permutation(sorted(tensors)).tolist(), strict=False))
        for node in ("pool", "sum", "share", "join"):
            free = sorted(name for name in nodes - {*theirs.values()} if node not in name.split("."))
            theirs |= {f"node:{node}": str(random.choice(free))} if free else {}

        other, decisions = quantize(renamed(FP32, theirs))

        assert decisions == decided
        for image, outputs in zip(IMAGES, wanted, strict=True):
            found = run(other, image)
            for name, value in outputs.items():
                np.testing.assert_array_equal(found[name], value)


def test_what_is_added_meanwhile_is_called_after_what_was_there():
    model = network([oh.make_node("Neg", ["x"], ["x.y"], "n"), oh.make_node("Abs", ["x.y"], ["y"], "n.y")], {}, ["y"])
    with added_apart(model):
        for _ in range(2):
            node = ir.node("Neg", [model.graph.inputs[0]], name="n.y")
            node.outputs[0].name = "x.y"
            model.graph.insert_before(model.graph[0], node)
        new_constant(model, "y", np.ones(1, np.float32))

    assert [node.name for node in model.graph] == ["n.y_1", "n.y_2", "n", "n.y"]
    assert [node.outputs[0].name for node in model.graph] == ["x.y_1", "x.y_2", "x.y", "y"]
    assert list(model.graph.initializers) == ["y_1"]


class Doubled(NodePass):
    """`Neg`, of which a second is put before, with the same names."""

    op_type = "Neg"

    def _rewrite(self, model, node):
        before = ir.node("Neg", [node.inputs[0]], name=node.name)
        before.outputs[0].name = node.outputs[0].name
        model.graph.insert_before(node, before)
        return True


class Newer(SpelledPass):
    opset = 23

    def _rewrite(self, model, node):
        raise AssertionError


@pytest.mark.parametrize(("edit", "op_type", "asked"), [(Doubled, "Neg", 1), (Doubled, "Abs", 0), (Newer, "Neg", 0)])
def test_a_pass_with_nothing_to_look_at_asks_for_no_names(monkeypatch, edit, op_type, asked):
    """That is what most passes do, each time that a placement is written to be measured."""
    model = network([oh.make_node(op_type, ["x"], ["y"], "n")], {}, ["y"])
    seen = []
    monkeypatch.setattr(node_pass, "names_held", lambda model: seen.append(model) or names_held(model))

    assert edit()(model).modified == bool(asked)
    assert len(seen) == asked
    assert [node.name for node in model.graph] == (["n_1", "n"] if asked else ["n"])
