"""MaxToPoolPass and GlobalMaxPass: the maximum of all pixels as a MaxPool, which integer layers have."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network, run, statistics_of

from octavo.graph.passes.forms.mean_to_pool import GlobalMaxPass, MaxToPoolPass
from octavo.params.grammar import Int8
from octavo.quantization.executed import executed
from octavo.quantization.int8 import quantize_static
from octavo.runtime.kernels import optimized_nodes

GENERATOR = np.random.default_rng(61)
IMAGES = [{"x": GENERATOR.standard_normal((1, 3, 8, 10)).astype(np.float32)} for _ in range(4)]
WEIGHTS = {"stem": he(GENERATOR, 8, 3, 3, 3), "gate": he(GENERATOR, 8, 8, 1, 1), "last": he(GENERATOR, 5, 8, 1, 1)}
MAXIMA = {
    "ReduceMax": [oh.make_node("ReduceMax", ["a", "axes"], ["p"], "p")],
    "one axis after the other": [
        oh.make_node("ReduceMax", ["a", "last axis"], ["o"], "o"),
        oh.make_node("ReduceMax", ["o", "rows"], ["p"], "p"),
    ],
    "GlobalMaxPool": [oh.make_node("GlobalMaxPool", ["a"], ["p"], "p")],
}
AXES = {"axes": np.array([2, 3]), "last axis": np.array([-1]), "rows": np.array([2])}


def gate(maximum: str, *, size: tuple = (8, 10), tail: bool = False, axes: list[int] | None = None) -> ir.Model:
    """A gate of what the largest values say."""
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["a"], "a", pads=[1, 1, 1, 1]),
        *MAXIMA[maximum],
        *[oh.make_node("Conv", ["p", "gate"], ["g"], "g")] * (not tail),
        oh.make_node("Sigmoid", ["p" if tail else "g"], ["s"], "s"),
        oh.make_node("Mul", ["a", "s"], ["y" if tail else "m"], "m"),
        *[oh.make_node("Conv", ["m", "last"], ["y"], "y")] * (not tail),
    ]
    tensors = WEIGHTS | AXES | ({"axes": np.array(axes)} if axes else {})
    used = {name for node in nodes for name in node.input}
    kept = {name: value for name, value in tensors.items() if name in used}
    return network(nodes, kept, ["y"], inputs={"x": ["n", 3, *size]})


@pytest.mark.parametrize("maximum", MAXIMA)
def test_the_same_values(maximum):
    model = gate(maximum)
    before = run(model, IMAGES[0])["y"]
    assert GlobalMaxPass()(MaxToPoolPass()(model)).modified or maximum != "GlobalMaxPool"
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    np.testing.assert_array_equal(run(model, IMAGES[0])["y"], before)
    assert [(node.op_type, node.name) for node in model.graph][1] == ("MaxPool", "p")
    assert not {"axes", "rows", "last axis"} & set(model.graph.initializers)


@pytest.mark.parametrize(
    ("maximum", "changed"),
    [
        ("ReduceMax", {"size": ("h", "w")}),
        ("GlobalMaxPool", {"size": ("h", "w")}),
        ("ReduceMax", {"tail": True}),
        ("GlobalMaxPool", {"tail": True}),
        ("ReduceMax", {"axes": [1]}),
        ("ReduceMax", {"axes": [2]}),
    ],
    ids=str,
)
def test_open_sizes_tails_and_other_axes_stay(maximum, changed):
    model = gate(maximum, **changed)
    assert not MaxToPoolPass()(model).modified
    assert not GlobalMaxPass()(model).modified


@pytest.mark.parametrize("maximum", ["ReduceMax", "GlobalMaxPool"])
def test_a_gate_of_maxima_is_integer_throughout(maximum):
    model = gate(maximum)
    made = quantize_static(model, statistics_of(model, IMAGES), Int8(placement="all", repair=False))
    nodes = optimized_nodes(ir.to_proto(made.model).SerializeToString())
    found = executed(model, made.decisions, nodes)
    assert not {node.op_type for node in nodes if node.kind == "float"} - {"Reshape", "Transpose"}
    assert not found.unexpected
    assert not found.unresolved
    assert {record["node"]: record for record in found.nodes}["p"]["kernel"] == "NhwcMaxPool"
