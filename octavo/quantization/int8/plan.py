"""A placement with its numbers: what a quantized graph is written from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.numbers.weights import Codes
from octavo.quantization.int8.structure.units import Unit

__all__ = ["Plan"]


@dataclass(frozen=True)
class Plan:
    """Everything that the file is written from.

    Attributes:
        reasons: each unit, and why it stays float ("" for INT8).
        scales: of each quantized tensor.
        codes: of each weighted INT8 unit, by its node's name.
        corrected: how many biases took a mean shift back.
        taken: what the biases of units took back of what rounding activations shifts, float64 an output channel, by node.
        stored: codes of float layers whose weights are int8 in the file, by node.
        float32: nodes of float layers whose weights are not float16 in the file (`halves.py`).
    """

    reasons: dict[Unit, str]
    scales: dict[str, QParams]
    codes: dict[str, Codes]
    corrected: int
    taken: Mapping[str, np.ndarray] = field(default_factory=dict)
    stored: Mapping[str, Codes] = field(default_factory=dict)
    float32: frozenset[str] = frozenset()

    @property
    def int8(self) -> list[Unit]:
        """The INT8 units, in topological order."""
        return [unit for unit, reason in self.reasons.items() if not reason]
