"""Timing `session.run` alone: variants interleaved in one process, warm, medians with intervals."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

__all__ = ["Latency", "interleaved"]


@dataclass(frozen=True)
class Latency:
    """Milliseconds of single runs, in the order in which they were taken."""

    samples: np.ndarray

    @property
    def median(self) -> float:
        """Median in ms."""
        return float(np.median(self.samples))

    @property
    def p95(self) -> float:
        """95th percentile in ms."""
        return float(np.percentile(self.samples, 95))

    def speedup(self, reference: Latency) -> float:
        """How many times as fast as `reference`, timed in the same rounds: the median of the rounds' ratios.

        A machine that changes its speed in between (a virtual one by 1.6 times for FP32 and 1.4 for INT8, every few seconds) moves
        the two medians apart where half of the rounds fall into either; the ratios are those of one state each.
        """
        return float(np.median(self.speedups(reference)))

    def speedups(self, reference: Latency) -> np.ndarray:
        """How many times as fast as `reference`, round by round: float64, one for each."""
        return reference.samples / self.samples

    def interval(self) -> tuple[float, float]:
        """95 % interval of the median in ms, from order statistics (no distribution assumed)."""
        ordered = np.sort(self.samples)
        n = len(ordered)
        half = 1.96 * np.sqrt(n) / 2
        low, high = int(max(0, np.floor(n / 2 - half))), int(min(n - 1, np.ceil(n / 2 + half)))
        return float(ordered[low]), float(ordered[high])


def interleaved(
    runners: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    warmup: int,
    progress: Callable[[], None] = lambda: None,
    clock: Callable[[], int] | None = None,
) -> dict[str, Latency]:
    """Time each runner once a round, so that a drift of the machine's speed meets all alike.

    Each round has another order, the same ones in every call: what ran before has left its own weights in the caches and the
    processor at its own frequency, and must be now this one, now that. In orders that merely rotate each runs behind the same other
    one; of a face network's INT8 file that cost the one behind FP32 5 % of its 1.5 ms.

    Args:
        runners: name to a call without arguments.
        rounds: counted runs of each.
        warmup: uncounted runs of each, first.
        progress: called once a round.
        clock: nanoseconds, `time.perf_counter_ns` where None; those of `time.thread_time_ns` pass while this thread computes,
            whatever else the machine does.

    Returns:
        Name to `Latency` with `rounds` samples; round i of one belongs with round i of another.
    """
    for runner in runners.values():
        for _ in range(warmup):
            runner()
    names = list(runners)
    samples: dict[str, list[float]] = {name: [] for name in names}
    now = clock or time.perf_counter_ns
    orders = random.Random(0)
    for _ in range(rounds):
        for name in orders.sample(names, len(names)):
            start = now()
            runners[name]()
            samples[name].append((now() - start) / 1e6)
        progress()
    return {name: Latency(np.array(values)) for name, values in samples.items()}
