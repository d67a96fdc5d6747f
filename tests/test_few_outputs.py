"""FewOutputsPass: the same values by kernels that put out no channels that nobody wants."""

import numpy as np
import onnx.helper as oh
import pytest
from graphs import as_bytes, he, network, run, sqnr, statistics_of

from octavo.graph.passes.kernels.few_outputs import FewOutputsPass
from octavo.graph.prepared import prepared
from octavo.params.grammar import Int8
from octavo.quantization.int8 import Images, quantize_static
from octavo.quantization.int8.draft import Draft
from octavo.quantization.int8.in_float import _heavy, in_float
from octavo.runtime.kernels import optimized_nodes

GENERATOR = np.random.default_rng(83)
IMAGES = [{"x": GENERATOR.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(6)]


def of(kernel, outputs=3, *, sizes=(1, 3, 16, 16), bias=True, **settings):
    """A layer, and a last one of few outputs."""
    tensors = {
        "stem": he(GENERATOR, 16, 3, 3, 3),
        "last": he(GENERATOR, outputs, 16 // settings.get("group", 1), *kernel),
        "bias": GENERATOR.standard_normal(outputs).astype(np.float32),
    }
    nodes = [
        oh.make_node("Conv", ["x", "stem"], ["a"], "a", pads=[1, 1, 1, 1]),
        oh.make_node("Relu", ["a"], ["r"], "r"),
        oh.make_node("Conv", ["r", "last", "bias"] if bias else ["r", "last"], ["y"], "last", **settings),
    ]
    used = {name: array for name, array in tensors.items() if any(name in node.input for node in nodes)}
    return network(nodes, used, ["y"], inputs={"x": list(sizes)})


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [(1, 3, 16, 16), ("n", 3, "h", "w")])
@pytest.mark.parametrize(
    ("kernel", "outputs", "pads"), [((3, 3), 1, [1, 1, 1, 1]), ((5, 3), 3, [2, 0, 1, 3]), ((1, 7), 4, [0, 0, 0, 0])]
)
def test_columns_of_the_kernel_are_outputs_of_their_own(kernel, outputs, pads, sizes, bias):
    model = of(kernel, outputs, sizes=sizes, bias=bias, pads=pads)
    before = run(model, IMAGES[0])["y"]
    assert FewOutputsPass()(model).modified
    assert [node.name for node in model.graph] == ["a", "r", "last", "last.across"]
    np.testing.assert_allclose(run(model, IMAGES[0])["y"], before, atol=1e-4)


@pytest.mark.parametrize(
    ("kernel", "outputs", "settings"),
    [
        ((3, 3), 5, {}),
        ((3, 2), 3, {}),
        ((3, 3), 4, {"group": 2}),
        ((3, 3), 3, {"strides": [1, 2]}),
        ((3, 3), 3, {"dilations": [2, 2]}),
        ((3, 3), 3, {"auto_pad": "SAME_UPPER"}),
        ((3, 3), 3, {"sizes": (1, 3, 9, 9)}),
    ],
    ids=["outputs", "columns", "groups", "strides", "dilations", "auto_pad", "small map"],
)
def test_what_gains_nothing_or_is_no_sum_of_columns_is_left_alone(kernel, outputs, settings):
    model = of(kernel, outputs, **settings)
    assert not FewOutputsPass()(model).modified


def test_the_last_layer_of_an_int8_file_has_this_form_and_weights_as_before():
    model = of((5, 5), pads=[2, 2, 2, 2])
    statistics = statistics_of(model, IMAGES)
    for recipe, halves in ((Int8(placement="all"), True), (Int8(placement="all", keep_float=["last"]), False)):
        result = quantize_static(model, statistics, recipe, Images(IMAGES[:4], IMAGES[4:]))
        assert sqnr(model, result.model, IMAGES[4:])["y"] > 25
        assert "last.across" in {node.name for node in optimized_nodes(as_bytes(result.model))}
        decision = next(decision for decision in result.decisions if decision.node == "last")
        assert decision.precision == "float"
        assert ("float16" in decision.reason) == halves


@pytest.mark.parametrize(("outputs", "stored"), [(3, {"a"}), (5, {"a", "last"})])
def test_of_a_float_file_its_weights_are_not_the_int8_ones(outputs, stored):
    """Theirs lie where its name is; a file's columns have another shape."""
    model = prepared(of((3, 3), outputs, pads=[1, 1, 1, 1]))
    draft = Draft(model, statistics_of(model, IMAGES), Int8(method="minmax", float_heads=False), {}, IMAGES)
    whole = draft.plan()
    assert {unit.name for unit in whole.int8} == {"a", "last"}
    plan = in_float(draft, whole, "told", _heavy(whole))
    assert {unit.name for unit, why in plan.reasons.items() if "weights int8 in the file" in why} == stored == set(plan.stored)
    assert 35 < sqnr(model, draft.written(plan), IMAGES)["y"] < 60
