"""Quantization-aware training from an FP32 network to an INT8 graph."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import prepare_qat_pt2e
from torchao.quantization.pt2e.quantizer import Quantizer

from octavo.errors import ParamsError
from octavo.graph.passes.batch import BATCH
from octavo.images.dataset import Item
from octavo.images.training import Batches, MaskOf
from octavo.params.grammar import ModelSpec, Qat, Segmentation
from octavo.qat.batch_norm import fold, fuse
from octavo.qat.bias_correction import correct_biases
from octavo.qat.capture import capture, channels_last, moved
from octavo.qat.checkpoint import LAST, Checkpoint
from octavo.qat.convert import as_onnx, converted
from octavo.qat.culprits import keep_culprits_float
from octavo.qat.judge import Judge, Verdict
from octavo.qat.processes import Processes
from octavo.qat.ptq import take_roundings
from octavo.qat.quantizer import OrtQuantizer
from octavo.qat.recalibrate import recalibrated
from octavo.qat.start import activations, observe, start_ranges
from octavo.qat.training import Training
from octavo.quantization.int8.solution import RoundedLayer
from octavo.sources.torch_export import HEIGHT, WIDTH, named_outputs

__all__ = ["Sets", "Start", "Trained", "train"]

# Images that ranges see in float before the first step, and images that single roundings are judged by.
_SEEN, _FEW = 64, 4


@dataclass(frozen=True)
class Sets:
    """Images of a run.

    Attributes:
        train: what is trained on.
        held_out: training images that are not; the best state is the best on them.
        calibration: images that `calibrate` used, for ranges.
        heads: what the masks of each head of a segmentation network may hold.
    """

    train: Sequence[Item]
    held_out: Sequence[Item]
    calibration: Sequence[Item]
    heads: Mapping[str, MaskOf] = field(default_factory=dict)


@dataclass(frozen=True)
class Start:
    """What PTQ knows.

    Attributes:
        tensors: (an image [1, ...]) to the FP32 ONNX graph's tensors on it, by name.
        ranges: the ranges chosen for them: (low, high) by name.
        layers: weights as PTQ rounds them.
    """

    tensors: Callable[[np.ndarray], Iterable[tuple[str, np.ndarray]]]
    ranges: Mapping[str, tuple[float, float]]
    layers: Sequence[RoundedLayer] = ()


@dataclass(frozen=True)
class Trained:
    """What came of it; of process 0 only.

    Attributes:
        model: the INT8 graph.
        torch: the same in torch, on the CPU, as a function of a batch.
        record: figures of the run, for the manifest.
        rows: the learning curves, `steps` and `epochs`.
        notes: what a user should read.
    """

    model: ir.Model
    torch: Callable[[np.ndarray], dict[str, np.ndarray]]
    record: dict[str, Any]
    rows: dict[str, list[dict[str, float]]]
    notes: list[str] = field(default_factory=list)

    def told(self) -> str:
        """One line: what training gained."""
        before, after = self.record["before"], self.record["after"]
        gained = [f"{name} {before[name]:.4g} -> {after[name]:.4g}" for name in ("metric", "distance") if name in after]
        where = f"on {self.record['held_out']} held-out images {', '.join(gained)}"
        return f"{self.record['steps']} steps, best at {self.record['best_step']}; {where}"


def train(
    module: nn.Module,
    spec: ModelSpec,
    sets: Sets,
    start: Start,
    *,
    place: Processes,
    folder: Path,
    scratch: Path,
    key: Mapping[str, str],
    manifest: Mapping[str, Any],
    progress: Callable[[int, int], object] = max,
) -> Trained | None:
    """Prepare, train, convert.

    Args:
        module: FP32, on the CPU; it is trained in place.
        spec: the model's block.
        sets: images.
        start: PTQ's ranges.
        place: this process; all processes give the same arguments.
        folder: of checkpoints.
        scratch: an existing folder for temporary files.
        key: what the run is made from, for checkpoints.
        manifest: FP32's: the file gets its input and output names, and what it leaves open of the input's shape.
        progress: (steps done, of all).

    Returns:
        The result in process 0, None in the others.

    Raises:
        SourceError: the network cannot be captured.
        QuantizationError: nothing is left to quantize or to train, training diverged, or a checkpoint is of another run.
        DataError: an image or mask cannot be used.
        ParamsError: xnnpack is asked for and executorch is not installed.
    """
    settings, names = spec.qat, [output["name"] for output in manifest["outputs"]]
    shape = next(each["shape"] for each in manifest["inputs"] if each["name"] == manifest["image_input"])
    dynamic = {axis: name for axis, name in ((0, BATCH), (2, HEIGHT), (3, WIDTH)) if not isinstance(shape[axis], int)}
    torch.manual_seed(settings.seed)
    if (folder / LAST).is_file():
        Checkpoint.load(folder / LAST, key)  # refused now, not after minutes of preparation
    teacher = copy.deepcopy(module).eval().requires_grad_(False)
    channels_last(teacher.to(place.device))
    batches = Batches(
        sets.train,
        spec.input,
        settings.batch,
        settings.seed,
        settings.flip,
        sets.heads,
        spec.data.on_bad_image == "skip",
    )
    example = next(iter(batches.straight(2)))[1].images
    example = torch.from_numpy(example if len(example) > 1 else np.concatenate([example, example]))
    captured = capture(module, example, dynamic_size=2 in dynamic)
    layers = fuse(captured)
    quantizer = _quantizer(settings, getattr(module, "node_names", {}))
    notes = []
    if not isinstance(quantizer, OrtQuantizer):
        notes.append("quantizer xnnpack: signed activations; on x86 ONNX Runtime runs about half of the convolutions in float")
        fold(captured)  # its patterns know no other batch norm than a folded one
    prepared = channels_last(moved(prepare_qat_pt2e(captured, quantizer), place.device))

    def named(returned: object) -> dict[str, torch.Tensor]:
        return dict(zip(names, named_outputs(returned).values(), strict=True))

    counts = (0, 0)
    if isinstance(quantizer, OrtQuantizer):
        image = example[:1].numpy()
        counts = start_ranges(prepared, torch.from_numpy(image).to(place.device), start.tensors(image), start.ranges)
    looks = Batches(sets.calibration, spec.input, settings.batch, skip=batches.skip)
    observe(prepared, (images.to(place.device) for images in _some(looks, _SEEN)))
    for fake in activations(prepared).values():
        fake.enable_observer(False)
    few = next(iter(_some(looks, _FEW))).to(place.device)
    culprits = keep_culprits_float(prepared, lambda images: named(teacher(images)), lambda images: named(prepared(images)), few)
    taken = take_roundings(prepared, start.layers)
    corrected = correct_biases(prepared, (images.to(place.device) for images in _some(looks, _SEEN)), taken)

    judge = Judge(
        sets.held_out,
        spec.task,
        spec.input,
        lambda images: named(teacher(images)),
        place.device,
        labels=settings.distillation != 1,
        skip=batches.skip,
    )
    training = Training(
        student=prepared,
        teacher=lambda images: named(teacher(images)),
        name=named,
        batches=batches,
        judge=judge,
        settings=settings,
        task=spec.task.name,
        outputs=_labelled_outputs(spec),
        place=place,
        folder=folder,
        key=key,
        progress=progress,
    )
    learnt = training.run()
    if learnt is None:
        return None
    verdict, recalibrating = learnt.verdict, {}
    if settings.calibration_samples and sets.calibration:
        images = (images.to(place.device) for images in _some(looks, settings.calibration_samples))
        verdict, recalibrating = recalibrated(prepared, images, learnt.verdict, lambda: judge(lambda image: named(prepared(image))))
    quantized = converted(prepared, example)
    model, about = as_onnx(
        quantized,
        example if 0 in dynamic else example[:1],
        names,
        image_input=manifest["image_input"],
        opset=spec.source.opset,
        dynamic=dynamic,
        scratch=scratch,
    )
    record = {
        "trained_on": len(sets.train),
        "held_out": len(sets.held_out),
        "labelled": batches.labelled and training.share < 1,
        "distillation": training.share,
        "steps": learnt.steps,
        "best_step": learnt.step,
        "resumed_from": learnt.resumed,
        "parts_of_a_batch": training.parts,
        "processes": place.count,
        "device": str(place.device.type),
        "batch_norms_folded": layers,
        "roundings_from_ptq": len(taken),
        "corrected_biases": corrected,
        "too_sensitive": culprits,
        "ranges_from_calibration": counts[0],
        "ranges": counts[1],
        "before": _told(learnt.start),
        "after": _told(verdict),
        **recalibrating,
    }
    if batches.skipped:
        notes += [f"skipped: {line}" for line in batches.skipped]

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        with torch.inference_mode():
            return {name: value.numpy() for name, value in named(quantized(torch.from_numpy(images))).items()}

    return Trained(model, run, record, learnt.rows, [*notes, *about])


def _labelled_outputs(spec: ModelSpec) -> dict[str, str | None]:
    if isinstance(spec.task, Segmentation):
        return {name: head.output for name, head in spec.task.each.items()}
    return {"": getattr(spec.task, "output", None)}


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


def _some(batches: Batches, count: int) -> Iterable[torch.Tensor]:
    """The first images of a set, in batches."""
    for items, batch in batches.straight(batches.size):
        if count <= 0:
            return
        yield torch.from_numpy(batch.images[:count])
        count -= len(items)


def _told(verdict: Verdict) -> dict[str, float]:
    found = {"distance": round(verdict.loss, 6)}
    return found if verdict.metric is None else found | {"metric": round(verdict.metric, 6)}
