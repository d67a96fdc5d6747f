"""Biases of quantized layers become int32 codes, so that every version of ONNX Runtime fuses the layer into an integer kernel."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import codes_of_input, constant_of, forget, new_constant

__all__ = ["MOST", "BiasCodesPass", "bias_step"]

# Half of int32's range: the accumulator holds the products, too.
MOST = 2**30


def bias_step(input_scale: np.ndarray, weight_scale: np.ndarray) -> np.ndarray:
    """The value of one code of a bias, float32: that of one code of the accumulator."""
    return np.asarray(input_scale, np.float32) * np.asarray(weight_scale, np.float32).ravel()


class BiasCodesPass(NodePass):
    """Write the float bias of a Conv or Gemm as int32 behind a DequantizeLinear with the accumulator's scale.

    1. The layer reads uint8 codes with one scale and constant int8 codes through DequantizeLinear.
    2. The bias is constant, a value for each output channel, and fits: else the node is left alone.
    """

    def __init__(self, op_type: str) -> None:
        self.op_type = op_type
        super().__init__()

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        before, weight = codes_of_input(node.inputs[0]), node.inputs[1].producer() if node.inputs[1] is not None else None
        bias = constant_of(node.inputs[2]) if len(node.inputs) > 2 else None
        if before is None or weight is None or weight.op_type != "DequantizeLinear" or bias is None or bias.dtype != np.float32:
            return False
        scale = constant_of(weight.inputs[1])
        if scale is None or constant_of(weight.inputs[0]) is None or constant_of(weight.inputs[0]).dtype != np.int8:
            return False
        step = bias_step(before.scale, scale)
        codes = np.rint(bias.ravel().astype(np.float64) / step)
        if step.size not in (1, bias.size) or np.abs(codes).max(initial=0) > MOST:
            return False
        name, old = node.inputs[2].name, node.inputs[2]
        values = [
            new_constant(model, f"{name}.codes", codes.astype(np.int32)),
            new_constant(model, f"{name}.scale", step if step.size > 1 else step.reshape(())),
        ]
        attributes = {"axis": 0} if step.size > 1 else {}
        restored = ir.node("DequantizeLinear", values, attributes=attributes, name=f"{node.name}.bias.DQ")
        restored.outputs[0].name = f"{node.name}.bias.restored"
        restored.outputs[0].dtype, restored.outputs[0].shape = ir.DataType.FLOAT, old.shape
        model.graph.insert_before(node, restored)
        node.replace_input_with(2, restored.outputs[0])
        forget(model, old)
        return True
