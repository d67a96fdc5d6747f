"""A mask file of a class for every pixel: class indices, or colours that stand for classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from octavo.errors import DataError
from octavo.images.decode import opened
from octavo.images.frame import Frame
from octavo.params.block import MOST_PIXELS

__all__ = ["VOID", "Mask", "framed"]

# What a pixel has that counts for nothing.
VOID = -1
RGB = tuple[int, int, int]
# One more than the largest value that is read, and than the largest class that int16 holds.
_VALUES, _CLASSES = 1 << 16, 1 << 15


@dataclass(frozen=True)
class Mask:
    """Where a mask lies and what its values mean.

    Attributes:
        path: an image of one channel (grey or palette: the index is the value), one of greys alone in several (as OpenCV and many
            tools write them; alpha says nothing), or of colours where `colours` says what they mean.
        classes: value to the model's class, `VOID` for none; values that are not there mean themselves.
        others: the class of all values that are not in `classes`; None where they mean themselves.
        colours: (red, green, blue) to the model's class; empty for masks of indices.
    """

    path: Path
    classes: Mapping[int, int]
    others: int | None
    colours: Mapping[RGB, int]

    def read(self, shape: tuple[int, int], count: int | None, void: int | None) -> np.ndarray:
        """The class of every pixel.

        Args:
            shape: (rows, columns) of the image that it belongs to.
            count: how many classes the model has, where that is known.
            void: the value that counts for nothing (`task.void`), before `classes`.

        Returns:
            int16, rows x columns; `VOID` where a pixel counts for nothing.

        Raises:
            DataError: it cannot be read, is of another size than its image, or has a value or colour that is no class.
        """
        found = self.unjudged(shape, void)
        most = _CLASSES if count is None else min(count, _CLASSES)
        outside = np.unique(found[found >= most])
        if len(outside):
            raise DataError(
                f"{self.path} holds class {', '.join(map(str, outside[:8]))}, the model has classes 0..{most - 1}",
                "map them (`class_map`; null counts for nothing), or name the value in `task.void` (of a head: in its own)",
            )
        return found.astype(np.int16)

    def unjudged(self, shape: tuple[int, int], void: int | None) -> np.ndarray:
        """As `read` for a model of any classes: int32, as values up to 65535 may stand for none of them.

        Raises:
            DataError: it cannot be read, is of another size than its image, or holds what is no value.
        """
        return self._of_colours(shape) if self.colours else self._of_values(shape, void)

    def _of_values(self, shape: tuple[int, int], void: int | None) -> np.ndarray:
        pixels = _one_channel(_whole(_pixels(self.path, shape), self.path))
        if pixels is None:
            raise DataError(
                f"{self.path} is a mask of colours, and nothing says what they mean",
                "give the set a `palette: {class: [red, green, blue], ...}`, or masks of one channel (or of greys alone)",
            )
        table = np.arange(_VALUES, dtype=np.int32) if self.others is None else np.full(_VALUES, self.others, np.int32)
        for value, kind in self.classes.items():
            if 0 <= value < _VALUES:
                table[value] = kind
        if void is not None and 0 <= void < _VALUES and void not in self.classes:
            table[void] = VOID
        return table[pixels]

    def _of_colours(self, shape: tuple[int, int]) -> np.ndarray:
        pixels = _pixels(self.path, shape, colours=True).astype(np.int32)
        codes = pixels[:, :, 0] << 16 | pixels[:, :, 1] << 8 | pixels[:, :, 2]
        known = {red << 16 | green << 8 | blue: kind for (red, green, blue), kind in self.colours.items()}
        values, places = np.unique(codes, return_inverse=True)
        strange = [value for value in values.tolist() if value not in known]
        if strange and self.others is None:
            shown = ", ".join(str([value >> 16, value >> 8 & 255, value & 255]) for value in strange[:4])
            raise DataError(
                f"{self.path} has {len(strange)} colour(s) that `palette` does not name: {shown}",
                'name them, or let `class_map: {"*": null}` count all others for nothing',
            )
        return np.array([known.get(value, self.others) for value in values.tolist()], np.int32)[places].reshape(codes.shape)


def _pixels(path: Path, shape: tuple[int, int], *, colours: bool = False) -> np.ndarray:
    """A mask's pixels, of one channel or red, green and blue.

    Its header has to say its image's size, which `data.max_pixels` has let through, before they are decoded.
    """
    with opened(path, str(path), MOST_PIXELS, "mask") as image:
        columns, rows = image.size
        if (rows, columns) != shape:
            raise DataError(
                f"{path} is {rows}x{columns} pixels, its image {shape[0]}x{shape[1]}",
                "make them one size (nearest neighbour, never smooth), or remove the pair",
            )
        return np.asarray(image.convert("RGB") if colours or len(image.getbands()) > 1 else image)


def _whole(pixels: np.ndarray, path: Path) -> np.ndarray:
    """Pixels that may index a table of `_VALUES`; those of one bit are 0 and 1."""
    if pixels.dtype == bool:
        return pixels.astype(np.uint8)
    if pixels.dtype.kind == "f":
        raise DataError(f"{path} is a mask of floating-point values", "write classes as whole numbers: 8 or 16 bits a pixel")
    if pixels.dtype.itemsize > 2 and (pixels.min(initial=0) < 0 or pixels.max(initial=0) >= _VALUES):
        raise DataError(
            f"{path} has values from {pixels.min()} to {pixels.max()}, those of a mask are 0..{_VALUES - 1}",
            "write classes as whole numbers: 8 or 16 bits a pixel",
        )
    return pixels


def _one_channel(pixels: np.ndarray) -> np.ndarray | None:
    """Rows x columns; of greys in three channels the one, None of colours."""
    if pixels.ndim == 2:
        return pixels
    return pixels[:, :, 0] if (pixels == pixels[:, :, :1]).all() else None


def framed(mask: np.ndarray, frame: Frame) -> np.ndarray:
    """A photo's mask laid out as the network's input is; `VOID` where the input shows no photo.

    Args:
        mask: int16, rows x columns of the photo.
        frame: where the photo lies in the input.

    Returns:
        int16, rows x columns of the input; nearest neighbours.
    """
    resized = cv2.resize(mask, frame.inner[::-1], interpolation=cv2.INTER_NEAREST)
    found = np.full(frame.input, VOID, np.int16)
    (top, left), (rows, columns) = frame.offset, frame.inner
    low = max(0, top), max(0, left)
    high = min(frame.input[0], top + rows), min(frame.input[1], left + columns)
    found[low[0] : high[0], low[1] : high[1]] = resized[low[0] - top : high[0] - top, low[1] - left : high[1] - left]
    return found
