"""PoolByDepthwisePass: the mean as a depthwise Conv, and the pools that it must leave alone."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import optimized, run
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from quantized import Parts

from octavo.graph.passes.kernels.pool_by_depthwise import PoolByDepthwisePass


def pooled(parts: Parts, **attributes: object) -> str:
    return parts.op("AveragePool", [parts.read("x.code")], "pool", **attributes)


def alike(parts: Parts, code: str) -> ir.Model:
    """Rewrite, and hold the codes to the mean, rounded."""
    model, image = parts.model(code), parts.image()
    mean = ir.from_proto(ir.to_proto(model))
    mean.graph.outputs[:] = [value for node in mean.graph for value in node.outputs if value.name == "pool"]
    scale, zero = float(parts.tensors["scale"]), float(parts.tensors["zero"])
    means = run(mean, {"x": image}, optimization="off")["pool"] / scale
    wanted = np.clip(np.rint(means), -zero, 255 - zero)
    halfway = np.abs(np.mod(means, 1) - 0.5) < 1e-3
    assert PoolByDepthwisePass()(model).modified
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    for optimization in ("off", "all"):
        apart = np.rint(run(model, {"x": image}, optimization=optimization, entries={})["y0"] / scale - wanted)
        assert not apart[~halfway].any(), "codes differ only where the mean lies halfway between two"
        assert np.abs(apart).max() <= 1
    once = ir.to_proto(model).SerializeToString()
    assert not PoolByDepthwisePass()(model).modified
    assert ir.to_proto(model).SerializeToString() == once
    return model


@settings(max_examples=40, deadline=None)
@given(
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    pads=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    channels=st.integers(1, 20),
)
def test_any_kernel_stride_and_padding(kernel, pads, strides, channels):
    assume(all(pads[axis] < kernel[axis] and pads[2 + axis] < kernel[axis] for axis in (0, 1)))
    parts = Parts([1, channels, 11, 12])
    attributes = {"kernel_shape": list(kernel), "pads": pads, "strides": list(strides), "count_include_pad": 1}
    alike(parts, pooled(parts, **attributes))


def test_it_runs_as_an_integer_kernel(tmp_path: Path):
    parts = Parts(["n", 16, 12, 12])
    model = alike(parts, pooled(parts, kernel_shape=[3, 3], strides=[3, 3]))
    ran = [node.op_type for node in optimized(model, tmp_path).graph.node]
    assert ran.count("QLinearConv") == 1
    assert not {"AveragePool", "QLinearAveragePool", "Conv"} & set(ran)


LEFT = {
    "the mean leaves padding out": {"pads": [1, 1, 1, 1]},
    "ceil_mode": {"ceil_mode": 1},
    "auto_pad": {"auto_pad": "SAME_UPPER"},
    "unknown channels": {},
    "float image": {},
    "read as float": {},
}


@pytest.mark.parametrize("odd", LEFT)
def test_left_alone(odd):
    parts = Parts([1, "c" if odd == "unknown channels" else 3, 12, 12])
    if odd == "float image":
        code = parts.op("AveragePool", ["x"], "pool", kernel_shape=[3, 3])
    else:
        code = pooled(parts, kernel_shape=[3, 3], **LEFT[odd])
    model = parts.model(code)
    if odd == "read as float":
        value = next(node for node in model.graph if node.op_type == "AveragePool").outputs[0]
        model.graph.outputs.append(value)
    before = ir.to_proto(model).SerializeToString()
    assert not PoolByDepthwisePass()(model).modified
    assert ir.to_proto(model).SerializeToString() == before
