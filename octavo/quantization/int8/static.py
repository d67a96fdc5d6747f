"""Static INT8: uint8 activations, int8 weights, Q/DQ where integer kernels run.

uint8 affine per-tensor activations x int8 symmetric per-channel weights is the one pair with fast kernels on x86.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from octavo.calibration.statistics import Statistics
from octavo.errors import QuantizationError
from octavo.graph.passes.fold_batch_norm import FoldBatchNormPass
from octavo.graph.passes.mean_to_pool import MeanToPoolPass
from octavo.params.grammar import Int8
from octavo.quantization.decisions import Decision
from octavo.quantization.int8.placement import decisions_of, place
from octavo.quantization.int8.scales import quantized_tensors, scales_of
from octavo.quantization.int8.units import units_of
from octavo.quantization.int8.weights import codes_of
from octavo.quantization.int8.writer import write_qdq
from octavo.quantization.select import select

def prepared(model):
    model = ir.from_proto(ir.to_proto(model))
    MeanToPoolPass()(model)
    FoldBatchNormPass()(model)
    return model
