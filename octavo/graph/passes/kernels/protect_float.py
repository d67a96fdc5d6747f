"""Float layers between DQ and Q are kept out of ONNX Runtime's WeightBiasQuantization."""

from __future__ import annotations

import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.nodes import origin
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of

__all__ = ["ProtectFloatPass"]

# What ONNX Runtime 1.31 moves a QuantizeLinear ahead of, and a DequantizeLinear behind; a Flatten, say, it does not.
_MOVED = frozenset({"MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})


class ProtectFloatPass(NodePass):
    """Put a LeakyRelu behind a float layer whose result is quantized.

    ONNX Runtime rounds the float weights of a Conv or Gemm that stands between DQ and Q, per tensor and behind the user's back
    (24 dB -> 7 dB measured). A LeakyRelu of slope 1 (nothing) or 0 (Relu) keeps it out of that optimizer, and fuses into the float
    kernel.

    1. The layer's weights are not codes behind a DequantizeLinear.
    2. A QuantizeLinear reads its output, or that of the Relu or Clip that reads it. A Relu becomes the LeakyRelu of slope 0; before
       a Clip that begins at zero stands one of slope 0.
    3. Where codes come in, one that reads it behind operators that only move values counts, too: ONNX Runtime moves it ahead of
       them, and a DequantizeLinear behind.
    4. A MatMul that codes come into and the Add of its bias are one layer, which ONNX Runtime makes a Gemm of; a MatMul alone it
       leaves.

    The result is the same to the last bit.
    """

    def __init__(self, op_type: str) -> None:
        self.op_type = op_type
        super().__init__()

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        weight = node.inputs[1].producer() if node.inputs[1] is not None else None
        if weight is not None and weight.op_type == "DequantizeLinear":
            return False
        last = node
        readers = [use.node for use in node.outputs[0].uses()]
        if node.op_type == "MatMul":
            if len(readers) != 1 or readers[0].op_type != "Add" or not any(map(_is_constant, readers[0].inputs)):
                return False
            if not _is_from_codes(node.inputs[0]):
                return False
            last = readers[0]
        elif len(readers) == 1 and readers[0].op_type in ("Clip", "Relu"):
            last = readers[0]
        if not any(use.node.op_type == "QuantizeLinear" for use in last.outputs[0].uses()) and (
            not _is_moved_to_codes(last.outputs[0]) or not _is_from_codes(node.inputs[0])
        ):
            return False
        if last.op_type == "Relu":
            self._replaced(model, last)
        elif last.op_type == "Clip":
            low = constant_of(last.inputs[1]) if len(last.inputs) > 1 else None
            guard = _leaky(last.inputs[0], last, 0.0 if low is not None and low == 0 else 1.0)
            model.graph.insert_before(last, guard)
            last.replace_input_with(0, guard.outputs[0])
        else:
            value = last.outputs[0]
            uses = list(value.uses())
            name, value.name = value.name, f"{last.name}.open"
            guard = _leaky(value, last, 1.0)
            guard.outputs[0].name = name
            model.graph.insert_after(last, guard)
            for reader, index in uses:
                reader.replace_input_with(index, guard.outputs[0])
            for index, output in enumerate(model.graph.outputs):
                if output is value:
                    model.graph.outputs[index] = guard.outputs[0]
        return True

    def _replaced(self, model: ir.Model, relu: ir.Node) -> None:
        made = ir.node("LeakyRelu", [relu.inputs[0]], {"alpha": 0.0}, name=relu.name)
        take_place(model, [relu], [made], relu.outputs[0], made.outputs[0])


def _is_constant(value: ir.Value | None) -> bool:
    return constant_of(value) is not None


def _is_moved_to_codes(value: ir.Value) -> bool:
    """Whether a QuantizeLinear reads a value, moved about or not."""
    readers = [use.node for use in value.uses()]
    return any(
        reader.op_type == "QuantizeLinear" or (reader.op_type in _MOVED and _is_moved_to_codes(reader.outputs[0]))
        for reader in readers
    )


def _is_from_codes(value: ir.Value | None) -> bool:
    """Whether a value comes from a DequantizeLinear, moved about or not."""
    source = origin(value, _MOVED)
    node = source.producer() if source is not None else None
    return node is not None and node.op_type == "DequantizeLinear"


def _leaky(value: ir.Value, beside: ir.Node, slope: float) -> ir.Node:
    guard = ir.node("LeakyRelu", [value], {"alpha": slope}, name=f"{beside.name}.guard")
    guard.outputs[0].name = f"{beside.name}.open" if beside.op_type == "Clip" else None
    guard.outputs[0].type, guard.outputs[0].shape = value.type, value.shape
    return guard
