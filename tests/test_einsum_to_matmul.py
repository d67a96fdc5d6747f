"""EinsumToMatMulPass: the same numbers by MatMul, and what is left alone."""

import numpy as np
import onnx.helper as oh
import pytest
from graphs import network, run

from octavo.graph.clean import clean
from octavo.graph.passes.cleaning.einsum_to_matmul import EinsumToMatMulPass

SIZES = dict(zip("bchijkvwxyz", (2, 3, 2, 5, 4, 6, 3, 4, 2, 3, 1), strict=True))


def product(equation, *, right=None, open_axes="b"):
    """An Einsum of input `x` with input `y`, or with the constant `right`; axes of `open_axes` have no size."""
    parts = [part.strip() for part in equation.split("->")[0].split(",")]
    shapes = {name: [one if one in open_axes else SIZES[one] for one in part] for name, part in zip("xy", parts, strict=False)}
    if right is not None:
        del shapes["y"]
    node = oh.make_node("Einsum", ["x", "y"][: len(parts)], ["z"], "product", equation=equation)
    return network([node], {} if right is None else {"y": right}, ["z"], inputs=shapes)


def drawn(equation, seed=0):
    generator = np.random.default_rng(seed)
    parts = [part.strip() for part in equation.split("->")[0].split(",")]
    return {
        name: generator.standard_normal([SIZES[one] for one in part]).astype(np.float32)
        for name, part in zip("xy", parts, strict=False)
    }


def ops(model):
    return [node.op_type for node in model.graph]


def same(model, feeds):
    feeds = {value.name: feeds[value.name] for value in model.graph.inputs}
    wanted = run(model, feeds, optimization="off")["z"]
    assert EinsumToMatMulPass()(model).modified
    assert "product" in [node.name for node in model.graph if node.op_type == "MatMul"]
    got = run(model, feeds, optimization="off")["z"]
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    assert not EinsumToMatMulPass()(model).modified
    return ops(model)


@pytest.mark.parametrize(
    ("equation", "nodes"),
    [
        ("bhik,bhjk->bhij", ["Transpose", "MatMul"]),
        ("bhij, bhjv -> bhiv", ["MatMul"]),
        # Masks of queries, of an image: two axes are one side.
        ("bic,bcwx->biwx", ["Reshape", "MatMul", "Reshape"]),
        ("bcwx,bic->biwx", ["Reshape", "MatMul", "Reshape"]),
        ("bihk,bjhk->bhij", ["Transpose", "Transpose", "MatMul"]),
        # Two axes are summed over.
        ("bicx,bjcx->bij", ["Reshape", "Transpose", "Reshape", "MatMul"]),
        ("bik,jk->bij", ["Transpose", "MatMul"]),
        ("ik,kj->ji", ["Transpose", "Transpose", "MatMul"]),
        ("bixk,bjxk->bijx", ["Transpose", "Transpose", "MatMul", "Transpose"]),
    ],
)
def test_the_same_product(equation, nodes):
    assert same(product(equation), drawn(equation)) == nodes
    assert same(product(equation, open_axes=""), drawn(equation)) == nodes


@pytest.mark.parametrize("equation", ["bik,kj->bij", "bik,jk->bij", "bik,khv->bihv", "bicx,cxj->bij", "bwxk,jk->bwxj"])
def test_weights_become_a_matrix(equation):
    feeds = drawn(equation)
    found = same(product(equation, right=feeds["y"]), feeds)
    assert "Transpose" not in found
    model = product(equation, right=feeds["y"])
    clean(model, 18)
    (layer,) = (node for node in model.graph if node.op_type == "MatMul")
    assert len(layer.inputs[1].shape) == 2
    assert layer.inputs[1].is_initializer()


def test_weights_written_first_multiply_from_the_right():
    feeds = drawn("jk,bik->bij")
    node = oh.make_node("Einsum", ["w", "x"], ["z"], "product", equation="jk,bik->bij")
    model = network([node], {"w": feeds["x"]}, ["z"], inputs={"x": ["b", SIZES["i"], SIZES["k"]]})
    assert same(model, {"x": feeds["y"]}) == ["MatMul"]


@pytest.mark.parametrize(
    "equation",
    ["bii,bik->bk", "bik,bjk", "...ik,...kj->...ij", "bik,bk->bi", "bi,bj->bij", "bik,bjk->bi", "bik,bik->bik", "bik->bki"],
)
def test_what_is_no_product_of_two_matrices_stays(equation):
    if "..." in equation:
        node = oh.make_node("Einsum", ["x", "y"], ["z"], "product", equation=equation)
        model = network([node], {}, ["z"], inputs={"x": [1, 2, 3], "y": [1, 3, 4]})
    else:
        model = product(equation, open_axes="")
    assert not EinsumToMatMulPass()(model).modified
    assert ops(model) == ["Einsum"]


def test_axes_of_unknown_size_are_summed_and_joined_by_einsum_alone():
    assert not EinsumToMatMulPass()(product("bik,bjk->bij", open_axes="bk")).modified
    assert not EinsumToMatMulPass()(product("bic,bcwx->biwx", open_axes="bwx")).modified
    assert same(product("bic,bcwx->biwx", open_axes="bx"), drawn("bic,bcwx->biwx")) == ["Reshape", "MatMul", "Reshape"]
