"""Placements beside the one that prices chose, for the network itself to be timed with: what prices leave in float, in INT8.

Kernels of a cost table find what they read and write in a cache; in a network what its first layers write lies in none, and floats
are four times as many bytes: on host 7ca432ccf350 MobileFaceNet's first two Convs, priced .11 ms in float, took .15 to .18, and a
file with both in INT8 was 8 % faster.
"""

from __future__ import annotations

from collections.abc import Callable

from octavo.quantization.int8.draft import Draft
from octavo.quantization.int8.placed import Placed
from octavo.quantization.int8.plan import Plan
from octavo.quantization.int8.pricing.trade import Trade
from octavo.quantization.int8.structure.units import Unit

__all__ = ["rivals_of"]

# At most: each is written, and takes its turns.
_RIVALS = 2
# How many times the noise wanted what is predicted may be: predictions are a little off.
_NEAR = 1.25


def rivals_of(of: Placed, wanted: float) -> list[Plan]:
    """Plans like a placement's, each with one region in INT8 that measured prices alone left in float.

    Args:
        of: the placement.
        wanted: noise-to-signal ratio; what is predicted to make more is left out.

    Returns:
        Those with the most time in float first, `_RIVALS` at most; none where prices are estimated.
    """
    placing, plan, draft = of.placing, of.ranged.plan, of.ranged.draft
    if not placing.prices.is_measured:
        return []
    trade = Trade(placing.whole.reasons, placing.prices, of.alone, chained=placing.chained)
    int8 = set(plan.int8)
    now = trade.noise_of(int8)
    scale = of.left / now if now else 1.0

    def in_float(region: list[Unit]) -> float:
        return sum(placing.prices.units[unit][0] for unit in region)

    left = [unit for unit in placing.whole.int8 if unit not in placing.first and unit not in int8]
    regions = [
        region
        for region in _regions(left, trade.beside)
        if any(unit.kind == "linear" for unit in region) and scale * trade.noise_of({*int8, *region}) <= _NEAR * wanted
    ]
    return [_with(region, plan, draft) for region in sorted(regions, key=in_float, reverse=True)[:_RIVALS]]


def _regions(units: list[Unit], beside: Callable[[Unit], list[Unit]]) -> list[list[Unit]]:
    """Units that reach each other by these alone, in their order."""
    waiting, found = dict.fromkeys(units), []
    while waiting:
        region = [next(iter(waiting))]
        del waiting[region[0]]
        for unit in region:
            for other in beside(unit):
                if other in waiting:
                    del waiting[other]
                    region.append(other)
        found.append(region)
    return found


def _with(region: list[Unit], plan: Plan, draft: Draft) -> Plan:
    names = {unit.main.name for unit in region}
    given = {unit.main.name: reason for unit, reason in plan.reasons.items() if reason and unit.main.name not in names}
    return draft.plan(given, set(plan.stored) - names)
