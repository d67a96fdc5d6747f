"""Weights that are int8 in the file and float32 where they are used.

A layer that computes in float need not keep four bytes a weight in the file. Its codes are restored by Cast and Mul, which ONNX
Runtime folds while it loads the graph, so that it runs exactly as a float layer does. DequantizeLinear would say the same, and be
fused into an integer kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.kernels.few_outputs import runs_by_columns
from octavo.graph.passes.qdq import forget, new_constant
from octavo.quantization.int8.numbers.weights import Codes, weights_of

__all__ = ["WORTH", "is_stored", "store_as_int8", "store_weights"]

# Restoring fewer weights than this would take more bytes than it saves.
WORTH = 64


def is_stored(layer: ir.Node) -> bool:
    """Whether a layer of constant weights can have them so where it computes in float, and its file is smaller by it."""
    return layer.op_type != "MatMul" and weights_of(layer).size >= WORTH and not runs_by_columns(layer)


def store_weights(model: ir.Model, codes: Mapping[str, Codes]) -> None:
    """Store the weights of some float layers, and give these the biases that belong to them.

    Args:
        model: a graph in which these layers compute in float; changed in place.
        codes: of each layer, by its node's name; a layer that the graph does not have as it was is left alone.
    """
    for node in list(model.graph):
        code = codes.get(node.name or "")
        if code is None or len(node.inputs) < 2 or ir.convenience.get_const_tensor(node.inputs[1]) is None:
            continue
        store_as_int8(model, node, code.codes, code.laid(code.scale))
        if code.bias is not None:
            bias = new_constant(model, f"{node.name}.stored.bias", code.bias)
            node.resize_inputs(max(3, len(node.inputs)))
            old = node.inputs[2]
            node.replace_input_with(2, bias)
            forget(model, old)


def store_as_int8(model: ir.Model, node: ir.Node, codes: np.ndarray, scale: np.ndarray, place: int = 1) -> None:
    """Replace a layer's weights by codes that are restored in front of it.

    Args:
        model: the graph, changed in place.
        node: the layer.
        codes: whole numbers from -128 to 127, of the weights' shape.
        scale: float32 that broadcasts with them.
        place: the input that has the weights; a recurrent layer has a second one.
    """
    old, name = node.inputs[place], f"{node.name}.weight" if place == 1 else f"{node.name}.weight.{place}"
    parts = [new_constant(model, f"{name}.int8", codes.astype(np.int8)), new_constant(model, f"{name}.scale", scale)]
    cast = ir.node("Cast", [parts[0]], {"to": ir.DataType.FLOAT.value}, name=f"{name}.cast")
    product = ir.node("Mul", [cast.outputs[0], parts[1]], name=f"{name}.restore")
    cast.outputs[0].name, product.outputs[0].name = f"{name}.codes", f"{name}.restored"
    product.outputs[0].shape, product.outputs[0].dtype = ir.Shape(codes.shape), ir.DataType.FLOAT
    model.graph.insert_before(node, [cast, product])
    node.replace_input_with(place, product.outputs[0])
    forget(model, old)
