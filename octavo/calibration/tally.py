"""What the probes of many tensors add up to over images: the tensors' statistics, kept end to end in a few long vectors.

With objects for every tensor an image of EfficientNet-Lite0 took 5.7 ms of Python, like this it takes 3.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.calibration.channels import Channels, beyond, rounded
from octavo.calibration.histogram import BINS, add_counts
from octavo.calibration.tensor import TensorStatistics, refuse

__all__ = ["OUTPUT", "Probed", "Tally"]

# The float32 vector that tells of all tensors, one after the other: the least value of each channel, then the largest ones, then
# the sums, then what to count.
OUTPUT = "octavo.probes"


@dataclass(frozen=True)
class Probed:
    """A tensor with a probe, for one image.

    Attributes:
        name: the tensor's.
        channels: how many it has.
        values: in each channel.
        counted: how many of all its values are counted.
        axis: where the channels are, as in `TensorStatistics`.
        may_be_infinite: whether infinity is no error.
    """

    name: str
    channels: int
    values: int
    counted: int
    axis: int | None = None
    may_be_infinite: bool = False


class Tally:
    """Adds up what probes put out.

    Args:
        probed: the tensors, in the order of the probes.

    Attributes:
        names: of these tensors.
    """

    def __init__(self, probed: Sequence[Probed]) -> None:
        self._probed = list(probed)
        self.names = frozenset(one.name for one in probed)
        self._starts = np.cumsum([0, *(one.channels for one in probed)])
        self._rows = np.cumsum([one.counted for one in probed])[:-1]
        channels = int(self._starts[-1])
        self._low, self._high = np.full(channels, np.inf, np.float32), np.full(channels, -np.inf, np.float32)
        self._sums = np.zeros(channels, np.int64)
        self._beyond = np.zeros(channels, bool)
        self._counts = [np.zeros(BINS, np.int64) for _ in probed]
        self._may = np.repeat([one.may_be_infinite for one in probed], [one.channels for one in probed]).astype(bool)
        self._infinite: set[str] = set()
        self._images = 0

    def add(self, read: Mapping[str, np.ndarray], where: str) -> None:
        """Add one image.

        Args:
            read: `OUTPUT`, among others.
            where: the image, for errors.

        Raises:
            CalibrationError: a value is NaN, or infinite where it may not be; nothing is added then.
        """
        if not self._probed:
            return
        low, high, sums, counted = np.split(read[OUTPUT], int(self._starts[-1]) * np.arange(1, 4))
        # Extremes may pass NaN over, sums do not; those of finite values may exceed float32.
        odd = ~(np.isfinite(low) & np.isfinite(high)) | np.isnan(sums)
        if odd.any():
            # Both infinities of a channel add up to NaN as well.
            infinite = (np.isinf(low) & np.isinf(high)) | ((np.isinf(low) | np.isinf(high)) & ~np.isnan(sums))
            refused = odd & ~(infinite & self._may)
            if refused.any():
                refuse(self._name_at(int(refused.argmax())), where)
            self._infinite |= {self._name_at(int(place)) for place in np.flatnonzero(odd)}
            sums = np.where(odd, 0, sums)
        sums = sums.astype(np.float64)
        if (far := beyond(sums)).any():
            self._beyond |= far
            sums[far] = 0.0
        self._sums += rounded(sums)
        np.minimum(self._low, low, out=self._low)
        np.maximum(self._high, high, out=self._high)
        for row, counts in zip(np.split(counted, self._rows), self._counts, strict=True):
            add_counts(row, counts)
        self._images += 1

    def _name_at(self, channel: int) -> str:
        """The tensor that a channel of the long vectors is of."""
        return self._probed[int(np.searchsorted(self._starts, channel, side="right")) - 1].name

    def statistics(self) -> dict[str, TensorStatistics]:
        """Statistics by tensor; they are the tally's own, not copies."""
        # -0 and 0 are one value with two spellings, and which of them is kept would depend on the order.
        low, high = self._low + np.float32(0), self._high + np.float32(0)
        found = {}
        for one, start, counts in zip(self._probed, self._starts, self._counts, strict=False):
            if one.name in self._infinite:
                found[one.name] = TensorStatistics.of_infinite(one.axis)
                continue
            place = slice(start, start + one.channels)
            channels = Channels(self._sums[place], low[place], high[place], one.values * self._images)
            if self._beyond[place].any():
                channels = Channels()
            extremes = float(low[place].min()), float(high[place].max())
            found[one.name] = TensorStatistics(*extremes, counts, one.values * one.channels * self._images, channels, one.axis)
        return found
