"""Work in lanes: results in order, bounded work ahead, errors at their place."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.runtime import lanes as module
from octavo.runtime.lanes import LANES, in_lanes


@given(st.lists(st.integers(), max_size=40), st.integers(1, 9))
def test_results_come_in_the_order_of_items_whatever_the_cores(items, cores):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "cores", lambda: cores)
        assert list(in_lanes(lambda item: item * 2, items)) == [item * 2 for item in items]


def test_items_run_side_by_side(monkeypatch):
    monkeypatch.setattr(module, "cores", lambda: 2)
    both = threading.Barrier(2, timeout=20)
    # Alone, one of them would wait for ever.
    assert list(in_lanes(lambda item: both.wait() >= 0 and item, [1, 2])) == [1, 2]


def test_little_is_begun_ahead_of_who_asks(monkeypatch):
    monkeypatch.setattr(module, "cores", lambda: 64)
    begun = []
    results = in_lanes(begun.append, range(100))
    next(results)
    results.close()
    assert len(begun) <= LANES + 1


def test_an_error_comes_at_the_place_of_its_item(monkeypatch):
    monkeypatch.setattr(module, "cores", lambda: 2)
    results = in_lanes(lambda item: 6 // item, [3, 2, 0, 1])
    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)
