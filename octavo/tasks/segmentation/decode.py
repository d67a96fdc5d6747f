"""From a network's class maps to a class for every pixel of the photo."""

from __future__ import annotations

import cv2
import numpy as np

from octavo.errors import DataError
from octavo.images.frame import Frame
from octavo.images.masks import VOID
from octavo.params.grammar import Head
from octavo.tasks.outputs import Outputs

__all__ = ["class_count", "class_map", "logits_of"]


def logits_of(outputs: Outputs, head: Head) -> np.ndarray:
    """The output with the classes of one head.

    Args:
        outputs: one image's: 1 x classes x rows x columns scores; 1 x 1 x rows x columns scores of one class (above 0) against the
            rest; or 1 x rows x columns whole numbers, the classes themselves.
        head: says which output, where there are several.

    Returns:
        Without the batch dimension.

    Raises:
        DataError: no such output, several and none named, or its shape is none of these.
    """
    name = head.output or next(iter(outputs))
    if name not in outputs or (head.output is None and len(outputs) > 1):
        raise DataError(
            f"which output holds the class maps? the graph has {', '.join(outputs)}"
            + (f", and no {head.output!r}" if head.output else ""),
            "name it: `task: {name: segmentation, output: ...}`; several at once: `heads: {road: {output: ...}, ...}`",
        )
    value = outputs[name]
    if value.shape[:1] != (1,) or not (value.ndim == 4 or (value.ndim == 3 and np.issubdtype(value.dtype, np.integer))):
        raise DataError(
            f"output {name!r} of shape {list(value.shape)} ({value.dtype}) holds no class maps of one image",
            "it must be 1 x classes x rows x columns scores, or 1 x rows x columns whole numbers; check `task.output`",
        )
    return value[0]


def class_count(logits: np.ndarray) -> int | None:
    """Classes that the output tells apart; None for maps of whole numbers, which do not say."""
    return None if logits.ndim == 2 else max(2, logits.shape[0])


def class_map(logits: np.ndarray, frame: Frame) -> np.ndarray:
    """The class of every pixel of the photo.

    Scores are brought to the photo's size before the best is taken, as evaluations of segmentation do.

    Args:
        logits: as `logits_of` gives it, of the input's size or a fraction of it.
        frame: where the photo lay in the input.

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
        whole[low[0] : high[0], low[1] : high[1]] = _best(maps)
        return _resized(whole, frame.photo, cv2.INTER_NEAREST)
    return _best(_resized(np.ascontiguousarray(maps), frame.photo, how))


def _best(maps: np.ndarray) -> np.ndarray:
    if maps.ndim == 2:
        maps = maps[:, :, None]
    if np.issubdtype(maps.dtype, np.integer):
        return maps[:, :, 0].astype(np.int16)
    if maps.shape[2] == 1:
        return (maps[:, :, 0] > 0).astype(np.int16)
    return maps.argmax(axis=2).astype(np.int16)


def _resized(maps: np.ndarray, size: tuple[int, int], how: int) -> np.ndarray:
    if maps.shape[:2] == size:
        return maps
    if np.issubdtype(maps.dtype, np.integer):
        maps = maps.astype(np.int16)
    # OpenCV takes up to four channels of some kinds at once, and any number of them one by one.
    planes = [cv2.resize(plane, size[::-1], interpolation=how) for plane in np.moveaxis(np.atleast_3d(maps), 2, 0)]
    return np.stack(planes, axis=2) if maps.ndim == 3 else planes[0]
