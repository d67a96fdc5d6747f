"""HalfPixelNearestPass: TensorFlow's nearest coordinates take the same pixels in the words that ONNX kept."""

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.graph.clean import clean
from octavo.graph.passes.cleaning.half_pixel_nearest import HalfPixelNearestPass

TENSORFLOW = {"mode": "nearest", "coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "floor"}


def resized(scales: tuple[float, float], sides: tuple[int, int] = (16, 16), **attributes: str) -> ir.Model:
    node = oh.make_node("Resize", ["x", "", "scales"], ["y"], "resize", **(TENSORFLOW | attributes))
    return network([node], {"scales": np.array([1, 1, *scales], np.float32)}, ["y"], inputs={"x": [1, 1, *sides]})


def modes(model: ir.Model) -> tuple[str, str]:
    attributes = model.graph[-1].attributes
    return attributes["coordinate_transformation_mode"].as_string(), attributes["nearest_mode"].as_string()


factor = st.sampled_from([0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 9.0])


@settings(max_examples=60, deadline=None)
@given(scales=st.tuples(factor, factor), sides=st.tuples(st.integers(5, 40), st.integers(5, 40)))
def test_the_same_pixels(scales, sides):
    model = resized(scales, sides)
    feeds = {"x": np.arange(np.prod(sides), dtype=np.float32).reshape(1, 1, *sides)}
    wanted = run(model, feeds)["y"]
    assert HalfPixelNearestPass()(model).modified
    assert modes(model) == ("half_pixel", "round_prefer_ceil")
    np.testing.assert_array_equal(run(model, feeds)["y"], wanted)


def test_scales_whose_quotients_are_whole_but_for_rounding_stay():
    # 4.5 / .3 is 15 less half a unit in the last place: ONNX Runtime takes pixel 14 by these coordinates, and 15 by the others.
    assert not HalfPixelNearestPass()(resized((1.0, 0.3), (5, 17))).modified


@pytest.mark.parametrize("odd", [{"nearest_mode": "ceil"}, {"mode": "linear"}, {"coordinate_transformation_mode": "asymmetric"}])
def test_left_alone(odd):
    assert not HalfPixelNearestPass()(resized((2, 2), **odd)).modified


def test_an_export_of_keras_has_none():
    model = resized((2, 2))
    assert clean(model, 18) == ["nearest Resizes of TensorFlow's coordinates written as half-pixel ones"]
    assert modes(model) == ("half_pixel", "round_prefer_ceil")
