"""The graph that ONNX Runtime really runs: its own optimized graph, each node with the arithmetic of its kernel."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from octavo.runtime.session import Session

__all__ = ["KINDS", "RunNode", "optimized_nodes"]

# In the order of every table; `border` is what changes precision or memory layout and computes nothing.
KINDS = ("int8", "16-bit", "fp16", "float", "border", "other")

_BORDERS = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ReorderInput", "ReorderOutput"})
# Integer kernels whose first input is a scale, or float that the kernel itself rounds.
_INTEGER = frozenset({"ConvInteger", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat", "QAttention", "QGemm"})
# The place of the zero point of what a QGemm writes.
_ZERO_OUT = 8
# Their first input's values do not matter.
_SHAPES = frozenset({"Constant", "ConstantOfShape", "Shape", "Size"})
_BY_TYPE = {
    onnx.TensorProto.UINT8: "int8",
    onnx.TensorProto.INT8: "int8",
    onnx.TensorProto.UINT16: "16-bit",
    onnx.TensorProto.INT16: "16-bit",
    onnx.TensorProto.FLOAT16: "fp16",
    onnx.TensorProto.BFLOAT16: "fp16",
    onnx.TensorProto.FLOAT: "float",
    onnx.TensorProto.DOUBLE: "float",
}

_NARROW = frozenset(kind for kind, name in _BY_TYPE.items() if name in ("int8", "16-bit"))


@dataclass(frozen=True)
class RunNode:
    """A node of the optimized graph.

    Attributes:
        name: as ONNX Runtime calls it; made up where it made the node.
        op_type: what runs (`QLinearConv`, `FusedConv`, `ReorderInput`, ...).
        domain: "" for ONNX's own.
        kind: one of `KINDS`, by the type of the tensors that the kernel works on; `other` is arithmetic on shapes and indices.
        outputs: names of the tensors that it makes.
    """

    name: str
    op_type: str
    domain: str
    kind: str
    outputs: tuple[str, ...]


def optimized_nodes(model: str | Path | bytes) -> list[RunNode]:
    """Load a graph with all optimizations and read what ONNX Runtime made of it on this machine.

    Returns:
        The nodes of the main graph, in topological order.

    Raises:
        ModelRunError: the graph cannot be loaded.
    """
    with tempfile.TemporaryDirectory(prefix="octavo-") as folder:
        path = Path(folder) / "optimized.onnx"
        Session(model, save_optimized=path)
        graph = onnx.load(path, load_external_data=False).graph
    return [RunNode(node.name, node.op_type, node.domain, kind, tuple(node.output)) for node, kind in _kinds(graph)]


def _kinds(graph: onnx.GraphProto) -> Iterator[tuple[onnx.NodeProto, str]]:
    """Each node with its kind; ONNX Runtime states the types of few tensors that it made itself, so they are carried on."""
    types = {
        value.name: value.type.tensor_type.elem_type
        for values in (graph.value_info, graph.input, graph.output)
        for value in values
        if value.type.HasField("tensor_type")
    } | {tensor.name: tensor.data_type for tensor in graph.initializer}
    for node in graph.node:
        reads = [types[name] for name in node.input if name in types]
        made = _made(node, reads)
        for name in node.output:
            types.setdefault(name, made)
        yield node, _kind(node, [_BY_TYPE.get(kind) for kind in reads], _BY_TYPE.get(types[node.output[0]]))


def _made(node: onnx.NodeProto, reads: Sequence[int]) -> int:
    """The type of what a node writes, where nothing states it."""
    narrow = [kind for kind in reads if kind in _NARROW]
    if node.op_type == "Cast":
        return next(attribute.i for attribute in node.attribute if attribute.name == "to")
    if node.op_type == "QuantizeLinear":
        return narrow[0] if narrow else onnx.TensorProto.UINT8
    # A QGemm without a zero point for its output writes float.
    if (node.op_type.startswith("QLinear") or (node.op_type == "QGemm" and any(node.input[_ZERO_OUT:]))) and narrow:
        return narrow[0]
    if node.op_type == "DequantizeLinear":
        return next((kind for kind in reads if kind not in _NARROW), onnx.TensorProto.FLOAT)
    if node.op_type in _INTEGER or node.domain == "com.microsoft.nchwc":
        return onnx.TensorProto.FLOAT
    if node.op_type in _SHAPES or node.op_type in ("ArgMax", "ArgMin"):
        return onnx.TensorProto.INT64
    return next((kind for kind in reads if kind in _BY_TYPE), reads[0] if reads else onnx.TensorProto.UNDEFINED)


def _kind(node: onnx.NodeProto, read: Sequence[str | None], made: str | None) -> str:
    if node.op_type in _BORDERS:
        return "border"
    if node.op_type in _SHAPES:
        return "other"
    if node.op_type in _INTEGER or node.op_type.startswith("QLinear"):
        return "16-bit" if made == "16-bit" else "int8"
    if node.domain == "com.microsoft.nchwc":
        return "float"
    return next((kind for kind in (*read, made) if kind), "other")
