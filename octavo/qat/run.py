"""Quantization-aware training from an FP32 network to an INT8 graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import nn

from octavo.graph.passes.cleaning.batch import BATCH
from octavo.images.dataset import Item
from octavo.images.training import Batches, MaskOf
from octavo.params.grammar import ModelSpec
from octavo.qat.checkpoint import LAST, Checkpoint
from octavo.qat.convert import as_onnx, converted
from octavo.qat.integers import IntegerKernels
from octavo.qat.judge import Judge, Verdict
from octavo.qat.objective import Objective, share_of_teacher
from octavo.qat.prepare import Start, prepare, some
from octavo.qat.processes import Processes
from octavo.qat.reading import Reading
from octavo.qat.recalibrate import recalibrated
from octavo.qat.training import Training
from octavo.sources.torch_export import HEIGHT, WIDTH

__all__ = ["Sets", "Trained", "train"]


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
class Trained:
    """What came of it; of process 0 only.

    Attributes:
        model: the INT8 graph.
        torch: the same in torch, in the arithmetic of integer kernels, as a function of a batch.
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
    reading: Reading,
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
        reading: how the outputs are read.
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
    skip = spec.data.on_bad_image == "skip"
    batches = Batches(sets.train, spec.input, settings.batch, settings.seed, settings.flip, sets.heads, skip)
    looks = Batches(sets.calibration, spec.input, settings.batch, skip=skip)
    example = next(iter(batches.straight(2)))[1].images
    example = torch.from_numpy(example if len(example) > 1 else np.concatenate([example, example]))
    ready = prepare(module, settings, start, looks, example, names=names, device=place.device, dynamic_size=2 in dynamic)
    labels = settings.distillation != 1
    judge = Judge(sets.held_out, spec.task, spec.input, ready.teacher, reading, place.device, labels=labels, skip=skip)
    share = share_of_teacher(settings, spec.task.name, batches.labelled)
    training = Training(
        student=ready.student,
        objective=Objective(ready.teacher, ready.named, reading, spec.task.name, share),
        batches=batches,
        judge=judge,
        settings=settings,
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
        images = (images.to(place.device) for images in some(looks, settings.calibration_samples))
        verdict, recalibrating = recalibrated(ready.student, images, learnt.verdict, lambda: judge(ready.answers))
    quantized = converted(ready.student, example)
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
        "labelled": batches.labelled and share < 1,
        "distillation": share,
        "freeze_batch_norm": training.moving,
        "steps": learnt.steps,
        "best_step": learnt.step,
        "resumed_from": learnt.resumed,
        "parts_of_a_batch": training.parts,
        "processes": place.count,
        "device": str(place.device.type),
        **ready.record,
        "before": _told(learnt.start),
        "after": _told(verdict),
        **recalibrating,
    }
    kernels = IntegerKernels(quantized)

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        with torch.inference_mode():
            return {name: value.numpy() for name, value in ready.named(kernels.run(torch.from_numpy(images))).items()}

    notes = [*ready.notes, *(f"skipped: {line}" for line in batches.skipped), *about]
    return Trained(model, run, record, learnt.rows, notes)


def _told(verdict: Verdict) -> dict[str, float]:
    found = {"distance": round(verdict.loss, 6)}
    return found if verdict.metric is None else found | {"metric": round(verdict.metric, 6)}
