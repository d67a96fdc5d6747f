"""SumOfPartsPass: the same values, and integer kernels where branches are stacked, gated and added."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network, run, sqnr, statistics_of

from octavo.graph.passes.forms.sum_of_parts import SumOfPartsPass
from octavo.params.grammar import Int8
from octavo.quantization.executed import executed
from octavo.quantization.int8 import Images, quantize_static
from octavo.runtime.kernels import optimized_nodes

GENERATOR = np.random.default_rng(71)
IMAGES = [{"x": GENERATOR.standard_normal((1, 3, 12, 12)).astype(np.float32)} for _ in range(6)]
TENSORS = {
    "stem": he(GENERATOR, 8, 3, 3, 3),
    "first": he(GENERATOR, 8, 8, 1, 1),
    "second": he(GENERATOR, 8, 8, 3, 3),
    "wide": he(GENERATOR, 16, 8, 1, 1),
    "gate": he(GENERATOR, 16, 8, 1, 1),
    "last": he(GENERATOR, 5, 8, 1, 1),
    "one": np.array([1]),
    "pixels": np.array([2, 3]),
    "apart": np.array([0, 2, 8, 12, 12]),
    "gates": np.array([0, 2, 8, 1, 1]),
    "axes": np.array([1, 2]),
}
STEM = [oh.make_node("Conv", ["x", "stem"], ["a"], "a", pads=[1, 1, 1, 1]), oh.make_node("Relu", ["a"], ["r"], "r")]
# As torch.stack writes it, and as a Conv of all branches at once.
STACKED = [
    oh.make_node("Conv", ["r", "first"], ["b"], "b"),
    oh.make_node("Conv", ["r", "second"], ["c"], "c", pads=[1, 1, 1, 1]),
    oh.make_node("Unsqueeze", ["b", "one"], ["b1"], "b1"),
    oh.make_node("Unsqueeze", ["c", "one"], ["c1"], "c1"),
    oh.make_node("Concat", ["b1", "c1"], ["s"], "s", axis=1),
]
APART = [oh.make_node("Conv", ["r", "wide"], ["b"], "b"), oh.make_node("Reshape", ["b", "apart"], ["s"], "s")]
GATED = [
    oh.make_node("ReduceSum", ["s", "one"], ["t"], "t", keepdims=0),
    oh.make_node("ReduceMean", ["t", "pixels"], ["m"], "m", keepdims=1),
    oh.make_node("Conv", ["m", "gate"], ["g"], "g"),
    oh.make_node("Reshape", ["g", "gates"], ["g5"], "g5"),
    oh.make_node("Softmax", ["g5"], ["p"], "p", axis=1),
    oh.make_node("Mul", ["s", "p"], ["q"], "q"),
    oh.make_node("ReduceSum", ["q", "one"], ["d"], "d", keepdims=0),
]
LAST = [oh.make_node("Conv", ["d", "last"], ["y"], "y")]


def of(nodes: list[onnx.NodeProto], *, batch: int | str = 1, outputs: tuple[str, ...] = ("y",)) -> ir.Model:
    nodes = [*STEM, *nodes]
    used = {name: TENSORS[name] for node in nodes for name in node.input if name in TENSORS}
    return network(nodes, used, list(outputs), inputs={"x": [batch, 3, 12, 12]})


def kinds(model: ir.Model) -> set[str]:
    return {node.op_type for node in model.graph}


@pytest.mark.parametrize("batch", [1, "n"])
@pytest.mark.parametrize("branches", [STACKED, APART], ids=["stacked", "apart"])
def test_the_same_values(branches, batch):
    model = of(branches + GATED + LAST, batch=batch)
    before = run(model, IMAGES[0])["y"]
    assert SumOfPartsPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    np.testing.assert_allclose(run(model, IMAGES[0])["y"], before, rtol=1e-5, atol=1e-6)
    assert "ReduceSum" not in kinds(model)
    assert {"t", "d"} <= {node.name for node in model.graph}
    # Both sums read the same branches; what stacked them is there no more.
    assert sum(node.op_type == "Split" for node in model.graph) == (1 if branches is STACKED else 2)
    assert not {"b1", "c1", "s", "q"} & {node.name for node in model.graph}


def test_more_than_two_are_added_one_after_the_other():
    three = [oh.make_node("Unsqueeze", ["r", "one"], ["r1"], "r1"), oh.make_node("Concat", ["b1", "r1", "c1"], ["s"], "s", axis=1)]
    total = [oh.make_node("ReduceSum", ["s", "one"], ["d"], "d", keepdims=0)]
    model = of(STACKED[:-1] + three + total + LAST)
    before = run(model, IMAGES[0])["y"]
    SumOfPartsPass()(model)
    np.testing.assert_allclose(run(model, IMAGES[0])["y"], before, rtol=1e-5, atol=1e-5)
    assert [node.name for node in model.graph if node.op_type == "Add"] == ["d.part1", "d"]


@pytest.mark.parametrize(
    ("nodes", "kept", "outputs"),
    [
        pytest.param([oh.make_node("ReduceSum", ["s", "one"], ["d"], "d", keepdims=0), *LAST], ["d"], ["y"], id="kept by name"),
        pytest.param([oh.make_node("ReduceSum", ["s", "one"], ["y"], "d", keepdims=0)], [], ["y"], id="no layer behind"),
        pytest.param([oh.make_node("ReduceSum", ["s", "one"], ["y"], "d", keepdims=1)], [], ["y"], id="keeps its axis"),
        pytest.param([oh.make_node("ReduceSum", ["s", "axes"], ["y"], "d", keepdims=0)], [], ["y"], id="channels, too"),
    ],
)
def test_left_alone(nodes, kept, outputs):
    model = of(STACKED + nodes, outputs=tuple(outputs))
    assert not SumOfPartsPass(kept)(model).modified


def test_a_product_that_others_read_stays():
    model = of(STACKED + GATED + LAST, outputs=("y", "q"))
    before = run(model, IMAGES[0])
    assert SumOfPartsPass()(model).modified
    after = run(model, IMAGES[0])
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-5, atol=1e-6)
    assert "q" in {node.name for node in model.graph}


@pytest.mark.parametrize("branches", [STACKED, APART], ids=["stacked", "apart"])
def test_all_but_the_softmax_becomes_integer_kernels(branches):
    model = of(branches + GATED + LAST)
    made = quantize_static(model, statistics_of(model, IMAGES), Int8(placement="all", repair=False), Images(IMAGES, []))
    nodes = optimized_nodes(ir.to_proto(made.model).SerializeToString())
    found = executed(model, made.decisions, nodes)
    # A LeakyRelu of slope 1 keeps the float gate's Q from moving ahead.
    moves = {"LeakyRelu", "Reshape", "Split", "Squeeze", "Transpose"}
    assert {node.op_type for node in nodes if node.kind == "float"} - moves == {"Softmax"}
    assert not found.unexpected
    assert not found.unresolved
    assert sqnr(model, made.model, IMAGES)["y"] > 25
