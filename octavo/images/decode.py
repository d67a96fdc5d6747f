"""One way to read an image file, whatever its mode; a file that cannot be read whole is an error, never a zero tensor."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from octavo.errors import DataError

__all__ = ["EXTENSIONS", "decode", "read_image", "read_shape"]

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm"})
# EXIF orientations that exchange height and width.
_TURNED = frozenset({5, 6, 7, 8})
MEND = "replace or remove the file, or set `data.on_bad_image: skip` in params.yaml (skipped images are counted and listed)"


def read_image(path: str | Path) -> np.ndarray:
    """Read a file as uint8 RGB, height x width x 3; see `decode`.

    Raises:
        DataError: the file is missing, truncated, no image, or absurdly large.
    """
    return decode(_bytes(path), str(path))


def read_shape(path: str | Path) -> tuple[int, int]:
    """(rows, columns) that `read_image` gives, EXIF orientation applied; pixels are not decoded.

    Raises:
        DataError: the file is missing, no image, or absurdly large. A file cut short after its header goes unnoticed.
    """
    data = _bytes(path)
    with _readable(str(path)), Image.open(io.BytesIO(data)) as image:
        # Behind the pixels of a PNG Pillow finds EXIF data only by decoding them all.
        exif = Image.Image.getexif(image) if image.format == "PNG" and b"eXIf" not in data else image.getexif()
        columns, rows = image.size
        return (columns, rows) if exif.get(ExifTags.Base.Orientation) in _TURNED else (rows, columns)


def decode(data: bytes, name: str) -> np.ndarray:
    """Decode an image file's bytes.

    The EXIF orientation is applied; grey, palette, CMYK and 16-bit images become 8-bit RGB; alpha is dropped; of an animation
    the first frame is taken.

    Args:
        data: the file's content.
        name: what to call it in an error.

    Returns:
        uint8, height x width x 3, RGB.

    Raises:
        DataError: truncated, no image, floating-point pixels, or more pixels than Pillow's decompression-bomb limit.
    """
    if not data:
        raise DataError(f"{name} is an empty file", MEND)
    with _readable(name), Image.open(io.BytesIO(data)) as image:
        image.load()
        image = ImageOps.exif_transpose(image)
        if image.mode.startswith("I"):
            # Pillow's own conversion clips at 255 instead of scaling.
            grey = (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
            return np.repeat(grey[:, :, None], 3, axis=2)
        if image.mode == "F":
            raise DataError(f"{name} holds floating-point pixels, which have no fixed range", MEND)
        return np.asarray(image.convert("RGB"))


def _bytes(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}", MEND) from error


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """What Pillow says of a file that is no image, as an error that names it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, EOFError) as error:
        raise DataError(f"{name} is not a readable image: {' '.join(str(error).split())}", MEND) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(f"{name} is too large: {' '.join(str(error).split())}", MEND) from error
