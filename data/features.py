"""EfficientNet-Lite0 as a network of features: what it has pooled before its classifier, 1280 numbers an image.

Nobody trained them to tell pictures apart; they do it by what an ImageNet classifier sees in them. The demo's embedding.
"""

from __future__ import annotations

import torch
from efficientnet_lite_pytorch import EfficientNet

__all__ = ["Features", "features"]


def features() -> Features:
    """The network with fresh weights; `source.entry` in params.yaml."""
    return Features.from_name("efficientnet-lite0")


class Features(EfficientNet):
    """The classifier's weights, its last layer unused.

    Input: float32, N x 3 x 224 x 224, as the classifier takes it.
    Output: float32, N x 1280, none negative.
    """

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """As the class says."""
        return self._avg_pooling(self.extract_features(inputs)).flatten(1)
