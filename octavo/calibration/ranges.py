"""From statistics to a tensor's quantization range; seconds, and no image is touched.

minmax      the exact extremes
percentile  the range that covers a share of the values, the rest cut half on each side
peaks       the low end as mse has it, the high end exact: rare strong responses are what a detector decides by; before an
              activation that comes to rest below (SiLU, Sigmoid) the low end is cut as if cut values were `_AS_ONE` times as many
mse         the range whose uint8 rounding and clipping error is least (the default)
entropy     the range whose quantized distribution has the least KL divergence to the real one (Migacz, GTC 2017)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from octavo.calibration.histogram import bin_edges, bin_middles
from octavo.calibration.statistics import TensorStatistics
from octavo.errors import CalibrationError

__all__ = ["METHODS", "tensor_range"]

LEVELS = 255
# Candidates whose errors are computed in one array.
_TOGETHER = 12
# Values below the low end are all moved the same way, which the next layer's sums add up, while rounding errs both ways and
# cancels: by least squares alone an input of SiLU in YOLOv5n was cut at -4.1 where -6.6 made a tenth of the noise in its boxes.
# With them counted 1, 64, 256 and 1000 times its heads have 14.3, 15.5, 16.6 and 15.8 dB all in INT8, and what is expected to
# lose 1.5 % of AP is priced at 18 ms, 15.8, 15.8 and 16.0 (docs/int8.md).
_AS_ONE = 256.0


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
    if method == "peaks" and behind is not None and _rests_below(behind):
        low, high = _mse(tensor, percentile, behind, exact_high=True, cut=_AS_ONE)
    elif method in ("mse", "peaks"):
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


def _rests_below(function: Callable[[np.ndarray], np.ndarray]) -> bool:
    """Whether an activation hardly changes far below zero: SiLU, HardSwish and sigmoids, not LeakyRelu and PRelu."""
    far, farther = function(np.array([-1e3, -2e3]))
    return bool(abs(far - farther) < 1e-3)


def _mse(
    tensor: TensorStatistics,
    _: float,
    behind: Callable[[np.ndarray], np.ndarray] | None = None,
    *,
    exact_high: bool = False,
    cut: float = 1.0,
) -> tuple[float, float]:
    """Coordinate descent over shrunken extremes; the histogram's bins stand for their middles.

    Args:
        tensor: its statistics.
        behind: as in `tensor_range`.
        exact_high: the high end stays where it is.
        cut: how many times a value counts that the range cuts off.
    """
    bins, counts = _sorted(tensor)
    values = np.clip(bin_middles(bins), tensor.low, tensor.high)
    weights = counts.astype(np.float64)
    wanted = values if behind is None else behind(values)

    def errors(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Of each candidate (low, high), which broadcast against each other."""
        scale = ((high - low) / LEVELS)[:, None]
        # A range of no width has one code, and that is zero: any scale will do for it.
        scale[scale == 0] = np.inf
        zero = np.rint(-low[:, None] / scale)
        codes = values / scale
        np.rint(codes, out=codes)
        codes += zero
        np.clip(codes, 0, LEVELS, out=codes)
        codes -= zero
        # Without width that would be 0 * inf.
        codes *= np.where(np.isinf(scale), 0.0, scale)
        error = codes if behind is None else behind(codes)
        error = np.subtract(wanted, error, out=codes)
        np.square(error, out=error)
        if cut != 1:
            error[(values < low[:, None]) | (values > high[:, None])] *= cut
        return error @ weights

    low, high = best = np.array([min(tensor.low, 0.0)]), np.array([max(tensor.high, 0.0)])
    factors = np.geomspace(1.0, 0.03, 60)
    for _round in range(3):
        before = best
        if high[0] > 0 and not exact_high:
            best = (best[0], _least(high * factors, partial(errors, best[0])))
        if low[0] < 0:
            best = (_least(low * factors, partial(_swapped, errors, best[1])), best[1])
        if low[0] == 0 or high[0] == 0 or best == before:
            break
    return float(best[0][0]), float(best[1][0])


def _swapped(function: Callable[[np.ndarray, np.ndarray], np.ndarray], second: np.ndarray, first: np.ndarray) -> np.ndarray:
    return function(first, second)


def _least(candidates: np.ndarray, errors: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The candidate of least error, as an array of one; a few at a time, so that their arrays stay in the cache."""
    found = np.concatenate([errors(candidates[start : start + _TOGETHER]) for start in range(0, len(candidates), _TOGETHER)])
    return candidates[[int(np.argmin(found))]]


def _peaks(tensor: TensorStatistics, percentile: float) -> tuple[float, float]:
    return _mse(tensor, percentile)[0], tensor.high


def _entropy(tensor: TensorStatistics, _: float, resolution: int = 2048) -> tuple[float, float]:
    """The clipping threshold of least KL divergence, on |x| as the method was published; the sides keep their own extremes."""
    top = max(-tensor.low, tensor.high)
    if top == 0:
        return 0.0, 0.0
    linear = _linear(tensor, top, resolution)
    if not linear.any():
        # Nothing but zeros was counted of it: the extremes are all that is known.
        return tensor.low, tensor.high
    # One-sided tensors spread 256 codes over the magnitudes, two-sided ones half of them.
    levels = 256 if tensor.low >= 0 or tensor.high <= 0 else 128
    divergence = _Divergence(linear, levels)
    stops = range(levels, resolution + 1, levels // 8)
    threshold = top * min(stops, key=divergence) / resolution
    return max(tensor.low, -threshold), min(tensor.high, threshold)


def _linear(tensor: TensorStatistics, top: float, resolution: int) -> np.ndarray:
    """The histogram of |x| in bins of one width from 0 to `top`, float64 of `resolution`.

    Near `top` the statistics' bins are up to 16 times as wide as these: what one counts is spread evenly between its edges, in
    whole values. All on one place would leave the others empty, where Q has no mass either, and hide what clipping there costs.
    """
    # Zeros (ReLU's) are exact in any quantization and would only drown the shape of the rest.
    counts = tensor.counts.reshape(2, -1).sum(axis=0)
    bins = np.flatnonzero(counts[1:]) + 1
    if not len(bins):
        return np.zeros(resolution)
    below = np.concatenate([[0], np.cumsum(counts[bins])])
    places = np.stack(bin_edges(bins), axis=1).astype(np.float64).reshape(-1)
    reached = np.stack([below[:-1], below[1:]], axis=1).reshape(-1)
    edges = np.linspace(0.0, top, resolution + 1)
    up_to = np.rint(np.interp(edges, np.minimum(places, top), reached))
    up_to[0], up_to[-1] = 0, below[-1]
    return np.diff(up_to)


class _Divergence:
    """KL(P || Q) for each place to clip at: P is the histogram up to there, its tail on the last bin; Q is the part without the
    tail in `levels` steps, whose mass is spread evenly over the filled bins of a step.

    From sums over the histogram's beginnings, so that a place costs as much as there are levels, not bins.
    """

    def __init__(self, histogram: np.ndarray, levels: int) -> None:
        self.histogram, self.levels = histogram, levels
        self.mass = _beginnings(histogram)
        self.filled = _beginnings(histogram > 0)
        self.entropy = _beginnings(_x_log_x(histogram))

    def __call__(self, stop: int) -> float:
        inside, last = self.mass[stop], self.histogram[stop - 1]
        tail = self.mass[-1] - inside
        if inside <= 0:
            return np.inf
        # Bin i is in step i * levels // stop.
        edges = -(-np.arange(self.levels + 1) * stop // self.levels)
        mass, filled = np.diff(self.mass[edges]), np.diff(self.filled[edges])
        used = mass > 0
        step = mass[used] / filled[used]
        # A bin that only clipping filled has no mass in Q: the published method smooths it with a small share.
        end = np.log(step[-1] / inside) if last > 0 else np.log(1e-9)
        cross = mass[used] @ np.log(step / inside) + tail * end
        whole = inside + tail
        own = self.entropy[stop] - float(_x_log_x(last)) + float(_x_log_x(last + tail))
        return float((own - cross) / whole - np.log(whole))


def _beginnings(values: np.ndarray) -> np.ndarray:
    """Element n is the sum of the first n values."""
    return np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])


def _x_log_x(values: np.ndarray | float) -> np.ndarray:
    return values * np.log(np.where(np.asarray(values) > 0, values, 1.0))


METHODS: dict[str, Callable[[TensorStatistics, float], tuple[float, float]]] = {
    "minmax": _minmax,
    "percentile": _percentile,
    "entropy": _entropy,
    "mse": _mse,
    "peaks": _peaks,
}
