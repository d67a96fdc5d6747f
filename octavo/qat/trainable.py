"""What of a prepared network is trained, and how fast: weights, and the scales of activations where they are learned."""

from __future__ import annotations

import torch
from torch import fx

from octavo.errors import QuantizationError
from octavo.params.grammar import Qat
from octavo.params.patterns import matches, near
from octavo.qat.start import activations

__all__ = ["choose_parameters", "optimizer"]

# Scales that are learned: the first step of their logarithm, whatever that of the weights is (MobileNetV2 on 135 images, 128 steps,
# SQNR on 125 others: 22.6 dB before, 23.7 without learning scales, 24.0 with).
_SCALE_RATE = 4e-3


def choose_parameters(student: fx.GraphModule, settings: Qat) -> None:
    """Let the network's parameters learn but for those of `qat.freeze`, and the scales with `scales: learned`.

    Args:
        student: the graph with fake quantization; `requires_grad` of its parameters is set in place.
        settings: the `qat:` block.

    Raises:
        QuantizationError: a pattern of `freeze` names no parameter, or nothing is left to train.
    """
    names = dict(student.named_parameters())
    for pattern in settings.freeze:
        found = matches(pattern, names)
        if not found:
            raise QuantizationError(
                f"`qat.freeze` names {pattern!r}, and no parameter has this name or pattern",
                near(pattern, names) or f"its parameters are named like {', '.join(list(names)[:4])}",
            )
        for name in found:
            names[name].requires_grad_(False)
    gains = {id(module.gain) for module in activations(student).values()}
    if not any(parameter.requires_grad and id(parameter) not in gains for parameter in names.values()):
        raise QuantizationError(
            "no trainable layer is left: every parameter is frozen",
            "take patterns out of `qat.freeze`, or set `qat.enabled: false`",
        )
    if settings.scales == "learned":
        for module in activations(student).values():
            module.gain.requires_grad_(True)


def optimizer(student: fx.GraphModule, settings: Qat) -> torch.optim.Adam:
    """Adam over what learns; each group's `factor` is its rate over that of the schedule (1 for weights)."""
    gains = [module.gain for module in activations(student).values() if module.gain.requires_grad]
    slow = [each for each in student.parameters() if each.requires_grad and not any(each is gain for gain in gains)]
    groups = [{"params": slow, "factor": 1.0}]
    if gains:
        groups.append({"params": gains, "factor": _SCALE_RATE / settings.learning_rate})
    return torch.optim.Adam(groups, lr=settings.learning_rate)
