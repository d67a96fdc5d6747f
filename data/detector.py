"""A small detector: the demo's own network, whose weights benchmarks/train_detector.py trains on scenes that the project renders.

It follows YOLOv8 (https://docs.ultralytics.com): C2f blocks, a feature pyramid with strides 8, 16 and 32, no anchors, box sides as
distributions over distances (https://arxiv.org/abs/2006.04388), class scores without objectness. 0.6 million parameters.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its usual name

__all__ = ["BINS", "STRIDES", "Detector", "detector"]

STRIDES = (8, 16, 32)
# A side lies 0 to BINS - 1 cells from the centre of its cell.
BINS = 16


def detector(classes: int = 6) -> Detector:
    """The network with fresh weights; `source.entry` in params.yaml."""
    return Detector(classes)


class Conv(nn.Sequential):
    """Convolution, batch norm, SiLU."""

    def __init__(self, inward: int, outward: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inward, outward, kernel, stride, kernel // 2, bias=False),
            nn.BatchNorm2d(outward, eps=1e-3, momentum=0.03),
            nn.SiLU(),
        )


class C2f(nn.Module):
    """Half of the channels pass by, half go through a bottleneck of two 3x3 convolutions; all three stages are joined."""

    def __init__(self, inward: int, outward: int, *, shortcut: bool = True) -> None:
        super().__init__()
        half = outward // 2
        self.split = Conv(inward, outward)
        self.bottleneck = nn.Sequential(Conv(half, half, 3), Conv(half, half, 3))
        self.join = Conv(3 * half, outward)
        self.shortcut = shortcut

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Same rows and columns as `features`."""
        passed, worked = self.split(features).chunk(2, 1)
        deeper = self.bottleneck(worked)
        return self.join(torch.cat([passed, worked, worked + deeper if self.shortcut else deeper], 1))


class Pooled(nn.Module):
    """SPPF: features beside their maxima over 5, 9 and 13 cells."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.narrow = Conv(channels, channels // 2)
        self.pool = nn.MaxPool2d(5, 1, 2)
        self.join = Conv(2 * channels, channels)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Same shape as `features`."""
        stages = [self.narrow(features)]
        for _ in range(3):
            stages.append(self.pool(stages[-1]))
        return self.join(torch.cat(stages, 1))


class Head(nn.Module):
    """Box sides and class scores at every cell of one stride."""

    def __init__(self, channels: int, width: int, classes: int) -> None:
        super().__init__()
        self.box = nn.Sequential(Conv(channels, width, 3), Conv(width, width, 3), nn.Conv2d(width, 4 * BINS, 1))
        self.score = nn.Sequential(Conv(channels, width, 3), Conv(width, width, 3), nn.Conv2d(width, classes, 1))
        nn.init.constant_(self.box[-1].bias, 1.0)
        # Nearly every cell is background: scores start at about 1 %.
        nn.init.constant_(self.score[-1].bias, -4.6)

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits: N x 4 * BINS x cells, N x classes x cells."""
        return self.box(features).flatten(2), self.score(features).flatten(2)


class Detector(nn.Module):
    """Images to boxes and class scores.

    Input: float32, N x 3 x rows x columns, RGB in 0..1; rows and columns are multiples of 32.
    Output: float32, N x (4 + classes) x cells; centre x and y, width and height in pixels of the input, then a score of 0..1 a
    class. Cells are those of strides 8, 16 and 32, each row by row: 1008 for 192 x 256.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(Conv(3, 16, 3, 2), Conv(16, 24, 3, 2))
        self.to8 = nn.Sequential(Conv(24, 48, 3, 2), C2f(48, 48))
        self.to16 = nn.Sequential(Conv(48, 80, 3, 2), C2f(80, 80))
        self.to32 = nn.Sequential(Conv(80, 112, 3, 2), C2f(112, 112), Pooled(112))
        self.up16 = C2f(112 + 80, 64, shortcut=False)
        self.up8 = C2f(64 + 48, 40, shortcut=False)
        self.heads = nn.ModuleList([Head(40, 32, classes), Head(64, 40, classes), Head(112, 40, classes)])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """As the class says."""
        boxes, scores, centres, strides = self.raw(images)
        return torch.cat([decoded(boxes, centres, strides), scores.sigmoid()], 1)

    def raw(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """What the loss needs.

        Returns:
            Logits of box sides (N x 4 * BINS x cells) and of classes (N x classes x cells); centres of the cells (2 x cells, x and
            y in cells) and their strides (1 x cells, pixels).
        """
        at8 = self.to8(self.stem(images))
        at16 = self.to16(at8)
        at32 = self.to32(at16)
        at16 = self.up16(torch.cat([F.interpolate(at32, scale_factor=2.0, mode="nearest"), at16], 1))
        at8 = self.up8(torch.cat([F.interpolate(at16, scale_factor=2.0, mode="nearest"), at8], 1))
        found, centres, strides = [], [], []
        for features, head, stride in zip((at8, at16, at32), self.heads, STRIDES, strict=True):
            found.append(head(features))
            # From the feature map's shape, so that a graph with any rows and columns computes its own grid.
            y = torch.arange(features.shape[2], device=features.device, dtype=features.dtype) + 0.5
            x = torch.arange(features.shape[3], device=features.device, dtype=features.dtype) + 0.5
            grid = torch.stack([x[None, :].expand(y.shape[0], -1), y[:, None].expand(-1, x.shape[0])]).flatten(1)
            centres.append(grid)
            strides.append(torch.full_like(grid[:1], stride))
        boxes, scores = (torch.cat(parts, 2) for parts in zip(*found, strict=True))
        return boxes, scores, torch.cat(centres, 1), torch.cat(strides, 1)


def decoded(boxes: torch.Tensor, centres: torch.Tensor, strides: torch.Tensor) -> torch.Tensor:
    """Centre, width and height in pixels, N x 4 x cells: the mean of each side's distribution over distances."""
    bins = torch.arange(BINS, device=boxes.device, dtype=boxes.dtype)
    shares = boxes.reshape(boxes.shape[0], 4, BINS, -1).softmax(2)
    sides = (shares * bins[None, None, :, None]).sum(2)
    low, high = centres - sides[:, :2], centres + sides[:, 2:]
    return torch.cat([(low + high) / 2, high - low], 1) * strides
