"""Which layers stay float although they could be INT8: those that are faster so, and those whose rounding costs too much.

`Trade` predicts the placements worth having, from the fastest on; what each really leaves is measured on held-out images, and
the first of them that measures well enough is looked for where prediction and what was measured so far say that it is. Predictions
are a little off, so the next ones before it are measured, too, where they come near.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from octavo.quantization.int8.draft import Draft, Plan
from octavo.quantization.int8.noise.judge import Judge
from octavo.quantization.int8.noise.sensitivity import images_worth, noise_of
from octavo.quantization.int8.numbers.stored import WORTH
from octavo.quantization.int8.numbers.weights import weights_of
from octavo.quantization.int8.pricing.price import Prices
from octavo.quantization.int8.pricing.trade import Noise, Trade
from octavo.quantization.int8.structure.units import Unit
from octavo.runtime.noise import sqnr_db

__all__ = ["Placing", "Settled"]

# How much less noise than wanted placements are looked for: predictions are a little off.
_BEYOND = 8.0
# How many placements before the first that measures well enough are tried as well, and how many times the noise wanted they may be
# predicted to make: .7 dB.
_BEFORE, _NEAR = 4, 10**0.07
# How many times the time of the least fidelity that will do may be spent on more of it, by prices. These leave out what is the same
# in every placement, and hold float to be dearer than it is: what they call 7 to 8 % more were .6 to 3 % of YOLOv5n's time and 1 to
# 5 % of NanoDet-m's.
_DEAR = 1.1
# How far apart in price placements lie between which nothing is to be told where the fastest is looked for roughly.
_ROUGHLY = 1.01
# The share of the noise wanted that int8 weights of float layers may make together: with a tenth NanoDet-m's placement is priced a
# tenth higher and its file is 1.5 % of FP32's size smaller, with a twentieth YOLOv5n's and its own are as large as ONNX Runtime's.
_STORED = 0.05


@dataclass(frozen=True)
class Settled:
    """A placement.

    Attributes:
        noise: as measured.
        plan: with it.
        dear: where that is more noise than was wanted: how many times the time of what just does what was wanted takes, by prices.
    """

    noise: float
    plan: Plan
    dear: float | None = None

    def record(self, wanted_db: float) -> dict[str, float]:
        """For a manifest, where `wanted_db` was too dear: what it is held to instead, and what the rest costs."""
        if self.dear is None:
            return {}
        return {"fidelity_db": round(sqnr_db(1.0, self.noise), 2), "dear_db": wanted_db, "dear_price": round(self.dear, 2)}


class Placing:
    """Decides for one draft.

    Args:
        draft: what plans are made with.
        whole: the plan in which everything that can be is INT8.
        prices: of time.
    """

    def __init__(self, draft: Draft, whole: Plan, prices: Prices) -> None:
        self.draft, self.whole, self.prices = draft, whole, prices
        self.first = set(whole.int8)
        self.chained = draft.target.layout == "kernels"
        self.stored: set[str] = set()
        # Placements worth having, down to some noise, and what was measured of them: no plans, which hold weights.
        self._front: tuple[float, Trade, list[set[Unit]]] | None = None
        self._seen: dict[frozenset[Unit], float] = {}
        # What was predicted and measured.
        self._known: list[tuple[float, float]] = []

    def fastest(self) -> Plan:
        """The fastest placement by measured prices; by estimated ones `whole`.

        A network that is fastest in float throughout is quantized all the same: that is what was asked for.
        """
        if not self.prices.is_measured:
            return self.whole
        chosen = Trade(self.whole.reasons, self.prices, chained=self.chained).cheapest(0.0)
        plan = self.draft.plan(self._given(chosen), self.stored)
        if not plan.codes:
            return self.whole
        self.first = chosen
        return plan

    def alone(self, judge: Judge, by_image: Sequence[float]) -> Noise:
        """Noise of each rounding of `whole` alone, on as many held-out images as fit a bound of work: 1 to 8.

        Of images ordered by how much noise `whole` makes on them they are taken evenly, from the worst on. One whose values leave
        the ranges can make most of all noise (RT-DETRv2: -2 dB, where 15 others have 20 and more), and repair could not know
        which layers it is that fail there; the worst alone come out less even (docs/int8.md).

        Args:
            judge: of the held-out images.
            by_image: noise of `whole` on each of them.
        """
        ranked = sorted(range(len(by_image)), key=by_image.__getitem__, reverse=True)
        count = images_worth(self.draft.model, len(self.whole.scales) + len(self.whole.codes), len(ranked))
        chosen = [judge.samples[ranked[place * len(ranked) // count]] for place in range(count)]
        return noise_of(self.draft.model, self.whole, judge, chosen)

    def store(self, alone: Noise, wanted: float) -> None:
        """Have layers keep int8 weights in the file where they are float: as many as make little noise by that.

        Args:
            alone: noise of each rounding.
            wanted: noise-to-signal ratio to come down to.
        """
        if not self.chained:
            return
        left, chosen = _STORED * wanted, []
        able = [unit for unit in self.whole.int8 if unit.name in alone.weights and unit.main.op_type != "MatMul"]
        sizes = {unit: weights_of(unit.main).size for unit in able}
        # Those that save most for their noise come first.
        for unit in sorted(able, key=lambda unit: alone.weights[unit.name] / sizes[unit]):
            if sizes[unit] >= WORTH and alone.weights[unit.name] <= left:
                left -= alone.weights[unit.name]
                chosen.append(unit)
        self.stored = {unit.main.name for unit in chosen}
        self.prices = self.prices.with_stored(chosen)

    def settled(self, start: Plan, noise: float, judge: Judge, alone: Noise, bounds: tuple[float, float]) -> Settled:
        """As `repaired`, but where the fidelity wanted is dear by measured times, as much of it as a tenth of time buys.

        Args:
            start, noise, judge, alone: as `repaired` takes them.
            bounds: noise-to-signal ratio wanted, and the most that will do.
        """
        wanted, most = bounds
        if most <= wanted or not self.prices.is_measured:
            return Settled(*self.repaired(start, noise, judge, alone, wanted))
        loose = (noise, start) if noise <= most else self.repaired(start, noise, judge, alone, most, roughly=True)
        if loose[0] > most:
            return Settled(*self.repaired(start, noise, judge, alone, wanted))
        most_time = _DEAR * self._price(loose[1])

        def close() -> Settled | None:
            found = Settled(*self.repaired(start, noise, judge, alone, wanted))
            return found if found.noise <= wanted and self._price(found.plan) <= most_time else None

        trade, placements = self._worth_having(alone, wanted)
        within = [units for units in placements if self.prices.of(units) <= most_time]
        # What does within that what is wanted, by what was measured so far, need not be looked for with pains.
        if within and self._expected(trade.noise_of(within[-1])) <= wanted / _NEAR and (found := close()) is not None:
            return found
        best = loose
        # Neighbours differ by a layer or two; those before the last are predicted to make more noise, and some of them make less.
        late = [units for units in within if self.prices.of(units) >= most_time / _DEAR**0.5] or within
        tried = [late[place * (len(late) - 1) // _BEFORE] for place in range(_BEFORE + 1)] if len(late) > _BEFORE else late
        for units in reversed(tried):
            measured, plan = self._measured(units, trade, judge)
            if plan is not None and measured < best[0]:
                best = measured, plan
            if best[0] <= wanted:
                return close() or Settled(*best)
        made = {frozenset(units): self._expected(trade.noise_of(units)) for units in placements} | self._seen
        enough = [units for units in placements if made[frozenset(units)] <= wanted]
        return Settled(*best, dear=min(map(self.prices.of, enough), default=self.prices.of(set())) * _DEAR / most_time)

    def _price(self, plan: Plan) -> float:
        return self.prices.of(set(plan.int8))

    def _worth_having(self, alone: Noise, wanted: float) -> tuple[Trade, list[set[Unit]]]:
        """Placements from the fastest on, each predicted to make less noise than the one before and than the fastest of all."""
        if self._front is None or self._front[0] > wanted:
            trade = Trade(self.whole.reasons, self.prices, alone, chained=self.chained)
            self._front = wanted, trade, trade.placements(wanted / _BEYOND)
        _, trade, front = self._front
        before = trade.noise_of(self.first)
        return trade, [units for units in front if trade.noise_of(units) < before]

    def _measured(self, units: set[Unit], trade: Trade, judge: Judge) -> tuple[float, Plan | None]:
        """A placement's noise, and its plan; None where it leaves nothing in INT8."""
        plan = self.draft.plan(self._given(units, trade), self.stored)
        if not plan.codes:
            return 0.0, None
        if frozenset(units) not in self._seen:
            noise = judge.judge(self.draft.written(plan, judge.heads))
            self._seen[frozenset(units)] = noise
            if (predicted := trade.noise_of(units)) > 0:
                self._known.append((predicted, noise))
        return self._seen[frozenset(units)], plan

    def _expected(self, predicted: float) -> float:
        """Noise of a placement that was not measured: off as many times as that of the one measured whose prediction is nearest."""
        if not self._known or predicted <= 0:
            return predicted
        near, measured = min(self._known, key=lambda known: abs(np.log(known[0] / predicted)))
        return predicted * measured / near

    def repaired(
        self, start: Plan, noise: float, judge: Judge, alone: Noise, wanted: float, *, roughly: bool = False
    ) -> tuple[float, Plan]:
        """The fastest placement that measures well enough, or else the one that measures best.

        Args:
            start: as `fastest` gives it.
            noise: of `start`, as measured.
            judge: measures; the same in every call.
            alone: noise of each rounding; the same in every call.
            wanted: noise-to-signal ratio to come down to.
            roughly: whether one that is priced a little higher than the fastest will do.

        Returns:
            Noise as measured, and the plan.
        """
        trade, placements = self._worth_having(alone, wanted)
        predicted = [trade.noise_of(units) for units in placements]
        best = (noise, start)
        if not self._known and (first := trade.noise_of(self.first)):
            self._known.append((first, noise))

        @cache
        def good(place: int) -> bool:
            nonlocal best
            measured, plan = self._measured(placements[place], trade, judge)
            if plan is None:
                # Nothing would be left in INT8: that much is no answer, and nothing beyond it is.
                return True
            if measured <= wanted or (wanted < best[0] and measured < best[0]):
                best = measured, plan
            return measured <= wanted

        found, stop = 0, len(placements)
        while found < stop:
            if roughly and self.prices.of(placements[stop - 1]) <= _ROUGHLY * self.prices.of(placements[found]):
                break
            guess = next((place for place in range(found, stop) if self._expected(predicted[place]) <= wanted), stop - 1)
            found, stop = (found, guess) if good(guess) else (guess + 1, stop)
        if best[0] <= wanted and not roughly:
            # From the closest on, so that the fastest comes last.
            for place in reversed(range(max(0, found - _BEFORE), found)):
                if self._expected(predicted[place]) <= wanted * _NEAR:
                    good(place)
        return best

    def _given(self, chosen: set[Unit], trade: Trade | None = None) -> dict[str, str]:
        """Node name to reason, of the units that could be INT8 and are not chosen."""
        given = {}
        whole = set(self.whole.int8)
        total = (trade.noise_of(whole) if trade is not None else 0.0) or 1.0
        for unit in self.whole.int8:
            if unit in chosen:
                continue
            if trade is not None and unit in self.first:
                share = trade.own_noise(unit, whole) / total
                reason = f"repair: its rounding makes {share:.1%} of the noise at the heads"
                # Where little is its own, it goes along with what does: a border to that would be rounded all the same.
                beside = [other for other in trade.beside(unit) if other in whole and other not in chosen]
                others = [(trade.own_noise(other, whole) / total, other.name) for other in beside]
                most, name = max(others, default=(0.0, ""))
                given[unit.main.name] = f"{reason}, that of {name} beside it {most:.1%}" if most > share else reason
            else:
                in_float, in_int8 = self.prices.units[unit]
                own = f"{in_float:.3f} ms against {in_int8:.3f}" if in_float < in_int8 else "with the borders to its neighbours"
                given[unit.main.name] = f"placement: float costs less here, {own}"
            if unit.main.name in self.stored:
                given[unit.main.name] += "; weights int8 in the file"
        return given
