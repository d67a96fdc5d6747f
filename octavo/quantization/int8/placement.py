"""Which nodes become INT8, by structure.

1. Conv, Gemm and MatMul with constant weights: this is where integer kernels pay.
2. Nodes that only carry or combine quantized values on (Add, Concat, pools, Relu, Clip, reshapes), where *every* float input
   comes from a quantized node: the value has its scale already, and no island of Q/DQ arises.
3. Everything else stays float: in particular Softmax, Sigmoid, exp and box decoding, and a Concat or Add that mixes such values
   in (onnxruntime #14233: one scale for boxes and scores ruins both).
4. What `keep_float` names stays float, and so does what rule 2 then no longer reaches.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from octavo.quantization.decisions import Decision

__all__ = ["CARRIERS", "RESHAPES", "WEIGHTED", "place"]

WEIGHTED = frozenset({"Conv", "Gemm", "MatMul"})
RESHAPES = frozenset({"Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
CARRIERS = RESHAPES | {"Add", "AveragePool", "Clip", "Concat", "GlobalAveragePool", "MaxPool", "Relu"}


def place(model: ir.Model, kept: Mapping[str, str]) -> list[Decision]:
    """Decide for every node of the main graph, in topological order.

    Args:
        model: the FP32 graph.
        kept: node name to the `keep_float` pattern that names it.
    """
    quantized: set[ir.Node] = set()
    decisions = []
    for node in model.graph:
        if node.op_type == "Constant":
            continue
        reason = _refusal(node, quantized, kept)
        if reason is None:
            quantized.add(node)
        chosen = "integer kernel" if node.op_type in WEIGHTED else "carries INT8 values on"
        decisions.append(Decision(node.name or "", node.op_type, "float" if reason else "int8", reason or chosen))
    return decisions


def _refusal(node: ir.Node, quantized: set[ir.Node], kept: Mapping[str, str]) -> str | None:
    if node.name in kept:
        return f"keep_float: {kept[node.name]}"
    if node.domain not in ("", "ai.onnx"):
        return f"no INT8 rule for {node.domain}.{node.op_type}"
    if node.op_type in WEIGHTED:
        weight = node.inputs[1]
        if weight is None or not _is_constant(weight):
            return "its weights are not constant"
        if weight.dtype != ir.DataType.FLOAT:
            return f"its weights are {weight.dtype}, not float32"
        if node.op_type == "MatMul" and (weight.shape is None or len(weight.shape) != 2):
            return "its weights are not a matrix"
        return None
    if node.op_type in CARRIERS:
        return _carrier_refusal(node, quantized)
    return f"no INT8 rule for {node.op_type}"


def _carrier_refusal(node: ir.Node, quantized: set[ir.Node]) -> str | None:
    # Shapes, axes and Clip's bounds are no values that carry a scale.
    data = [value for value in node.inputs if value is not None]
    data = data if node.op_type in ("Add", "Concat") else data[:1]
    for value in data:
        if _is_constant(value):
            return f"{value.name} is a constant"
        if value.dtype != ir.DataType.FLOAT:
            return f"{value.name} is {value.dtype}, not float32"
        producer = value.producer()
        if producer is None:
            return f"{value.name} is a graph input"
        if producer not in quantized:
            return f"its input comes from {producer.name} ({producer.op_type}), which is float"
    return None


def _is_constant(value: ir.Value) -> bool:
    return value.is_initializer() or (value.producer() is not None and value.producer().op_type == "Constant")
