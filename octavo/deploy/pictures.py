"""What callers give as an image."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike

import numpy as np
from PIL import Image

from octavo.errors import DataError
from octavo.images.decode import UNREADABLE, decode, read_image, refuse_large, upright
from octavo.params.block import MAX_PIXELS

__all__ = ["Picture", "listed", "pixels_of"]

# What an image may be given as: a file, its bytes, a Pillow image, or uint8 rows x columns x 3, RGB.
Picture = str | PathLike | bytes | Image.Image | np.ndarray


def listed(images: Iterable[Picture]) -> list[Picture]:
    """Images as a list.

    Raises:
        DataError: it is one image.
    """
    if isinstance(images, (str, bytes, PathLike, Image.Image)) or (isinstance(images, np.ndarray) and images.ndim == 3):
        raise DataError("predict takes a list of images, this is one", "write `predict([image])`")
    return list(images)


def pixels_of(image: Picture, called: str, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """A picture as uint8, rows x columns x 3, RGB, turned as its EXIF orientation says.

    Args:
        image: in any form.
        called: what errors call it.
        max_pixels: of what is decoded here; arrays are taken as they are.

    Raises:
        DataError: it is none, cannot be read, or is larger.
    """
    if isinstance(image, bytes):
        return decode(image, called, max_pixels)
    if isinstance(image, (str, PathLike)):
        return read_image(image, max_pixels)
    if isinstance(image, Image.Image) and image.mode[:1] not in ("I", "F") and all(image.size):
        refuse_large(image, called, max_pixels)
        try:
            # An image that the caller opened is decoded here.
            return np.asarray(upright(image).convert("RGB"))
        except UNREADABLE as error:
            raise DataError(
                f"{called} is not a readable image: {' '.join(str(error).split())}", "give one that Pillow can load"
            ) from error
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3 and image.size:
        return image
    told = f"{image.dtype} of shape {list(image.shape)}" if isinstance(image, np.ndarray) else type(image).__name__
    if isinstance(image, Image.Image):
        # Pillow would clip 16 bits at 255, where a file's are scaled.
        told = f"a Pillow image of mode {image.mode}, {image.height}x{image.width}"
    raise DataError(f"{called} is {told}", "give a file, its bytes, a Pillow image, or uint8 rows x columns x 3 in RGB")
