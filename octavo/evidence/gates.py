"""Gates: bounds from params.yaml, with three answers, because few images prove little.

pass           the estimate holds the bound
fail           the estimate misses it, and so does the whole 95 % interval (or there is no interval: the figure is exact), or FP32
               itself has a metric of 0, or one so low that it is likely misread: nothing there can be kept
inconclusive   the estimate misses it, but the interval reaches it: more images would tell; or the figure is of so few things (a
               detector's boxes) that it passes nothing, and chance would do to miss the bound
no-labels      the gate needs labels and the validation set has none
"""

from __future__ import annotations

from scipy.special import bdtr

from octavo.evidence.bootstrap import Interval

__all__ = ["judge", "judge_drop", "judge_interval", "judge_share"]

# Of 95 %, the half on one side.
_CHANCE = 0.025


def judge(value: float, bound: float) -> str:
    """`pass` or `fail` for a figure that is measured, not estimated."""
    return "pass" if value >= bound else "fail"


def judge_interval(interval: Interval | None, bound: float, labelled: int = 1) -> str:
    """`pass`, `inconclusive`, `fail` or `no-labels` for an estimate with its interval, None where FP32 has nothing to keep."""
    if not labelled:
        return "no-labels"
    if interval is None:
        return "fail"
    if interval.estimate >= bound:
        return "pass"
    return "inconclusive" if interval.high >= bound else "fail"


def judge_drop(interval: Interval | None, bound: float, labelled: int = 1) -> str:
    """The same of a loss: the estimate holds the bound where it is not above it."""
    if interval is not None:
        interval = Interval(-interval.estimate, -interval.high, -interval.low)
    return judge_interval(interval, -bound, labelled)


def judge_share(share: float | None, count: int, bound: float) -> str:
    """`inconclusive` or `fail` for a share of things too few to pass by.

    Args:
        share: None where there are none.
        count: of how many things.
        bound: a share; it is missed for sure where things of which so large a share is right, each by itself, would hardly ever
            (2.5 %) come out as these.
    """
    return "fail" if share is not None and bdtr(round(share * count), count, bound) < _CHANCE else "inconclusive"
