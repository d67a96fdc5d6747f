"""Gates: bounds from params.yaml, with three answers, because few images prove little.

pass           the estimate holds the bound
fail           the estimate misses it, and so does the whole 95 % interval (or there is no interval: the figure is exact)
inconclusive   the estimate misses it, but the interval reaches it: more images would tell
no-labels      the gate needs labels and the validation set has none
"""

from __future__ import annotations

from octavo.evidence.bootstrap import Interval

__all__ = ["judge", "judge_interval"]


def judge(value: float, bound: float) -> str:
    """`pass` or `fail` for a figure that is measured, not estimated."""
    return "pass" if value >= bound else "fail"


def judge_interval(interval: Interval | None, bound: float) -> str:
    """`pass`, `inconclusive`, `fail` or `no-labels` for an estimate with its interval."""
    if interval is None:
        return "no-labels"
    if interval.estimate >= bound:
        return "pass"
    return "inconclusive" if interval.high >= bound else "fail"
