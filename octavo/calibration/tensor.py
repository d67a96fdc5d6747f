"""Statistics of one tensor: exact extremes, a histogram with fixed bins, and what is known of each channel."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NoReturn

import numpy as np

from octavo.calibration.channels import Channels, channel_axis
from octavo.calibration.histogram import BINS, add_counts, stride
from octavo.errors import CalibrationError

__all__ = ["TensorStatistics", "refuse"]


@dataclass
class TensorStatistics:
    """Statistics of one float tensor over all images.

    Attributes:
        low, high: exact minimum and maximum (float32 values); +inf and -inf while nothing was seen.
        counts: int64 of 65536, the histogram of `octavo.calibration.histogram`; of large tensors it counts a part.
        values: number of values seen, counted or not.
        channels: sums and extremes of each channel; None while no tensor with a channel axis was seen.
        axis: where the channels are: 1, or -1 for the last; None: by the tensor's rank (`channel_axis`).

    A tensor that may be infinite and was, on any image, has -inf and +inf as its extremes and nothing else: its finite values on
    other images would tell a range that depends on how images are parted.
    """

    low: float = float("inf")
    high: float = float("-inf")
    counts: np.ndarray = field(default_factory=lambda: np.zeros(BINS, np.int64))
    values: int = 0
    channels: Channels | None = None
    axis: int | None = None

    @classmethod
    def of_infinite(cls, axis: int | None) -> TensorStatistics:
        """What is kept of a tensor that was infinite."""
        return cls(low=float("-inf"), high=float("inf"), axis=axis)

    @property
    def infinite(self) -> bool:
        """Whether the tensor was infinite on an image."""
        return self.low == -math.inf and self.high == math.inf

    def update(self, name: str, value: np.ndarray, where: str, *, may_be_infinite: bool = False) -> None:
        """Add the tensor of one or more images.

        Args:
            name: the tensor's name, for errors.
            value: float32, images along axis 0.
            where: the image, for errors.
            may_be_infinite: whether infinity is no error (`octavo.calibration.observed`).

        Raises:
            CalibrationError: a value is NaN, or infinite where it may not be; nothing is added then.
        """
        if value.size == 0:
            return
        axis = self.axis if self.axis is not None and value.ndim >= 2 else channel_axis(value.ndim)
        channels = Channels.of(value, axis) if axis is not None else None
        # NaN passes through minima and maxima.
        known = channels is not None and channels.low.size > 0
        low, high = float((channels.low if known else value).min()), float((channels.high if known else value).max())
        if not math.isfinite(low) or not math.isfinite(high):
            if not may_be_infinite or math.isnan(low) or math.isnan(high):
                refuse(name, where)
            self.absorb(TensorStatistics.of_infinite(self.axis))
        if self.infinite:
            return
        self._count(value)
        # -0 and 0 are one value with two spellings, and which of them is kept would depend on the order.
        self.low, self.high = min(self.low, low) + 0.0, max(self.high, high) + 0.0
        self.values += value.size
        self.channels = _both(self.channels, channels)

    def _count(self, value: np.ndarray) -> None:
        step = stride(value.shape[1:])
        if step == 1:
            add_counts(value, self.counts)
        else:
            # Image by image: which values are counted must not depend on the batch that an image came in.
            for image in value:
                add_counts(image, self.counts, step)

    @property
    def channel_low(self) -> np.ndarray | None:
        """The exact minimum of each channel as float32, or None where the tensor has no fixed channel axis."""
        return self.channels.low if self.channels is not None and self.channels.low.size else None

    @property
    def channel_high(self) -> np.ndarray | None:
        """The exact maximum of each channel as float32, or None where the tensor has no fixed channel axis."""
        return self.channels.high if self.channels is not None and self.channels.high.size else None

    def means(self) -> np.ndarray | None:
        """Per-channel means as float64, or None where the tensor has no fixed channel axis."""
        return self.channels.means() if self.channels is not None else None

    def absorb(self, other: TensorStatistics) -> None:
        """Take another set of images in; exact, whatever the order."""
        self.axis = other.axis if self.axis is None else self.axis
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        if self.infinite:
            self.counts, self.values, self.channels = np.zeros(BINS, np.int64), 0, None
            return
        bins = np.flatnonzero(other.counts)
        self.counts[bins] += other.counts[bins]
        self.values += other.values
        self.channels = _both(self.channels, other.channels)

    def merge(self, other: TensorStatistics) -> TensorStatistics:
        """The statistics of both sets of images; exact, associative and commutative."""
        merged = TensorStatistics()
        merged.absorb(self)
        merged.absorb(other)
        return merged

    def reaching(self, other: TensorStatistics, growth: np.ndarray) -> TensorStatistics:
        """The same with at least the extremes of `other`, each channel of which grew.

        Args:
            other: of the same tensor before it grew, over more images.
            growth: float32, of each channel; where `other` has other channels or none, nothing changes.
        """
        if (
            self.channels is None
            or other.channel_low is None
            or not len(growth) == len(other.channel_low) == self.channels.low.size
        ):
            return self
        low, high = (np.float32(growth * side) for side in (other.channel_low, other.channel_high))
        kept = replace(self.channels, low=np.minimum(self.channels.low, low), high=np.maximum(self.channels.high, high))
        return replace(self, low=min(self.low, float(low.min())), high=max(self.high, float(high.max())), channels=kept)

    def widened(self, channels: int) -> TensorStatistics:
        """The same with channels of zeros behind its own, `channels` in all; itself where it has as many, more, or none."""
        added = channels - self.channels.low.size if self.channels is not None and self.channels.low.size else 0
        if added <= 0:
            return self
        sums, low, high = (np.pad(each, (0, added)) for each in (self.channels.sums, self.channels.low, self.channels.high))
        kept = replace(self.channels, sums=sums, low=low, high=high)
        return replace(self, low=min(self.low, 0.0), high=max(self.high, 0.0), channels=kept)

    def values_only(self) -> TensorStatistics:
        """The same values in another layout: everything but the channels; the histogram is shared, not copied."""
        return TensorStatistics(self.low, self.high, self.counts, self.values)


def refuse(name: str, where: str) -> NoReturn:
    """Raise for NaN and infinity in tensor `name` on the image `where`."""
    raise CalibrationError(
        f"tensor {name!r} holds NaN or infinite values on {where}",
        "check the weights and `input:` (scale, mean, std) in params.yaml",
    )


def _both(one: Channels | None, other: Channels | None) -> Channels | None:
    return other if one is None else one if other is None else one.merge(other)
