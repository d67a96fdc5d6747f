"""Training images in seeded batches: the same epoch and step give the same pixels, whatever came before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from octavo.errors import DataError
from octavo.images.dataset import Item
from octavo.images.decode import read_image
from octavo.images.frame import Frame
from octavo.images.masks import VOID, framed
from octavo.images.preprocess import preprocess
from octavo.params.grammar import Input

__all__ = ["Batch", "Batches"]


@dataclass(frozen=True)
class Batch:
    """Some images.

    Attributes:
        images: as `preprocess` gives them, along axis 0.
        labels: int64; the class of each image, [N], or of each pixel of the input, [N, rows, columns]; `VOID` where there is none.
            None where no image of the set has any.
    """

    images: np.ndarray
    labels: np.ndarray | None


@dataclass
class Batches:
    """The batches of a set.

    Args:
        items: the images, with their labels.
        spec: the model's `input:` block.
        size: images in a batch; a set of fewer images gives batches of all of them.
        seed: of the order and the mirroring.
        flip: mirror half of the images, left and right.
        classes: how many the model has, where that is known; masks are held against it.
        void: the masks' value that counts for nothing.
        skip: take another image in place of one that cannot be read; they are listed in `skipped`.
    """

    items: Sequence[Item]
    spec: Input
    size: int
    seed: int = 0
    flip: bool = True
    classes: int | None = None
    void: int | None = None
    skip: bool = False
    skipped: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # All inputs of a batch have one shape.
        self.spec = self.spec.model_copy(update={"resize": self.spec.resize.model_copy(update={"stride": None})})
        self.size = min(self.size, len(self.items))
        self.masks = any(item.mask is not None for item in self.items)
        self.named = any(item.label is not None for item in self.items)

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
        images, labels, spare = [], [], 0
        for place, mirror in zip(places, mirrored, strict=True):
            while True:
                item = self.items[place]
                try:
                    pixels = read_image(item.path)
                    break
                except DataError as error:
                    if not self.skip or spare >= len(self.items):
                        raise
                    line = f"{item.name}: {error.problem}"
                    if line not in self.skipped:
                        self.skipped.append(line)
                    place, spare = (place + 1) % len(self.items), spare + 1
            label = self._label(item, pixels.shape[:2])
            image = preprocess(pixels, self.spec)
            if mirror:
                image = image[..., ::-1] if self.spec.layout == "nchw" else image[:, :, ::-1]
                label = label[..., ::-1] if self.masks else label
            images.append(image)
            labels.append(label)
        found = np.stack(labels).astype(np.int64) if self.masks or self.named else None
        return Batch(np.ascontiguousarray(np.concatenate(images)), found)

    def _label(self, item: Item, shape: tuple[int, int]) -> np.ndarray:
        if not self.masks:
            return np.array(VOID if item.label is None else item.label)
        frame = Frame.of(*shape, self.spec)
        if item.mask is None:
            return np.full(frame.input, VOID)
        return framed(item.mask.read(shape, self.classes, self.void), frame)
