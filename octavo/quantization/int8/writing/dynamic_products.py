"""Products of which the activations get their codes at run time, as ONNX Runtime's fusions find them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.passes.qdq import forget, new_constant
from octavo.quantization.int8.numbers.weights import Codes

__all__ = ["DynamicProducts"]


class DynamicProducts:
    """Writes Gemm and MatMul as MatMulInteger behind a DynamicQuantizeLinear, which those that read one tensor share.

    What restores floats stands behind it as ONNX Runtime's fusions want it: one kernel (DynamicQuantizeMatMul, or
    MatMulIntegerToFloat where several read the codes) does all of it, and takes the bias in. Each product has weights of its own:
    1.31 does not load a graph in which two share them ("Attempt to replace the existing tensor"), as RT-DETR's decoder would.

    Args:
        model: changed in place.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._read: dict[ir.Value, tuple[ir.Value, ...]] = {}

    def write(self, node: ir.Node, codes: Codes) -> None:
        """Write one product; the MatMulInteger has its name, and what it put out keeps its own.

        Args:
            node: a Gemm without factors or a turned input (`PlainGemmPass`), or a MatMul.
            codes: of its weights.
        """
        name, output, (given, weights, *bias) = node.name, node.outputs[0], node.inputs
        quantized, scale, zero_point = self._codes_of(node, given)
        rows = codes.codes if codes.axis == 1 else np.ascontiguousarray(codes.codes.T)
        product = ir.node("MatMulInteger", [quantized, self._constant(f"{name}.weight_codes", rows), zero_point], name=name)
        summed = _then(product, "Cast", f"{name}.cast", to=ir.DataType.FLOAT.value)
        scales = ir.node("Mul", [scale, self._constant(f"{name}.weight_scale", codes.scale)], name=f"{name}.scale")
        restored = _then(summed, "Mul", f"{name}.restore", scales.outputs[0])
        made = [product, summed, scales, restored]
        if bias and bias[0] is not None:
            made.append(_then(restored, "Add", f"{name}.bias", bias[0]))
        for one in made:
            one.outputs[0].name = f"{one.name}.out"
        take_place(self._model, [node], made, output, made[-1].outputs[0])
        forget(self._model, weights)

    def _codes_of(self, node: ir.Node, value: ir.Value) -> tuple[ir.Value, ...]:
        """(codes, scale, zero point) of a tensor, made where the first product reads it."""
        if value not in self._read:
            quantize = ir.node("DynamicQuantizeLinear", [value], num_outputs=3, name=f"{value.name}.dynamic")
            for output, what in zip(quantize.outputs, ("codes", "scale", "zero_point"), strict=True):
                output.name = f"{value.name}.{what}"
            self._model.graph.insert_before(node, quantize)
            self._read[value] = tuple(quantize.outputs)
        return self._read[value]

    def _constant(self, name: str, array: np.ndarray) -> ir.Value:
        return new_constant(self._model, name, array)


def _then(node: ir.Node, op_type: str, name: str, *others: ir.Value, **attributes: int) -> ir.Node:
    return ir.node(op_type, [node.outputs[0], *others], attributes, name=name)
