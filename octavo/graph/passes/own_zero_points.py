"""Weights' zero points are initializers of their own."""

from __future__ import annotations

import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass

__all__ = ["OwnZeroPointsPass"]


class OwnZeroPointsPass(NodePass):
    """Give every weight of int8 codes a zero point that no other node reads.

    With `session.x64quantprecision` (CPUs without VNNI) ONNX Runtime rewrites int8 weights and their zero points as uint8. It does
    so once for each weight, and fails to load a file where two share a zero point ("attempt to replace the existing tensor").

    1. A DequantizeLinear reads an initializer as codes and an initializer as its zero point.
    2. Another node reads that zero point, too; the first of them keeps it.
    """

    op_type = "DequantizeLinear"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        if len(node.inputs) < 3:
            return False
        codes, zero_point = node.inputs[0], node.inputs[2]
        if any(value is None or value.const_value is None for value in (codes, zero_point)):
            return False
        if next(iter(zero_point.uses())).node is node:
            return False
        name = f"{codes.name}.zero_point"
        own = ir.Value(name=name, type=zero_point.type, shape=zero_point.shape)
        own.const_value = ir.tensor(zero_point.const_value.numpy(), name=name)
        model.graph.register_initializer(own)
        node.replace_input_with(2, own)
        return True
