"""What each node of a graph that came with Q and DQ computes in, read off the graph itself."""

from __future__ import annotations

import onnx_ir as ir

from octavo.graph.nodes import origin
from octavo.graph.operators import JOINS, MOVES, VIEWS
from octavo.graph.passes.arithmetic import is_op
from octavo.graph.passes.qdq import constant_of
from octavo.quantization.decisions import Decision

__all__ = ["qdq_decisions"]

_CODES = ("DequantizeLinear", "QuantizeLinear")
_INTEGERS = (ir.DataType.INT8, ir.DataType.UINT8)
# What a layer's Q takes in.
_FOLDED = ("Clip", "Relu")
# What ONNX Runtime carries Q and DQ across (its qdq_propagation.cc): across a Flatten it does not.
_CARRIES = (VIEWS - {"Flatten"}) | {"MaxPool", "Slice", "Transpose"}
# What it computes on codes between a DQ and a Q (its qdq_selector_action_transformer.cc), a Resize to the nearest too; all else it
# computes in float there, a HardSwish as HardSigmoid and Mul.
_ON_CODES = (
    MOVES
    | JOINS
    | {"Add", "ArgMax", "AveragePool", "Conv", "Gemm", "GlobalAveragePool", "LeakyRelu", "MatMul", "MaxPool"}
    | {"Mul", "ReduceMax", "ReduceMin", "Sigmoid", "Softmax", "Where"}
)


def qdq_decisions(model: ir.Model) -> list[Decision]:
    """A decision for every node but Q and DQ themselves: int8 where codes stand on all of its sides, and it has a kernel for them.

    A Gemm or MatMul of codes needs none behind it: its kernel restores the accumulator (QGemm, MatMulIntegerToFloat). What reads
    constants alone (weights that several layers have) has no decision: it is computed while a file is loaded.

    Args:
        model: with Q and DQ, each node with a name of its own.
    """
    found, constants = [], set(model.graph.initializers.values())
    for node in model.graph:
        if constants.issuperset(node.inputs):
            constants.update(node.outputs)
            continue
        if node.op_type in _CODES:
            continue
        read, written = _reads_codes(node), _writes_codes(node)
        if any(value is not None and value.dtype in _INTEGERS and constant_of(value) is None for value in node.inputs):
            precision, reason = "int8", "moves codes"
        elif read and written and not _on_codes(node):
            precision, reason = "float", "no integer kernel between the codes on its sides"
        elif read and (written or _restores(node)):
            precision, reason = "int8", "rounding was in the training"
        elif read:
            precision, reason = "float", "what reads it takes float"
        elif written:
            precision, reason = "float", "no integer kernel, or it reads float"
        else:
            precision, reason = "float", "between float operators, or behind the last layer"
        found.append(Decision(node.name or "", node.op_type, precision, reason))
    return found


def _on_codes(node: ir.Node) -> bool:
    if node.op_type in _FOLDED:
        source = node.inputs[0]
        return source is not None and not is_op(source.producer(), "DequantizeLinear")
    nearest = node.op_type == "Resize" and node.attributes.get_string("mode", "nearest") == "nearest"
    return nearest or node.op_type in _ON_CODES


def _is_data(value: ir.Value | None) -> bool:
    return value is not None and constant_of(value) is None and value.dtype in (None, ir.DataType.FLOAT)


def _reads_codes(node: ir.Node) -> bool:
    sources = [value for value in node.inputs if _is_data(value)]
    makers = [value.producer() for value in sources]
    if node.op_type in (*_FOLDED, *_CARRIES) and makers and makers[0] is not None and makers[0].op_type not in _CODES:
        return _reads_codes(makers[0])
    return bool(sources) and all(map(_are_codes, sources))


def _are_codes(value: ir.Value | None) -> bool:
    """Whether a tensor is what a DQ gives, across what only carries it on."""
    source = origin(value, _CARRIES)
    return source is not None and is_op(source.producer(), "DequantizeLinear")


def _restores(node: ir.Node) -> bool:
    return node.op_type in ("Gemm", "MatMul") and all(map(_are_codes, node.inputs[:2]))


def _writes_codes(node: ir.Node) -> bool:
    readers = [use.node for value in node.outputs for use in value.uses()]
    if len(readers) == 1 and readers[0].op_type in (*_FOLDED, *_CARRIES):
        return _writes_codes(readers[0])
    return bool(readers) and all(reader.op_type == "QuantizeLinear" for reader in readers)
