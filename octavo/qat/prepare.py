"""From an FP32 module to the graph that is trained: captured, with fake quantization in it, and begun where PTQ ends."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torchao.quantization.pt2e.quantize_pt2e import prepare_qat_pt2e
from torchao.quantization.pt2e.quantizer import Quantizer

from octavo.errors import ParamsError
from octavo.images.training import Batches
from octavo.params.grammar import Qat
from octavo.qat.batch_norm import fold, fuse
from octavo.qat.bias_correction import correct_biases
from octavo.qat.capture import capture, channels_last, moved
from octavo.qat.culprits import keep_culprits_float
from octavo.qat.equalization import take_equalization
from octavo.qat.ptq import take_roundings
from octavo.qat.quantizer import OrtQuantizer
from octavo.qat.start import activations, observe, start_ranges
from octavo.quantization.int8.solution import GrownLayer, RoundedLayer
from octavo.sources.torch_export import named_outputs

__all__ = ["Prepared", "Start", "prepare", "some"]

# Images that ranges see in float before the first step, and images that single roundings are judged by.
_SEEN, _FEW = 64, 4


@dataclass(frozen=True)
class Start:
    """What PTQ knows.

    Attributes:
        tensors: (an image [1, ...]) to the FP32 ONNX graph's tensors on it, by name.
        ranges: the ranges chosen for them: (low, high) by name.
        layers: weights as PTQ rounds them.
        grown: layers whose channels PTQ equalized first: the rest is of that network.
        plain: what PTQ knows of the network as it is, where `grown` cannot be had.
    """

    tensors: Callable[[np.ndarray], Iterable[tuple[str, np.ndarray]]]
    ranges: Mapping[str, tuple[float, float]]
    layers: Sequence[RoundedLayer] = ()
    grown: Sequence[GrownLayer] = ()
    plain: Callable[[], Start] | None = None


@dataclass(frozen=True)
class Prepared:
    """What training begins with.

    Attributes:
        student: the graph, on the device.
        teacher: FP32: from images to outputs by name.
        named: the outputs' names, of what the student returns.
        record: figures, for the manifest.
        notes: what a user should read.
    """

    student: fx.GraphModule
    teacher: Callable[[torch.Tensor], Mapping[str, torch.Tensor]]
    named: Callable[[object], dict[str, torch.Tensor]]
    record: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    def answers(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """The student's outputs by name."""
        return self.named(self.student(images))


def prepare(
    module: nn.Module,
    settings: Qat,
    start: Start,
    looks: Batches,
    example: torch.Tensor,
    *,
    names: Sequence[str],
    device: torch.device,
    dynamic_size: bool,
) -> Prepared:
    """Capture a module, put fake quantization in, and give it what PTQ knows.

    Args:
        module: FP32, on the CPU; the graph shares its parameters.
        settings: the `qat:` block.
        start: PTQ's ranges and weights.
        looks: calibration images.
        example: images [N, ...], N >= 2.
        names: the outputs' names.
        device: to train on.
        dynamic_size: height and width of the input stay open.

    Raises:
        SourceError: the module cannot be captured.
        QuantizationError: nothing is left to quantize.
        ParamsError: xnnpack is asked for and executorch is not installed.
    """
    teacher = copy.deepcopy(module).eval().requires_grad_(False)
    channels_last(teacher.to(device))
    captured = capture(module, example, dynamic_size=dynamic_size)
    record: dict[str, Any] = {"batch_norms_folded": fuse(captured)}
    quantizer = _quantizer(settings, getattr(module, "node_names", {}))
    own, notes = isinstance(quantizer, OrtQuantizer), []
    if start.grown:
        record["equalized"] = own and take_equalization(captured, start.grown, example)
        if own and not record["equalized"]:
            start = start.plain()
    if not own:
        notes.append("quantizer xnnpack: signed activations; on x86 ONNX Runtime runs about half of the convolutions in float")
        fold(captured)  # its patterns know no other batch norm than a folded one
    student = channels_last(moved(prepare_qat_pt2e(captured, quantizer), device))

    def named(returned: object) -> dict[str, torch.Tensor]:
        return dict(zip(names, named_outputs(returned).values(), strict=True))

    ready = Prepared(student, lambda images: named(teacher(images)), named, record, notes)
    counts = (0, 0)
    if own:
        image = example[:1].numpy()
        counts = start_ranges(student, torch.from_numpy(image).to(device), start.tensors(image), start.ranges)
    observe(student, (images.to(device) for images in some(looks, _SEEN)))
    for fake in activations(student).values():
        fake.enable_observer(False)
    few = next(iter(some(looks, _FEW))).to(device)
    record["too_sensitive"] = keep_culprits_float(student, ready.teacher, ready.answers, few)
    taken = take_roundings(student, start.layers)
    record["roundings_from_ptq"] = len(taken)
    record["corrected_biases"] = correct_biases(student, (images.to(device) for images in some(looks, _SEEN)), taken)
    record["ranges_from_calibration"], record["ranges"] = counts
    return ready


def _quantizer(settings: Qat, names: Mapping[str, str]) -> Quantizer:
    if settings.quantizer == "octavo":
        return OrtQuantizer(settings.per_channel, settings.symmetric, settings.keep_float, names)
    try:
        from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config
    except ImportError as error:
        raise ParamsError(
            "`qat.quantizer: xnnpack` needs executorch, which is not installed",
            "`pip install --no-deps executorch` (the quantizer needs no more of it), or `quantizer: octavo`",
        ) from error
    return XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=settings.per_channel, is_qat=True))


def some(batches: Batches, count: int) -> Iterable[torch.Tensor]:
    """The first images of a set, in batches."""
    for items, batch in batches.straight(batches.size):
        if count <= 0:
            return
        yield torch.from_numpy(batch.images[:count])
        count -= len(items)
