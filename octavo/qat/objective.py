"""What a step minimises: the distance to the teacher's answers and the labels' own loss, in their shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from octavo.params.grammar import Qat
from octavo.qat.losses import LABELLED, distillation
from octavo.qat.reading import Reading

__all__ = ["Objective", "Run", "share_of_teacher"]

Run = Callable[[torch.Tensor], Mapping[str, torch.Tensor]]


def share_of_teacher(settings: Qat, task: str, labelled: bool) -> float:
    """`qat.distillation`, as it is: 1 without labels or for a task whose labels cannot be trained on; `auto` with them .5."""
    if not labelled or task not in LABELLED:
        return 1.0
    return 0.5 if settings.distillation == "auto" else settings.distillation


@dataclass(frozen=True)
class Objective:
    """The loss of a batch.

    Args:
        teacher: FP32: from images to outputs by name.
        name: the outputs' names, of what the student returns.
        reading: how the outputs are read, and which of them labels are of.
        task: the model's task.
        share: of the distance to the teacher, 0..1; the rest is the labels' (`share_of_teacher`).
    """

    teacher: Run
    name: Callable[[object], Mapping[str, torch.Tensor]]
    reading: Reading
    task: str
    share: float

    def __call__(self, model: nn.Module, images: torch.Tensor, labels: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """A scalar; images [N, ...] as the network reads them, labels by head."""
        found = self.reading(self.name(model(images)))
        loss = torch.zeros((), device=images.device)
        if self.share > 0:
            with torch.no_grad():
                truth = self.reading(self.teacher(images))
            loss = loss + self.share * distillation(self.task, found, truth)
        for head, value in labels.items() if self.share < 1 else ():
            loss = loss + (1 - self.share) / len(labels) * LABELLED[self.task](found[self.reading.heads[head]], value)
        return loss

    def kept(self, model: nn.Module, images: torch.Tensor) -> int:
        """Bytes that the backward pass of these images would keep."""
        held = 0

        def count(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal held
            held += tensor.numel() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            distillation(self.task, self.reading(self.name(model(images))), self.reading(self.teacher(images)))
        return held
