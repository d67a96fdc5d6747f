"""What passes share that take constant factors and shifts into the Conv before them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.qdq import forget, new_constant

__all__ = ["bypass", "foldable", "into", "is_private"]


def is_private(model: ir.Model, value: ir.Value | None) -> bool:
    """Whether one node alone reads a value."""
    return value is not None and len(list(value.uses())) == 1 and value not in model.graph.outputs


def foldable(model: ir.Model, value: ir.Value | None) -> bool:
    """Whether a value is that of a Conv with constant weights and bias, and one node alone reads it."""
    if not is_private(model, value):
        return False
    node = value.producer()
    if node is None or node.op_type != "Conv" or ir.convenience.get_const_tensor(node.inputs[1]) is None:
        return False
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return bias is None or ir.convenience.get_const_tensor(bias) is not None


def into(model: ir.Model, conv: ir.Node, scale: np.ndarray, shift: np.ndarray) -> None:
    """Make a Conv put out `scale y + shift` in place of y; both float64 [channels]."""
    before = conv.inputs[1:]
    weights = ir.convenience.get_const_tensor(conv.inputs[1]).numpy().astype(np.float64)
    old = conv.inputs[2] if len(conv.inputs) > 2 else None
    bias = ir.convenience.get_const_tensor(old).numpy().astype(np.float64) if old is not None else np.zeros(len(scale))
    folded = weights * scale.reshape(-1, *[1] * (weights.ndim - 1))
    # A Conv can take in more than one; each leaves its own constant.
    conv.replace_input_with(1, new_constant(model, f"{conv.name}.folded_weights", folded.astype(np.float32)))
    conv.resize_inputs(3)
    conv.replace_input_with(2, new_constant(model, f"{conv.name}.folded_bias", (bias * scale + shift).astype(np.float32)))
    for value in before:
        forget(model, value)


def bypass(model: ir.Model, node: ir.Node, value: ir.Value) -> None:
    """Remove a node; the value that it read takes the name and the place of what it put out."""
    old, read = node.outputs[0], list(node.inputs)
    name, old.name = old.name, f"{old.name}.old"
    ir.convenience.replace_all_uses_with(old, value, replace_graph_outputs=True)
    model.graph.remove(node, safe=True)
    for one in read:
        forget(model, one)
    value.name = name
