"""From a trained graph to an ONNX file with Q and DQ whose layers ONNX Runtime runs in integer kernels."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir
import torch
from torch import fx
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

from octavo.errors import QuantizationError
from octavo.graph.clean import clean
from octavo.graph.names import added_apart
from octavo.graph.passes.forms.mean_to_pool import MeanToPoolPass
from octavo.graph.passes.kernels.bias_codes import BiasCodesPass, bias_step
from octavo.graph.passes.kernels.kernel_forms import write_kernel_forms
from octavo.graph.passes.kernels.own_codes import OwnCodesPass
from octavo.graph.passes.kernels.prelu_of_codes import PReluOfCodesPass
from octavo.graph.passes.kernels.protect_float import ProtectFloatPass
from octavo.graph.passes.spelled.gelu import with_gelu
from octavo.graph.passes.spelled.layer_norm import LayerNormPass
from octavo.qat.batch_norm import fold
from octavo.qat.capture import moved
from octavo.qat.fake_quantize import ActivationFakeQuantize, WeightFakeQuantize
from octavo.qat.quantizer import LAYERS
from octavo.quantization.int8.writing.packed import share_codes
from octavo.sources.torch_export import export

__all__ = ["as_onnx", "converted"]


@torch.no_grad()
def converted(prepared: fx.GraphModule, example: torch.Tensor) -> fx.GraphModule:
    """The quantized network in torch: int8 weights, Q and DQ in place of fake quantization.

    Args:
        prepared: trained; at rest (running statistics, ranges that stand still). It is not changed.
        example: images; the network runs on them once.

    Returns:
        A graph that computes what the file will.
    """
    model = moved(copy.deepcopy(prepared), torch.device("cpu"))
    for parameter in model.parameters():
        # With channels last torch's exporter writes a mean over an image with a Gather behind it.
        parameter.data = parameter.data.contiguous()
    fold(model)
    model(example.cpu())  # folded weights have scales of their own now
    for _, bias, before, weight in _biased(model):
        weight.give_room(bias, before.calculate_qparams()[0])
    model(example.cpu())
    for layer, bias, before, weight in _biased(model):
        # A layer that is called twice reads two inputs: the second rounding moves the bias by half a step at most.
        step = torch.from_numpy(bias_step(before.calculate_qparams()[0].numpy(), weight.calculate_qparams()[0].numpy()))
        model.get_parameter(layer.args[2].target).copy_(torch.round(bias.double() / step) * step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return convert_pt2e(model)


def _biased(model: fx.GraphModule) -> Iterator[tuple[fx.Node, torch.Tensor, ActivationFakeQuantize, WeightFakeQuantize]]:
    """Quantized layers with a bias, which the file has as whole multiples of the accumulator's step; left out: those on float."""
    modules = dict(model.named_modules())
    for node in model.graph.nodes:
        if node.target not in LAYERS or len(node.args) < 3 or node.args[2] is None or node.args[2].op != "get_attr":
            continue
        before, weight = [modules.get(each.target) if each.op == "call_module" else None for each in node.args[:2]]
        if isinstance(before, ActivationFakeQuantize) and isinstance(weight, WeightFakeQuantize):
            yield node, model.get_parameter(node.args[2].target), before, weight


def as_onnx(
    model: fx.GraphModule,
    example: torch.Tensor,
    names: list[str],
    *,
    image_input: str,
    opset: int,
    dynamic: dict[int, str],
    scratch: Path,
) -> tuple[ir.Model, list[str]]:
    """Write the quantized network as a graph with int8 weights, int32 biases, Q and DQ.

    Args:
        model: as `converted` gives it.
        example: [N, ...], N >= 2 where the batch is open.
        names: the outputs' names.
        image_input: the input's name.
        opset: at least 18 comes out.
        dynamic: dimensions of the input that stay open, to their names.
        scratch: an existing folder for temporary files.

    Returns:
        The graph, and notes.

    Raises:
        SourceError: the exporter fails.
        QuantizationError: no quantized layer came out.
    """
    graph, notes = export(model, example, names, exporter="dynamo", opset=opset, dynamic=dynamic, scratch=scratch)
    graph.graph.inputs[0].name = image_input
    notes += clean(graph, opset)
    graph = with_gelu(graph)
    LayerNormPass()(graph)
    MeanToPoolPass()(graph)
    for op_type in ("Conv", "Gemm"):
        BiasCodesPass(op_type)(graph)
    for op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        ProtectFloatPass(op_type)(graph)
    PReluOfCodesPass()(graph)
    OwnCodesPass()(graph)
    write_kernel_forms(graph)
    with added_apart(graph):
        share_codes(graph)
    if not any(node.op_type == "DequantizeLinear" for node in graph.graph):
        raise QuantizationError("the trained network came out without a quantized layer", "report this, with the model")
    return graph, notes
