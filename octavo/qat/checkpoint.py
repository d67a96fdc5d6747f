"""The state of a training run on disk, from which it goes on to the same result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from octavo.errors import QuantizationError
from octavo.files import replace_file

__all__ = ["BEST", "LAST", "Checkpoint"]

# In the folder of a run.
LAST, BEST = "last.pt", "best.pt"

State = dict[str, torch.Tensor]


@dataclass
class Checkpoint:
    """Everything that the steps to come depend on.

    Attributes:
        key: what the run is made from and with: name to hash or value.
        step: optimizer steps done.
        model: parameters and buffers: weights, ranges, batch statistics.
        optimizer: its state dict.
        average: the moving average of the parameters, where there is one.
        random: the generators' states, by device.
        judged: the best verdict so far: step, metric (None without one), loss.
        rows: the learning curves so far: name to rows.
    """

    key: Mapping[str, str]
    step: int
    model: State
    optimizer: dict[str, Any]
    average: State | None = None
    random: dict[str, torch.Tensor] = field(default_factory=dict)
    judged: dict[str, float | None] | None = None
    rows: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write it, whole or not at all.

        Raises:
            OutputError: it cannot be written; the one before is untouched.
        """
        with replace_file(path) as temporary, open(temporary, "wb") as stream:
            try:
                torch.save({**vars(self), "key": dict(self.key)}, stream)
            except RuntimeError as error:
                # Torch closes its archive after a write that failed, and complains of that archive.
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from error
                raise

    @classmethod
    def load(cls, path: Path, key: Mapping[str, str]) -> Checkpoint:
        """Read it; no code in it is run.

        Args:
            path: the file.
            key: of the run that wants to go on from it.

        Raises:
            QuantizationError: it is damaged, or of another model or configuration; the message says what differs.
        """
        anew = "start anew: `python stages/qat.py --model NAME --restart`"
        try:
            held = cls(**torch.load(path, map_location="cpu", weights_only=True))
        except (OSError, RuntimeError, EOFError, ValueError, TypeError, KeyError, UnpicklingError) as error:
            # Of torch's words the first sentence: the others advise to run what code it holds.
            why = " ".join(str(error).split()).partition(". ")[0] or "it is empty"
            raise QuantizationError(f"{path} is no checkpoint that can be read: {why[:200]}", anew) from error
        differs = sorted(name for name in {*key, *held.key} if key.get(name) != held.key.get(name))
        if differs:
            raise QuantizationError(
                f"{path} is a checkpoint of another run: {', '.join(differs)} differ{'s' if len(differs) == 1 else ''}",
                f"run it with the settings that it was made with, or {anew}",
            )
        return held
