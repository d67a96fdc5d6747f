"""OnePixelPass: the same values, without the Expand or linear Resize that kept products and Concats in float."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import he, network, run, statistics_of

from octavo.graph.passes.forms.one_pixel import OnePixelPass
from octavo.params.grammar import Int8
from octavo.quantization.int8 import quantize_static
from octavo.runtime.kernels import optimized_nodes

GENERATOR = np.random.default_rng(53)
IMAGES = [{"x": GENERATOR.standard_normal((2, 3, 8, 8)).astype(np.float32)} for _ in range(4)]
TENSORS = {
    "stem": he(GENERATOR, 4, 3, 3, 3),
    "gate": he(GENERATOR, 4, 4, 1, 1),
    "last": he(GENERATOR, 5, 4, 1, 1),
    "wide": he(GENERATOR, 5, 8, 1, 1),
    "ours": np.array([2, 4, 8, 8]),
    "ones": np.array([1, 1, 8, 8]),
    "one": he(GENERATOR, 1, 4, 1, 1),
    "scales": np.float32([1, 1, 8, 8]),
    "region": np.float32([0, 0, 0, 0, 1, 1, 1, 1]),
}
STEM = [
    oh.make_node("Conv", ["x", "stem"], ["a"], "a", pads=[1, 1, 1, 1]),
    oh.make_node("GlobalAveragePool", ["a"], ["p"], "p"),
    oh.make_node("Conv", ["p", "gate"], ["g"], "g"),
]
BY_SHAPE = [oh.make_node("Shape", ["a"], ["s"], "s"), oh.make_node("Expand", ["g", "s"], ["e"], "e")]
PRODUCT = [oh.make_node("Mul", ["a", "e"], ["m"], "m"), oh.make_node("Conv", ["m", "last"], ["y"], "y")]
JOINED = [oh.make_node("Concat", ["a", "e"], ["m"], "m", axis=1), oh.make_node("Conv", ["m", "wide"], ["y"], "y")]


def expand(shape: str) -> list[onnx.NodeProto]:
    return [oh.make_node("Expand", ["g", shape], ["e"], "e")]


def resize(**settings: str) -> list[onnx.NodeProto]:
    region = "region" if "coordinate_transformation_mode" in settings else ""
    return [oh.make_node("Resize", ["g", region, "scales"], ["e"], "e", **settings)]


def of(nodes: list[onnx.NodeProto], *, batch: int | str = 2, sizes: tuple = (8, 8), outputs: tuple[str, ...] = ("y",)) -> ir.Model:
    nodes = STEM + nodes
    used = {name: TENSORS[name] for node in nodes for name in node.input if name in TENSORS}
    return network(nodes, used, list(outputs), inputs={"x": [batch, 3, *sizes]})


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph][3:]


def rewritten(model: ir.Model) -> list[str]:
    before = run(model, IMAGES[0])
    assert OnePixelPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    for name, value in run(model, IMAGES[0]).items():
        # Of one pixel twice, with weights that sum to 1.
        np.testing.assert_allclose(value, before[name], rtol=1e-6, atol=1e-6)
    assert not OnePixelPass()(model).modified
    return ops(model)


@pytest.mark.parametrize("product", ["Mul", "Add", "Sub", "Div"])
@pytest.mark.parametrize("first", [True, False])
def test_what_a_product_repeats_by_itself(product, first):
    behind = [oh.make_node(product, ["a", "e"] if first else ["e", "a"], ["m"], "m"), PRODUCT[1]]
    assert rewritten(of(expand("ours") + behind)) == [product, "Conv"]


def test_open_sizes_of_another_tensor():
    assert rewritten(of(BY_SHAPE + PRODUCT, batch="n", sizes=("h", "w"))) == ["Mul", "Conv"]


@pytest.mark.parametrize("shape", ["ours", "ones"])
def test_a_map_of_one_pixel_is_a_nearest_resize(shape):
    model = of(expand(shape) + JOINED, batch=2 if shape == "ours" else "n")
    assert rewritten(model) == ["Resize", "Concat", "Conv"]
    assert model.graph[3].attributes.get_string("mode") == "nearest"


@pytest.mark.parametrize("settings", [{}, {"coordinate_transformation_mode": "align_corners"}, {"antialias": 1}], ids=str)
def test_a_linear_resize_of_one_pixel_takes_it(settings):
    model = of(resize(mode="linear", **settings) + JOINED)
    assert rewritten(model) == ["Resize", "Concat", "Conv"]
    assert model.graph[3].attributes.get_string("mode") == "nearest"


LEFT = {
    "no layer behind": [*expand("ours"), oh.make_node("Mul", ["a", "e"], ["y"], "m")],
    "more channels": [
        oh.make_node("Conv", ["p", "one"], ["o"], "o"),
        oh.make_node("Expand", ["o", "ours"], ["e"], "e"),
        oh.make_node("Conv", ["e", "last"], ["y"], "y"),
    ],
    "a region": resize(mode="linear", coordinate_transformation_mode="tf_crop_and_resize") + JOINED,
    "cubic": resize(mode="cubic") + JOINED,
}


@pytest.mark.parametrize("nodes", LEFT.values(), ids=LEFT.keys())
def test_left_alone(nodes):
    model = of(nodes)
    assert not OnePixelPass()(model).modified


def test_an_output_stays():
    assert not OnePixelPass()(of(BY_SHAPE + PRODUCT, batch="n", sizes=("h", "w"), outputs=("y", "e"))).modified


def test_an_expand_that_makes_the_other_larger_stays():
    behind = [oh.make_node("Mul", ["p", "e"], ["m"], "m"), PRODUCT[1]]
    assert rewritten(of(expand("ones") + behind)) == ["Resize", "Mul", "Conv"]


@pytest.mark.parametrize("nodes", [expand("ours") + PRODUCT, expand("ours") + JOINED, resize(mode="linear") + JOINED])
def test_integer_throughout(nodes):
    model = of(nodes)
    made = quantize_static(model, statistics_of(model, IMAGES), Int8(placement="all", repair=False))
    kinds = [
        node.kind
        for node in optimized_nodes(ir.to_proto(made.model).SerializeToString())
        if node.op_type not in ("Reshape", "Transpose")
    ]
    assert "float" not in kinds
    noise = sum(np.square(run(model, feeds)["y"] - run(made.model, feeds)["y"]).sum() for feeds in IMAGES)
    assert noise < 1e-2 * sum(np.square(run(model, feeds)["y"]).sum() for feeds in IMAGES)
