"""What the evidence asks of a task: scores of one variant, image by image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from octavo.images.dataset import Classes, Item
from octavo.params.grammar import Input
from octavo.tasks.outputs import Outputs

__all__ = ["Needs", "Panel", "Score", "Shown", "View"]

# Words, and a picture of the size of `Shown.photo`: uint8, rows x columns x 3, RGB.
Panel = tuple[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Shown:
    """An image to draw on.

    Attributes:
        item: with its shape and its labels.
        photo: uint8, rows x columns x 3, RGB; the image resized by `scale`, not to be drawn on itself.
        scale: pixels of `photo` per pixel of the image.
    """

    item: Item
    photo: np.ndarray
    scale: float


class View(Protocol):
    """What draws a row of a combined picture."""

    def first_panels(self, shown: Shown, outputs: Outputs) -> list[Panel]:
        """What is there on one image, before any variant's panels, with regard to what a variant found."""

    def panels(self, shown: Shown, outputs: Outputs, reference: Outputs) -> list[Panel]:
        """What a variant says of one image, held against the labels, or FP32's answer where there are none."""


class Needs(NamedTuple):
    """What figures of agreement are about.

    Attributes:
        key: of `metrics`, how many there are.
        of: what is counted, in words.
        least: how many it takes to say much.
        about: the figures, in words.
    """

    key: str
    of: str
    least: int
    about: str


class Score(Protocol):
    """Running scores of one variant of a model.

    Attributes:
        metric: the key of `metrics` that must be kept.
        to_fp32: the keys of `metrics`, or what they begin with before a dot, that compare with FP32 and say nothing of FP32 itself.
        agrees: the one of them that tells whether two models answer alike, from 0 to 1.
        drop: the key under which FP32's metric minus the variant's is recorded, with its interval; None where `retained` is enough.
        doubted: FP32's metric below which its outputs are likely misread, and what is in doubt then, in words, for the record's
            warning; None where so low a metric may be right.
        needs: what of FP32's `agrees` is about, for the record's warning where that is little; None where images tell.
        by_size: the keys of `metrics` that tell objects apart by their size, which further resolutions are chosen by.
        least: labelled images below which the metric is worth little; the record has a warning then.
        labelled: images so far that count for the metric.
        units: how many things a resample draws from: the labelled images, or what makes draws independent (identities, of faces).
        views: what draws a row of the combined picture each: the score itself, or its heads.
    """

    metric: ClassVar[str]
    to_fp32: ClassVar[tuple[str, ...]]
    agrees: ClassVar[str]
    drop: ClassVar[str | None]
    doubted: ClassVar[tuple[float, str] | None]
    needs: ClassVar[Needs | None]
    by_size: ClassVar[tuple[str, ...]]
    least: ClassVar[int]
    labelled: int
    units: int
    views: Sequence[View]

    def __init__(self, task: Any, spec: Input) -> None: ...

    @classmethod
    def classes(cls, task: Any, outputs: Outputs, size: tuple[int, int]) -> Classes:
        """What FP32's outputs on some input of (rows, columns) say of the model's classes; the input need not be an image."""

    def update(self, outputs: Outputs, reference: Outputs, item: Item) -> None:
        """Add one image: the variant's outputs, FP32's on the same image (for FP32 itself, the same), and the image."""

    def about(self) -> dict[str, Any]:
        """How the outputs were read and what was compared, in words or numbers, for the record.

        `warning` is what makes figures worth little.
        """

    def metrics(self, reference: Score) -> dict[str, float]:
        """All figures over the images so far; without labels, those of `to_fp32` alone."""

    def resampled(self, counts: np.ndarray) -> np.ndarray:
        """`metric` over resamples of the units.

        Args:
            counts: int, resamples x units: how often each is drawn.

        Returns:
            float64, one value a resample; NaN where the metric has no meaning on what was drawn.
        """

    def row(self, place: int) -> dict[str, Any]:
        """What images.csv shows of one image."""

    def likeness(self, reference: Score, place: int) -> float:
        """How alike this variant and FP32 answer on one image, 1 for alike; pictures show the least alike first.

        Infinite where neither says anything that could be shown.
        """
