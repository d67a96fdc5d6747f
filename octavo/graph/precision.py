"""What each layer computes in, as the file says it: by types, by Q/DQ around it, or by an integer operator.

What ONNX Runtime makes of that is another question (`octavo.runtime.kernels`).
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from octavo.errors import SourceError
from octavo.graph.inspect import QUANTIZED_OPS, QUANTIZED_WEIGHTS, check_float
from octavo.graph.macs import stored_in
from octavo.graph.nodes import origin
from octavo.graph.operators import LAYERS, MOVES

__all__ = ["Precision", "check_weights", "forms_of", "precision_of", "type_name"]

_NAMES = {ir.DataType.FLOAT: "float32", ir.DataType.DOUBLE: "float64"}
_INTEGER = frozenset({"ConvInteger", "MatMulInteger", "QAttention", "QGemm", "QLinearConv", "QLinearMatMul"})
_DYNAMIC = frozenset({"DynamicQuantizeLSTM", "DynamicQuantizeMatMul"})
# They take codes as they are, or weights alone as codes.
_MIXED = frozenset({"MatMulIntegerToFloat"})
# A DQ in front of one of these restores the layer's data all the same: what a Pad adds, or a MaxPool leaves out, changes no type.
_CARRIES = MOVES | {"MaxPool", "Pad"}
_WEIGHTS = {"QLinearConv": 3, "QLinearMatMul": 3, "QGemm": 3}
_EIGHT = frozenset({ir.DataType.INT8, ir.DataType.UINT8})
_HALF = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_SIXTEEN = frozenset({ir.DataType.INT16, ir.DataType.UINT16})


@dataclass(frozen=True)
class Precision:
    """Of one layer.

    Attributes:
        name: float32, float16, bfloat16, float64, int8 (data and weights), int8 dynamic (ranges at run time), 16-bit (codes of
            the data), or unknown.
        data: type of the data's codes or floats.
        weights: type that the weights have in the file; "" for a product of two activations.
        note: what the two do not say.
    """

    name: str
    data: str
    weights: str
    note: str = ""


def precision_of(node: ir.Node) -> Precision:
    """What a layer computes in.

    Args:
        node: of a graph as `octavo.graph.readable.readable` gives it; types are inferred.
    """
    place = _WEIGHTS.get(node.op_type, 1)
    data, other = node.inputs[0], node.inputs[place] if len(node.inputs) > place else None
    weights = stored_in(other)
    if weights is None and node.op_type == "MatMul" and stored_in(data) is not None:
        data, other, weights = other, data, stored_in(data)
    stored = type_name(weights.dtype) if weights is not None else ""
    if node.op_type in _DYNAMIC:
        return Precision("int8 dynamic", "uint8", stored, "the kernel rounds its input by itself")
    if node.op_type in _INTEGER | _MIXED:
        maker = data.producer() if data is not None else None
        found = type_name(data.dtype) if data is not None and data.dtype is not None else _zero_point_type(node) or "uint8"
        if maker is not None and maker.op_type == "DynamicQuantizeLinear":
            return Precision("int8 dynamic", "uint8", stored, "ranges are taken at run time")
        return Precision("int8", found, stored)
    # Weights that Cast and Mul restore are codes in the file alone.
    codes, by = _codes_of(data), _codes_of(other)
    type_ = type_name(data.dtype) if data is not None and data.dtype is not None else _by_outputs(node)
    if codes is not None and by is not None:
        if {codes, by} & _SIXTEEN:
            return Precision("16-bit", type_name(codes), stored)
        note = "" if _written_as_codes(node) else _unwritten(node)
        return Precision("int8", type_name(codes), stored, note)
    if stored and weights.dtype in _EIGHT:
        return Precision(type_, type_, stored, "weights are int8 in the file alone")
    if stored and weights.dtype == ir.DataType.FLOAT16 and type_ == "float32":
        return Precision(type_, type_, stored, "weights are float16 in the file alone")
    if codes is not None:
        return Precision(type_, type_, stored, "reads codes, its weights are none")
    return Precision(type_, type_, stored)


def forms_of(model: ir.Model) -> list[str]:
    """How a graph is quantized; [] for FP32.

    `qdq`, `qoperator`, `dynamic`, `float16`, `weights` (8 bits or fewer, or float16, in the file; restored by Cast or
    by the operator that reads them).
    """
    found: dict[str, None] = {}
    operators = {node.op_type for node in ir.traversal.RecursiveGraphIterator(model.graph)}
    if "QuantizeLinear" in operators and "DequantizeLinear" in operators:
        found["qdq"] = None
    if any(
        op in QUANTIZED_OPS - QUANTIZED_WEIGHTS - {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
        or op.startswith("QLinear")
        for op in operators
    ):
        found["dynamic" if operators & {"DynamicQuantizeLinear", *_DYNAMIC} else "qoperator"] = None
    elif operators & _DYNAMIC:
        found["dynamic"] = None
    values = [value for graph in model.graphs() for value in graph.initializers.values() if value.const_value is not None]
    arrays = [value for value in values if value.const_value.size > 1]
    restored = {value.dtype for value in arrays if any(use.node.op_type == "Cast" for use in value.uses())}
    halves = [value for value in arrays if value.dtype == ir.DataType.FLOAT16]
    if any(use.node.op_type != "Cast" for value in halves for use in value.uses()):
        found["float16"] = None
        restored -= {ir.DataType.FLOAT16}
    if restored & {*_EIGHT, ir.DataType.FLOAT16} or operators & QUANTIZED_WEIGHTS:
        found["weights"] = None
    return list(found)


def check_weights(model: ir.Model) -> None:
    """Refuse a graph that is quantized already (`octavo.graph.inspect.check_float`), or whose layers have rounded weights.

    1. Codes of 8 bits that Cast and Mul bring back to float: as operators they are arithmetic that any network may have, as weights
       of a layer they are INT8.
    2. float16 and bfloat16, whether the layer computes in it or a Cast restores them.

    Call it before constants are folded, which hides the first, and after it, which shows the weights that a Cast rounds.

    Raises:
        SourceError: naming a layer, and how many there are.
    """
    check_float(model)
    found = [
        (node, kind)
        for node in ir.traversal.RecursiveGraphIterator(model.graph)
        if node.op_type in LAYERS and node.domain in ("", "ai.onnx")
        for kind in map(_rounded, node.inputs[:2])
        if kind
    ]
    if found:
        node, kind = found[0]
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise SourceError(
            f"the graph is quantized already: weights of {node.op_type} {node.name or 'without a name'!r}{more} are {kind}",
            "give the FP32 model that it was made from (`source.file`); everything here starts from FP32. Where a network was "
            "trained in half precision, export it with weights of float32 (`model.float()`)",
        )


def _rounded(value: ir.Value | None) -> str:
    """`float16`, `bfloat16`, or `codes of 8 bits`, where a layer's constant operand is stored in them; else ""."""
    weights = stored_in(value)
    if weights is None:
        return ""
    if weights.dtype in _HALF:
        return type_name(weights.dtype)
    return "codes of 8 bits" if weights.dtype in _EIGHT and _scaled(value) else ""


def _scaled(value: ir.Value | None) -> bool:
    node = value.producer() if value is not None else None
    return node is not None and (node.op_type == "Mul" or any(map(_scaled, node.inputs)))


def _codes_of(value: ir.Value | None) -> ir.DataType | None:
    """The type of the codes that a tensor is restored from; None where it is no DQ's."""
    source = origin(value, _CARRIES)
    node = source.producer() if source is not None else None
    if node is None or node.op_type != "DequantizeLinear" or node.inputs[0] is None:
        return None
    kind = node.inputs[0].dtype
    if kind is None and len(node.inputs) > 2 and node.inputs[2] is not None:
        kind = node.inputs[2].dtype
    return kind if kind is not None else ir.DataType.UINT8


def _written_as_codes(node: ir.Node) -> bool:
    value = node.outputs[0]
    readers = [use.node for use in value.uses()]
    while len(readers) == 1 and readers[0].op_type in _CARRIES | {"Relu", "Clip"}:
        readers = [use.node for use in readers[0].outputs[0].uses()]
    return bool(readers) and all(reader.op_type == "QuantizeLinear" for reader in readers)


def _unwritten(node: ir.Node) -> str:
    if node.op_type in ("Gemm", "MatMul"):
        return "writes float"
    return "no Q behind it: ONNX Runtime computes it in float32, OpenVINO and TensorRT in int8"


def _zero_point_type(node: ir.Node) -> str:
    value = node.inputs[2] if node.op_type.startswith("QLinear") or node.op_type == "QGemm" else None
    return type_name(value.dtype) if value is not None and value.dtype is not None else ""


def _by_outputs(node: ir.Node) -> str:
    kind = next((value.dtype for value in (*node.outputs, *node.inputs) if value is not None and value.dtype is not None), None)
    return type_name(kind)


def type_name(kind: ir.DataType | None) -> str:
    """`float32`, `uint8`, ...; `unknown` for None."""
    return "unknown" if kind is None else _NAMES.get(kind, kind.name.lower())
