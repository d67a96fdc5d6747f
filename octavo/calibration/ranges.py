"""From statistics to a tensor's quantization range; seconds, and no image is touched.

minmax      the exact extremes
percentile  the range that covers a share of the values, the rest cut half on each side
peaks       the low end as mse has it, the high end exact: rare strong responses are what a detector decides by
mse         the range whose uint8 rounding and clipping error is least (the default)
entropy     the range whose quantized distribution has the least KL divergence to the real one (Migacz, GTC 2017)
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from octavo.calibration.histogram import bin_edges, bin_middles
from octavo.calibration.statistics import TensorStatistics
from octavo.errors import CalibrationError

__all__ = ["METHODS", "tensor_range"]

LEVELS = 255


def tensor_range(
    tensor: TensorStatistics,
    method: str,
    *,
    percentile: float = 99.99,
    symmetric: bool = False,
    behind: Callable[[np.ndarray], np.ndarray] | None = None,
) -> tuple[float, float]:
    """The range that uint8 codes shall span.

    Args:
        tensor: its statistics.
        method: a key of `METHODS`.
        percentile: for method `percentile`: the share of values covered, in percent.
        symmetric: the range is mirrored around zero.
        behind: for methods `mse` and `peaks`: the elementwise function that all readers apply first; the error is that behind it.

    Returns:
        (low, high) with low <= 0 <= high, so that zero has an exact code; (0, 0) for a tensor that is always zero.

    Raises:
        CalibrationError: the tensor was never seen.
    """
    if tensor.values == 0:
        raise CalibrationError("a tensor was empty on every calibration image", "calibrate on images that make it hold values")
    if method in ("mse", "peaks"):
        low, high = _mse(tensor, percentile, behind)
        high = tensor.high if method == "peaks" else high
    else:
        low, high = METHODS[method](tensor, percentile)
    low, high = min(low, 0.0), max(high, 0.0)
    if symmetric:
        high = max(-low, high)
        low = -high
    return low, high


def _minmax(tensor: TensorStatistics, _: float) -> tuple[float, float]:
    return tensor.low, tensor.high


def _sorted(tensor: TensorStatistics) -> tuple[np.ndarray, np.ndarray]:
    """Filled bins and their counts in the order of their values."""
    bins = np.flatnonzero(tensor.counts)
    order = np.argsort(bin_middles(bins), kind="stable")
    return bins[order], tensor.counts[bins[order]]


def _percentile(tensor: TensorStatistics, percentile: float) -> tuple[float, float]:
    bins, counts = _sorted(tensor)
    below = np.cumsum(counts)
    tail = (1 - percentile / 100) / 2 * below[-1]
    low_edges, high_edges = bin_edges(bins)
    # The first bin that is not wholly inside the lower tail, and the last not wholly inside the upper one.
    first = int(np.searchsorted(below, tail, side="right"))
    last = int(np.searchsorted(below, below[-1] - tail, side="left"))
    # The extremes are of all values, the bins of those that were counted.
    low = float(low_edges[min(first, len(bins) - 1)]) if first else tensor.low
    high = float(high_edges[last]) if last < len(bins) - 1 else tensor.high
    return max(low, tensor.low), min(high, tensor.high)


def _mse(tensor: TensorStatistics, _: float, behind: Callable[[np.ndarray], np.ndarray] | None = None) -> tuple[float, float]:
    """Coordinate descent over shrunken extremes; the histogram's bins stand for their middles."""
    bins, counts = _sorted(tensor)
    values = np.clip(bin_middles(bins), tensor.low, tensor.high)
    weights = counts.astype(np.float64)
    function = behind or _same
    wanted = function(values)

    def error(low: float, high: float) -> float:
        if high == low:
            return float((weights * (wanted - function(np.zeros_like(values))) ** 2).sum())
        scale = (high - low) / LEVELS
        zero = np.rint(-low / scale)
        codes = np.clip(np.rint(values / scale) + zero, 0, LEVELS)
        return float((weights * (wanted - function((codes - zero) * scale)) ** 2).sum())

    low, high = min(tensor.low, 0.0), max(tensor.high, 0.0)
    factors = np.geomspace(1.0, 0.03, 60)
    best = (low, high)
    for _round in range(3):
        if high > 0:
            candidates = high * factors
            best = (best[0], float(candidates[int(np.argmin([error(best[0], candidate) for candidate in candidates]))]))
        if low < 0:
            candidates = low * factors
            best = (float(candidates[int(np.argmin([error(candidate, best[1]) for candidate in candidates]))]), best[1])
        if low == 0 or high == 0:
            break
    return best


def _peaks(tensor: TensorStatistics, percentile: float) -> tuple[float, float]:
    return _mse(tensor, percentile)[0], tensor.high


def _same(values: np.ndarray) -> np.ndarray:
    return values


def _entropy(tensor: TensorStatistics, _: float, resolution: int = 2048) -> tuple[float, float]:
    """The clipping threshold of least KL divergence, on |x| as the method was published; the sides keep their own extremes."""
    bins, counts = _sorted(tensor)
    top = max(-tensor.low, tensor.high)
    if top == 0:
        return 0.0, 0.0
    magnitudes = np.abs(bin_middles(bins))
    # Zeros (ReLU's) are exact in any quantization and would only drown the shape of the rest.
    linear = np.zeros(resolution)
    kept = magnitudes > 0
    np.add.at(linear, np.minimum((magnitudes[kept] / top * resolution).astype(np.int64), resolution - 1), counts[kept])
    # One-sided tensors spread 256 codes over the magnitudes, two-sided ones half of them.
    levels = 256 if tensor.low >= 0 or tensor.high <= 0 else 128
    best, best_divergence = resolution, np.inf
    for stop in range(levels, resolution + 1, levels // 8):
        divergence = _divergence(linear, stop, levels)
        if divergence < best_divergence:
            best, best_divergence = stop, divergence
    threshold = top * best / resolution
    return max(tensor.low, -threshold), min(tensor.high, threshold)


def _divergence(histogram: np.ndarray, stop: int, levels: int) -> float:
    """KL(P || Q): P is the histogram clipped at `stop`, its tail on the last bin; Q is the unclipped part in `levels` steps."""
    inside = histogram[:stop]
    reference = inside.copy()
    reference[-1] += histogram[stop:].sum()
    if reference.sum() == 0:
        return np.inf
    group = np.arange(stop) * levels // stop
    filled = inside > 0
    mass = np.bincount(group, weights=inside, minlength=levels)
    width = np.bincount(group[filled], minlength=levels)
    quantized = np.where(filled, (mass / np.maximum(width, 1))[group], 0.0)
    if quantized.sum() == 0:
        return np.inf
    p, q = reference / reference.sum(), quantized / quantized.sum()
    # A bin that only clipping filled has no mass in Q: the published method smooths it with a small share.
    q = np.where((p > 0) & (q == 0), 1e-9, q)
    used = p > 0
    return float((p[used] * np.log(p[used] / q[used])).sum())


METHODS: dict[str, Callable[[TensorStatistics, float], tuple[float, float]]] = {
    "minmax": _minmax,
    "percentile": _percentile,
    "entropy": _entropy,
    "mse": _mse,
    "peaks": _peaks,
}
