"""Signal to quantization noise ratio: one definition for every place that compares tensors."""

from __future__ import annotations

import numpy as np

__all__ = ["SQNR_CAP", "sqnr_db"]

# Identical tensors have no noise; JSON has no infinity.
SQNR_CAP = 200.0


def sqnr_db(signal: float, noise: float) -> float:
    """10 log10(signal / noise) in dB from two sums of squares, within +-`SQNR_CAP`; 0 where there is noise but no signal."""
    if noise == 0:
        return SQNR_CAP
    return float(np.clip(10 * np.log10(signal / noise), -SQNR_CAP, SQNR_CAP)) if signal > 0 else 0.0
