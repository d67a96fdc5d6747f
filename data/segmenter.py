"""A small segmentation network: the demo's own, whose weights benchmarks/train_segmenter.py trains on rendered road scenes.

An encoder of residual blocks (https://arxiv.org/abs/1512.03385) down to 1/16 and a decoder that joins its stages again (U-Net,
https://arxiv.org/abs/1505.04597), by sums at 1/8 and 1/4 and by a concatenation at 1/2. Dense 3x3 convolutions, ReLU and
nearest-neighbour upsampling only: each of its operators has an integer kernel in ONNX Runtime. 0.65 million parameters.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its usual name

__all__ = ["Segmenter", "segmenter"]


def segmenter(classes: int = 8) -> Segmenter:
    """The network with fresh weights; `source.entry` in params.yaml."""
    return Segmenter(classes)


class Conv(nn.Sequential):
    """3x3 convolution, batch norm, ReLU."""

    def __init__(self, inward: int, outward: int, stride: int = 1) -> None:
        super().__init__(nn.Conv2d(inward, outward, 3, stride, 1, bias=False), nn.BatchNorm2d(outward), nn.ReLU())


class Residual(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = Conv(channels, channels)
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels))
        self.relu = nn.ReLU()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Same shape as `features`."""
        return self.relu(features + self.second(self.first(features)))


class Segmenter(nn.Module):
    """Images to class maps.

    Input: float32, N x 3 x rows x columns, normalised RGB; rows and columns are multiples of 16.
    Output: float32, N x classes x rows / 2 x columns / 2; scores, the highest is the class.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.to2 = Conv(3, 16, 2)
        self.to4 = nn.Sequential(Conv(16, 32, 2), Residual(32))
        self.to8 = nn.Sequential(Conv(32, 64, 2), Residual(64), Residual(64))
        self.to16 = nn.Sequential(Conv(64, 80, 2), Residual(80), Residual(80))
        self.narrow16, self.up8 = Conv(80, 64), Residual(64)
        self.narrow8, self.up4 = Conv(64, 32), Residual(32)
        self.narrow4, self.up2 = Conv(32, 16), Conv(16 + 16, 16)
        self.score = nn.Conv2d(16, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """As the class says."""
        at2 = self.to2(images)
        at4 = self.to4(at2)
        at8 = self.to8(at4)
        at16 = self.to16(at8)
        at8 = self.up8(at8 + _doubled(self.narrow16(at16)))
        at4 = self.up4(at4 + _doubled(self.narrow8(at8)))
        return self.score(self.up2(torch.cat([at2, _doubled(self.narrow4(at4))], 1)))


def _doubled(features: torch.Tensor) -> torch.Tensor:
    return F.interpolate(features, scale_factor=2.0, mode="nearest")
