"""Units that stay float between codes, and what keeps ONNX Runtime from quantizing them behind the user's back.

A float node between DQ and Q that ONNX Runtime has an integer kernel for would become one; with a DQ per channel in front such a
kernel would not even load. A LeakyRelu of slope 1 behind it prevents that. Convs and Gemms have theirs from
`octavo.graph.passes.kernels.protect_float`.

A product of two tensors of codes becomes an integer kernel without a Q behind it, too. That computes the same in two thirds of the
time (attention's 3 heads of 197x64: 0.15 ms and 0.24), and is kept out where `keep_float` names the product only.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx
import onnx_ir as ir

from octavo.graph.passes.spelled.hard_swish import SWISH
from octavo.quantization.int8.structure.units import CARRIERS, Unit
from octavo.quantization.int8.writing.coded_graph import CodedGraph

__all__ = ["add_float", "stay_float"]

# What ONNX Runtime makes an integer kernel of where it stands between DQ and Q, besides what has weights.
_FUSED = frozenset({"Add", "AveragePool", "Concat", "GlobalAveragePool", "LeakyRelu", "Mul", "Sigmoid", "Softmax", "Where"})
# What it makes one of where both factors come from a DQ.
_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})


def stay_float(graph: CodedGraph, unit: Unit, kept: Collection[str]) -> None:
    """Write a float unit, its Qs where INT8 units read what it makes; `kept` names nodes that are to compute in float."""
    for node in unit.nodes:
        copy = graph.copy(node, unit, [value.name for value in node.outputs])
        if node.op_type == "MaxPool" and copy.input[0] != node.inputs[0].name and not _follows_kernel(graph, node):
            copy.input[0] = _kept_apart(graph, copy.input[0], f"{node.name}.read")
        elif node.op_type in _PRODUCTS and node.name in kept and all(_from_codes(graph, value) for value in node.inputs[:2]):
            copy.input[1] = _kept_apart(graph, copy.input[1], f"{node.name}.read")
        add_float(graph, copy)
    quantized = [value for value in unit.outputs if value.name in graph.scales]
    for value in quantized:
        graph.add("QuantizeLinear", [_guarded(graph, value), *graph.pair(value.name)], graph.code(value.name), f"{value.name}.Q")


def add_float(graph: CodedGraph, node: onnx.NodeProto) -> None:
    """Add a float node in the form that it is found again in."""
    if node.op_type != "HardSwish":
        graph.nodes.append(node)
        return
    # ONNX Runtime takes it apart where no Conv takes it in, into nodes without names, which nobody finds again.
    alpha, beta = SWISH
    gate = graph.add(
        "HardSigmoid", [node.input[0]], graph.fresh(f"{node.output[0]}.gate"), f"{node.name}.gate", alpha=alpha, beta=beta
    )
    graph.add("Mul", [node.input[0], gate], node.output[0], node.name, instead=True)


def _follows_kernel(graph: CodedGraph, node: ir.Node) -> bool:
    """Whether what a node reads comes right out of an integer convolution, where an integer MaxPool is fast."""
    return any(unit.kind == "linear" and node.inputs[0] in unit.outputs for unit in graph.int8)


def _guarded(graph: CodedGraph, value: ir.Value) -> str:
    """What the Q of a float tensor reads: a guard, where ONNX Runtime would make an integer kernel of what lies before it."""
    node = value.producer()
    # ONNX Runtime moves a Q backward through what only moves values, and a DQ forward.
    while node is not None and node.op_type in (*CARRIERS, "Relu", "Clip"):
        if node.op_type == "MaxPool" and not _follows_kernel(graph, node):
            # Moved before it, the Q would make it an integer MaxPool on NCHW, 18 times as slow as this one (NanoDet-m).
            return _kept_apart(graph, value.name, value.name)
        node = node.inputs[0].producer()
    if node is None or node.op_type not in _FUSED or any(node in unit.nodes for unit in graph.int8):
        return value.name
    if not all(_from_codes(graph, read) for read in node.inputs if read is not None and read.dtype == ir.DataType.FLOAT):
        return value.name
    return _kept_apart(graph, value.name, value.name)


def _kept_apart(graph: CodedGraph, name: str, copy: str) -> str:
    """A copy of a float tensor that no Q or DQ is moved across: a LeakyRelu of slope 1, named after `copy`."""
    return graph.add("LeakyRelu", [name], graph.fresh(f"{copy}.guarded"), f"{copy}.guard", alpha=1.0)


def _from_codes(graph: CodedGraph, value: ir.Value) -> bool:
    """Whether a float reader gets a tensor out of a DequantizeLinear, moved about or not."""
    while value.name not in graph.scales or value.name not in graph.from_int8:
        node = value.producer()
        if node is None or node.op_type not in CARRIERS:
            return False
        value = node.inputs[0]
    return True
