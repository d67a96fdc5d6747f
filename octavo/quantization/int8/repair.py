"""Which layers stay float although they could be INT8: those that are faster so, and those whose rounding costs too much.

`Trade` predicts the placements worth having, from the fastest on; what each really leaves is measured on held-out images, and
`Search` says which of them are, and which is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.quantization.int8.draft import Draft
from octavo.quantization.int8.noise.found import Found
from octavo.quantization.int8.noise.judge import Judge, db_of
from octavo.quantization.int8.noise.sensitivity import noise_of
from octavo.quantization.int8.noise.worth import images_worth, measured_together
from octavo.quantization.int8.numbers.stored import is_stored
from octavo.quantization.int8.numbers.weights import weights_of
from octavo.quantization.int8.plan import Plan
from octavo.quantization.int8.pricing.price import Prices
from octavo.quantization.int8.pricing.trade import Noise, Trade
from octavo.quantization.int8.search import Candidate, Search
from octavo.quantization.int8.structure.units import Unit

__all__ = ["Placing", "Settled"]

# How much less noise than wanted placements are looked for: predictions are a little off.
_BEYOND = 8.0
# Images that noise of single roundings is measured on where no layer goes back to float for it, and of networks of many layers,
# where a second one costs as much as all else (RetinaNet-R50 at 160x160: 46 of 87 s for two, no layer in float).
_RECORDED, _RECORDED_OF_MANY = 2, 1
# The share of the noise wanted that int8 weights of float layers may make together: with a tenth NanoDet-m's placement is priced a
# tenth higher and its file is 1.5 % of FP32's size smaller, with a twentieth YOLOv5n's and its own are as large as ONNX Runtime's.
_STORED = 0.05
# A share of the noise that goes back for the time that INT8 does not save, not for the noise.
_NEARLY_NONE = 0.0005
# What a noise may differ by from itself in dB and back.
_ROUNDED = 1 + 1e-9


@dataclass(frozen=True)
class Settled:
    """A placement.

    Attributes:
        noise: as measured, with what boxes count as that are not found again (`Placing.counting`).
        heads: the same without them.
        plan: with it.
        dear: where that is more noise than was wanted: how many times the time of what just does what was wanted takes, by prices.
    """

    noise: float
    heads: float
    plan: Plan
    dear: float | None = None

    def record(self, wanted_db: float) -> dict[str, float]:
        """For a manifest, where `wanted_db` was too dear: what it is held to instead, and what the rest costs."""
        if self.dear is None:
            return {}
        held = db_of(self.noise)
        if self.noise > _ROUNDED * 10 ** (-held / 10):
            # Rounded up it were more than the placement has, and nothing that is written of it could keep it.
            held = round(held - 0.01, 2)
        return {"fidelity_db": held, "dear_db": wanted_db, "dear_price": round(self.dear, 2)}


class Placing:
    """Decides for one draft.

    Args:
        draft: what plans are made with.
        whole: the plan in which everything that can be is INT8.
        prices: of time.
        found: of a detector that chooses rows, what tells which boxes it still finds.
    """

    def __init__(self, draft: Draft, whole: Plan, prices: Prices, found: Found | None = None) -> None:
        self.draft, self.whole, self.prices, self.found = draft, whole, prices, found
        self.first = set(whole.int8)
        self.chained = draft.target.layout == "kernels"
        self.stored: set[str] = set()
        # By measured prices, as far as `fastest` has looked.
        self.float_is_fastest = False
        # By the units in INT8, and the float layers whose weights are.
        self._f1: dict[tuple[frozenset[Unit], frozenset[str]], float] = {}

    def fastest(self) -> Plan:
        """The fastest placement by measured prices; by estimated ones `whole`.

        A network that is fastest in float throughout by these prices is quantized all the same: `in_float.py` times both.
        """
        if not self.prices.is_measured:
            return self.whole
        chosen = Trade(self.whole.reasons, self.prices, chained=self.chained).cheapest(0.0)
        if chosen >= set(self.whole.int8):
            return self.whole
        plan = self.draft.plan(self._given(chosen), self.stored)
        if not plan.codes:
            self.float_is_fastest = True
            return self.whole
        self.first = chosen
        return plan

    def saved(self, plan: Plan) -> float:
        """What a plan with fewer units in INT8 than the fastest saves of float's time, by measured prices: a share; 1 for the
        fastest, and where these call float fastest, which `in_float.py` times.
        """
        whole = self.prices.of(())
        if not self.prices.is_measured or self.float_is_fastest or not whole or set(plan.int8) == self.first:
            return 1.0
        return 1 - self.prices.of(plan.int8) / whole

    def alone(self, judge: Judge, by_image: Sequence[float], *, for_repair: bool = True, masks: bool = False) -> Noise:
        """Noise of each rounding of `whole` alone, on as many held-out images as fit a bound of work: 1 to 8.

        Of images ordered by how much noise `whole` makes on them they are taken evenly, from the worst on. One whose values leave
        the ranges can make most of all noise (RT-DETRv2: -2 dB, where 15 others have 20 and more), and repair could not know
        which layers it is that fail there; the worst alone come out less even (docs/int8.md).

        Args:
            judge: of the held-out images.
            by_image: noise of `whole` on each of them.
            for_repair: placements are chosen by it; a record of it takes fewer images.
            masks: the network answers with masks.
        """
        ranked = sorted(range(len(by_image)), key=by_image.__getitem__, reverse=True)
        at_most = len(ranked) if for_repair else min(_RECORDED, len(ranked))
        roundings, least = len(self.whole.scales) + len(self.whole.codes), {} if for_repair else {"least": _RECORDED_OF_MANY}
        count = images_worth(self.draft.model, roundings, at_most, masks=masks, **least)
        count, together = measured_together(self.draft.model, roundings, count, recorded=not for_repair)
        chosen = [judge.samples[ranked[place * len(ranked) // count]] for place in range(count)]
        statistics = self.draft.statistics
        return noise_of(self.draft.model, self.whole, judge, chosen, statistics=statistics, together=together)

    def store(self, alone: Noise, wanted: float) -> None:
        """Have layers keep int8 weights in the file where they are float: as many as make little noise by that.

        Args:
            alone: noise of each rounding.
            wanted: noise-to-signal ratio to come down to.
        """
        if not self.chained:
            return
        left, chosen = _STORED * wanted, []
        able = [unit for unit in self.whole.int8 if unit.name in alone.weights and is_stored(unit.main)]
        sizes = {unit: weights_of(unit.main).size for unit in able}
        # Those that save most for their noise come first.
        for unit in sorted(able, key=lambda unit: alone.weights[unit.name] / sizes[unit]):
            if alone.weights[unit.name] <= left:
                left -= alone.weights[unit.name]
                chosen.append(unit)
        self.stored = {unit.main.name for unit in chosen}
        self.prices = self.prices.with_stored(chosen)

    def counting(self, noise: float, plan: Plan, most: float) -> float:
        """Noise that a plan leaves at the heads, or what the boxes count as that it does not find again, where this is more; these
        are not looked for where noise alone is more than the most that will do.
        """
        if self.found is None or noise > most:
            return noise
        return max(noise, self.found.noise(self.f1(plan)))

    def f1(self, plan: Plan) -> float:
        """The share of boxes that a plan of the draft finds as FP32 does (`Found.f1`), which takes a run of each image: plans with
        the same units in INT8, and the same weights stored so, find the same.
        """
        key = frozenset(plan.int8), frozenset(plan.stored)
        if key not in self._f1:
            self._f1[key] = self.found.f1(self.draft.written(plan))
        return self._f1[key]

    def settled(self, start: Plan, noises: tuple[float, float], judge: Judge, alone: Noise, bounds: tuple[float, float]) -> Settled:
        """The fastest placement that measures well enough, or else the one that measures best; where the fidelity wanted is dear by
        measured times, as much of it as a tenth of time buys, and with `fidelity: auto` more where that costs next to nothing.

        Args:
            start: as `fastest` gives it.
            noises: of `start`, as measured: with boxes that are not found again (`counting`), and without.
            judge: measures.
            alone: noise of each rounding.
            bounds: noise-to-signal ratio wanted, and the most that will do.
        """
        wanted, most = bounds
        noise, heads = noises[0], {None: noises[1]}
        trade = Trade(self.whole.reasons, self.prices, alone, chained=self.chained)
        first = self._candidate(self.first, trade)
        placements = [units for units in trade.placements(wanted / _BEYOND) if trade.noise_of(units) < first.predicted]

        def plan_of(place: int) -> Plan:
            return self.draft.plan(self._given(placements[place], trade), self.stored)

        def measure(place: int) -> float | None:
            plan = plan_of(place)
            if not plan.codes:
                return None
            heads[place] = judge.judge(self.draft.written(plan, judge.heads))
            return self.counting(heads[place], plan, most)

        candidates = [self._candidate(units, trade) for units in placements]
        search = Search((first, noise), candidates, measure, self.prices.of(set()))
        found = search.settled(wanted, most if self.prices.is_measured else wanted)
        if self.prices.is_measured and self.draft.recipe.fidelity == "auto":
            found = search.closer(found, wanted)
        # Made again: plans hold weights, and of those that were measured one is kept.
        return Settled(found.noise, heads[found.place], start if found.place is None else plan_of(found.place), found.dear)

    def _candidate(self, units: set[Unit], trade: Trade) -> Candidate:
        return Candidate(self.prices.of(units), trade.noise_of(units))

    def _given(self, chosen: set[Unit], trade: Trade | None = None) -> dict[str, str]:
        """Node name to reason, of the units that could be INT8 and are not chosen."""
        given = {}
        whole = set(self.whole.int8)
        total = (trade.noise_of(whole) if trade is not None else 0.0) or 1.0
        for unit in self.whole.int8:
            if unit in chosen:
                continue
            in_float, in_int8 = self.prices.units[unit]
            if trade is not None and unit in self.first:
                share = trade.own_noise(unit, whole) / total
                reason = f"repair: its rounding makes {share:.1%} of the noise at the heads"
                # Where little is its own, it goes along with what does: a border to that would be rounded all the same.
                beside = [other for other in trade.beside(unit) if other in whole and other not in chosen]
                others = [(trade.own_noise(other, whole) / total, other.name) for other in beside]
                most, name = max(others, default=(0.0, ""))
                if self.prices.is_measured and max(most, share) < _NEARLY_NONE:
                    reason = f"repair: INT8 saves little here, borders included ({in_int8:.3f} ms against {in_float:.3f})"
                elif most > share:
                    reason += f", that of {name} beside it {most:.1%}"
                given[unit.main.name] = reason
            else:
                own = f"{in_float:.3f} ms against {in_int8:.3f}" if in_float < in_int8 else "with the borders to its neighbours"
                given[unit.main.name] = f"placement: float costs less here, {own}"
            if unit.main.name in self.stored:
                given[unit.main.name] += "; weights int8 in the file"
        return given
