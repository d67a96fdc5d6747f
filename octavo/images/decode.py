"""One way to read an image file, whatever its mode; a file that cannot be read whole is an error, never a zero tensor.

Files may come from anybody: of Pillow's readers only those of `FORMATS` see them (EPS, say, would start Ghostscript), and how many
pixels there are is read from the header before one is decoded.
"""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from octavo.errors import DataError
from octavo.params.block import MAX_PIXELS, MOST_PIXELS

__all__ = [
    "EXTENSIONS",
    "UNREADABLE",
    "decode",
    "is_turned",
    "opened",
    "read_image",
    "read_shape",
    "refuse_large",
    "unread",
    "upright",
]

EXTENSIONS = frozenset({".jpg", ".jpeg", ".jfif", ".jpe", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm"})
# Pillow's names of what files of these names may hold.
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF", "GIF", "PPM")
# What Pillow raises where a file is damaged or an image cannot be converted.
UNREADABLE = (OSError, ValueError, SyntaxError, EOFError)
# What undoes an EXIF orientation; those that exchange height and width.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_EXCHANGED = frozenset({5, 6, 7, 8})
MEND = "replace or remove the file, or set `data.on_bad_image: skip` in params.yaml (skipped images are counted and listed)"


def read_image(path: str | Path, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Read a file as uint8 RGB, height x width x 3; see `decode`.

    Raises:
        DataError: the file is missing, truncated, no image, or has more than `max_pixels` pixels.
    """
    return decode(_bytes(path), str(path), max_pixels)


def read_shape(path: str | Path) -> tuple[int, int]:
    """(rows, columns) that `read_image` gives, EXIF orientation applied; pixels are not decoded.

    Raises:
        DataError: the file is missing, no image, or absurdly large. A file cut short after its header goes unnoticed.
    """
    return _header(path)[0]


def is_turned(path: str | Path) -> bool:
    """Whether its EXIF orientation exchanges height and width.

    Raises:
        DataError: as `read_shape`.
    """
    return _header(path)[1]


def _header(path: str | Path) -> tuple[tuple[int, int], bool]:
    data = _bytes(path)
    with opened(io.BytesIO(data), str(path), MOST_PIXELS) as image:
        # Behind the pixels of a PNG Pillow finds EXIF data only by decoding them all.
        plain = image.format == "PNG" and b"eXIf" not in data
        turned = _orientation((lambda: Image.Image.getexif(image)) if plain else image.getexif) in _EXCHANGED
        columns, rows = image.size
        # Of a TIFF Pillow gives the size turned already.
        return ((columns, rows) if turned and image.format != "TIFF" else (rows, columns)), turned


def decode(data: bytes, name: str, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Decode an image file's bytes.

    The EXIF orientation is applied; grey, palette, CMYK and 16-bit images become 8-bit RGB; alpha is dropped; of an animation
    the first frame is taken.

    Args:
        data: the file's content.
        name: what to call it in an error.
        max_pixels: of the most that is decoded.

    Returns:
        uint8, height x width x 3, RGB.

    Raises:
        DataError: truncated, no image, pixels without a fixed range (floats, 32-bit integers), or more than `max_pixels`.
    """
    if not data:
        raise DataError(f"{name} is an empty file", MEND)
    with opened(io.BytesIO(data), name, max_pixels) as image:
        kind = image.format
        image = upright(image)
        if image.mode == "F" or (image.mode == "I" and kind == "TIFF"):
            pixels = "floating-point pixels" if image.mode == "F" else "pixels of 32 bits"
            raise DataError(f"{name} holds {pixels}, which have no fixed range", MEND)
        if image.mode.startswith("I"):
            # Pillow's own conversion clips at 255 instead of scaling.
            grey = (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
            return np.repeat(grey[:, :, None], 3, axis=2)
        return np.asarray(image.convert("RGB"))


def upright(image: Image.Image) -> Image.Image:
    """An image decoded, and turned as its EXIF orientation says.

    Unlike Pillow's `exif_transpose` it writes no EXIF data for the turned image, which fails where one of its entries is damaged.

    Raises:
        One of `UNREADABLE`: it is damaged.
    """
    image.load()
    turn = _TURNS.get(_orientation(image.getexif))
    return image if turn is None else image.transpose(turn)


def _orientation(exif: Callable[[], Image.Exif]) -> int:
    """By its EXIF data; 1, as it lies, where these cannot be read, as other programs show such a photo."""
    try:
        found = exif().get(ExifTags.Base.Orientation)
    except (*UNREADABLE, struct.error, TypeError):
        return 1
    return found if isinstance(found, int) else 1


@contextmanager
def opened(file: Path | io.BytesIO, name: str, max_pixels: int, what: str = "image") -> Iterator[Image.Image]:
    """An image file of which the header was read and no pixel yet; what Pillow says of it, then or later, names the file.

    Raises:
        DataError: it is no image, of more than `max_pixels` pixels, or what is done with it fails.
    """
    try:
        with warnings.catch_warnings():
            # Of half as many pixels as Pillow refuses; ours is the limit that counts.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(file, formats=FORMATS) as image:
                refuse_large(image, name, max_pixels)
                yield image
    except UnidentifiedImageError as error:  # an OSError, whose words have an address in memory
        kinds = f"none of {', '.join(FORMATS)}, or one whose pixels are of a kind that is not read (a TIFF of floats)"
        raise DataError(f"{name} is not a readable {what}: it is {kinds}", MEND) from error
    except UNREADABLE as error:
        raise DataError(f"{name} is not a readable {what}: {' '.join(str(error).split())}", MEND) from error
    except Image.DecompressionBombError as error:
        raise DataError(f"{name} is too large: {' '.join(str(error).split())}", MEND) from error


def refuse_large(image: Image.Image, name: str, max_pixels: int) -> None:
    """Refuse an image by its header.

    Raises:
        DataError: naming its size and the limit.
    """
    columns, rows = image.size
    if rows * columns > max_pixels:
        raise DataError(
            f"{name} is {rows}x{columns} pixels, more than `max_pixels` {max_pixels}",
            f"a smaller file, a higher `data.max_pixels` in params.yaml (at most {MOST_PIXELS}; `load(..., max_pixels=...)` of a "
            "deployed model), or `data.on_bad_image: skip`",
        )


def _bytes(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise unread(path, error) from error


def unread(path: str | Path, error: OSError) -> DataError:
    """What to say of an image file that cannot be opened."""
    return DataError(f"{path} cannot be read: {error.strerror or error}", MEND)
