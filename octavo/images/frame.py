"""Where preprocessing puts a photo inside the network's input, and the way back for boxes and masks.

`preprocess` lays every image out by this, so that what a network finds is mapped back by the very numbers that it was fed with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.errors import DataError
from octavo.params.grammar import Input

__all__ = ["Frame"]


@dataclass(frozen=True)
class Frame:
    """input = photo * scale + offset, in pixel edges: (0, 0) is the top left corner of the first pixel, (x, y) in this order.

    Attributes:
        photo: (rows, columns) of the image file.
        inner: (rows, columns) that it is resized to.
        offset: (top, left) of the resized image inside the input; negative where a crop cuts it.
        input: (rows, columns) of the network's input for this photo; smaller than `input.size` where `resize.stride` is set.
    """

    photo: tuple[int, int]
    inner: tuple[int, int]
    offset: tuple[int, int]
    input: tuple[int, int]

    @classmethod
    def of(cls, rows: int, columns: int, spec: Input) -> Frame:
        """For a photo of rows x columns pixels.

        Raises:
            DataError: the photo is smaller than the crop and nothing in the spec resizes it, or it is turned as well as resized.
        """
        height, width = spec.size
        rule, inner, offset = spec.resize, (rows, columns), (0, 0)
        if rule.rule == "similarity":
            raise DataError(
                "a similarity warp turns photos: there is no frame that maps boxes or masks back",
                "use `input.resize: {rule: letterbox}` where positions matter",
            )
        if rule.rule == "stretch":
            inner = height, width
        elif rule.rule == "shorter":
            # torchvision.transforms.Resize(int): the longer side is truncated, not rounded.
            short = rule.to or min(height, width)
            inner = (short, int(short * columns / rows)) if rows <= columns else (int(short * rows / columns), short)
        elif rule.rule == "letterbox":
            factor = min(height / rows, width / columns)
            inner = max(1, round(rows * factor)), max(1, round(columns * factor))
            if rule.stride is not None:
                height, width = (-(-side // rule.stride) * rule.stride for side in inner)
            if rule.align == "centre":
                offset = (height - inner[0]) // 2, (width - inner[1]) // 2
        if spec.crop == "center":
            if inner[0] < height or inner[1] < width:
                raise DataError(
                    f"an image of {inner[0]}x{inner[1]} pixels is smaller than the crop of {height}x{width}",
                    "use `input.resize: {rule: shorter, to: ...}`, `stretch` or `letterbox`",
                )
            # torchvision.transforms.CenterCrop rounds half to even.
            offset = -round((inner[0] - height) / 2.0), -round((inner[1] - width) / 2.0)
        return cls((rows, columns), inner, offset, (height, width))

    @property
    def scale(self) -> tuple[float, float]:
        """Input pixels per photo pixel, (x, y); they differ by the rounding of the resized sides."""
        return self.inner[1] / self.photo[1], self.inner[0] / self.photo[0]

    def forth(self, xyxy: np.ndarray) -> np.ndarray:
        """Boxes (n x 4, corners) from photo pixels to input pixels."""
        return xyxy * np.tile(self.scale, 2) + np.tile(self.offset[::-1], 2)

    def back(self, xyxy: np.ndarray) -> np.ndarray:
        """Boxes (n x 4, corners) from input pixels to photo pixels, clipped to the photo."""
        moved = (xyxy - np.tile(self.offset[::-1], 2)) / np.tile(self.scale, 2)
        return np.clip(moved, 0, np.tile(self.photo[::-1], 2))
