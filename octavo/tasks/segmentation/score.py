"""The evidence of a segmentation network: mIoU where there are masks, and its class maps held against FP32's on every image."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np

from octavo.images.dataset import Classes, Item
from octavo.images.frame import Frame
from octavo.images.masks import VOID
from octavo.params.grammar import Input, Segmentation
from octavo.tasks.score import Outputs, Panel, Shown
from octavo.tasks.segmentation.confusion import confusion, ious, mean_iou
from octavo.tasks.segmentation.decode import class_count, class_map, logits_of

__all__ = ["SegmentationScore"]

# Values of the resamples' matrices at once: bounds the memory.
_CELLS = 20_000_000
# Share of the photo that shows through the colours of a panel.
_THROUGH = 0.45
# Colours of pixels whose class changed.
_LOST, _WON, _NEITHER = (220, 0, 0), (0, 150, 0), (230, 180, 0)


class SegmentationScore:
    """Class maps of one variant, image by image; see `octavo.tasks.score.Score`.

    Attributes:
        matrices: confusion matrix of every image with a mask; None for the others.
        to_reference: the same with FP32's class map in the mask's place.
        datasets: the part of the set that each image is of.
    """

    metric = "miou"
    to_fp32 = ("agreement", "mask_iou")
    agrees = "agreement"
    least = 0

    def __init__(self, task: Segmentation, spec: Input) -> None:
        self.task, self.spec = task, spec
        self.count = 0
        self.matrices: list[np.ndarray | None] = []
        self.to_reference: list[np.ndarray] = []
        self.datasets: list[str | None] = []

    @classmethod
    def classes(cls, task: Segmentation, outputs: Outputs, size: tuple[int, int]) -> Classes:  # noqa: ARG003
        """As many as there are maps."""
        return Classes(class_count(logits_of(outputs, task)), task.classes, scored=True)

    @property
    def labelled(self) -> int:
        """Images with a mask."""
        return sum(matrix is not None for matrix in self.matrices)

    def update(self, outputs: Outputs, reference: Outputs, item: Item) -> None:
        """Bring one image's classes to the photo and count them.

        Raises:
            DataError: which output holds the classes cannot be told, or the mask does not fit.
        """
        frame = Frame.of(*item.shape, self.spec)
        logits = logits_of(outputs, self.task)
        count = class_count(logits) or (len(self.task.classes) if self.task.classes else None)
        found = class_map(logits, frame)
        expected = found if outputs is reference else class_map(logits_of(reference, self.task), frame)
        mask = None if item.mask is None else item.mask.read(item.shape, count, self.task.void)
        # Maps of whole numbers do not say how many classes there are: the largest that was seen does.
        largest = max(int(values.max(initial=0)) for values in (found, expected, found if mask is None else mask))
        self.count = max(self.count, count or 0, largest + 1)
        self.matrices.append(None if mask is None else confusion(mask, found, self.count))
        self.to_reference.append(confusion(expected, found, self.count))
        self.datasets.append(item.dataset)

    def about(self) -> dict[str, str]:
        """Nothing: there is one way to read class maps."""
        return {}

    def metrics(self, reference: SegmentationScore) -> dict[str, float]:  # noqa: ARG002 - held against it image by image
        """Figures over all images.

        `miou` from one confusion matrix, `iou.<class>`, `pixel_accuracy`, and `miou.<dataset>` where the set has several;
        `agreement`: share of pixels with FP32's class; `mask_iou`: mIoU with FP32's class maps in place of masks.
        """
        found: dict[str, float] = {}
        places = [place for place, matrix in enumerate(self.matrices) if matrix is not None]
        if places:
            whole = self._sum([self.matrices[place] for place in places])
            found["miou"] = float(mean_iou(whole))
            found["pixel_accuracy"] = float(np.trace(whole) / max(whole.sum(), 1))
            names = self.task.classes or tuple(map(str, range(self.count)))
            found |= {f"iou.{names[kind]}": float(value) for kind, value in enumerate(ious(whole)) if not np.isnan(value)}
            parts = sorted({self.datasets[place] for place in places} - {None})
            for part in parts if len(parts) > 1 else ():
                mine = [self.matrices[place] for place in places if self.datasets[place] == part]
                found[f"miou.{part}"] = float(mean_iou(self._sum(mine)))
        same = self._sum(self.to_reference)
        found["agreement"] = float(np.trace(same) / max(same.sum(), 1))
        found["mask_iou"] = float(mean_iou(same))
        return found

    def resampled(self, counts: np.ndarray) -> np.ndarray:
        """`miou` of resamples of the images with masks."""
        matrices = np.stack([self._grown(matrix) for matrix in self.matrices if matrix is not None]).reshape(counts.shape[1], -1)
        rows = max(1, _CELLS // matrices.shape[1])
        parts = [
            mean_iou((counts[start : start + rows].astype(np.float64) @ matrices).reshape(-1, self.count, self.count))
            for start in range(0, len(counts), rows)
        ]
        return np.concatenate(parts)

    def row(self, place: int) -> dict[str, Any]:
        """`miou` of one image, by the classes that it shows."""
        matrix = self.matrices[place]
        return {"miou": "" if matrix is None else round(float(mean_iou(matrix)), 6)}

    def likeness(self, reference: SegmentationScore, place: int) -> float:  # noqa: ARG002
        """Share of one image's pixels with FP32's class."""
        matrix = self.to_reference[place]
        return float(np.trace(matrix) / max(matrix.sum(), 1))

    def first_panels(self, shown: Shown, outputs: Outputs) -> list[Panel]:  # noqa: ARG002
        """The photo, and the mask in colours."""
        mask = self._mask(shown)
        return [("photo", shown.photo), *([] if mask is None else [("ground truth", _coloured(shown.photo, mask))])]

    def panels(self, shown: Shown, outputs: Outputs, reference: Outputs) -> list[Panel]:
        """The class map in colours; of a variant also where it differs from FP32, and which of the two the mask bears out."""
        frame = Frame.of(*shown.item.shape, self.spec)
        mine, theirs = (class_map(logits_of(one, self.task), frame) for one in (outputs, reference))
        found = [("its classes", _coloured(shown.photo, mine))]
        return found if outputs is reference else [*found, _difference(shown.photo, mine, theirs, self._mask(shown))]

    def _mask(self, shown: Shown) -> np.ndarray | None:
        mask = shown.item.mask
        return None if mask is None else mask.read(shown.item.shape, None, self.task.void)

    def _grown(self, matrix: np.ndarray) -> np.ndarray:
        short = self.count - len(matrix)
        return np.pad(matrix, ((0, short), (0, short)))

    def _sum(self, matrices: list[np.ndarray]) -> np.ndarray:
        return sum((self._grown(matrix) for matrix in matrices), np.zeros((self.count, self.count), np.int64))


def _difference(photo: np.ndarray, mine: np.ndarray, theirs: np.ndarray, mask: np.ndarray | None) -> Panel:
    """Where two class maps differ: red where the mask says that the second was right, green where the first is, else yellow."""
    apart = mine != theirs
    kinds = apart.astype(np.int16)
    words = f"{apart.mean():.2%} not as FP32"
    if mask is not None:
        lost, won = apart & (theirs == mask), apart & (mine == mask)
        kinds = kinds + lost + 2 * won
        words += f": {lost.mean():.2%} lost (red), {won.mean():.2%} won (green)"
    drawn = (photo * _THROUGH + 255 * (1 - _THROUGH)).astype(np.uint8)
    colours = {1: _NEITHER, 2: _LOST, 3: _WON} if mask is not None else {1: _LOST}
    shown = _large(kinds, photo)
    for kind, colour in colours.items():
        drawn[shown == kind] = colour
    return words, drawn


def _large(values: np.ndarray, photo: np.ndarray) -> np.ndarray:
    return cv2.resize(values, photo.shape[1::-1], interpolation=cv2.INTER_NEAREST)


def _coloured(photo: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The photo under a colour for each class; void stays grey."""
    values = _large(values, photo)
    # Hues a golden angle apart, as far from each other as any number of them can be.
    hues = (np.arange(max(1, int(values.max(initial=0)) + 1)) * 137.508 % 180).astype(np.uint8)
    colours = cv2.cvtColor(np.stack([hues, np.full_like(hues, 200), np.full_like(hues, 230)], 1)[None], cv2.COLOR_HSV2RGB)[0]
    shown = np.where((values == VOID)[:, :, None], np.uint8(128), colours[np.maximum(values, 0)])
    return (photo * _THROUGH + shown * (1 - _THROUGH)).astype(np.uint8)
