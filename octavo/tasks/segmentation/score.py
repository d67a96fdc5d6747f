"""The evidence of a segmentation network: mIoU where there are masks, and its class maps held against FP32's on every image.

A network with several heads (drivable area and lanes, say) has every figure of each head; a figure without a head's name is the
mean over the heads that have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from octavo.images.dataset import Classes, Item
from octavo.params.grammar import Input, Segmentation
from octavo.tasks.outputs import Outputs
from octavo.tasks.segmentation.head import HeadScore

__all__ = ["SegmentationScore"]


class SegmentationScore:
    """Class maps of one variant, image by image; see `octavo.tasks.score.Score`.

    Attributes:
        views: its heads; they draw a row of the combined picture each.
        datasets: the part of the set that each image is of.
    """

    metric = "miou"
    to_fp32 = ("agreement", "mask_iou")
    agrees = "agreement"
    drop = None
    doubted = None
    needs = None
    by_size = ()
    least = 0

    def __init__(self, task: Segmentation, spec: Input) -> None:
        self.views = tuple(HeadScore(name, head, spec) for name, head in task.each.items())
        self.datasets: list[str | None] = []

    @classmethod
    def classes(cls, task: Segmentation, outputs: Outputs, size: tuple[int, int]) -> Classes:
        """As many as there are maps, of each head."""
        each = {name: HeadScore.classes(head, outputs, size) for name, head in task.each.items()}
        return Classes(scored=True, heads=each) if task.heads else each[""]

    @property
    def labelled(self) -> int:
        """Images with a mask of some head."""
        return len(self._labelled())

    @property
    def units(self) -> int:
        """Labelled images."""
        return self.labelled

    def update(self, outputs: Outputs, reference: Outputs, item: Item) -> None:
        """Bring one image's classes, of each head, to the photo and count them.

        Raises:
            DataError: which output holds the classes cannot be told, or a mask does not fit.
        """
        for head in self.views:
            head.update(outputs, reference, item)
        self.datasets.append(item.dataset)

    def about(self) -> dict[str, str]:
        """`heads`: their names, where there are several; `warning`: where the class maps so far tell no variants apart."""
        names = [head.name for head in self.views if head.name]
        warnings = [warning for warning in (head.warning() for head in self.views) if warning]
        return ({"heads": ", ".join(names)} if names else {}) | ({"warning": "; ".join(warnings)} if warnings else {})

    def metrics(self, reference: SegmentationScore) -> dict[str, float]:  # noqa: ARG002 - held against it image by image
        """Figures over all images.

        `miou` from one confusion matrix, `iou.<class>`, `pixel_accuracy`, and `miou.<dataset>` where the set has several;
        `agreement`: share of pixels with FP32's class; `mask_iou`: mIoU with FP32's class maps in place of masks. With several
        heads each is the mean over them, and `miou.<head>`, `iou.<head>.<class>`, `miou.<head>.<dataset>` ... are theirs.
        """
        found: dict[str, float] = {}
        places = self._labelled()
        if places:
            each = {head.name: head.accuracy(places) for head in self.views}
            found |= {key: _mean([figures.get(key) for figures in each.values()]) for key in ("miou", "pixel_accuracy")}
            found |= dict(_named(each))
            parts = sorted({self.datasets[place] for place in places} - {None})
            for part in parts if len(parts) > 1 else ():
                mine = [place for place in places if self.datasets[place] == part]
                each = {head.name: {"miou": head.accuracy(mine).get("miou")} for head in self.views}
                found[f"miou.{part}"] = _mean([figures["miou"] for figures in each.values()])
                found |= {f"{key}.{part}": value for key, value in _named(each) if self.views[0].name}
        each = {head.name: {"agreement": head.agreement(), "mask_iou": head.mask_iou()} for head in self.views}
        found |= {key: _mean([figures[key] for figures in each.values()]) for key in self.to_fp32}
        return found | dict(_named(each))

    def resampled(self, counts: np.ndarray) -> np.ndarray:
        """`miou` of resamples of the images with masks; of several heads the mean over those that have pixels in a resample."""
        places = self._labelled()
        each = np.stack([head.resampled(counts, places) for head in self.views])
        there = ~np.isnan(each)
        return np.where(there, each, 0).sum(axis=0) / np.maximum(there.sum(axis=0), 1)

    def row(self, place: int) -> dict[str, Any]:
        """`miou` of one image, by the classes that it shows; of several heads their mean, and each."""
        each = {head.name: head.miou(place) for head in self.views}
        found = {"miou": None if set(each.values()) == {None} else _mean(list(each.values()))}
        found |= {f"miou.{name}": value for name, value in each.items() if name}
        return {key: "" if value is None else round(value, 6) for key, value in found.items()}

    def likeness(self, reference: SegmentationScore, place: int) -> float:  # noqa: ARG002
        """Share of one image's pixels with FP32's class; of several heads the mean."""
        return _mean([head.agreement(place) for head in self.views])

    def _labelled(self) -> list[int]:
        return [place for place in range(len(self.datasets)) if any(head.matrices[place] is not None for head in self.views)]


def _mean(values: Sequence[float | None]) -> float:
    """The mean of those that are there; 0 where there is none, as `mean_iou`."""
    there = [value for value in values if value is not None]
    return sum(there) / max(len(there), 1)


def _named(each: Mapping[str, Mapping[str, float | None]]) -> Iterator[tuple[str, float]]:
    """Figures that are there, by key: the head's name behind the figure's, `iou.road` of `drivable` is `iou.drivable.road`."""
    for head, figures in each.items():
        for key, value in figures.items():
            figure, dot, kind = key.partition(".")
            if value is not None:
                yield (f"{figure}.{head}{dot}{kind}" if head else key), value
