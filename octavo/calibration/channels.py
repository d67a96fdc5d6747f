"""Per-channel sums and extremes of one tensor, kept so that adding and merging are exact and blind to order and batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import cv2
import numpy as np

__all__ = ["Channels", "beyond", "channel_axis", "rounded"]

# Sums are kept as integers in units of 2**-20, because floating-point addition depends on the order.
_UNIT = 2.0**20
# Bound on an image's sum, so that thousands of images at this bound still fit int64; what exceeds it has no use for means.
_LIMIT = 2.0**32
# Rows up to this long are turned into columns before their extremes are taken: numpy pays for each row, not for its values.
_SHORT = 64
# Rows of a matrix that are turned into integers at a time.
_ROWS = 4096
# Values whose sums and extremes are taken at a time: 256 KiB.
_PIECE = 1 << 16


def channel_axis(rank: int) -> int | None:
    """Where the channels are when the graph does not tell: axis 1 of 3-D and larger tensors, the last axis of 2-D ones."""
    return None if rank < 2 else 1 if rank >= 3 else -1


@dataclass
class Channels:
    """What is known of each channel; all arrays are empty once the tensor was seen to have no fixed channel axis.

    Attributes:
        sums: int64 per channel, in units of 2**-20: each image's sum, rounded.
        low, high: float32 per channel, the exact extremes.
        values: number of values in each channel.
    """

    sums: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    low: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    high: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    values: int = 0

    @classmethod
    def of(cls, value: np.ndarray, axis: int) -> Channels:
        """The channels of one or more images' tensor.

        Args:
            value: float32, not empty, images along axis 0; NaN and infinity pass on into `low` and `high`.
            axis: 1, or -1 for the last axis.
        """
        if value.ndim == 2:
            # Every row is an image: its values are rounded as they are, which no order can change.
            found = _channels(_row_sums(value), value.min(axis=0), value.max(axis=0))
        else:
            # Image by image: what is rounded must not depend on the batch that an image came in.
            found = _channels(*_of_image(value[0], axis))
            for image in value[1:]:
                found = found.merge(_channels(*_of_image(image, axis)))
        found.values = value.size // value.shape[axis] if found.sums.size else 0
        return found

    def merge(self, other: Channels) -> Channels:
        """Both together; without channels where the two differ in their number (NHWC, sequences of changing length)."""
        if self.sums.shape != other.sums.shape or not self.sums.size:
            return Channels()
        return Channels(
            self.sums + other.sums,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.values + other.values,
        )

    def means(self) -> np.ndarray | None:
        """Means as float64, or None without channels."""
        return self.sums.astype(np.float64) / _UNIT / self.values if self.sums.size else None


def _channels(sums: np.ndarray, low: np.ndarray, high: np.ndarray) -> Channels:
    """Without channels where a sum is beyond the limit or not finite; `sums` (float64 or already in units) is overwritten."""
    if sums.dtype == np.float64:
        if not _within(sums):
            return Channels()
        sums = rounded(sums)
    elif not sums.size:
        return Channels()
    # -0 and 0 are one value with two spellings, and which of them is kept would depend on the order.
    low += np.float32(0)
    high += np.float32(0)
    return Channels(sums, low, high)


def rounded(sums: np.ndarray) -> np.ndarray:
    """An image's sums, float64 and within the limit, as int64 in units of 2**-20; they are overwritten."""
    sums *= _UNIT
    return np.rint(sums, out=sums).astype(np.int64)


def beyond(sums: np.ndarray) -> np.ndarray:
    """Which of an image's sums are beyond the limit: channels that have no use for means."""
    return np.abs(sums) > _LIMIT


def _within(sums: np.ndarray) -> bool:
    """Whether every sum is within the limit; NaN and infinity are not."""
    # One product tells nearly always, and costs a third of two extremes.
    return bool(sums @ sums <= _LIMIT * _LIMIT) or bool(sums.max() <= _LIMIT and sums.min() >= -_LIMIT)


def _row_sums(value: np.ndarray) -> np.ndarray:
    """Sums of the rows' values in units of 2**-20 as int64; empty where one is beyond the limit."""
    total = np.zeros(value.shape[1], np.int64)
    for start in range(0, len(value), _ROWS):
        rows = value[start : start + _ROWS].astype(np.float64)
        if not _within(rows.reshape(-1)):
            return total[:0]
        total += np.rint(rows * _UNIT).astype(np.int64).sum(axis=0)
    return total


def _of_image(image: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums (float64), minima and maxima (float32) of one image's channels."""
    # OpenCV adds float32 up in float64 without a copy, at twice the speed of numpy's cast and add.
    if axis == -1:
        rows = np.ascontiguousarray(image).reshape(-1, image.shape[-1])
        return cv2.reduce(rows, 0, cv2.REDUCE_SUM, dtype=cv2.CV_64F).reshape(-1), rows.min(axis=0), rows.max(axis=0)
    rows = np.ascontiguousarray(image).reshape(image.shape[0], -1)
    sums = np.empty((len(rows), 1), np.float64)
    if rows.shape[1] <= _SHORT:
        cv2.reduce(rows, 1, cv2.REDUCE_SUM, sums, cv2.CV_64F)
        columns = cv2.transpose(rows).reshape(rows.shape[1], -1)
        return sums.reshape(-1), np.minimum.reduce(columns, axis=0), np.maximum.reduce(columns, axis=0)
    low, high = np.empty(len(rows), np.float32), np.empty(len(rows), np.float32)
    # Three passes over what the second-level cache holds cost less than three over the memory.
    step = max(1, _PIECE // rows.shape[1])
    for start in range(0, len(rows), step):
        piece = slice(start, start + step)
        cv2.reduce(rows[piece], 1, cv2.REDUCE_SUM, sums[piece], cv2.CV_64F)
        np.minimum.reduce(rows[piece], axis=1, out=low[piece])
        np.maximum.reduce(rows[piece], axis=1, out=high[piece])
    return sums.reshape(-1), low, high
