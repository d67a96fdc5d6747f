"""Scale and zero point of an activation, and what rounding with them does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["QParams"]


@dataclass(frozen=True)
class QParams:
    """Affine quantization of one tensor: real = (code - zero_point) * scale (ONNX QuantizeLinear).

    Attributes:
        scale: float32 > 0.
        zero_point: uint8 or uint16; its dtype is the codes'.
    """

    scale: np.float32
    zero_point: np.generic

    @classmethod
    def spanning(cls, low: float, high: float, *, bits: int = 8, symmetric: bool = False) -> QParams:
        """The parameters whose codes span [low, high].

        Args:
            low, high: the range; widened to hold zero, which always gets a code of its own.
            bits: 8 or 16.
            symmetric: zero lies in the middle code.
        """
        kind = np.uint8 if bits == 8 else np.uint16
        top = np.iinfo(kind).max
        low, high = min(low, 0.0), max(high, 0.0)
        if symmetric:
            high = max(-low, high)
            low = -high
        if high - low < np.finfo(np.float32).tiny * top:
            return cls(np.float32(1), kind(top // 2 + 1 if symmetric else 0))
        scale = np.float32((high - low) / top)
        if symmetric:
            return cls(scale, kind(top // 2 + 1))
        return cls(scale, kind(np.clip(np.rint(-low / scale), 0, top)))

    @property
    def low(self) -> float:
        """The smallest real value with a code."""
        return float(-np.float32(self.zero_point) * self.scale)

    @property
    def high(self) -> float:
        """The largest real value with a code."""
        return float((np.iinfo(self.zero_point.dtype).max - np.float32(self.zero_point)) * self.scale)

    def rounded(self, values: np.ndarray) -> np.ndarray:
        """Values as their codes give them back: float32 of the same shape."""
        zero = np.float32(self.zero_point)
        # A scalar stays an array, so that the steps below can work in place.
        codes = np.asarray(values / self.scale)
        np.rint(codes, out=codes)
        np.clip(codes, -zero, np.float32(np.iinfo(self.zero_point.dtype).max) - zero, out=codes)
        codes *= self.scale
        return codes
