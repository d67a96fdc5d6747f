"""Small float graphs, built from their nodes, and what tests ask of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir

from octavo.calibration.collector import collect
from octavo.calibration.statistics import Statistics
from octavo.runtime.noise import sqnr_db
from octavo.runtime.session import Session

# On x86, ONNX Runtime fuses int8 activations only when asked to; on ARM64 always.
AS_ON_ARM = {"session.qdqisint8allowed": "1"}


def he(generator: np.random.Generator, *shape: int) -> np.ndarray:
    """Random weights that keep the variance of what a ReLU lets through; outputs first."""
    return (generator.standard_normal(shape) * np.sqrt(2 / max(np.prod(shape[1:]), 1))).astype(np.float32)


def inferred(proto: onnx.ModelProto) -> ir.Model:
    """The graph with inferred shapes."""
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def network(
    nodes: list[onnx.NodeProto],
    tensors: dict[str, np.ndarray],
    outputs: list[str],
    *,
    inputs: dict[str, list] | None = None,
    opset: int = 18,
) -> ir.Model:
    """A graph with inferred shapes; its input is `x`, 1 x 3 x 16 x 16, where none is named."""
    shapes = {"x": [1, 3, 16, 16]} if inputs is None else inputs
    graph = oh.make_graph(
        nodes,
        "g",
        [oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
        [onh.from_array(np.asarray(value), name) for name, value in tensors.items()],
    )
    proto = oh.make_model(graph, opset_imports=[oh.make_opsetid("", opset)], ir_version=10)
    inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True)
    onnx.checker.check_model(inferred)
    return ir.from_proto(inferred)


def choosing_rows(generator: np.random.Generator) -> ir.Model:
    """A layer on the rows of a map that reach above 1, as Faster R-CNN's on its regions."""
    nodes = [
        oh.make_node("Reshape", ["x", "rows"], ["flat"], "flat"),
        oh.make_node("MatMul", ["flat", "square"], ["all"], "all"),
        oh.make_node("ReduceMax", ["flat", "axis"], ["peak"], "peak", keepdims=0),
        oh.make_node("Greater", ["peak", "one"], ["which"], "which"),
        oh.make_node("Compress", ["all", "which"], ["some"], "some", axis=0),
        oh.make_node("Gemm", ["some", "narrow"], ["y"], "head"),
    ]
    weights = {"square": he(generator, 8, 8), "narrow": he(generator, 8, 4), "one": np.float32(1)}
    weights |= {"rows": np.array([16, 8]), "axis": np.array([1])}
    return network(nodes, weights, ["y"], inputs={"x": [1, 1, 16, 8]})


def as_bytes(model: ir.Model) -> bytes:
    """A graph as ONNX Runtime loads it from memory."""
    return ir.to_proto(model).SerializeToString()


def session_of(model: ir.Model, **options: object) -> Session:
    return Session(as_bytes(model), **options)


def run(model: ir.Model, feeds: dict[str, np.ndarray], **options: object) -> dict[str, np.ndarray]:
    return session_of(model, **options).run(feeds)


def statistics_of(model: ir.Model, feeds: Sequence[Mapping[str, np.ndarray]]) -> Statistics:
    """Calibrated on images of the names 0, 1, ..."""
    return collect(model, lambda: ((str(place), image) for place, image in enumerate(feeds)))


def sqnr(model: ir.Model, other: ir.Model, feeds: Sequence[dict[str, np.ndarray]], **options: object) -> dict[str, float]:
    """SQNR in dB of each output of `other`, which runs with `options`, against that of `model`."""
    pairs = [(run(model, image), run(other, image, **options)) for image in feeds]
    return {
        name: sqnr_db(
            sum(float((wanted[name] ** 2).sum()) for wanted, _ in pairs),
            sum(float(((wanted[name] - got[name]) ** 2).sum()) for wanted, got in pairs),
        )
        for name in pairs[0][0]
    }


def optimized(model: ir.Model, folder: Path, **options: object) -> onnx.ModelProto:
    """The graph that ONNX Runtime really runs at level `all`."""
    session_of(model, save_optimized=folder / "optimized.onnx", **options)
    return onnx.load(folder / "optimized.onnx")
