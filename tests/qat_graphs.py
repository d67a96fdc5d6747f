"""Graphs with fake quantization, and files of them, for tests."""

import onnx_ir as ir
import torch
from torchao.quantization.pt2e.quantize_pt2e import prepare_qat_pt2e

from octavo.qat.batch_norm import fuse
from octavo.qat.capture import capture
from octavo.qat.convert import as_onnx, converted
from octavo.qat.quantizer import OrtQuantizer
from octavo.qat.start import activations, observe

__all__ = ["exported", "images", "prepared"]


def images(count=2, size=32, seed=0) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def prepared(module, quantizer=None, example=None):
    example = images() if example is None else example
    captured = capture(module, example)
    fuse(captured)
    graph = prepare_qat_pt2e(captured, quantizer or OrtQuantizer())
    observe(graph, [images(8, seed=3)])
    for fake in activations(graph).values():
        fake.enable_observer(False)
    return graph


def exported(graph, tmp_path, example=None, names=("output",)):
    example = images() if example is None else example
    quantized = converted(graph, example)
    model, _ = as_onnx(quantized, example, list(names), image_input="image", opset=18, dynamic={0: "batch"}, scratch=tmp_path)
    path = tmp_path / "model.onnx"
    ir.save(model, path)
    return quantized, model, path
