"""Scale and zero point of an activation, and what rounding with them does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["QParams"]


@dataclass(frozen=True)
class QParams:
    """Affine quantization of one tensor: real = (code - zero_point) * scale (ONNX QuantizeLinear).

    Attributes:
        scale: float32 > 0, a scalar; or one for each channel (axis 1), which only a network's heads have.
        zero_point: uint8, int8 or uint16, of the scale's shape; its dtype is the codes'.
    """

    scale: np.ndarray
    zero_point: np.ndarray

    @classmethod
    def spanning(cls, low: float, high: float, *, bits: int = 8, symmetric: bool = False, signed: bool = False) -> QParams:
        """The parameters whose codes span [low, high].

        Args:
            low, high: the range; widened to hold zero, which always gets a code of its own.
            bits: 8 or 16.
            symmetric: zero lies in the middle code.
            signed: int8 codes: those of uint8 less 128; only with 8 bits. Symmetric, their zero point is 0 and their range
                -127..127, as TensorRT has it.
        """
        kind = np.uint16 if bits == 16 else np.int8 if signed else np.uint8
        least, most = (int(end) for end in (np.iinfo(kind).min, np.iinfo(kind).max))
        low, high = min(low, 0.0), max(high, 0.0)
        middle = (least + most + 1) // 2
        steps = most - least
        if symmetric:
            high = max(-low, high)
            low = -high
            steps = 2 * most if kind is np.int8 else steps
        if high - low < np.finfo(np.float32).tiny * steps:
            return cls(np.float32(1), kind(middle if symmetric else least))
        scale = np.float32((high - low) / steps)
        if symmetric:
            return cls(scale, kind(middle))
        return cls(scale, kind(np.clip(np.rint(-low / scale) + least, least, most)))

    @classmethod
    def per_channel(cls, low: np.ndarray, high: np.ndarray, *, symmetric: bool = False, signed: bool = False) -> QParams:
        """8-bit parameters whose codes span [low, high] of each channel, widened to hold zero; arguments as in `spanning`.

        A channel that holds nothing but zero has the largest scale of the others: codes must not reach beyond the bounds of a Clip
        before them, or OpenVINO runs that Clip, too (8 % of MobileFaceNet's time).
        """
        pairs = [
            cls.spanning(float(bottom), float(top), symmetric=symmetric, signed=signed)
            for bottom, top in zip(low, high, strict=True)
        ]
        scales = np.array([pair.scale for pair in pairs])
        empty = np.maximum(high, 0) - np.minimum(low, 0) < np.finfo(np.float32).tiny * 255
        if not empty.all():
            scales[empty] = scales[~empty].max()
        return cls(scales, np.array([pair.zero_point for pair in pairs]))

    @property
    def by_channel(self) -> bool:
        """Whether each channel has a scale of its own."""
        return np.ndim(self.scale) == 1

    @property
    def symmetric(self) -> bool:
        """Whether zero lies in the middle code."""
        ends = np.iinfo(self.zero_point.dtype)
        return bool((np.asarray(self.zero_point) == (ends.min + ends.max + 1) // 2).all())

    @property
    def low(self) -> float:
        """The smallest real value with a code."""
        return float((np.iinfo(self.zero_point.dtype).min - np.float32(self.zero_point)) * self.scale)

    @property
    def high(self) -> float:
        """The largest real value with a code."""
        return float((np.iinfo(self.zero_point.dtype).max - np.float32(self.zero_point)) * self.scale)

    def at_least(self, scale: np.float32) -> QParams:
        """The same with a scale for the whole tensor that is no smaller, and more than the range between its ends."""
        return self if self.scale >= scale else QParams(np.float32(scale), self.zero_point)

    def rounded(self, values: np.ndarray) -> np.ndarray:
        """Values as their codes give them back: float32 of the same shape."""
        steps = self.steps(values)
        steps *= self._shaped(self.scale, values.ndim)
        return steps

    def steps(self, values: np.ndarray) -> np.ndarray:
        """Codes minus the zero point: whole numbers as float32, of the same shape."""
        scale, zero = (self._shaped(own, values.ndim) for own in (self.scale, self.zero_point.astype(np.float32)))
        # A scalar stays an array, so that the steps below can work in place.
        with np.errstate(over="ignore"):  # infinity is cut to the last code like anything beyond it
            steps = np.asarray(values / scale)
        np.rint(steps, out=steps)
        ends = np.iinfo(self.zero_point.dtype)
        return np.clip(steps, np.float32(ends.min) - zero, np.float32(ends.max) - zero, out=steps)

    def _shaped(self, own: np.ndarray, axes: int) -> np.ndarray:
        return np.reshape(own, (1, -1, *[1] * (axes - 2)) if self.by_channel else ())
