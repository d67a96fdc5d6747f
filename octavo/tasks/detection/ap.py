"""COCO's average precision (https://cocodataset.org/#detection-eval), computed by faster-coco-eval."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster

__all__ = ["AveragePrecision", "average_precision"]

Rows = Sequence[Mapping[str, Any]]

# Where COCO's summary has them. Small is below 32 x 32 pixels, large 96 x 96 and above.
_PLACES = {"ap": 0, "ap50": 1, "ap75": 2, "ap_small": 3, "ap_medium": 4, "ap_large": 5, "ar": 8}
# The figures that are there whatever the images show, and those of objects of some size, from and to so many square pixels.
_ALWAYS = ("ap", "ap50", "ap75", "ar")
_SIZES = {"ap_small": (0, 32**2), "ap_medium": (32**2, 96**2), "ap_large": (96**2, 1e10)}


@dataclass(frozen=True)
class AveragePrecision:
    """What detections are worth.

    Attributes:
        figures: `ap` (IoU .50:.95, at most 100 detections an image), `ap50`, `ap75`, `ar` (with 100 detections), and `ap_small`,
            `ap_medium`, `ap_large` where there are annotations of that size.
        classes: `ap` of each category that has annotations other than crowds.
    """

    figures: dict[str, float]
    classes: dict[int, float]


def average_precision(truth: Rows, found: Rows, images: Sequence[int]) -> AveragePrecision:
    """Over a set of images.

    Args:
        truth: annotations, each with `image_id`, `category_id`, `bbox` [x, y, width, height] in pixels; `iscrowd` is 0 and `area`
            that of the box where absent.
        found: detections, each with `image_id`, `category_id`, `bbox` and `score`; none at all is 0 throughout.
        images: ids of the images that count.
    """
    annotations = [
        {"iscrowd": 0, "area": float(item["bbox"][2] * item["bbox"][3]), **item, "id": place}
        for place, item in enumerate(truth, start=1)
    ]
    # Nothing can be missed in a crowd.
    countable = [item for item in annotations if not item["iscrowd"]]
    there = sorted({item["category_id"] for item in countable})
    if not found or not there:
        return AveragePrecision(dict.fromkeys((*_ALWAYS, *_sizes(countable)), 0.0), dict.fromkeys(there, 0.0))
    categories = sorted({item["category_id"] for item in itertools.chain(truth, found)})
    # The library prints its progress.
    with contextlib.redirect_stdout(io.StringIO()):
        expected = COCO(
            {
                "images": [{"id": image} for image in images],
                "annotations": annotations,
                "categories": [{"id": category, "name": str(category)} for category in categories],
            }
        )
        judge = COCOeval_faster(expected, expected.loadRes(list(map(dict, found))), iouType="bbox", print_function=lambda *_: None)
        judge.params.imgIds = list(images)
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    # -1 is the library's "nothing of this kind".
    figures = {name: float(judge.stats[place]) for name, place in _PLACES.items() if judge.stats[place] >= 0 or name in _ALWAYS}
    # Thresholds x recalls x categories x areas x detections: all sizes, most detections.
    precision = np.asarray(judge.eval["precision"])[:, :, :, 0, -1]
    each = {category: float(precision[:, :, place].mean()) for place, category in enumerate(judge.params.catIds)}
    return AveragePrecision(figures, {category: each[category] for category in there})


def _sizes(annotations: Rows) -> list[str]:
    """The figures of those sizes of which there are annotations."""
    return [name for name, (low, high) in _SIZES.items() if any(low <= item["area"] <= high for item in annotations)]
