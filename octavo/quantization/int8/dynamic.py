"""Dynamic INT8: int8 weights on disk, no activation ranges.

MatMul and Gemm take their activation ranges at run time (DynamicQuantizeLinear and MatMulInteger). A convolution keeps int8 weights
in the file and computes in float32: ConvInteger, which ONNX Runtime's own dynamic quantizer would write, has no fast kernel (ten
times slower than FP32 on EfficientNet-Lite0) and saturates on CPUs without VNNI. The weights are restored by Cast and Mul, which
ONNX Runtime folds while loading, so that it runs exactly as fast as FP32. So are those of recurrent layers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from octavo.calibration.statistics import Statistics
from octavo.errors import QuantizationError
from octavo.graph.inspect import check_float
from octavo.graph.io import copied
from octavo.graph.names import added_apart
from octavo.graph.passes.affine.plain_gemm import PlainGemmPass
from octavo.params.grammar import Int8
from octavo.quantization.decisions import Decision
from octavo.quantization.int8.numbers.correction import correct_bias, weight_codes
from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.numbers.stored import WORTH, store_as_int8
from octavo.quantization.int8.numbers.sums16 import least_scales, peaks_of, within
from octavo.quantization.int8.numbers.weights import Codes, codes_of
from octavo.quantization.int8.result import Int8Result
from octavo.quantization.int8.structure.refusals import no_kernel
from octavo.quantization.int8.structure.targets import target_of
from octavo.quantization.int8.structure.units import is_weighted
from octavo.quantization.int8.writing.dynamic_products import DynamicProducts
from octavo.quantization.int8.writing.packed import pack_tables, share_codes
from octavo.quantization.select import select

__all__ = ["quantize_dynamic"]

_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
# Of convolutions and recurrent layers.
_STORED = "weights int8 in the file, computed in float32"
# Of those whose weights would be more in the file with what restores them.
_FEW = f"fewer than {WORTH} weights: restoring them takes more of the file than it saves"
# Codes of activations: of the whole range, whatever it will be.
_ANY = QParams.spanning(0, 1)


def quantize_dynamic(model: ir.Model, recipe: Int8, statistics: Statistics | None = None) -> Int8Result:
    """Quantize the weights of Conv, ConvTranspose, Gemm, MatMul and recurrent layers.

    Args:
        model: FP32, opset >= 17; it is not changed.
        recipe: the `int8:` block; of it `keep_float`, `per_channel`, `weights`, `target` and `correction` count here.
        statistics: for the bias correction; without them there is none.

    Raises:
        QuantizationError: the graph is quantized already, nothing can be quantized, or `keep_float` names nothing.
    """
    check_float(model, QuantizationError)
    given, model = model, copied(model)
    kept = select(recipe.keep_float, ((node.name or "", node.op_type) for node in given.graph))
    with added_apart(model):
        PlainGemmPass()(model)
    written = {node.name: node for node in model.graph}
    decisions = [_decided(written.get(node.name, node), kept) for node in given.graph if node.op_type != "Constant"]
    chosen = {decision.node: decision.op_type for decision in decisions if decision.precision == "int8"}
    if not chosen and all(decision.reason != _FEW for decision in decisions):
        raise QuantizationError(
            "no node of this graph has weights to quantize", "see `int8.keep_float` in params.yaml, or use fp16"
        )
    target = target_of(recipe.target)
    corrects = statistics if recipe.correction == "bias" else None
    corrected = 0
    with added_apart(model):
        products = DynamicProducts(model)
        for node in list(model.graph):
            op_type = chosen.get(node.name or "")
            if op_type in _RECURRENT:
                _store_gates(model, node, recipe)
                continue
            if op_type is None:
                continue
            codes = _codes_of(node, recipe, saturates=target.saturates and op_type not in _CONVOLUTIONS)
            if corrects is not None and correct_bias(model, corrects, node, codes.restored):
                corrected += 1
            if op_type not in _CONVOLUTIONS:
                products.write(node, codes)
            else:
                store_as_int8(model, node, codes.codes, codes.laid(codes.scale))
        if target.layout == "kernels":
            pack_tables(model)
            share_codes(model)
    return Int8Result(model, decisions, corrected)


def _codes_of(node: ir.Node, recipe: Int8, *, saturates: bool) -> Codes:
    """A layer's codes; where kernels saturate, such that 16 bits hold any two products of whatever there will be."""
    peaks = peaks_of(node, _ANY, None) if saturates else None
    least = least_scales(node, peaks) if peaks is not None else None
    codes = codes_of(node, per_channel=recipe.per_channel, method=recipe.weights, least=least)
    if peaks is not None:
        codes.codes = within(node, codes.codes, peaks)
    return codes


def _decided(node: ir.Node, kept: Mapping[str, str]) -> Decision:
    if node.name in kept:
        precision, reason = "float", f"keep_float: {kept[node.name]}"
    elif _is_recurrent(node):
        return Decision(node.name or "", node.op_type, "int8", _STORED, "float")
    elif _is_transposed(node) or (is_weighted(node) and node.op_type == "Conv"):
        if ir.convenience.get_const_tensor(node.inputs[1]).size >= WORTH:
            return Decision(node.name or "", node.op_type, "int8", _STORED, "float")
        precision, reason = "float", _FEW
    elif not is_weighted(node):
        weighted = node.op_type in ("Conv", "Gemm", "MatMul") and node.domain in ("", "ai.onnx")
        precision, reason = "float", no_kernel(node) if weighted else "dynamic INT8 quantizes weights only"
    else:
        precision, reason = "int8", "int8 weights, activation ranges at run time"
    return Decision(node.name or "", node.op_type, precision, reason)


def _is_transposed(node: ir.Node) -> bool:
    """Whether a node is a ConvTranspose of constant float32 weights."""
    if node.op_type != "ConvTranspose" or node.domain not in ("", "ai.onnx"):
        return False
    weights = ir.convenience.get_const_tensor(node.inputs[1])
    return weights is not None and weights.dtype == ir.DataType.FLOAT


def _is_recurrent(node: ir.Node) -> bool:
    """Whether a node is a recurrent layer with weights that can be stored."""
    return node.op_type in _RECURRENT and node.domain in ("", "ai.onnx") and bool(_gates(node))


def _gates(node: ir.Node) -> dict[int, np.ndarray]:
    """Of a recurrent layer the inputs that are worth storing: constant float32 weights of its input and of its hidden state."""
    tensors = {place: ir.convenience.get_const_tensor(node.inputs[place]) for place in (1, 2)}
    return {
        place: tensor.numpy()
        for place, tensor in tensors.items()
        if tensor is not None and tensor.dtype == ir.DataType.FLOAT and tensor.size >= WORTH
    }


def _store_gates(model: ir.Model, node: ir.Node, recipe: Int8) -> None:
    """Store a recurrent layer's weights, each gate's unit of each direction with a scale of its own."""
    for place, weights in _gates(node).items():
        rows = weights.reshape(-1, weights.shape[-1])
        codes, scale = weight_codes(rows, 0, per_channel=recipe.per_channel, method=recipe.weights)
        broad = scale.reshape(*weights.shape[:2], 1) if scale.size > 1 else scale.reshape(1, 1, 1)
        store_as_int8(model, node, codes.reshape(weights.shape), broad, place)
