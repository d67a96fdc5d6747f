"""What prices alone leave in float and the network itself runs faster in INT8."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_int8_in_float import SLOW, quantized

from octavo.quantization.int8 import in_float, static
from octavo.quantization.int8.pricing.costs import Cost
from octavo.quantization.int8.result import Int8Result
from octavo.quantization.int8.rivals import _regions


@pytest.fixture
def raced(monkeypatch):
    """Prices call the first Conv faster in float; files run at told speeds, each time other ones: the placement, and one with that
    Conv in INT8.
    """

    costs = quantized(fidelity=10.0).costs

    def told(*speeds: tuple[float, float]) -> list[int]:
        turns, asked = iter(speeds), []

        def of_turn(model, made, feeds):
            asked.append(len(made))
            return dict(zip(made, next(turns), strict=True))

        units = {kind: SLOW if "~input" in kind else Cost(1.0, 0.1) for kind in costs.units}
        monkeypatch.setattr(static, "measure", lambda *_: replace(costs, units=units, speeds={}))
        monkeypatch.setattr(in_float, "has_vnni", lambda: True)
        monkeypatch.setattr(in_float, "speeds_of", of_turn)
        return asked

    return told


def stem(result: Int8Result) -> str:
    return next(decision.precision for decision in result.decisions if decision.node == "stem")


def test_what_is_faster_in_int8_twice_is_int8_and_a_table_knows_it(raced, tmp_path: Path, monkeypatch):
    asked = raced((1.2, 1.4), (1.25, 1.3))
    result = quantized(fidelity=10.0)
    assert asked == [2, 2]
    assert stem(result) == "int8"
    # The sum waits for it, and what reads the sum.
    assert result.measured["faster_in_int8"] == ["stem", "sum", "pool", "flat"]
    # Of both times the one that speaks against it.
    assert sorted(result.costs.speeds.values()) == [1.25, 1.3]
    assert result.measured["db"] > 10
    result.costs.save(tmp_path / "costs.json")
    monkeypatch.setattr(in_float, "speeds_of", None)
    again = quantized(fidelity=10.0, placement=f"table:{tmp_path / 'costs.json'}")
    assert ir.to_proto(again.model).SerializeToString() == ir.to_proto(result.model).SerializeToString()


@pytest.mark.parametrize("speeds", [[(1.2, 1.22)], [(1.2, 1.4), (1.3, 1.3)], [(1.2, 1.1)]])
def test_what_may_be_chance_stays_as_prices_have_it(raced, speeds):
    asked = raced(*speeds)
    result = quantized(fidelity=10.0)
    assert len(asked) == len(speeds)
    assert stem(result) == "float"
    assert "faster_in_int8" not in result.measured
    assert next(d.reason for d in result.decisions if d.node == "stem").startswith("placement: float costs less here")


def test_what_is_faster_and_too_far_from_fp32_is_not_taken(raced, monkeypatch):
    asked = raced((1.2, 1.4), (1.2, 1.4))
    result = quantized(fidelity=10.0)
    least = result.measured["db"]
    raced((1.2, 1.4), (1.2, 1.4))
    closer = quantized(fidelity=least + 0.5)
    assert asked == [2, 2]
    assert stem(result) == "int8"
    assert closer.measured["db"] >= least + 0.5
    assert stem(closer) == "float"


def test_estimated_prices_have_no_rivals(raced):
    asked = raced()
    result = quantized(fidelity=10.0, placement="all")
    assert asked == []
    assert "faster_in_int8" not in result.measured


@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=20))
def test_regions_are_the_connected_parts(count, pairs):
    beside: dict[int, list[int]] = {place: [] for place in range(12)}
    for one, other in pairs:
        beside[one].append(other)
        beside[other].append(one)
    regions = _regions(list(range(count)), beside.__getitem__)
    assert sorted(unit for region in regions for unit in region) == list(range(count))
    of = {unit: place for place, region in enumerate(regions) for unit in region}
    for one, other in pairs:
        if one < count and other < count:
            assert of[one] == of[other]
    for region in regions:
        reached, waiting = {region[0]}, [region[0]]
        while waiting:
            new = [other for other in beside[waiting.pop()] if other < count and other not in reached]
            reached.update(new)
            waiting += new
        assert reached == set(region)
