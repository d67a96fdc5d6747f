"""Small float graphs, built from their nodes, and what tests ask of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir

from octavo.runtime.session import Session

# On x86, ONNX Runtime fuses int8 activations only when asked to; on ARM64 always.
AS_ON_ARM = {"session.qdqisint8allowed": "1"}


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


def session_of(model: ir.Model, **options: object) -> Session:
    return Session(ir.to_proto(model).SerializeToString(), **options)


def run(model: ir.Model, feeds: dict[str, np.ndarray], **options: object) -> dict[str, np.ndarray]:
    return session_of(model, **options).run(feeds)


def optimized(model: ir.Model, folder: Path, **options: object) -> onnx.ModelProto:
    """The graph that ONNX Runtime really runs at level `all`."""
    session_of(model, save_optimized=folder / "optimized.onnx", **options)
    return onnx.load(folder / "optimized.onnx")
