"""Dynamic INT8: int8 weights on disk, activation ranges taken at run time; no calibration.

The size of static INT8, rarely its speed: the ranges cost a pass over every activation, and a convolution runs as ConvInteger,
which ONNX Runtime's CPU has no fast kernel for.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxruntime.quantization import QuantType
from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
from onnxruntime.quantization.quant_utils import QuantizationMode

from octavo.errors import QuantizationError
from octavo.params.grammar import Int8
from octavo.quantization.decisions import Decision
from octavo.quantization.int8.placement import WEIGHTED, place
from octavo.quantization.int8.static import Int8Result, engine_input
from octavo.quantization.select import select

__all__ = ["quantize_dynamic"]


def quantize_dynamic(model: ir.Model, recipe: Int8) -> Int8Result:
    """Quantize the weights of Conv, Gemm and MatMul.

    Args:
        model: FP32, opset >= 17; it is not changed.
        recipe: the `int8:` block; of it `keep_float`, `per_channel` and `target` count here.

    Raises:
        QuantizationError: nothing can be quantized, or `keep_float` names nothing.
    """
    kept = select(recipe.keep_float, ((node.name or "", node.op_type) for node in model.graph))
    decisions = [
        decision
        if decision.op_type in WEIGHTED or decision.precision == "float"
        else Decision(decision.node, decision.op_type, "float", "dynamic INT8 quantizes weights only")
        for decision in place(model, kept)
    ]
    chosen = sorted(decision.node for decision in decisions if decision.precision == "int8")
    if not chosen:
        raise QuantizationError(
            "no node of this graph has weights to quantize", "see `int8.keep_float` in params.yaml, or use fp16"
        )
    quantizer = ONNXQuantizer(
        engine_input(ir.from_proto(ir.to_proto(model))),
        per_channel=recipe.per_channel,
        reduce_range=recipe.target == "cpu-no-vnni",
        mode=QuantizationMode.IntegerOps,
        static=False,
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QUInt8,
        tensors_range=None,
        nodes_to_quantize=chosen,
        nodes_to_exclude=[],
        op_types_to_quantize=sorted(WEIGHTED),
        extra_options={"WeightSymmetric": True, "MatMulConstBOnly": True},
    )
    quantizer.quantize_model()
    return Int8Result(ir.from_proto(quantizer.model.model), decisions)
