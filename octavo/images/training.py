"""Training images in seeded batches: the same epoch and step give the same pixels, whatever came before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from octavo.errors import DataError
from octavo.images.dataset import Item
from octavo.images.frame import Frame
from octavo.images.masks import VOID, Mask, framed
from octavo.images.preprocess import preprocess
from octavo.params.grammar import Input

__all__ = ["Batch", "Batches", "MaskOf"]


@dataclass(frozen=True)
class Batch:
    """Some images.

    Attributes:
        images: as `preprocess` gives them, along axis 0.
        labels: by head (`MaskOf`), "" of a task with one: int64, the class of each image, [N], or of each pixel of the input,
            [N, rows, columns]; `VOID` where there is none. Empty where no image of the set has any.
    """

    images: np.ndarray
    labels: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class MaskOf:
    """What a head's masks may hold: how many classes there are, where that is known, and the value that counts for nothing."""

    classes: int | None = None
    void: int | None = None


@dataclass
class Batches:
    """The batches of a set.

    Args:
        items: the images, with their labels.
        spec: the model's `input:` block.
        size: images in a batch; a set of fewer images gives batches of all of them.
        seed: of the order and the mirroring.
        flip: mirror half of the images, left and right.
        heads: of segmentation, by name; "" of one that has no name.
        skip: take another image in place of one that cannot be read; they are listed in `skipped`.
    """

    items: Sequence[Item]
    spec: Input
    size: int
    seed: int = 0
    flip: bool = True
    heads: Mapping[str, MaskOf] = field(default_factory=dict)
    skip: bool = False
    skipped: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # All inputs of a batch have one shape.
        self.spec = self.spec.model_copy(update={"resize": self.spec.resize.model_copy(update={"stride": None})})
        self.size = min(self.size, len(self.items))
        self.masked = [head for head in self.heads if any(_mask(item, head) is not None for item in self.items)]
        self.classed = not self.masked and any(item.label is not None for item in self.items)

    @property
    def labelled(self) -> bool:
        """Whether any image has a class or a mask."""
        return bool(self.masked) or self.classed

    @property
    def steps(self) -> int:
        """Batches in an epoch; what is left over waits for another order."""
        return len(self.items) // self.size

    def epoch(self, number: int, first: int = 0, part: int = 0, parts: int = 1) -> Iterator[Batch]:
        """The batches of one epoch, each read while the one before is worked on.

        Args:
            number: of the epoch; it draws the order.
            first: batches to leave out at its beginning.
            part, parts: only every `parts`-th image of a batch, from this one on: what one of several processes trains on.

        Raises:
            DataError: an image or mask cannot be used.
        """
        generator = np.random.default_rng([self.seed, number])
        order, mirrored = generator.permutation(len(self.items)), generator.random(len(self.items)) < 0.5
        places = [order[step * self.size : (step + 1) * self.size][part::parts] for step in range(first, self.steps)]
        with ThreadPoolExecutor(1) as reader:
            waiting = None
            for chosen in places:
                coming = reader.submit(self._read, chosen, mirrored[chosen] & self.flip)
                if waiting is not None:
                    yield waiting.result()
                waiting = coming
            if waiting is not None:
                yield waiting.result()

    def straight(self, size: int) -> Iterator[tuple[Sequence[Item], Batch]]:
        """All images in their order, none mirrored, in batches of at most `size`."""
        for start in range(0, len(self.items), size):
            places = np.arange(start, min(start + size, len(self.items)))
            yield [self.items[place] for place in places], self._read(places, np.zeros(len(places), bool))

    def _read(self, places: np.ndarray, mirrored: np.ndarray) -> Batch:
        images, labels = [], []
        for place, mirror in zip(places, mirrored, strict=True):
            item, pixels = self._readable(int(place))
            image, found = preprocess(pixels, self.spec, item.points), self._labels(item, pixels.shape[:2])
            if mirror:
                image = image[..., ::-1] if self.spec.layout == "nchw" else image[:, :, ::-1]
                found = {head: value[..., ::-1] if value.ndim else value for head, value in found.items()}
            images.append(image)
            labels.append(found)
        joined = {head: np.stack([found[head] for found in labels]).astype(np.int64) for head in labels[0]}
        return Batch(np.ascontiguousarray(np.concatenate(images)), joined)

    def _readable(self, place: int) -> tuple[Item, np.ndarray]:
        """An image; with `skip` the next one that can be read, where it cannot."""
        for after in range(len(self.items)):
            item = self.items[(place + after) % len(self.items)]
            try:
                return item, item.read()
            except DataError as error:
                if not self.skip:
                    raise
                line = item.told(error)
                if line not in self.skipped:
                    self.skipped.append(line)
        raise DataError(f"none of {len(self.items)} training images is readable", "check the folder's files")

    def _labels(self, item: Item, shape: tuple[int, int]) -> dict[str, np.ndarray]:
        if self.classed:
            return {"": np.array(VOID if item.label is None else item.label)}
        frame, found = Frame.of(*shape, self.spec), {}
        for head in self.masked:
            mask, of = _mask(item, head), self.heads[head]
            found[head] = np.full(frame.input, VOID) if mask is None else framed(mask.read(shape, of.classes, of.void), frame)
        return found


def _mask(item: Item, head: str) -> Mask | None:
    return item.masks.get(head) if head else item.mask
