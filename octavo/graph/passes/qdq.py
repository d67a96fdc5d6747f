"""What passes over Q/DQ graphs ask of them, and the constants that they add."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

__all__ = [
    "Quantized",
    "between",
    "codes_of_input",
    "constant_of",
    "forget",
    "new_constant",
    "number_of",
    "pruned",
    "shape_of_codes",
]


@dataclass(frozen=True)
class Quantized:
    """A uint8 tensor behind a DequantizeLinear with one scale.

    Attributes:
        codes: what the DequantizeLinear reads.
        node: the DequantizeLinear.
        scale, zero_point: its constants.
    """

    codes: ir.Value
    node: ir.Node
    scale: np.ndarray
    zero_point: np.ndarray

    def is_alike(self, quantize: ir.Node) -> bool:
        """Whether a QuantizeLinear makes codes of the same meaning."""
        return constant_of(quantize.inputs[1]) == self.scale and constant_of(quantize.inputs[2]) == self.zero_point


def constant_of(value: ir.Value | None) -> np.ndarray | None:
    """A constant's array; None for anything else."""
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return None if tensor is None else tensor.numpy()


def number_of(value: ir.Value | None) -> float | None:
    """The one number that a constant of any type holds; None for anything else."""
    array = constant_of(value)
    return float(np.asarray(array, np.float64).reshape(())) if array is not None and array.size == 1 else None


def codes_of_input(value: ir.Value | None) -> Quantized | None:
    """What stands behind a float tensor that is uint8 codes with one scale; None where it is not."""
    node = value.producer() if value is not None else None
    if node is None or node.op_type != "DequantizeLinear" or len(node.inputs) < 3 or constant_of(node.inputs[0]) is not None:
        return None
    scale, zero_point = constant_of(node.inputs[1]), constant_of(node.inputs[2])
    if scale is None or zero_point is None or scale.size != 1 or zero_point.dtype != np.uint8:
        return None
    return Quantized(node.inputs[0], node, scale, zero_point)


def between(node: ir.Node) -> tuple[Quantized, ir.Node] | None:
    """What a node reads as codes, and the Q that alone reads its output, with one uint8 zero point; None where it is not so."""
    before = codes_of_input(node.inputs[0])
    value = node.outputs[0]
    uses = list(value.uses())
    if before is None or len(uses) != 1 or value.is_graph_output() or uses[0].node.op_type != "QuantizeLinear":
        return None
    after = uses[0].node
    scale, zero_point = constant_of(after.inputs[1]), constant_of(after.inputs[2]) if len(after.inputs) > 2 else None
    if scale is None or zero_point is None or scale.size != 1 or zero_point.dtype != np.uint8:
        return None
    return before, after


def shape_of_codes(codes: ir.Value) -> list[object] | None:
    """The shape of codes: their own, or that of what their QuantizeLinear reads."""
    maker = codes.producer()
    if codes.shape is None and maker is not None and maker.op_type == "QuantizeLinear":
        codes = maker.inputs[0]
    return None if codes.shape is None else list(codes.shape)


def new_constant(model: ir.Model, name: str, array: np.ndarray) -> ir.Value:
    """A new initializer; a name that is taken gets a `+`."""
    while name in model.graph.initializers:
        name += "+"
    tensor = ir.tensor(np.ascontiguousarray(array).reshape(np.shape(array)), name=name)
    value = ir.Value(name=name, const_value=tensor, shape=tensor.shape, type=ir.TensorType(tensor.dtype))
    model.graph.register_initializer(value)
    return value


def pruned(model: ir.Model, nodes: list[ir.Node]) -> None:
    """Remove nodes that nothing reads any more, in the given order, and initializers that then serve no one."""
    for node in nodes:
        if node.graph is None or any(list(value.uses()) or value.is_graph_output() for value in node.outputs):
            continue
        inputs = list(node.inputs)
        model.graph.remove(node, safe=True)
        for value in inputs:
            forget(model, value)


def forget(model: ir.Model, value: ir.Value | None) -> None:
    """Remove an initializer that serves no one any more."""
    if value is not None and value.is_initializer() and not list(value.uses()) and not value.is_graph_output():
        del model.graph.initializers[value.name]
