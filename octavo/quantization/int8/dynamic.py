"""Dynamic INT8: int8 weights on disk, no activation ranges.

MatMul and Gemm take their activation ranges at run time (DynamicQuantizeLinear and MatMulInteger). A convolution keeps int8 weights
in the file and computes in float32: ConvInteger, which ONNX Runtime's own dynamic quantizer would write, has no fast kernel (ten
times slower than FP32 on EfficientNet-Lite0) and saturates on CPUs without VNNI. The weights are restored by Cast and Mul, which
ONNX Runtime folds while loading, so that it runs exactly as fast as FP32.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx
import onnx_ir as ir
from onnxruntime.quantization import QuantType
from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer
from onnxruntime.quantization.quant_utils import QuantizationMode

from octavo.calibration.statistics import Statistics
from octavo.errors import QuantizationError
from octavo.graph.inspect import check_float
from octavo.graph.io import copied
from octavo.graph.names import added_apart, unique
from octavo.graph.passes.affine.plain_gemm import PlainGemmPass
from octavo.graph.passes.qdq import new_constant
from octavo.params.grammar import Int8
from octavo.quantization.decisions import Decision
from octavo.quantization.int8.numbers.correction import correct_biases, weight_codes
from octavo.quantization.int8.numbers.stored import WORTH, store_as_int8
from octavo.quantization.int8.result import Int8Result
from octavo.quantization.int8.structure.refusals import no_kernel
from octavo.quantization.int8.structure.targets import target_of
from octavo.quantization.int8.structure.units import is_weighted
from octavo.quantization.int8.writing.packed import pack_tables, share_codes
from octavo.quantization.select import select

__all__ = ["quantize_dynamic"]

_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
# Their weights are int8 in the file alone.
_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_STORED = "weights int8 in the file, computed in float32"


def quantize_dynamic(model: ir.Model, recipe: Int8, statistics: Statistics | None = None) -> Int8Result:
    """Quantize the weights of Conv, ConvTranspose, Gemm and MatMul.

    Args:
        model: FP32, opset >= 17; it is not changed.
        recipe: the `int8:` block; of it `keep_float`, `per_channel`, `weights`, `target` and `correction` count here. ONNX
            Runtime's quantizer rounds MatMul and Gemm, by their largest weight.
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
    if not chosen:
        raise QuantizationError(
            "no node of this graph has weights to quantize", "see `int8.keep_float` in params.yaml, or use fp16"
        )
    # What activations of products will be is not known: with 7 bits no two overflow 16. Convolutions compute in float32.
    bits = 7 if target_of(recipe.target).saturates else 8
    corrected = 0
    if recipe.correction == "bias" and statistics is not None:
        convolutions = {name for name, op in chosen.items() if op == "Conv"}
        products = {name for name, op in chosen.items() if op not in _CONVOLUTIONS}
        for nodes, room, method in ((convolutions, 8, recipe.weights), (products, bits, "minmax")):
            corrected += correct_biases(model, statistics, nodes, per_channel=recipe.per_channel, bits=room, method=method)
    with added_apart(model):
        for node in list(model.graph):
            if chosen.get(node.name or "") in _CONVOLUTIONS:
                tensor = ir.convenience.get_const_tensor(node.inputs[1])
                if tensor is not None and tensor.size >= WORTH:
                    # Those of ConvTranspose are (in, out, ...), and of depthwise ones (out, 1, ...).
                    axis = 1 if node.op_type == "ConvTranspose" and tensor.shape[1] > 1 else 0
                    codes = weight_codes(tensor.numpy(), axis, per_channel=recipe.per_channel, bits=8, method=recipe.weights)
                    store_as_int8(model, node, *codes)
        _unshare(model)
    renamed = _rename_gemms(model)
    names = {renamed.get(name, name): op for name, op in chosen.items() if op not in _CONVOLUTIONS}
    renamed = _make_room(model, names)
    names = {renamed.get(name, name): op for name, op in names.items()}
    quantizer = ONNXQuantizer(
        _engine_input(model),
        per_channel=recipe.per_channel,
        reduce_range=bits == 7,
        mode=QuantizationMode.IntegerOps,
        static=False,
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QUInt8,
        tensors_range=None,
        nodes_to_quantize=sorted(f"{name}_MatMul" if op == "Gemm" else name for name, op in names.items()),
        nodes_to_exclude=[],
        op_types_to_quantize=["MatMul"],
        extra_options={"WeightSymmetric": True, "MatMulConstBOnly": True},
    )
    if names:
        quantizer.quantize_model()
    result = _engine_output(quantizer)
    if target_of(recipe.target).layout == "kernels":
        with added_apart(result):
            pack_tables(result)
            share_codes(result)
    return Int8Result(result, decisions, corrected)


def _decided(node: ir.Node, kept: Mapping[str, str]) -> Decision:
    if node.name in kept:
        precision, reason = "float", f"keep_float: {kept[node.name]}"
    elif node.op_type in _RECURRENT and node.domain in ("", "ai.onnx"):
        precision, reason = "float", "no dynamic INT8 kernel is used for recurrent layers"
    elif _is_transposed(node):
        return Decision(node.name or "", node.op_type, "int8", _STORED, "float")
    elif not is_weighted(node):
        weighted = node.op_type in ("Conv", "Gemm", "MatMul") and node.domain in ("", "ai.onnx")
        precision, reason = "float", no_kernel(node) if weighted else "dynamic INT8 quantizes weights only"
    elif node.op_type == "Conv":
        return Decision(node.name or "", node.op_type, "int8", _STORED, "float")
    else:
        precision, reason = "int8", "int8 weights, activation ranges at run time"
    return Decision(node.name or "", node.op_type, precision, reason)


def _is_transposed(node: ir.Node) -> bool:
    """Whether a node is a ConvTranspose of constant float32 weights, enough of them to be stored."""
    if node.op_type != "ConvTranspose" or node.domain not in ("", "ai.onnx"):
        return False
    weights = ir.convenience.get_const_tensor(node.inputs[1])
    return weights is not None and weights.dtype == ir.DataType.FLOAT and weights.size >= WORTH


def _rename_gemms(model: ir.Model) -> dict[str, str]:
    """Name Gemms so that their parts can be told from all other nodes: the engine writes `fc` as `fc_MatMul` and `fc_Add`.

    Returns:
        Of those that were renamed the name before to the new one.
    """
    taken = {node.name or "" for node in model.graph}
    renamed = {}
    for node in model.graph:
        if node.op_type != "Gemm" or not node.name:
            continue
        name = node.name
        while not taken.isdisjoint((f"{name}_MatMul", f"{name}_Add")) or (name != node.name and name in taken):
            name = f"{name}.gemm"
        taken |= {name, f"{name}_MatMul", f"{name}_Add"}
        if name != node.name:
            renamed[node.name], node.name = name, name
    return renamed


def _make_room(model: ir.Model, quantized: Collection[str]) -> dict[str, str]:
    """Rename what has a name that the engine gives to what it adds, and is no input or output of the graph; it asks nobody.

    Args:
        model: changed in place.
        quantized: names of the products that get integer kernels.

    Returns:
        Of nodes that were renamed the name before to the new one.
    """
    tensors, nodes = set(), set()
    for node in model.graph:
        if node.name not in quantized:
            continue
        products = [f"{node.name}_MatMul", node.name] if node.op_type == "Gemm" else [node.name]
        nodes |= {f"{name}_quant{end}" for name in products for end in ("", "_scales_mul", "_output_scale_mul")}
        nodes |= {f"{node.inputs[0].name}_QuantizeLinear", f"{node.outputs[0].name}_output_quantized_cast"}
        tensors |= {f"{value.name}_{what}" for value in node.inputs[:2] for what in ("quantized", "scale", "zero_point")}
        tensors |= {f"{name}_quant_scales_mul:0" for name in products} | {f"{node.outputs[0].name}_output_quantized"}
        tensors |= {f"{node.outputs[0].name}_output_quantized_cast_output"}
    ends = {*model.graph.inputs, *model.graph.outputs}
    values = [*model.graph.initializers.values(), *(value for node in model.graph for value in node.outputs)]
    taken = {value.name or "" for value in (*ends, *values)} | tensors
    for value in values:
        if value.name in tensors and value not in ends:
            value.name = unique(f"{value.name}.own", taken)
    taken, renamed = {node.name or "" for node in model.graph} | nodes, {}
    for node in model.graph:
        if node.name in nodes:
            renamed[node.name] = unique(f"{node.name}.own", taken)
            node.name = renamed[node.name]
    return renamed


def _unshare(model: ir.Model) -> None:
    """Give each Gemm and MatMul weights of its own.

    The engine transposes those of a Gemm with transB in place, whoever else reads them. And ONNX Runtime 1.31 does not load a graph
    in which two dynamically quantized products share weights ("Attempt to replace the existing tensor"), as RT-DETR's decoder
    has them.
    """
    for node in model.graph:
        if node.op_type not in ("Gemm", "MatMul"):
            continue
        weight = node.inputs[1]
        if weight.is_initializer() and len(list(weight.uses())) > 1:
            node.replace_input_with(1, new_constant(model, f"{node.name}.{weight.name}", weight.const_value.numpy()))


def _engine_input(model: ir.Model) -> onnx.ModelProto:
    """The graph for ONNX Runtime's quantizer, which trips over shapes stated for initializers that it then transposes."""
    proto = ir.to_proto(model)
    for index in reversed(range(len(proto.graph.value_info))):
        if proto.graph.value_info[index].name in model.graph.initializers:
            del proto.graph.value_info[index]
    return proto


def _engine_output(quantizer: ONNXQuantizer) -> ir.Model:
    """The graph that the quantizer wrote, in topological order: it appends some of its nodes out of order."""
    result = ir.from_proto(quantizer.model.model)
    result.graph.sort()
    return result
