"""The training loop: seeded, resumable, on one process or several."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import distributed, fx, nn
from torch.nn.parallel import DistributedDataParallel

from octavo.errors import QuantizationError
from octavo.images.training import Batch, Batches
from octavo.params.grammar import Qat
from octavo.qat.batch_norm import normalise_batches
from octavo.qat.checkpoint import BEST, LAST, Checkpoint, State
from octavo.qat.judge import Judge, Verdict
from octavo.qat.objective import Objective
from octavo.qat.processes import Processes
from octavo.qat.start import freezable
from octavo.qat.trainable import choose_parameters, optimizer

__all__ = ["Learnt", "Training"]

# Steps of an epoch from which on batch norms may follow their batches. MobileNetV2, four steps of 32 images: 22.5 to 13.6 dB.
_STEPS = 100


@dataclass(frozen=True)
class Learnt:
    """How a run ended.

    Attributes:
        verdict: of the best state, which the network then has.
        step: at which that was.
        steps: that were done.
        start: the verdict before the first step.
        rows: learning curves: `steps` and `epochs`.
        resumed: the step that the run went on from; 0 where it was not interrupted.
    """

    verdict: Verdict
    step: int
    steps: int
    start: Verdict
    rows: dict[str, list[dict[str, float]]]
    resumed: int


@dataclass
class Training:
    """One run.

    Args:
        student: the graph with fake quantization, with ranges begun.
        objective: what is minimised.
        batches: what it is trained on.
        judge: what it is judged by.
        settings: the `qat:` block.
        place: this process.
        folder: where checkpoints lie.
        key: what the run is made from (`Checkpoint.key`).
        progress: called after each step with (steps done, of all).
    """

    student: fx.GraphModule
    objective: Objective
    batches: Batches
    judge: Judge
    settings: Qat
    place: Processes
    folder: Path
    key: Mapping[str, str]
    progress: Callable[[int, int], object] = max
    rows: dict[str, list[dict[str, float]]] = field(default_factory=lambda: {"steps": [], "epochs": []})

    def __post_init__(self) -> None:
        choose_parameters(self.student, self.settings)
        self.optimizer = optimizer(self.student, self.settings)
        self.total = self.settings.epochs * self.batches.steps
        self.total = min(self.total, self.settings.steps or self.total)
        self.average: State | None = None
        if self.settings.ema is not None:
            self.average = {name: value.detach().clone() for name, value in self.student.named_parameters()}
        self.moving = self.settings.freeze_batch_norm
        if self.moving == "auto":
            self.moving = int(self.objective.share < 1 and self.batches.steps >= _STEPS)
        self.parts = self.settings.accumulate if self.settings.accumulate != "auto" else self._parts_that_fit()

    def run(self) -> Learnt | None:
        """Train to the end, from the last checkpoint where there is one; the student then has the best state.

        Returns:
            How it ended; None in all processes but the first.

        Raises:
            QuantizationError: a loss is not a number (the last checkpoint stays), or the checkpoint is of another run.
            DataError: an image or mask cannot be used.
        """
        best, done, resumed = self._begun()
        model = self._wrapped()
        while done < self.total:
            epoch, first = divmod(done, self.batches.steps)
            self._set_epoch(epoch)
            # A batch of `size` images over all processes; each reads its own.
            for batch in self.batches.epoch(epoch, first, self.place.rank, self.place.count):
                loss = self._step(model, batch, done)
                done += 1
                self.rows["steps"].append({"step": done, "loss": loss, "learning_rate": self._rate(done - 1)})
                self.progress(done, self.total)
                if done >= self.total or done % self.batches.steps == 0:
                    break
                if done % self.settings.checkpoint_every == 0:
                    self._save(done, best)
            best = self._judged(done, best)
            self._save(done, best)
        if not self.place.main:
            return None
        start = self.rows["epochs"][0]
        if best["step"] != done:
            self.student.load_state_dict(Checkpoint.load(self.folder / BEST, self.key).model)
        elif self.average is not None:
            self._take_average()
        self._set_epoch(self.settings.epochs)
        verdict = Verdict(best["metric"], best["loss"])
        return Learnt(verdict, int(best["step"]), done, Verdict(start.get("metric"), start["loss"]), self.rows, resumed)

    def _begun(self) -> tuple[dict[str, float | None] | None, int, int]:
        """(best verdict, steps done, step resumed from): from a checkpoint, or from the start."""
        last = self.folder / LAST
        if not self.place.same(last.is_file()):
            best = self._judged(0, None)
            self._save(0, best)
            return best, 0, 0
        held = Checkpoint.load(last, self.key)
        self.student.load_state_dict(held.model)
        self.optimizer.load_state_dict(held.optimizer)
        if held.average is not None and self.average is not None:
            self.average = {name: value.to(self.place.device) for name, value in held.average.items()}
        torch.set_rng_state(held.random["cpu"])
        if "cuda" in held.random and self.place.device.type == "cuda":
            torch.cuda.set_rng_state(held.random["cuda"], self.place.device)
        self.rows = held.rows
        return held.judged, held.step, held.step

    def _step(self, model: nn.Module, batch: Batch, done: int) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate(done) * group["factor"]
        self.optimizer.zero_grad(set_to_none=True)
        # A CPU computes gradients of convolutions about twice as fast with channels last.
        images = torch.from_numpy(batch.images).to(self.place.device, memory_format=torch.channels_last)
        labels = {head: torch.from_numpy(value).to(self.place.device) for head, value in batch.labels.items()}
        parts = min(self.parts, len(images))
        total = torch.zeros((), device=self.place.device)
        for number, places in enumerate(torch.arange(len(images)).tensor_split(parts)):
            # Gradients are exchanged once a step.
            with model.no_sync() if self.place.count > 1 and number + 1 < parts else nullcontext():
                mine = {head: value[places] for head, value in labels.items()}
                loss = self.objective(model, images[places], mine) * (len(places) / len(images))
                loss.backward()
            total += loss.detach()
        if self.place.count > 1:
            distributed.all_reduce(total)
            total /= self.place.count
        gradients = [parameter.grad for parameter in self.student.parameters() if parameter.grad is not None]
        if not math.isfinite(total) or not bool(torch.nn.utils.get_total_norm(gradients).isfinite()):
            saved = Checkpoint.load(self.folder / LAST, self.key).step if self.place.main else 0
            raise QuantizationError(
                f"training diverged: the loss or its gradient is not a number at step {done + 1}; the checkpoint of step {saved} "
                f"is kept in {self.folder}",
                f"lower `qat.learning_rate` ({self.settings.learning_rate:g}), then `python stages/qat.py --model NAME --restart`",
            )
        self.optimizer.step()
        if self.average is not None:
            with torch.no_grad():
                for name, value in self.student.named_parameters():
                    self.average[name].lerp_(value, 1 - self.settings.ema)
        return float(total)

    def _rate(self, done: int) -> float:
        """Cosine decay to zero."""
        return self.settings.learning_rate * 0.5 * (1 + math.cos(math.pi * done / self.total))

    def _set_epoch(self, epoch: int) -> None:
        """What stands still from now on; batch norms are set each epoch anew."""
        normalise_batches(self.student, epoch < self.moving)
        observing = epoch < self.settings.freeze_observers
        for module in freezable(self.student):
            module.enable_observer(observing)

    @contextmanager
    def _at_rest(self) -> Iterator[None]:
        """As the network will be used: running statistics, ranges that stand still, averaged weights."""
        observing = [bool(module.observer_enabled[0]) for module in freezable(self.student)]
        held = None
        if self.average is not None:
            held = {name: value.detach().clone() for name, value in self.student.named_parameters()}
            self._take_average()
        normalise_batches(self.student, False)
        for module in freezable(self.student):
            module.enable_observer(False)
        try:
            yield
        finally:
            for module, before in zip(freezable(self.student), observing, strict=True):
                module.enable_observer(before)
            if held is not None:
                self._put(held)

    def _judged(self, done: int, best: dict[str, float | None] | None) -> dict[str, float | None]:
        """Judge what there is now; where it is the best so far, keep it."""
        found = best
        if self.place.main:
            with self._at_rest():
                verdict = self.judge(lambda images: self.objective.name(self.student(images)))
                row = {"step": done, "loss": verdict.loss} | ({} if verdict.metric is None else {"metric": verdict.metric})
                self.rows["epochs"].append(row)
                if best is None or verdict.beats(Verdict(best["metric"], best["loss"])):
                    found = {"step": done, "metric": verdict.metric, "loss": verdict.loss}
                    Checkpoint(self.key, done, self.student.state_dict(), {}, judged=found).save(self.folder / BEST)
        return self.place.same(found)

    def _save(self, done: int, best: dict[str, float | None] | None) -> None:
        if self.place.main:
            random = {"cpu": torch.get_rng_state()}
            if self.place.device.type == "cuda":
                random["cuda"] = torch.cuda.get_rng_state(self.place.device)
            state = self.student.state_dict()
            Checkpoint(self.key, done, state, self.optimizer.state_dict(), self.average, random, best, self.rows).save(
                self.folder / LAST
            )
        self.place.wait()

    def _wrapped(self) -> nn.Module:
        if self.place.count == 1:
            return self.student
        # Channels-last weights have gradients of another layout than the buckets that they are exchanged in: a copy, no error.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        return DistributedDataParallel(self.student, device_ids=[self.place.device] if self.place.device.type == "cuda" else None)

    def _parts_that_fit(self) -> int:
        """Parts of a batch such that what the backward pass keeps of one stays within half of the memory; a power of two."""
        batch = next(iter(self.batches.epoch(0)))
        images = torch.from_numpy(batch.images[:2]).to(self.place.device)
        with self._at_rest():
            per_image = self.objective.kept(self.student, images) / len(images)
        share = self.batches.size / self.place.count
        parts = 1
        while parts < share and per_image * share / parts > self.place.memory / 2:
            parts *= 2
        return parts

    def _take_average(self) -> None:
        self._put(self.average or {})

    @torch.no_grad()
    def _put(self, values: State) -> None:
        for name, parameter in self.student.named_parameters():
            parameter.copy_(values[name])
