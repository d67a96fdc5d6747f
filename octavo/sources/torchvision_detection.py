"""Detectors from torchvision's parts that torchvision has no builder for: entries for `source: {kind: torch}`."""

from __future__ import annotations

from typing import Any

from torch import nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

__all__ = ["fasterrcnn_resnet101_fpn"]


def fasterrcnn_resnet101_fpn(num_classes: int = 91, **settings: Any) -> FasterRCNN:
    """Faster R-CNN (https://arxiv.org/abs/1506.01497) on ResNet-101 with FPN, laid out as torchvision's ResNet-50 one.

    State dicts of `FasterRCNN(resnet_fpn_backbone(backbone_name="resnet101", ...), num_classes)` fit, with BatchNorm frozen in
    training or not.

    Args:
        num_classes: the background included.
        settings: of `torchvision.models.detection.FasterRCNN` (min_size, max_size, box_score_thresh, ...).
    """
    backbone = resnet_fpn_backbone(backbone_name="resnet101", weights=None, norm_layer=nn.BatchNorm2d, trainable_layers=5)
    return FasterRCNN(backbone, num_classes=num_classes, **settings)
