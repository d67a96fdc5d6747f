"""Which groups of layers are float16 in the file, found by halves."""

from collections.abc import Collection

import pytest

from octavo.quantization.int8 import halves
from octavo.quantization.int8.halves import _quiet

NAMES = [[f"{place}.a", f"{place}.b"] for place in range(32)]


def run(noise: dict[str, float], left: float) -> tuple[set[str], int]:
    asked = []

    def own(part: Collection[str]) -> float:
        asked.append(part)
        return sum(noise.get(name, 0.0) for name in part)

    found = _quiet(NAMES, own, left)
    assert sum(noise.get(name, 0.0) for name in found) <= left
    return found, len(asked)


def test_one_loud_group_is_found_in_ten_runs_and_all_others_are_taken():
    found, runs = run({"13.a": 5.0}, 1.0)
    assert found == {name for group in NAMES for name in group} - {"13.a", "13.b"}
    assert runs == 10


def test_of_noise_that_all_make_alike_as_much_as_fits_is_taken():
    found, runs = run({name: 1.0 for group in NAMES for name in group}, 40.0)
    assert 32 <= len(found) <= 40
    assert runs <= halves._MEASURED


def test_no_more_is_measured_than_the_bound_and_what_is_not_stays_float32():
    found, runs = run({f"{place}.a": 9.0 for place in range(0, 32, 2)}, 1.0)
    assert runs <= halves._MEASURED
    assert len(found) < 32


def test_noise_below_zero_is_no_room_for_more():
    assert run({"0.a": -5.0, "31.a": 1.5}, 1.0)[0] == {name for group in NAMES for name in group} - {"31.a", "31.b"}


@pytest.mark.parametrize("left", [0.0, 64.0])
def test_nothing_or_everything_fits(left):
    found, runs = run({name: 1.0 for group in NAMES for name in group}, left)
    assert len(found) == left
    assert runs <= halves._MEASURED
