"""One head of a segmentation network: its class maps, image by image, held against its masks and against FP32's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.images.dataset import Classes, Item
from octavo.images.frame import Frame
from octavo.params.grammar import Head, Input
from octavo.tasks.outputs import Outputs
from octavo.tasks.score import Panel, Shown
from octavo.tasks.segmentation.confusion import confusion, ious, mean_iou
from octavo.tasks.segmentation.decode import class_count, classes_of_pixels, logits_of
from octavo.tasks.segmentation.picture import coloured, difference

__all__ = ["HeadScore"]

# Values of the resamples' matrices at once: bounds the memory.
_CELLS = 20_000_000


class HeadScore:
    """Class maps of one head of one variant.

    Attributes:
        name: the head's; "" for the only one of the short form.
        single: whether it is one map of scores, held against a threshold.
        matrices: confusion matrix of every image with a mask of this head; None for the others.
        to_reference: the same with FP32's class map in the mask's place, of every image.
    """

    def __init__(self, name: str, head: Head, spec: Input) -> None:
        self.name, self.head, self.spec = name, head, spec
        self.count = 0
        self.single = False
        self.matrices: list[np.ndarray | None] = []
        self.to_reference: list[np.ndarray] = []

    @classmethod
    def classes(cls, head: Head, outputs: Outputs, size: tuple[int, int]) -> Classes:
        """As many as there are maps."""
        return Classes(class_count(logits_of(outputs, head, size)), head.classes, scored=True)

    def update(self, outputs: Outputs, reference: Outputs, item: Item) -> None:
        """Bring one image's classes to the photo and count them.

        Raises:
            DataError: which output holds the classes cannot be told, or the mask does not fit.
        """
        frame = Frame.of(*item.shape, self.spec)
        logits = logits_of(outputs, self.head, frame.input)
        count = class_count(logits) or (len(self.head.classes) if self.head.classes else None)
        found = classes_of_pixels(outputs, self.head, frame)
        expected = found if outputs is reference else classes_of_pixels(reference, self.head, frame)
        mask = self._mask(item, count)
        # Maps of whole numbers do not say how many classes there are: the largest that was seen does.
        largest = max(int(values.max(initial=0)) for values in (found, expected, found if mask is None else mask))
        self.count = max(self.count, count or 0, largest + 1)
        self.single = len(logits) == 1 and logits.ndim > 2
        self.matrices.append(None if mask is None else confusion(mask, found, self.count))
        self.to_reference.append(confusion(expected, found, self.count))

    def accuracy(self, places: Sequence[int]) -> dict[str, float]:
        """`miou`, `pixel_accuracy` and `iou.<class>` over some images, from one confusion matrix; empty where no pixel counts."""
        whole = self._sum([self.matrices[place] for place in places])
        if not whole.any():
            return {}
        names = self._names()
        found = {"miou": float(mean_iou(whole)), "pixel_accuracy": float(np.trace(whole) / whole.sum())}
        return found | {f"iou.{names[kind]}": float(value) for kind, value in enumerate(ious(whole)) if not np.isnan(value)}

    def agreement(self, place: int | None = None) -> float:
        """Share of the pixels with FP32's class, of one image or of all."""
        same = self._same() if place is None else self.to_reference[place]
        return float(np.trace(same) / max(same.sum(), 1))

    def mask_iou(self) -> float:
        """The mIoU over all images with FP32's class maps in place of masks."""
        return float(mean_iou(self._same()))

    def warning(self) -> str | None:
        """What a reader must know where all pixels of all images are of one class for FP32; None where they are not."""
        seen = np.flatnonzero(self._same().sum(axis=1))
        if len(seen) != 1:
            return None
        said = f"FP32 calls every pixel of all images {self._names()[seen[0]]!r}: no figure tells variants apart"
        if self.single:
            where = "everywhere" if seen[0] else "nowhere"
            said += f"; its map is {where} above {self.head.threshold or 0.0:g}: check `task.threshold` and `input`"
        return self._titled(said)

    def resampled(self, counts: np.ndarray, places: Sequence[int]) -> np.ndarray:
        """The mIoU of resamples of some images, NaN of a resample in which no pixel counts.

        Args:
            counts: int, resamples x images: how often each is drawn.
            places: of these images.
        """
        matrices = np.stack([self._grown(self.matrices[place]) for place in places]).reshape(len(places), -1)
        rows = max(1, _CELLS // matrices.shape[1])
        parts = [
            (counts[start : start + rows].astype(np.float64) @ matrices).reshape(-1, self.count, self.count)
            for start in range(0, len(counts), rows)
        ]
        return np.concatenate([np.where(part.any(axis=(1, 2)), mean_iou(part), np.nan) for part in parts])

    def miou(self, place: int) -> float | None:
        """The mIoU of one image by the classes that it shows; None without a mask."""
        matrix = self.matrices[place]
        return None if matrix is None else float(mean_iou(matrix))

    def first_panels(self, shown: Shown, outputs: Outputs) -> list[Panel]:  # noqa: ARG002 - one signature for all tasks
        """The photo, and the mask in colours."""
        mask = self._mask(shown.item, None)
        truth = [] if mask is None else [(self._titled("ground truth"), coloured(shown.photo, mask))]
        return [("photo", shown.photo), *truth]

    def panels(self, shown: Shown, outputs: Outputs, reference: Outputs) -> list[Panel]:
        """The class map in colours; of a variant also where it differs from FP32, and which of the two the mask bears out."""
        frame = Frame.of(*shown.item.shape, self.spec)
        mine, theirs = (classes_of_pixels(one, self.head, frame) for one in (outputs, reference))
        found = [(self._titled("its classes"), coloured(shown.photo, mine))]
        if outputs is not reference:
            words, drawn = difference(shown.photo, mine, theirs, self._mask(shown.item, None))
            found.append((self._titled(words), drawn))
        return found

    def _names(self) -> list[str]:
        known = self.head.classes or ()
        return [*known, *map(str, range(len(known), self.count))]

    def _titled(self, words: str) -> str:
        return f"{self.name}: {words}" if self.name else words

    def _mask(self, item: Item, count: int | None) -> np.ndarray | None:
        mask = item.masks.get(self.name) if self.name else item.mask
        return None if mask is None else mask.read(item.shape, count, self.head.void)

    def _same(self) -> np.ndarray:
        return self._sum(self.to_reference)

    def _grown(self, matrix: np.ndarray | None) -> np.ndarray:
        if matrix is None:
            return np.zeros((self.count, self.count), np.int64)
        return np.pad(matrix, (0, self.count - len(matrix)))

    def _sum(self, matrices: Sequence[np.ndarray | None]) -> np.ndarray:
        return sum(map(self._grown, matrices), self._grown(None))
