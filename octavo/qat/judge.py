"""How good a network is on training images that it is not trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from octavo.images.dataset import Images, Item
from octavo.params.grammar import Input
from octavo.qat.losses import distillation
from octavo.qat.reading import Reading
from octavo.tasks.registry import SCORES

__all__ = ["Judge", "Verdict"]

Run = Callable[[torch.Tensor], Mapping[str, torch.Tensor]]


@dataclass(frozen=True)
class Verdict:
    """Of one state of the network.

    Attributes:
        metric: the task's own; None where no image is labelled for it, or labels do not count.
        loss: distance to FP32 (`losses.distillation`).
    """

    metric: float | None
    loss: float

    def beats(self, other: Verdict | None) -> bool:
        """Whether it is the better one: by the metric, or, where that is equal or missing, by the distance to FP32."""
        if other is None:
            return True
        mine, theirs = (0.0 if each.metric is None else each.metric for each in (self, other))
        return (mine, -self.loss) > (theirs, -other.loss)


@dataclass
class Judge:
    """Held-out images, and FP32 on them.

    Args:
        items: the images.
        task: the model's `task:` block.
        spec: its `input:` block.
        teacher: FP32.
        reading: how its outputs are read.
        device: what is computed on.
        labels: count them, where there are some.
        skip: leave images out that cannot be read.
    """

    items: Sequence[Item]
    task: Any
    spec: Input
    teacher: Run
    reading: Reading
    device: torch.device
    labels: bool = True
    skip: bool = False

    @torch.no_grad()
    def __call__(self, student: Run) -> Verdict:
        """Run a network on all images, one by one."""
        scorer = SCORES.get(self.task.name)
        scores = [scorer(self.task, self.spec) for _ in range(2)] if scorer else []
        losses = []
        resize = self.spec.resize.model_copy(update={"stride": None})
        images = Images(list(self.items), self.spec.model_copy(update={"resize": resize}), "skip" if self.skip else "error")
        for item, tensor in images:
            image = torch.from_numpy(tensor).to(self.device)
            truth, found = self.teacher(image), student(image)
            losses.append(float(distillation(self.task.name, self.reading(found), self.reading(truth))))
            if scores and self.labels and item.labelled:
                arrays = [{name: value.float().cpu().numpy() for name, value in each.items()} for each in (truth, found)]
                for score, outputs in zip(scores, arrays, strict=True):
                    score.update(outputs, arrays[0], item)
        metric = None
        if scores and scores[1].labelled:
            metric = float(scores[1].metrics(scores[0])[scores[1].metric])
        return Verdict(metric, float(np.mean(losses)))
