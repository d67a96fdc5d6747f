"""The order in which variants are timed, and what comes of their times."""

from collections import Counter
from itertools import count, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.runtime.timing import Latency, interleaved


def _ran(names, rounds, warmup=0):
    """The order of all runs."""
    ran = []
    interleaved({name: lambda name=name: ran.append(name) for name in names}, rounds=rounds, warmup=warmup)
    return ran


@given(st.integers(1, 6), st.integers(1, 30), st.integers(0, 3))
def test_each_runs_once_a_round(number, rounds, warmup):
    names = [str(at) for at in range(number)]
    ran = _ran(names, rounds, warmup)
    assert ran[: number * warmup] == [name for name in names for _ in range(warmup)]
    counted = ran[number * warmup :]
    assert all(sorted(counted[at : at + number]) == names for at in range(0, len(counted), number))


@pytest.mark.parametrize("number", [2, 3, 4, 5])
def test_each_runs_behind_each_other_one_alike(number):
    rounds = 200
    behind = Counter(pairwise(_ran(range(number), rounds)))
    # In a round another one stands before it (number - 1) times of number, between rounds any of them may.
    fair = rounds / number + rounds / number**2
    assert all(0.7 * fair < behind[one, other] < 1.3 * fair for one in range(number) for other in range(number) if one != other)


def test_the_order_is_the_same_in_every_call():
    assert _ran("abcd", 30) == _ran("abcd", 30)


def test_samples_are_in_the_order_of_rounds():
    ticks = count()
    # A millisecond goes by whenever the clock is read: each run takes one, whichever its place.
    taken = interleaved({"a": lambda: None, "b": lambda: None}, rounds=5, warmup=1, clock=lambda: next(ticks) * 10**6)
    assert {name: latency.samples.tolist() for name, latency in taken.items()} == {"a": [1.0] * 5, "b": [1.0] * 5}


def test_a_machine_that_changes_its_speed_leaves_the_speedup():
    """Medians of runs half of which met a slow state may be one of the fast, one of the slow state."""
    slow = np.array([1.6, 1.0] * 10 + [1.6])
    fp32, int8 = Latency(3.0 * slow), Latency(1.5 * slow)
    # One round changes state between the two.
    int8.samples[0] = 1.5
    assert int8.speedup(fp32) == pytest.approx(2.0)
    assert fp32.median / int8.median == pytest.approx(3.2)
    assert fp32.speedup(fp32) == 1.0
