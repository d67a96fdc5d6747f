"""What stands for rounding while a network is trained: PT2E's FakeQuantize modules with Octavo's rules.

Activations: uint8, per tensor. The range starts where `calibrate` put it and follows the moving extremes of what flows by, at the
share of them that calibration kept: a range clipped for a good reason stays clipped. Once observers are frozen it stands still, or
(`scales: learned`) its scale is trained as LSQ does (https://arxiv.org/abs/1902.08153).
Weights: int8, symmetric, each channel by its largest weight of the moment, so that what was trained with is what is written.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torchao.quantization.pt2e import FakeQuantizeBase

from octavo.graph.passes.kernels.bias_codes import MOST

__all__ = ["ActivationFakeQuantize", "PerChannelWeightFakeQuantize", "WeightFakeQuantize"]

# Weight of a new batch in the moving extremes, as torch's own observers have it.
MOMENTUM = 0.01
# ONNX Runtime divides by a scale.
_SMALLEST = 1e-8


class _Switched(FakeQuantizeBase):
    """The base class keeps its switches in tensors, which a GPU would have to be asked for at every call; these are plain."""

    observing = rounding = True

    def enable_observer(self, enabled: bool = True) -> None:
        """Let ranges follow what flows by, or stand still."""
        self.observing = enabled
        self.observer_enabled.fill_(enabled)

    def enable_fake_quant(self, enabled: bool = True) -> None:
        """Round, or pass values on as they are."""
        self.rounding = enabled


class ActivationFakeQuantize(_Switched):
    """uint8 codes for one activation.

    Attributes:
        low, high: the range, zero inside.
        seen_low, seen_high: moving extremes.
        gain: what LSQ learns: the logarithm of a factor on the scale.
        positive: only values above zero count; the others are behind a ReLU nothing.
        widest: what the range spans at most, a ReLU6's 6: beyond it no Q does the ReLU6's work, and the layer runs in float.
    """

    def __init__(
        self,
        dtype: torch.dtype,
        quant_min: int,
        quant_max: int,
        qscheme: torch.qscheme,
        *,
        positive: bool = False,
        widest: float = math.inf,
        **_: object,
    ) -> None:
        super().__init__()
        self.positive, self.widest = positive, widest
        self.dtype, self.quant_min, self.quant_max, self.qscheme = dtype, quant_min, quant_max, qscheme
        self.ch_axis, self.is_dynamic = -1, False
        for name in ("low", "high", "seen_low", "seen_high"):
            self.register_buffer(name, torch.tensor(0.0))
        # Share of the seen extremes that the range has; 0 until something was seen.
        self.register_buffer("share", torch.tensor([1.0, 1.0]))
        self.register_buffer("known", torch.tensor(0, dtype=torch.uint8))
        self.gain = nn.Parameter(torch.tensor(0.0), requires_grad=False)

    @property
    def learns(self) -> bool:
        """Whether the scale is trained."""
        return self.gain.requires_grad

    @torch.no_grad()
    def start(self, low: float, high: float) -> None:
        """Begin with a range that calibration chose, before anything was seen."""
        self.low.fill_(min(low, 0.0))
        self.high.fill_(max(high, 0.0))
        self.known.fill_(1)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Round to the codes' values; same shape."""
        if self.observing:
            self._observe(values.detach())
        if not self.rounding:
            return values
        scale, zero = self.calculate_qparams()
        if not self.learns:
            return torch.fake_quantize_per_tensor_affine(values, scale, zero, self.quant_min, self.quant_max)
        # LSQ's gradient scale: a scale's gradient is a sum over all values.
        factor = 1.0 / (values.numel() * self.quant_max) ** 0.5
        scale = scale * torch.exp(self.gain - self.gain.detach())
        return torch._fake_quantize_learnable_per_tensor_affine(
            values, scale, zero.to(torch.float32), self.quant_min, self.quant_max, factor
        )

    @torch.no_grad()
    def _observe(self, values: torch.Tensor) -> None:
        if values.numel() == 0:
            return
        low, high = torch.aminmax(values)
        low, high = low.clamp(max=0.0).float(), high.clamp(min=0.0).float()
        low = low * 0 if self.positive else low
        if self.known < 2:
            # The first batch says what share of the extremes the given range is; it is never wider than they are for long.
            if self.known == 1:
                self.share[0] = torch.where(low < 0, self.low / low, 1.0).clamp(0.02, 1.5)
                self.share[1] = torch.where(high > 0, self.high / high, 1.0).clamp(0.02, 1.5)
            self.seen_low.copy_(low)
            self.seen_high.copy_(high)
            self.known.fill_(2)
        else:
            self.seen_low.lerp_(low, MOMENTUM)
            self.seen_high.lerp_(high, MOMENTUM)
        self.low.copy_(self.seen_low * self.share[0])
        self.high.copy_(self.seen_high * self.share[1])

    def calculate_qparams(self, **_: object) -> tuple[torch.Tensor, torch.Tensor]:
        """(scale, zero point): float32 and int32, one element each."""
        low, high = self.low, self.high
        steps = self.quant_max - self.quant_min
        symmetric = self.qscheme == torch.per_tensor_symmetric
        scale = (2 * torch.maximum(-low, high) if symmetric else high - low) / steps
        # A hair less: 255 steps must not reach beyond a ReLU6's bound by a rounding, or ONNX Runtime keeps the Clip before Q.
        scale = (scale * torch.exp(self.gain.detach())).clamp(max=self.widest / steps) * (1 - 2e-7)
        # Of a tensor that is always zero any scale will do.
        scale = torch.where(high > low, scale.clamp(min=_SMALLEST), 1.0)
        if symmetric:
            zero = torch.full_like(scale, self.quant_min + (steps + 1) // 2)
        else:
            zero = (self.quant_min - torch.round(low / scale)).clamp(self.quant_min, self.quant_max)
        return scale.reshape(1), zero.to(torch.int32).reshape(1)


class WeightFakeQuantize(_Switched):
    """int8 codes for a weight, one scale for all of it."""

    def __init__(
        self, dtype: torch.dtype, quant_min: int, quant_max: int, qscheme: torch.qscheme, ch_axis: int = -1, **_: object
    ) -> None:
        super().__init__()
        self.dtype, self.quant_min, self.quant_max, self.qscheme = dtype, quant_min, quant_max, qscheme
        self.ch_axis, self.is_dynamic = ch_axis, False
        # A scale that PTQ chose: it stays until the weights outgrow it. Zero: none.
        self.register_buffer("given", torch.zeros(1))
        # Of the weight that flowed by last; it follows from the weight, so no checkpoint holds it.
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Round to the codes' values; same shape."""
        scale = self._scale(values.detach())
        self.scale.resize_(scale.shape).copy_(scale)
        if not self.rounding:
            return values
        zero = torch.zeros_like(self.scale, dtype=torch.int32)
        if self.ch_axis < 0:
            return torch.fake_quantize_per_tensor_affine(values, self.scale, zero, self.quant_min, self.quant_max)
        return torch.fake_quantize_per_channel_affine(values, self.scale, zero, self.ch_axis, self.quant_min, self.quant_max)

    def _scale(self, values: torch.Tensor) -> torch.Tensor:
        if self.ch_axis < 0:
            largest = values.abs().amax().reshape(1)
        else:
            largest = values.abs().amax(dim=tuple(axis for axis in range(values.ndim) if axis != self.ch_axis))
        return torch.maximum(largest / self.quant_max, self.given).clamp(min=_SMALLEST).float()

    def give(self, scale: torch.Tensor) -> None:
        """Round with scales that PTQ chose; one a channel, or one in all."""
        # A hair less than the largest weight must not make it the weight's own scale, which differs in the last bit.
        self.given = (scale * (1 + 1e-6)).float()

    @torch.no_grad()
    def give_room(self, bias: torch.Tensor, before: torch.Tensor) -> None:
        """Scales so large that a bias fits int32 in steps of the input's scale times the weight's.

        Channels whose weights are nearly nothing next to their bias need it, and layers whose input is.

        Args:
            bias: [channels].
            before: the input's scale, one element.
        """
        least = bias.abs().double() / (before.double() * MOST)
        least = least if self.ch_axis >= 0 else least.max().reshape(1)
        self.given = torch.maximum(self.given.double().expand(least.shape), least * (1 + 1e-6)).float()

    def calculate_qparams(self, **_: object) -> tuple[torch.Tensor, torch.Tensor]:
        """(scale, zero point): float32 and int32, one element, or one a channel; of the weight that flowed by last."""
        return self.scale, torch.zeros_like(self.scale, dtype=torch.int32)


class PerChannelWeightFakeQuantize(WeightFakeQuantize):
    """int8 codes for a weight, a scale for each output channel (PT2E gives `ch_axis` to classes of this name only)."""
