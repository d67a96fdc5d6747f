"""Weights for blocks of columns are in an INT8 file once, and ONNX Runtime spreads them out to the same kernels."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from graphs import as_bytes, he, network, optimized, run, statistics_of
from hypothesis import assume, given
from hypothesis import strategies as st
from quantized import Parts

from octavo.graph.passes.kernels.conv_on_columns import ConvOnColumnsPass, columns_of
from octavo.params.grammar import Int8
from octavo.quantization.int8 import Images, quantize_static
from octavo.quantization.int8.writing.packed_columns import pack_columns, shifted
from octavo.runtime.session import Session


def stem(outputs: int, channels: int, kernel: int, stride: int, width: int = 48) -> ir.Model:
    """A Q/DQ Conv on an image of few channels, as many columns wide, on blocks of columns."""
    parts = Parts([1, channels, 12, width])
    pads = [(kernel - 1) // 2, (kernel - stride) // 2, (kernel - 1) // 2, kernel - stride - (kernel - stride) // 2]
    read = parts.read("x.code")
    weights = parts.weights("w", outputs, channels, kernel, kernel)
    model = parts.model(parts.op("Conv", [read, weights], "conv", pads=pads, strides=[stride, stride]))
    assert ConvOnColumnsPass()(model).modified
    return model


def bytes_of(model: ir.Model) -> int:
    return sum(value.const_value.nbytes for value in model.graph.initializers.values())


@given(
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(2, 7)),
    stride=st.integers(1, 3),
    left=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_codes_of_any_kernel_come_back(sizes, stride, left, seed):
    codes = np.random.default_rng(seed).integers(-127, 128, sizes).astype(np.int8)
    assume(codes.any())
    around = max(sizes[3] - stride, 0)
    pads = [0, min(left, around), 0, max(around - left, 0)]
    conv = ir.node("Conv", [], {"strides": [stride, stride], "pads": pads})
    columns = columns_of(conv, [1, sizes[1], 9, 48 * stride], codes.shape)
    assume(columns is not None)
    wide = columns.weights(codes)
    found = shifted(wide)
    assert found.spread().tobytes() == wide.tobytes()
    assert found.codes.size <= codes.size


def test_codes_that_are_no_columns_stay():
    generator = np.random.default_rng(2)
    codes = np.where(generator.random((64, 12, 3, 3)) < 0.3, generator.integers(-127, 128, (64, 12, 3, 3)), 0).astype(np.int8)
    assert shifted(codes) is None
    assert shifted(np.zeros((64, 12, 3, 3), np.int8)) is None
    assert shifted(codes[:, :, 0]) is None


@pytest.mark.parametrize(
    ("outputs", "channels", "kernel", "stride"), [(48, 1, 5, 1), (32, 3, 7, 2), (64, 1, 9, 1), (48, 3, 5, 1), (64, 3, 3, 2)]
)
def test_the_graph_gives_the_same_bits_from_fewer_bytes(outputs, channels, kernel, stride, tmp_path: Path):
    model = stem(outputs, channels, kernel, stride)
    image = {"x": np.random.default_rng(1).standard_normal((1, channels, 12, 48)).astype(np.float32)}
    ways = ("off", "all")
    before, size = [run(model, image, optimization=way) for way in ways], bytes_of(model)
    kinds = Counter(node.op_type for node in optimized(model, tmp_path).graph.node)
    pack_columns(model)
    assert bytes_of(model) < size - 4000
    for way, values in zip(ways, before, strict=True):
        for name, value in run(model, image, optimization=way).items():
            assert value.tobytes() == values[name].tobytes()
    assert Counter(node.op_type for node in optimized(model, tmp_path).graph.node) == kinds
    once = as_bytes(model)
    pack_columns(model)
    assert as_bytes(model) == once


def test_few_columns_stay_as_they_are():
    model = stem(8, 3, 3, 2)
    before = as_bytes(model)
    pack_columns(model)
    assert as_bytes(model) == before


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_a_small_upscaler_is_smaller_than_its_fp32(form):
    generator = np.random.default_rng(7)
    shapes = {"a": (48, 1, 5, 5), "b": (12, 48, 1, 1), "c": (12, 12, 3, 3), "d": (48, 12, 1, 1), "e": (4, 48, 3, 3)}
    nodes, last = [], "x"
    for name, shape in shapes.items():
        pad = shape[2] // 2
        nodes.append(oh.make_node("Conv", [last, f"{name}.w"], [f"{name}.raw"], name, pads=[pad] * 4))
        last = name if name != "e" else "e.raw"
        if name != "e":
            nodes.append(oh.make_node("Relu", [f"{name}.raw"], [name], f"{name}.relu"))
    nodes.append(oh.make_node("DepthToSpace", [last], ["y"], "up", blocksize=2, mode="CRD"))
    tensors = {f"{name}.w": he(generator, *shape) for name, shape in shapes.items()}
    model = network(nodes, tensors, ["y"], inputs={"x": [1, 1, 40, 40]})
    feeds = [{"x": generator.random((1, 1, 40, 40), np.float32)} for _ in range(8)]
    recipe = Int8(method="minmax", placement="all", repair=False, format=form)
    result = quantize_static(model, statistics_of(model, feeds), recipe, Images(feeds[:4], feeds[4:]))
    assert len(as_bytes(result.model)) < 0.9 * len(as_bytes(model))
    exact = Session(as_bytes(result.model), entries={"session.x64quantprecision": "1"})
    assert np.isfinite(exact.run(feeds[5])["y"]).all()
