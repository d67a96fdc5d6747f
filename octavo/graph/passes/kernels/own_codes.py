"""Weights of int8 codes, and their zero points, are each layer's own."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, new_constant

__all__ = ["OwnCodesPass"]


class OwnCodesPass(NodePass):
    """Give every layer of int8 weights codes, a zero point and a DequantizeLinear that no other node reads.

    A layer that a network calls twice comes with one DequantizeLinear for both calls. With `session.x64quantprecision` (CPUs
    without VNNI) ONNX Runtime rewrites int8 weights and their zero points as uint8, once for each layer, and fails to load a file
    where two share either ("attempt to replace the existing tensor").

    1. A DequantizeLinear reads an initializer of int8 codes.
    2. Codes and a constant zero point that another node reads first are copied. Scales stay shared.
    3. Of several nodes that read its output each but the first gets a copy of it, of its codes and of its zero point.

    Equal codes are in the file several times then, unless `writing.packed.share_codes` comes behind.
    """

    op_type = "DequantizeLinear"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        codes, restored = constant_of(node.inputs[0]), node.outputs[0]
        if codes is None or codes.dtype != np.int8:
            return False
        shared = [place for place in _own(node) if next(iter(node.inputs[place].uses())).node is not node]
        for place in shared:
            node.replace_input_with(place, _copy(model, node.inputs[place], node.name))
        others = list(restored.uses())[1:]
        for use in others:
            name = f"{use.node.name}.weight"
            twin = ir.node("DequantizeLinear", node.inputs, node.attributes, name=f"{name}.DQ")
            for place in _own(node):
                twin.replace_input_with(place, _copy(model, node.inputs[place], name))
            value = twin.outputs[0]
            value.name, value.type, value.shape = f"{name}.restored", restored.type, restored.shape
            use.node.graph.insert_before(use.node, twin)
            use.node.replace_input_with(use.idx, value)
        return bool(shared or others)


def _own(node: ir.Node) -> list[int]:
    """Which inputs of a DequantizeLinear no other node may read: codes and a constant zero point."""
    return [place for place in (0, 2) if place < len(node.inputs) and constant_of(node.inputs[place]) is not None]


def _copy(model: ir.Model, value: ir.Value, owner: str | None) -> ir.Value:
    return new_constant(model, f"{owner}.{value.name}", constant_of(value))
