"""PlainGemmPass: Gemm's factors in its constants, and its layer in integers."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network, run, statistics_of

from octavo.graph.passes.affine.plain_gemm import PlainGemmPass
from octavo.params.grammar import Int8
from octavo.quantization.int8 import quantize_static

GENERATOR = np.random.default_rng(47)
TENSORS = {"w": he(GENERATOR, 8, 16), "c": he(GENERATOR, 1, 8)[0] + 1, "v": he(GENERATOR, 8, 5)}
SAMPLES = [{"x": GENERATOR.standard_normal((1, 16)).astype(np.float32)} for _ in range(4)]


def linear(*, turned: str = "", shared: bool = False, **settings: float) -> ir.Model:
    """Two linear layers, the first of which has the settings.

    Args:
        turned: `before`: its input is one that a Transpose turned; `both`: and that is read elsewhere; `input`: it is none.
        shared: its constants have other readers.
    """
    nodes = [oh.make_node("Relu", ["x"], ["a"], "a")]
    if turned in ("before", "both"):
        nodes.append(oh.make_node("Transpose", ["a"], ["t"], "t", perm=[1, 0]))
    nodes += [
        oh.make_node("Gemm", ["t" if turned in ("before", "both") else "a", "w", "c"], ["g"], "g", transB=1, **settings),
        oh.make_node("Relu", ["g"], ["b"], "b"),
        oh.make_node("Gemm", ["b", "v"], ["y"], "y"),
    ]
    outputs = ["y", *(["t"] if turned == "both" else [])]
    if shared:
        nodes.append(oh.make_node("Gemm", ["a", "w", "c"], ["z"], "z", transB=1))
        outputs.append("z")
    shape = [16, 1] if turned == "input" else [1, 16]
    return network(nodes, TENSORS, outputs, inputs={"x": shape})


@pytest.mark.parametrize(
    ("form", "nodes"),
    [
        ({"alpha": 0.5, "beta": 3.0}, ["Relu", "Gemm", "Relu", "Gemm"]),
        ({"alpha": 0.0}, ["Relu", "Gemm", "Relu", "Gemm"]),
        ({"beta": 0.0}, ["Relu", "Gemm", "Relu", "Gemm"]),
        ({"turned": "before", "transA": 1}, ["Relu", "Gemm", "Relu", "Gemm"]),
        ({"turned": "both", "transA": 1, "alpha": 2.0}, ["Relu", "Transpose", "Gemm", "Relu", "Gemm"]),
        ({"turned": "input", "transA": 1}, ["Relu", "Transpose", "Gemm", "Relu", "Gemm"]),
        ({"alpha": 0.5, "beta": 3.0, "shared": True}, ["Relu", "Gemm", "Relu", "Gemm", "Gemm"]),
    ],
)
def test_the_values_are_the_same(form, nodes):
    model = linear(**form)
    feeds = {"x": SAMPLES[0]["x"].T} if form.get("turned") == "input" else SAMPLES[0]
    before = run(model, feeds, optimization="off")
    assert PlainGemmPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert [node.op_type for node in model.graph] == nodes
    (layer,) = [node for node in model.graph if node.name == "g"]
    assert set(layer.attributes) == {"transB"}
    for name, value in run(model, feeds, optimization="off").items():
        np.testing.assert_allclose(value, before[name], rtol=1e-6, atol=1e-6)


def test_what_is_plain_or_computed_stays():
    assert not PlainGemmPass()(linear()).modified
    nodes = [oh.make_node("Relu", ["x"], ["a"], "a"), oh.make_node("Gemm", ["a", "a"], ["y"], "y", transA=1, alpha=0.5)]
    assert not PlainGemmPass()(network(nodes, {}, ["y"], inputs={"x": [4, 4]})).modified


@pytest.mark.parametrize("form", [{"alpha": 0.5}, {"beta": 0.5}, {"turned": "before", "transA": 1}])
def test_it_is_a_layer(form):
    model = linear(**form)
    result = quantize_static(model, statistics_of(model, SAMPLES), Int8(placement="all", repair=False))
    assert {one.node: one.precision for one in result.decisions}["g"] == "int8"
