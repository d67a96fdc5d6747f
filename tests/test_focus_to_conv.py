"""FocusToConvPass: the same values from one strided convolution, and the graphs that it must leave alone."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import network, run
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.graph.passes.forms.focus_to_conv import FocusToConvPass

GENERATOR = np.random.default_rng(17)
BOUNDS = {"end": np.array([np.iinfo(np.int64).max]), "14": np.array([14])}


def normal(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def sliced(source: str, target: str, bounds: tuple[int, int, int], tensors: dict[str, np.ndarray], end: str = "end"):
    """A Slice along one axis, its (axis, start, step) added to `tensors`."""
    constants = dict(zip([f"{target}.axis", f"{target}.start", f"{target}.step"], bounds, strict=True))
    tensors |= {name: np.array([value]) for name, value in constants.items()} | {end: BOUNDS[end]}
    return oh.make_node("Slice", [source, f"{target}.start", end, f"{target}.axis", f"{target}.step"], [target], target)


def focus(places: list[tuple[int, int]], size: int, tensors: dict[str, np.ndarray], end: str = "end") -> list[onnx.NodeProto]:
    """Slices of rows, then of columns, and their Concat `all`; `end` is where columns end."""
    nodes = []
    for index, (down, right) in enumerate(places):
        nodes.append(sliced("x", f"rows{index}", (-2, down, size), tensors))
        nodes.append(sliced(f"rows{index}", f"part{index}", (3, right, size), tensors, end))
    nodes.append(oh.make_node("Concat", [f"part{index}" for index in range(len(places))], ["all"], "all", axis=1))
    return nodes


def alike(model: ir.Model, image: np.ndarray) -> list[str]:
    """Rewrite, hold the outputs to what they were, and name the ops that are left."""
    before = run(model, {"x": image}, optimization="off")
    assert FocusToConvPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    after = run(model, {"x": image}, optimization="off")
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-5, atol=1e-5 * np.abs(value).max())
    assert not FocusToConvPass()(model).modified
    assert set(model.graph.initializers) == {value.name for node in model.graph for value in node.inputs if value.is_initializer()}
    return [node.op_type for node in model.graph]


@settings(max_examples=40, deadline=None)
@given(
    places=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=2, max_size=5),
    conv=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2)),
    pads=st.lists(st.integers(0, 1), min_size=4, max_size=4),
    image=st.tuples(st.integers(1, 3), st.sampled_from([2, 3])),
)
def test_any_slices_in_any_order_become_one_conv(places, conv, pads, image):
    (*kernel, stride), (channels, size) = conv, image
    tensors = {"w": normal(4, channels * len(places), *kernel), "b": normal(4)}
    nodes = focus(places, size, tensors)
    nodes.append(oh.make_node("Conv", ["all", "w", "b"], ["y"], "conv", pads=pads, strides=[stride, stride]))
    model = network(nodes, tensors, ["y"], inputs={"x": [2, channels, 12, 18]})
    assert alike(model, normal(2, channels, 12, 18)) == ["Conv"]
    assert list(model.graph[0].inputs[1].shape) == [4, channels, size * kernel[0], size * kernel[1]]


@pytest.mark.parametrize("size", [2, 4])
def test_space_to_depth_too(size):
    tensors = {"w": normal(4, 3 * size * size, 3, 3)}
    nodes = [
        oh.make_node("SpaceToDepth", ["x"], ["all"], "all", blocksize=size),
        oh.make_node("Conv", ["all", "w"], ["y"], "conv", pads=[1, 1, 1, 1]),
    ]
    assert alike(network(nodes, tensors, ["y"]), normal(1, 3, 16, 16)) == ["Conv"]


def test_slices_shared_between_parts_and_with_others():
    """YOLOX cuts rows once for two parts; what another node reads stays."""
    tensors = {"w": normal(4, 12, 3, 3)}
    nodes = [sliced("x", f"rows{down}", (2, down, 2), tensors) for down in (0, 1)]
    nodes += [sliced(f"rows{down}", f"part{down}{right}", (3, right, 2), tensors) for right in (0, 1) for down in (0, 1)]
    nodes += [
        oh.make_node("Concat", ["part00", "part10", "part01", "part11"], ["all"], "all", axis=1),
        oh.make_node("Conv", ["all", "w"], ["y"], "conv"),
        oh.make_node("Relu", ["part10"], ["z"], "relu"),
    ]
    assert alike(network(nodes, tensors, ["y", "z"]), normal(1, 3, 16, 16)) == ["Slice", "Slice", "Conv", "Relu"]


FOUR = [(0, 0), (1, 0), (0, 1), (1, 1)]


@pytest.mark.parametrize(
    "odd", ["group", "dilation", "auto_pad", "read", "output", "begins late", "ends early", "odd side", "computed"]
)
def test_left_alone(odd):
    tensors = {"w": normal(4, 6 if odd == "group" else 12, 3, 3)}
    attributes = {"group": {"group": 2}, "dilation": {"dilations": [2, 2]}, "auto_pad": {"auto_pad": "SAME_UPPER"}}.get(odd, {})
    places = [(2, right) for _, right in FOUR] if odd == "begins late" else FOUR
    nodes = focus(places, 2, tensors, end="14" if odd == "ends early" else "end")
    nodes.append(oh.make_node("Conv", ["all", "w"], ["y"], "conv", **attributes))
    outputs = ["y"]
    if odd == "read":
        nodes.append(oh.make_node("Relu", ["all"], ["z"], "relu"))
        outputs.append("z")
    if odd == "output":
        outputs.append("all")
    inputs = {"x": [1, 3, 16, 16]}
    if odd == "odd side":
        # Both parts take eight of fifteen columns: a graph that runs, though no blocks fill the image.
        inputs = {"x": [1, 3, 16, 15]}
        nodes = focus([(0, 0), (1, 0), (0, 0), (1, 0)], 2, tensors)
        nodes.append(oh.make_node("Conv", ["all", "w"], ["y"], "conv"))
    if odd == "computed":
        nodes.insert(-1, oh.make_node("Relu", ["w"], ["v"], "relu"))
        nodes[-1].input[1] = "v"
    model = network(nodes, tensors, outputs, inputs=inputs)
    before = ir.to_proto(model).SerializeToString()
    assert not FocusToConvPass()(model).modified
    assert ir.to_proto(model).SerializeToString() == before
