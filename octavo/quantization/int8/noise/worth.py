"""How much of single roundings' noise is worth measuring: on how many images, and how many roundings together."""

from __future__ import annotations

import math

import onnx_ir as ir

from octavo.graph.macs import macs_in
from octavo.runtime.shapes import fed_shape, images_within

__all__ = ["images_worth", "measured_together", "roundings_worth"]

# Bytes of tensors that are made to measure each rounding alone, and images that this is done on at most. It takes about .07 s a
# gigabyte (AMD Zen 3, 2 cores). Detectors are better off with more (NanoDet-m's placement, held to 24 dB, is priced at 16.4 ms from
# two or three images and at 14.4 from four or eight).
_WORK, _IMAGES = 160e9, 8
# Masks, which many pixels decide, say with one image what they say with four (CGNet) or two (TwinLiteNet: the same placement, 36 s
# instead of 48): half the work has to do.
_MASKS = 0.5
# Multiply-accumulates of the same, a whole run counted for each: about .02 s for 1e9 of them there. That binds networks of many
# layers and small images (Inception V3, 5.7e9 an image, took 78 s with 8 images), which keep `_FEW` images; YOLOv5n, NanoDet-m and
# MobileNetV2 have as many as their bytes allow.
_MACS, _FEW = 1.2e12, 2
# Where even so few images take more than so many times that work, roundings of a chain are measured together, so many at most
# (`merged.py`), and where that does not do, on one image. MobileNetV2 and EfficientNet-Lite0, all in INT8: the sum over all comes
# out within 6 % with two to four together, single ones within 1.1 to 1.6 dB in the middle, 4 dB for nine of ten.
_DEAR, _TOGETHER = 2.0, 4
# The same where no layer goes back to float by it: what is measured is for the record. All 127 roundings of a ResNet-50 take 9.4
# processor seconds instead of 16.7, their sum comes out within a tenth, single ones within 1.3 dB in the middle.
_RECORDED = 0.25


def images_worth(model: ir.Model, roundings: int, at_most: int, *, masks: bool = False, least: int = _FEW) -> int:
    """On how many images so many roundings can be measured within bounds of work: 1 to 8, and no more than there are.

    Args:
        model: FP32, as prepared for INT8.
        roundings: how many.
        at_most: images that there are.
        masks: it answers with masks.
        least: how many networks of many layers and small images keep.
    """
    few = max(least, roundings_worth(model, roundings))
    return images_within(model, min(_IMAGES, few, at_most), _WORK * (_MASKS if masks else 1) / roundings)


def roundings_worth(model: ir.Model, images: int) -> int:
    """How many roundings can be measured on so many images each within the bound of multiply-accumulates, or the other way round.

    Args:
        model: FP32, as prepared for INT8.
        images: runs of the network for each of them.
    """
    return max(1, int(_MACS / max(1, images * macs_in(model.graph, fed_shape))))


def measured_together(model: ir.Model, roundings: int, images: int, *, recorded: bool = False) -> tuple[int, int]:
    """On how many of so many images roundings are measured, and how many of a chain together, where each alone is too much work.

    Args:
        model: FP32, as prepared for INT8.
        roundings: how many.
        images: as `images_worth` has it.
        recorded: no placement is found by it.
    """
    most = (_RECORDED if recorded else _DEAR) * _MACS
    work = roundings * macs_in(model.graph, fed_shape)
    if work * images > most * _TOGETHER:
        images = 1
    return images, min(max(1, math.ceil(work * images / most)), _TOGETHER)
