"""CubicByConvPass: the same values without Resize, and the Resizes that it must leave alone."""

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, optimized, run
from hypothesis import example, given, settings
from hypothesis import strategies as st
from quantized import Parts

from octavo.graph.passes.kernels.cubic_by_conv import CubicByConvPass

COORDINATES = ["half_pixel", "pytorch_half_pixel", "asymmetric"]


def resized(shape: list, *, scales: list | None = None, sizes: list | None = None, **attributes: object) -> ir.Model:
    tensors = {"scales": np.array(scales, np.float32)} if scales else {"sizes": np.array(sizes, np.int64)}
    inputs = ["r", "", "scales"] if scales else ["r", "", "", "sizes"]
    nodes = [
        oh.make_node("Relu", ["x"], ["r"], "act"),
        oh.make_node("Resize", inputs, ["s"], "resize", **{"mode": "cubic", **attributes}),
        oh.make_node("Relu", ["s"], ["y"], "last"),
    ]
    return network(nodes, tensors, ["y"], inputs={"x": shape})


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph if node.op_type != "Relu"]


@settings(max_examples=60, deadline=None)
@given(
    coordinates=st.sampled_from(COORDINATES),
    factor=st.sampled_from([0.25, 0.5, 2, 3, 4]),
    a=st.sampled_from([-0.75, -0.5]),
    image=st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(8, 14), st.integers(8, 14)),
    by_size=st.booleans(),
)
# Of 11 columns a step of four from the pixel before on had three values, where Resize has two.
@example(coordinates="asymmetric", factor=0.25, a=-0.75, image=(1, 1, 8, 11), by_size=False)
def test_any_whole_factor_gives_the_same_values(coordinates, factor, a, image, by_size):
    if factor < 1 and by_size:
        # What sizes say is a factor only where nothing is left over.
        image = (*image[:2], *(side - side % round(1 / factor) for side in image[2:]))
    sizes = [*image[:2], *(int(side * factor) for side in image[2:])]
    given = {"sizes": sizes} if by_size else {"scales": [1, 1, factor, factor]}
    model = resized(list(image), **given, coordinate_transformation_mode=coordinates, cubic_coeff_a=a)
    feeds = {"x": np.random.default_rng(0).standard_normal(image).astype(np.float32)}
    wanted = run(model, feeds)["y"]
    assert CubicByConvPass()(model).modified
    assert ops(model) == ["Reshape", "Pad", "Conv", *(["DepthToSpace"] if factor > 1 else []), "Reshape"]
    np.testing.assert_allclose(run(model, feeds)["y"], wanted, atol=2e-5)


@pytest.mark.parametrize("factor", [0.5, 4])
def test_at_open_sizes(factor):
    model = resized(["n", 3, "h", "w"], scales=[1, 1, factor, factor])
    assert CubicByConvPass()(model).modified
    for shape in ((1, 3, 12, 17), (2, 3, 9, 8)):
        feeds = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
        wanted = run(resized(["n", 3, "h", "w"], scales=[1, 1, factor, factor]), feeds)["y"]
        np.testing.assert_allclose(run(model, feeds)["y"], wanted, atol=2e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "linear"},
        {"antialias": 1, "scales": [1, 1, 0.5, 0.5]},
        {"exclude_outside": 1},
        {"coordinate_transformation_mode": "align_corners"},
        {"coordinate_transformation_mode": "pytorch_half_pixel", "scales": [1, 1, 0.25, 0.25]},
        {"scales": [1, 1, 2, 3]},
        {"scales": [1, 1, 1.5, 1.5]},
        {"scales": [1, 2, 2, 2]},
        {"scales": [1, 1, 1, 1]},
        {"scales": None, "sizes": [1, 3, 9, 9]},
    ],
    ids=str,
)
def test_others_are_left_alone(settings):
    model = resized([1, 3, 4, 4], **{"scales": [1, 1, 2, 2], **settings})
    assert not CubicByConvPass()(model).modified
    assert ops(model) == ["Resize"]


def test_between_codes_the_conv_is_float(tmp_path):
    """ONNX Runtime makes an integer layer of a Conv that stands between DQ and Q by itself."""
    parts = Parts([1, 4, 6, 6])
    parts.tensors["scales"] = np.array([1, 1, 2, 2], np.float32)
    model = parts.model(parts.op("Resize", [parts.read("x.code"), "", "scales"], "resize", mode="cubic"))
    feeds = {"x": parts.image()}
    wanted = run(model, feeds)
    assert CubicByConvPass()(model).modified
    kernels = [node.op_type for node in optimized(model, tmp_path).graph.node]
    assert "Conv" in kernels
    assert "QLinearConv" not in kernels
    # A code more or less where a value lies between two.
    for name, values in run(model, feeds).items():
        np.testing.assert_allclose(values, wanted[name], atol=1.01 * parts.tensors["scale"])
        assert (values != wanted[name]).mean() < 0.01
