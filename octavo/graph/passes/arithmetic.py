"""What passes share that recognise one operator in several."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.passes.qdq import constant_of, number_of

__all__ = ["is_op", "number", "replace_last", "scaled"]


def scaled(node: ir.Node | None) -> tuple[ir.Value, float] | None:
    """What a Mul or Div multiplies with a constant, and the factor; None for anything else."""
    if is_op(node, "Div"):
        divisor = number(node.inputs[1])
        return (node.inputs[0], 1 / divisor) if divisor else None
    if is_op(node, "Mul"):
        for place in (0, 1):
            factor = number(node.inputs[1 - place])
            if factor is not None:
                return node.inputs[place], factor
    return None


def is_op(node: ir.Node | None, op_type: str) -> bool:
    """Whether a node is this operator of the ONNX domain."""
    return node is not None and node.op_type == op_type and node.domain in ("", "ai.onnx")


def number(value: ir.Value | None) -> float | None:
    """A float32 constant of one element; None for anything else."""
    array = constant_of(value)
    return number_of(value) if array is not None and array.dtype == np.float32 else None


def replace_last(model: ir.Model, node: ir.Node, new: ir.Node) -> None:
    """Put a node in the place of the last of several, and remove those that led to it alone; its output keeps the name that the old
    one had.
    """
    ahead = [value.producer() for value in node.inputs if value is not None and value is not new.inputs[0]]
    take_place(model, [node], [new], node.outputs[0], new.outputs[0])
    while ahead:
        gone = ahead.pop()
        if gone is None or gone.graph is None or any(list(value.uses()) or value.is_graph_output() for value in gone.outputs):
            continue
        ahead += [value.producer() for value in gone.inputs if value is not None]
        model.graph.remove(gone, safe=True)
