"""Static INT8: uint8 activations with our ranges, int8 weights, laid out by ONNX Runtime's quantizer.

uint8 affine per-tensor activations x int8 symmetric weights is the one pair with fast kernels on x86. ONNX Runtime's QDQ engine
serves as the writer; which nodes it takes (`placement`), the ranges (`octavo.calibration.ranges`) and the biases (`correction`)
are ours. ReLU and ReLU6 fold into the Q behind them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnxruntime.quantization import QuantType
from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData
from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer, QuantizationMode
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

from octavo.calibration.choice import chosen_ranges
from octavo.calibration.statistics import Statistics
from octavo.errors import QuantizationError
from octavo.graph.passes.mean_to_pool import MeanToPoolPass
from octavo.params.grammar import Int8
from octavo.quantization.decisions import Decision
from octavo.quantization.int8.correction import correct_biases
from octavo.quantization.int8.placement import CARRIERS, RESHAPES, WEIGHTED, place
from octavo.quantization.select import select

__all__ = ["Int8Result", "engine_input", "engine_output", "quantize_static"]


@dataclass(frozen=True)
class Int8Result:
    """A quantized graph, the reason for every node, and how many biases were corrected."""

    model: ir.Model
    decisions: list[Decision]
    corrected: int = 0


def quantize_static(model: ir.Model, statistics: Statistics, recipe: Int8) -> Int8Result:
    """Quantize a graph.

    Args:
        model: FP32, opset >= 17, shapes inferred; it is not changed.
        statistics: of all its float activations.
        recipe: the `int8:` block.

    Raises:
        QuantizationError: nothing can be quantized, or `keep_float` names nothing.
        CalibrationError: a tensor that needs a range was empty on every calibration image.
    """
    model = ir.from_proto(ir.to_proto(model))
    kept = select(recipe.keep_float, ((node.name or "", node.op_type) for node in model.graph))
    MeanToPoolPass()(model)
    decisions = place(model, kept)
    chosen = {decision.node for decision in decisions if decision.precision == "int8"}
    if not chosen:
        raise QuantizationError("no node of this graph can be quantized", "see `int8.keep_float` in params.yaml, or use fp16")
    bits = 7 if recipe.target == "cpu-no-vnni" else 8
    corrected = 0
    if recipe.correction == "bias":
        corrected = correct_biases(model, statistics, chosen, per_channel=recipe.per_channel, bits=bits)
    quantizer = _engine(engine_input(model), _ranges(model, chosen, statistics, recipe), chosen, recipe)
    quantizer.quantize_model()
    result = engine_output(quantizer)
    return Int8Result(result, _confirmed(decisions, result, recipe), corrected)


def engine_input(model: ir.Model) -> onnx.ModelProto:
    """The graph for ONNX Runtime's quantizer, which trips over shapes stated for initializers that it then transposes."""
    proto = ir.to_proto(model)
    for index in reversed(range(len(proto.graph.value_info))):
        if proto.graph.value_info[index].name in model.graph.initializers:
            del proto.graph.value_info[index]
    return proto


def engine_output(quantizer: Any) -> ir.Model:
    """The graph that the quantizer wrote, in topological order: it appends some of its nodes out of order."""
    result = ir.from_proto(quantizer.model.model)
    result.graph.sort()
    return result


def _ranges(model: ir.Model, chosen: set[str], statistics: Statistics, recipe: Int8) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Ranges of every tensor that a chosen node reads or writes."""
    names = [value.name for node in model.graph if node.name in chosen for value in (*node.inputs, *node.outputs) if value]
    ranges = {
        name: (np.array(low, np.float32), np.array(high, np.float32))
        for name, (low, high) in chosen_ranges(statistics, recipe, names).items()
    }
    for node in model.graph:
        # A tensor that a pass put in (a mean before its Squeeze) has the values, and so the range, of the one it is reshaped to.
        if node.op_type in RESHAPES and node.name in chosen and node.outputs[0].name in ranges:
            ranges.setdefault(node.inputs[0].name, ranges[node.outputs[0].name])
    return ranges


def _engine(proto: onnx.ModelProto, ranges: dict[str, Any], chosen: set[str], recipe: Int8) -> Any:
    settings = dict(
        per_channel=recipe.per_channel,
        reduce_range=recipe.target == "cpu-no-vnni",
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QUInt8,
        tensors_range=TensorsData(CalibrationMethod.MinMax, ranges),
        nodes_to_quantize=sorted(chosen),
        nodes_to_exclude=[],
        op_types_to_quantize=sorted(WEIGHTED | CARRIERS),
        extra_options={"WeightSymmetric": True, "ActivationSymmetric": recipe.symmetric},
    )
    if recipe.format == "qdq":
        return QDQQuantizer(proto, **settings)
    # ONNXQuantizer only reduces the range of weights for QLinearOps in static mode.
    return ONNXQuantizer(proto, mode=QuantizationMode.QLinearOps, static=True, **settings)


def _confirmed(decisions: list[Decision], result: ir.Model, recipe: Int8) -> list[Decision]:
    """Decisions held against the graph that came out: what is not between DQ and Q did not become INT8."""
    if recipe.format == "qoperator":
        floats = {(node.name, node.op_type) for node in result.graph}
        return [
            Decision(d.node, d.op_type, "float", "ONNX Runtime's writer has no QLinear form for it")
            if d.precision == "int8" and d.op_type in WEIGHTED and (d.node, d.op_type) in floats
            else d
            for d in decisions
        ]
    nodes = {node.name: node for node in result.graph}
    confirmed = []
    for decision in decisions:
        node = nodes.get(decision.node)
        if decision.precision == "int8" and node is None:
            decision = Decision(decision.node, decision.op_type, "int8", "folded into the Q of the node before it")
        elif decision.precision == "int8" and not _is_quantized(node):
            decision = Decision(decision.node, decision.op_type, "float", "ONNX Runtime's writer left it out")
        confirmed.append(decision)
    return confirmed


def _is_quantized(node: ir.Node) -> bool:
    data = node.inputs[0]
    return data is not None and data.producer() is not None and data.producer().op_type == "DequantizeLinear"
