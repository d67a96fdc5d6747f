"""How many rows of a torch module's outputs it does not choose by chance, as of random weights, whose scores are all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from octavo.sources.same_rows import Run, in_rows, same_rows

__all__ = ["own_rows"]

# Of the largest value, by which two implementations of FP32 may be said to differ.
_NUDGE = 1e-6
# What ranks, and which of its arguments has the scores.
_RANKS = {"aten::topk": 0, "aten::sort": 0, "torchvision::nms": 1}


def own_rows(run: Run, tensors: Sequence[np.ndarray], outputs: Sequence[Mapping[str, np.ndarray]]) -> float:
    """Which share of its rows a module keeps when its images, and the scores that it ranks, change by what rounding does.

    Where that is little, no other implementation of it can have the same rows. Ties count, which each breaks in its own way.

    Args:
        run: the module (`octavo.sources.torch_export.reference`).
        tensors: preprocessed images, float32.
        outputs: the module's on each.
    """
    generator = np.random.default_rng(0)
    pairs = []
    for tensor, truth in zip(tensors, outputs, strict=False):
        nudged = tensor + generator.uniform(-_NUDGE, _NUDGE, tensor.shape) * np.abs(tensor).max(initial=0.0)
        with _Nudged():
            pairs.append((truth, run(nudged.astype(tensor.dtype))))
    return same_rows(pairs)[1] if in_rows(pairs) else 1.0


class _Nudged(TorchDispatchMode):
    """Scores are ranked with a little noise on them, the same each time."""

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(0)

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        place = _RANKS.get(func.name().split(".")[0])
        if place is not None and args[place].is_floating_point() and args[place].numel():
            scores = args[place]
            most = torch.nan_to_num(scores, nan=0.0, posinf=0.0, neginf=0.0).abs().max()
            # Zeros tie, too.
            noise = (torch.rand(scores.shape, generator=self._generator) * 2 - 1) * _NUDGE * (most if most else 1.0)
            args = [*args[:place], scores + noise.to(scores.dtype), *args[place + 1 :]]
        return func(*args, **(kwargs or {}))
