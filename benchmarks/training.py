"""What the training scripts of the demo's networks share: batches in a seeded order, AdamW with cosine decay, averaged weights."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from octavo.files import replace_file

__all__ = ["Average", "Optimizer", "batches", "save"]


def batches(count: int, batch: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Places of 0..count-1 in a new order each time that all were taken, `batch` at once, without end."""
    order = torch.empty(0, dtype=torch.long)
    while True:
        if len(order) < batch:
            order = torch.randperm(count, generator=generator)
        taken, order = order[:batch], order[batch:]
        yield taken


class Optimizer:
    """AdamW (https://arxiv.org/abs/1711.05101); its rate rises for `warm` steps, then falls along a cosine to `least` of it.

    Gradients longer than `clip` are cut to it.
    """

    def __init__(self, model: nn.Module, decay: float, *, rate: float, steps: int, warm: int, least: float, clip: float) -> None:
        # Biases and batch norm do not decay.
        decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
        plain = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
        self.adamw = torch.optim.AdamW([{"params": decayed, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}], lr=0.0)
        self.model, self.rate, self.steps, self.warm, self.least, self.clip = model, rate, steps, warm, least, clip

    def step(self, loss: torch.Tensor, step: int) -> float:
        """One step (1, 2, ...) down the loss; returns its rate."""
        rate = self.rate * min(1.0, step / self.warm)
        rate *= self.least + (1 - self.least) * 0.5 * (1 + np.cos(np.pi * step / self.steps))
        for group in self.adamw.param_groups:
            group["lr"] = rate
        self.adamw.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.adamw.step()
        return rate


class Average:
    """An exponential moving average of a model's weights; `model` is in eval mode."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    def update(self, model: nn.Module, step: int) -> None:
        """Take up the weights after a step."""
        # The average forgets its beginning: short at first, 200 steps in the end.
        keep = min(0.995, step / (20 + step))
        with torch.no_grad():
            for mean, value in zip(self.model.state_dict().values(), model.state_dict().values(), strict=True):
                mean.lerp_(value, 1 - keep) if mean.is_floating_point() else mean.copy_(value)


def save(model: nn.Module, path: Path) -> None:
    """The state dict as float32, without BatchNorm's counters."""
    state = {name: value for name, value in model.state_dict().items() if not name.endswith("num_batches_tracked")}
    with replace_file(path) as temporary:
        torch.save(state, temporary)
