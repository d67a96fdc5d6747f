"""Noise at heads of any kind: each channel of a head counts alike, its noise held against its own variance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Self

import numpy as np
import onnx_ir as ir

from octavo.errors import QuantizationError
from octavo.quantization.int8.noise.judge import Judge
from octavo.runtime.spilled import Spill

__all__ = ["HeadJudge"]

# A channel with fewer values than this has no variance of its own: that of all channels of its size stands for it, of those whose
# own are within this factor of it. Of 1000 classes on 16 images each channel's own would be too rough; an age in years and two
# logits in one vector are not of one size.
_ENOUGH, _ALIKE = 256, 10.0
# Values of one image's heads of which many images' may be held.
_FEW = 1 << 20
# A head whose channels vary by less than this share of its values is constant: what is left are float32's roundings.
_CONSTANT = 1e-6


class HeadJudge(Judge):
    """Mean noise-to-signal ratio over images, heads and channels, each channel against its own variance; of a head that no image
    changes, against the square of its values.

    Images on which all heads are empty are left out of `samples`.

    Args:
        together: vectors are compared as wholes, as embeddings by their cosine are: what channels differ by counts as signal, and
            one variance is that of all.

    Raises:
        QuantizationError: FP32's heads are empty on all images, or not finite on one.
    """

    def __init__(
        self, model: ir.Model, heads: Sequence[str], samples: Sequence[Mapping[str, np.ndarray]], *, together: bool = False
    ) -> None:
        self._together, self._damped = together, False
        # Of images axis 1 holds the channels; of queries, which only a product of matrices gives, the last.
        self._last = {
            value.name for node in model.graph if node.op_type in ("Gemm", "MatMul") for value in node.outputs if value.name
        }
        super().__init__(model, heads, samples)
        # What noise is held against, and what signal is: each channel's variance and mean.
        self._power: dict[str, np.ndarray] = {}
        self._middle: dict[str, np.ndarray] = {}
        for name in self.heads:
            if any(found[name].size for found in self._true):
                stacked = self._stacked(name)
                self._power[name] = self._variance(stacked)
                axes = [place for place in range(self._true[0][name].ndim) if place != self._axis(name)]
                self._middle[name] = np.expand_dims(stacked.mean(axis=1, dtype=np.float64), axes)
        if not self._power:
            raise QuantizationError(
                f"FP32 puts nothing out at {', '.join(self.heads)} on any of the {len(samples)} images that INT8 is measured on",
                "calibrate on images on which it finds something",
            )

    def _known(self) -> dict[int, Mapping[str, np.ndarray]]:
        return {id(feeds): found for feeds, found in zip(self.samples, self._true, strict=True)}

    def _hold(self, results: Iterator[Mapping[str, np.ndarray]]) -> None:
        held, spill = [], Spill()
        for place, found in enumerate(results, 1):
            for name, value in found.items():
                if not np.isfinite(value).all():
                    raise QuantizationError(
                        f"FP32 has NaN or infinity in {name!r} on image {place} of {len(self.samples)} that INT8 is measured on",
                        "take the image out of `data.calibration` and calibrate again: `held_out` and `files` of "
                        "calibration/statistics.json name the images in order",
                    )
            # Masks of 16 images are 50 to 150 MB.
            held.append(spill.put(found))
        # Rows that an image's values choose: where none is chosen there is nothing to compare.
        kept = [place for place, found in enumerate(held) if any(value.size for value in found.values())] or range(len(held))
        self._true, self.samples = [held[place] for place in kept], [self.samples[place] for place in kept]

    @property
    def answers(self) -> list[Mapping[str, np.ndarray]]:
        """What FP32 has at the heads, of each of `samples`, by name."""
        return self._true

    def noises(self, results: Iterable[Mapping[str, np.ndarray]]) -> Iterator[float]:
        """Mean noise-to-signal ratio over channels and the heads that hold something, of each image."""
        for wanted, got in zip(self._true, results, strict=False):
            yield self._ratio(wanted, got) / self._damping(wanted)

    def undamped(self, by_image: Sequence[float]) -> list[float]:
        """Noise of each sample as it is without `damped`."""
        return [noise * self._damping(wanted) for noise, wanted in zip(by_image, self._true, strict=True)]

    def _damping(self, wanted: Mapping[str, np.ndarray]) -> float:
        """How many times less the noise on an image counts."""
        return float(np.sqrt(max(1.0, self._ratio(wanted, self._middle)))) if self._damped else 1.0

    @property
    def tells_signal(self) -> bool:
        """Where an image's heads have few values, as vectors do and masks do not."""
        return max(sum(value.size for value in found.values()) for found in self._true) <= _FEW

    def signal_by_image(self) -> list[float]:
        """Mean over heads and channels of the squared distance from a channel's mean over samples, by its variance."""
        return [self._ratio(found, self._middle) for found in self._true]

    def damped(self) -> Self:
        """Noise is held against the geometric mean of what it is held against else and the image's own signal, where this is more:
        ten times as much of it counts alike on an image with a hundred times the signal.
        """
        other = copy(self)
        other._damped = True
        return other

    def _ratio(self, found: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]) -> float:
        """Mean over channels and the heads that hold something of squared differences, each against its channel's variance."""
        ratios = []
        for name in self.heads:
            axis = self._axis(name)
            if not found[name].size or name not in self._power:
                continue
            difference = np.square(found[name].astype(np.float64) - others[name])
            error = difference.mean(axis=tuple(place for place in range(difference.ndim) if place != axis))
            ratios.append(float(np.mean(error / self._power[name])))
        return float(np.mean(ratios or [0.0]))

    def _axis(self, name: str) -> int:
        rank = self._true[0][name].ndim
        return 1 if rank >= 3 and name not in self._last else rank - 1

    def _stacked(self, name: str) -> np.ndarray:
        """A head on all samples, channels x values."""
        axis = self._axis(name)
        return np.concatenate(
            [np.moveaxis(result[name], axis, 0).reshape(result[name].shape[axis], -1) for result in self._true], 1
        )

    def _variance(self, stacked: np.ndarray) -> np.ndarray:
        whole, own = float(stacked.var(dtype=np.float64)), stacked.var(axis=1, dtype=np.float64)
        count = stacked.shape[1]
        if count < _ENOUGH and (self._together or count == 1):
            return np.full(len(stacked), max(whole, 1e-30))
        square = float(np.square(stacked, dtype=np.float64).mean())
        if own.max() <= _CONSTANT**2 * square:
            # A head that no image changes (dead features in front of it) has no variance, and is there for what it is.
            return np.full(len(stacked), max(square, 1e-30))
        if count < _ENOUGH:
            own *= count / (count - 1)  # of so few the mean is not known
            whole, own = float(own.mean()), _of_their_size(own)
        # A channel that hardly moves decides nothing; its share of the whole bounds what its noise can count.
        return np.maximum(own, max(whole, 1e-30) * 1e-2)


def _of_their_size(variances: np.ndarray) -> np.ndarray:
    """Of each variance, the mean of those within `_ALIKE` times of it."""
    ordered = np.sort(variances)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    first, last = np.searchsorted(ordered, variances / _ALIKE), np.searchsorted(ordered, variances * _ALIKE, side="right")
    return (sums[last] - sums[first]) / (last - first)
