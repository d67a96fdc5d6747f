"""From a network's class maps to a class for every pixel of the photo."""

from __future__ import annotations

import cv2
import numpy as np

from octavo.errors import DataError
from octavo.images.frame import Frame
from octavo.images.masks import VOID
from octavo.params.grammar import Head
from octavo.tasks.outputs import Outputs

__all__ = ["class_count", "class_map", "classes_of_pixels", "layout_of", "logits_of", "maps_of"]

# By how much rows and columns of a map may be scaled apart, as a factor: convolutions without padding take as much of both.
_ALIKE = 1.5


def classes_of_pixels(outputs: Outputs, head: Head, frame: Frame) -> np.ndarray:
    """The class of every pixel of the photo, as `class_map`, from one image's outputs.

    Raises:
        DataError: as `logits_of`.
    """
    return class_map(logits_of(outputs, head, frame.input), frame, head.threshold or 0.0)


def logits_of(outputs: Outputs, head: Head, size: tuple[int, int]) -> np.ndarray:
    """The output with the classes of one head, in one layout.

    Args:
        outputs: one image's: scores, 1 x classes x rows x columns or 1 x rows x columns x classes, of one class against the rest
            where there is one; or whole numbers, the classes themselves, 1 x rows x columns, with a dimension of 1 more or without.
        head: says which output, where there are several, and the layout where that cannot be told.
        size: (rows, columns) of the input.

    Returns:
        float, classes x rows x columns; or whole numbers, rows x columns.

    Raises:
        DataError: no such output, several and none named, its shape is none of these, or fits two layouts.
    """
    return maps_of(outputs, head, size)[0]


def maps_of(outputs: Outputs, head: Head, size: tuple[int, int]) -> tuple[np.ndarray, str | None]:
    """As `logits_of`, and the layout that the output has (`Head.layout`); None of whole numbers."""
    name = head.output or next(iter(outputs))
    if name not in outputs or (head.output is None and len(outputs) > 1):
        raise DataError(
            f"which output holds the class maps? the graph has {', '.join(outputs)}"
            + (f", and no {head.output!r}" if head.output else ""),
            "name it: `task: {name: segmentation, output: ...}`; several at once: `heads: {road: {output: ...}, ...}`",
        )
    value = outputs[name]
    if value.shape[:1] == (1,) and value.dtype.kind in "biu":
        if value.ndim == 4 and 1 in (value.shape[1], value.shape[3]):
            value = value.squeeze(1 if value.shape[1] == 1 else 3)
        if value.ndim == 3:
            return value[0].astype(np.uint8) if value.dtype.kind == "b" else value[0], None
    if value.shape[:1] != (1,) or value.ndim != 4 or value.dtype.kind != "f":
        raise DataError(
            f"output {name!r} of shape {list(value.shape)} ({value.dtype}) holds no class maps of one image",
            "it must be 1 x classes x rows x columns scores, or 1 x rows x columns x classes, or 1 x rows x columns whole numbers; "
            "check `task.output`",
        )
    layout = head.layout or layout_of(value.shape[1:], size)
    if layout is None:
        raise DataError(
            f"output {name!r} of shape {list(value.shape)} may be 1 x classes x rows x columns or 1 x rows x columns x classes for "
            f"an input of {size[0]}x{size[1]} pixels",
            "say which in `task` (of one of several heads: in its own block): `layout: nchw` or `layout: nhwc`",
        )
    return value[0] if layout == "nchw" else np.ascontiguousarray(value[0].transpose(2, 0, 1)), layout


def layout_of(shape: tuple[int, ...], size: tuple[int, int]) -> str | None:
    """`nchw` or `nhwc`, by which of them has rows and columns that are a fraction of the input's; None where both do, or neither.

    Args:
        shape: of a map of scores, without the batch dimension.
        size: (rows, columns) of the input.
    """
    first, last = _misfit(shape[1], shape[2], size), _misfit(shape[0], shape[1], size)
    if first == last:
        return None
    return "nchw" if first < last else "nhwc"


def _misfit(rows: int, columns: int, size: tuple[int, int]) -> int:
    """How badly they are an input's rows and columns at another scale: 0 halved, doubled, 1 but for rounding, 2 perhaps, 3 not."""
    height, width = size
    if 0 in (rows, columns):
        return 3
    stride = max(height, rows) // min(height, rows)
    if rows * width == columns * height and max(height, rows) == min(height, rows) * stride and stride.bit_count() == 1:
        return 0
    if abs(rows * width / height - columns) < 1 + width / height:
        return 1
    ratio = rows * width / (columns * height)
    return 2 if max(ratio, 1 / ratio) <= _ALIKE else 3


def class_count(logits: np.ndarray) -> int | None:
    """Classes that the output tells apart; None for maps of whole numbers, which do not say."""
    return None if logits.ndim == 2 else max(2, logits.shape[0])


def class_map(logits: np.ndarray, frame: Frame, threshold: float = 0.0) -> np.ndarray:
    """The class of every pixel of the photo.

    Scores are brought to the photo's size before the best is taken, as evaluations of segmentation do.

    Args:
        logits: as `logits_of` gives it, of the input's size or a fraction of it.
        frame: where the photo lay in the input.
        threshold: of one map of scores: above it is class 1.

    Returns:
        int16, rows x columns of the photo; `VOID` where a crop cut the photo off.
    """
    maps = logits[:, :, None] if logits.ndim == 2 else logits.transpose(1, 2, 0)
    how = cv2.INTER_NEAREST if logits.ndim == 2 else cv2.INTER_LINEAR
    (top, left), (rows, columns) = frame.offset, frame.inner
    # What of the resized photo lies in the input.
    low = max(0, -top), max(0, -left)
    high = min(rows, frame.input[0] - top), min(columns, frame.input[1] - left)
    maps = _resized(np.ascontiguousarray(maps), frame.input, how)[low[0] + top : high[0] + top, low[1] + left : high[1] + left]
    if (*low, *high) != (0, 0, rows, columns):
        whole = np.full((rows, columns), VOID, np.int16)
        whole[low[0] : high[0], low[1] : high[1]] = _best(maps, threshold)
        return _resized(whole, frame.photo, cv2.INTER_NEAREST)
    return _best(_resized(np.ascontiguousarray(maps), frame.photo, how), threshold)


def _best(maps: np.ndarray, threshold: float) -> np.ndarray:
    if maps.ndim == 2:
        maps = maps[:, :, None]
    if np.issubdtype(maps.dtype, np.integer):
        return maps[:, :, 0].astype(np.int16)
    if maps.shape[2] == 1:
        return (maps[:, :, 0] > threshold).astype(np.int16)
    return maps.argmax(axis=2).astype(np.int16)


def _resized(maps: np.ndarray, size: tuple[int, int], how: int) -> np.ndarray:
    if maps.shape[:2] == size:
        return maps
    if np.issubdtype(maps.dtype, np.integer):
        maps = maps.astype(np.int16)
    # OpenCV takes up to four channels of some kinds at once, and any number of them one by one.
    planes = [cv2.resize(plane, size[::-1], interpolation=how) for plane in np.moveaxis(np.atleast_3d(maps), 2, 0)]
    return np.stack(planes, axis=2) if maps.ndim == 3 else planes[0]
