"""Where training starts: FP32's weights, and the ranges that `calibrate` and `int8.method` give.

The captured graph and the ONNX graph name their tensors each in its own way, and exporters rewrite; so a tensor is found by what it
holds: both graphs run on one image, and tensors of one shape with the same values are the same tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import fx
from torchao.quantization.pt2e import FakeQuantizeBase

from octavo.qat.fake_quantize import ActivationFakeQuantize, WeightFakeQuantize

__all__ = ["activations", "as_float", "freezable", "observe", "start_ranges"]

# Two programs compute the same float32 tensor to about this share of its spread.
_SAME = 1e-3


def activations(prepared: fx.GraphModule) -> dict[str, ActivationFakeQuantize]:
    """The fake quantization of activations, by the name of its module; one that several tensors share stands there once."""
    found: dict[str, ActivationFakeQuantize] = {}
    for name, module in prepared.named_modules():
        if isinstance(module, ActivationFakeQuantize):
            found[name] = module
    return found


def freezable(prepared: fx.GraphModule) -> list[FakeQuantizeBase]:
    """All fake quantization that observes what flows by, that of other quantizers (xnnpack) too; ours for weights has no memory."""
    return [
        module
        for module in prepared.modules()
        if isinstance(module, FakeQuantizeBase) and not isinstance(module, WeightFakeQuantize)
    ]


@torch.no_grad()
def start_ranges(
    prepared: fx.GraphModule,
    image: torch.Tensor,
    tensors: Iterable[tuple[str, np.ndarray]],
    ranges: Mapping[str, tuple[float, float]],
) -> tuple[int, int]:
    """Give fake quantization the ranges that were chosen for the same tensors of the ONNX graph.

    Args:
        prepared: the graph to train.
        image: one image, [1, ...].
        tensors: the ONNX graph's tensors on that image, by name.
        ranges: chosen ranges (low, high), by name.

    Returns:
        How many were found, of how many there are.
    """
    prints: dict[tuple[int, ...], list[tuple[np.ndarray, str]]] = defaultdict(list)
    for name, value in tensors:
        if name in ranges:
            prints[value.shape].append((_print_of(value), name))
    modules = activations(prepared)
    with as_float(prepared):
        seen = _Seen(prepared)
        seen.run(image)
    found = 0
    for name, module in modules.items():
        mine = seen.values.get(name)
        near = min(
            ((float(np.abs(mine[1] - other).max()), tensor) for other, tensor in prints[mine[0]]) if mine else (),
            default=(np.inf, ""),
        )
        if near[0] <= _SAME:
            module.start(*ranges[near[1]])
            found += 1
    return found, len(modules)


@torch.no_grad()
def observe(prepared: fx.GraphModule, batches: Iterable[torch.Tensor]) -> int:
    """Let ranges see what flows by in float, before the first step: those that nothing was known of begin so.

    Returns:
        How many images there were.
    """
    count = 0
    with as_float(prepared, observing=True):
        for batch in batches:
            prepared(batch)
            count += len(batch)
    return count


class as_float:  # noqa: N801 - used as a context manager
    """No rounding for a while, and observers as told."""

    def __init__(self, prepared: fx.GraphModule, *, observing: bool = False) -> None:
        self.modules, self.observing = [module for module in prepared.modules() if hasattr(module, "rounding")], observing

    def __enter__(self) -> None:
        self.before = [(module.rounding, module.observing) for module in self.modules]
        for module in self.modules:
            module.rounding, module.observing = False, self.observing

    def __exit__(self, *_: object) -> None:
        for module, (rounding, observing) in zip(self.modules, self.before, strict=True):
            module.rounding, module.observing = rounding, observing


class _Seen(fx.Interpreter):
    """A print of what each fake quantization of an activation gets; tensors are let go at once."""

    def __init__(self, prepared: fx.GraphModule) -> None:
        super().__init__(prepared)
        self.values: dict[str, tuple[tuple[int, ...], np.ndarray]] = {}

    def call_module(self, target: str, args: tuple, kwargs: dict) -> object:
        module = self.fetch_attr(target)
        # Of several tensors that share one, the first is what the range is of.
        if isinstance(module, ActivationFakeQuantize) and target not in self.values:
            value = args[0].float().cpu().numpy()
            self.values[target] = value.shape, _print_of(value)
        return super().call_module(target, args, kwargs)


def _print_of(value: np.ndarray) -> np.ndarray:
    """Seven figures that two different tensors do not share, in units of the spread."""
    flat = value.astype(np.float64).ravel()
    # What is not a number is like nothing else; training will say so.
    with np.errstate(invalid="ignore"):
        spread = max(float(np.sqrt((flat**2).mean())), 1e-12)
        waves = [np.cos(np.arange(flat.size) * step) @ flat / flat.size**0.5 for step in (0.7, 0.11, 0.013)]
        return np.array([flat.mean(), flat.std(), flat.min(), flat.max(), *waves]) / spread
