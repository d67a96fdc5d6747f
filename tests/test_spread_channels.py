"""SpreadChannelsPass: depthwise Convs with several outputs a channel, to the bit, and the ones that it must leave alone."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import optimized, run
from hypothesis import given, settings
from hypothesis import strategies as st
from quantized import Parts

from octavo.graph.passes.kernels.kernel_forms import write_kernel_forms
from octavo.graph.passes.kernels.spread_channels import SpreadChannelsPass


def multiplied(parts: Parts, times: int, kernel: int = 3, groups: int = 0, **attributes: object) -> str:
    """The codes of a Conv of one channel a group with `times` outputs each."""
    groups = groups or parts.shape[1]
    weights = parts.weights("w", groups * times, parts.shape[1] // groups, kernel, kernel)
    return parts.op("Conv", [parts.read("x.code"), weights], "conv", group=groups, **attributes)


@settings(max_examples=25, deadline=None)
@given(
    channels=st.integers(2, 20),
    times=st.integers(2, 6),
    kernel=st.integers(2, 5),
    around=st.tuples(st.integers(1, 2), st.integers(0, 1)),
    batch=st.sampled_from([1, 3, "n"]),
)
def test_the_same_codes(channels, times, kernel, around, batch):
    parts = Parts([batch, channels, 9, 11])
    model = parts.model(multiplied(parts, times, kernel, strides=[around[0]] * 2, pads=[around[1]] * 4))
    image, ways = parts.image(), ("off", "all")
    before = [run(model, {"x": image}, optimization=way)["y0"] for way in ways]
    assert SpreadChannelsPass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    written, fused = [run(model, {"x": image}, optimization=way)["y0"] for way in ways]
    np.testing.assert_array_equal(fused, before[1])
    # Float kernels of one and of several outputs a group add up in other orders.
    apart = np.abs(np.rint((written - before[0]) / parts.tensors["scale"]))
    assert apart.max() <= 1
    assert (apart != 0).mean() < 0.01
    assert not SpreadChannelsPass()(model).modified


@pytest.mark.parametrize("odd", ["one output", "dense", "groups of two", "read as float", "float image", "many channels"])
def test_left_alone(odd):
    parts = Parts([1, 144 if odd == "many channels" else 8, 6, 6])
    if odd == "float image":
        code = parts.op("Conv", ["x", parts.weights("w", 16, 1, 3, 3)], "conv", group=8)
    elif odd == "many channels":
        code = multiplied(parts, 2, kernel=1)
    else:
        groups = {"dense": 1, "groups of two": 4}.get(odd, 0)
        code = multiplied(parts, 1 if odd == "one output" else 2, groups=groups)
    model = parts.model(code)
    if odd == "read as float":
        model.graph.outputs.append(next(node for node in model.graph if node.op_type == "Conv").outputs[0])
    before = ir.to_proto(model).SerializeToString()
    assert not SpreadChannelsPass()(model).modified
    assert ir.to_proto(model).SerializeToString() == before


def test_files_have_no_other_integer_kernels(tmp_path: Path):
    parts = Parts([1, 16, 12, 12])
    model = parts.model(multiplied(parts, 6))
    write_kernel_forms(model)
    ran = [node for node in optimized(model, tmp_path).graph.node if node.op_type == "QLinearConv"]
    assert [next((each.i for each in node.attribute if each.name == "group"), 1) for node in ran] == [1, 96]
