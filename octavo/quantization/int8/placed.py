"""The way that measures best, placed by cost and repaired; once more where it has lost what calibration images live by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from octavo.params.grammar import Int8
from octavo.quantization.int8.choice import Chosen
from octavo.quantization.int8.in_float import saves_little
from octavo.quantization.int8.noise.fidelity import are_masks, least_of
from octavo.quantization.int8.noise.found import Found
from octavo.quantization.int8.noise.judge import Judge, db_of
from octavo.quantization.int8.plan import Plan
from octavo.quantization.int8.pricing.price import Prices
from octavo.quantization.int8.pricing.trade import Noise
from octavo.quantization.int8.recut import Ranged, recut
from octavo.quantization.int8.repair import Placing
from octavo.quantization.int8.structure.heads import is_map
from octavo.quantization.int8.ways import Way, ways_of

__all__ = ["Placed", "placed"]


@dataclass(frozen=True)
class Placed:
    """A placement by cost and repair.

    Attributes:
        ranged: the placement.
        placing: what it was placed with.
        alone: noise of each rounding, which it was placed by.
        record: what it was chosen by, for manifests.
        left: the noise of `ranged`, or what the boxes count as that it does not find again, where this is more.
    """

    ranged: Ranged
    placing: Placing
    alone: Noise
    record: dict[str, Any]
    left: float


def placed(
    chosen: Chosen,
    prices: Prices,
    judge: Judge,
    *,
    recipe: Int8,
    last: Sequence[ir.Value],
    bound: float,
    found: Found | None = None,
) -> Placed:
    """The placement of a way.

    Args:
        chosen: everything in INT8.
        prices: of time.
        judge: of the held-out images.
        recipe: the `int8:` block.
        last: the outputs of the last layers.
        bound: SQNR in dB that the network is held to.
        found: of a detector that chooses rows, what tells which boxes it still finds.
    """
    how, count = _How(prices, recipe, last, bound, found, len(judge.samples)), len(judge.samples)
    once = how.placed(chosen, judge, ways_of(recipe, maps=any(map(is_map, last)), measurable=True))
    draft, every = once.ranged.draft, once.ranged.anew
    if every is None:
        return once
    # Held-out images must do by themselves, too: it is by these that the file is accepted or all of it goes back to float.
    every, plan = every.damped().with_apart(count), draft.plan()
    by_image = every.judge_by_image(draft.written(plan, every.heads))
    label = ", then ".join(filter(None, (chosen.label, once.ranged.ranges)))
    chosen = replace(chosen, label=label, noise=every.total(by_image), by_image=by_image, draft=draft, plan=plan)
    anew = how.placed(chosen, every, ())
    noise = judge.judge(draft.written(anew.ranged.plan, judge.heads))
    calibration = {"calibration_images": len(every.samples) - count}
    return replace(anew, ranged=replace(anew.ranged, noise=noise), record=anew.record | calibration, left=noise)


@dataclass(frozen=True)
class _How:
    """What any placement of one network goes by: as `placed` has it, and how many images of each judge, the last ones, are those
    held out, which manifests speak of.
    """

    prices: Prices
    recipe: Int8
    last: Sequence[ir.Value]
    bound: float
    found: Found | None
    held_out: int

    def placed(self, chosen: Chosen, judge: Judge, ways: Sequence[Way]) -> Placed:
        """The placement of a way by a judge's images, and its ranges by some ways (`recut`)."""
        placing = Placing(chosen.draft, chosen.plan, self.prices, self.found)
        least = least_of(self.bound) if self.recipe.fidelity == "auto" else self.bound
        noise, wanted, most = chosen.noise, 10 ** (-self.bound / 10), 10 ** (-least / 10)
        # Boxes are looked for up to the most noise that may be settled on: what is not looked at counts as found.
        left = placing.counting(noise, chosen.plan, most)
        for_repair = self.recipe.repair and db_of(left) < self.bound
        alone = placing.alone(judge, chosen.by_image, for_repair=for_repair, masks=are_masks(self.last))
        record: dict[str, Any] = {
            "chosen": chosen.label,
            "tried_db": chosen.tried,
            "equalized_tensors": len(chosen.draft.growth),
            "all_int8_db": db_of(float(np.mean(chosen.by_image[-self.held_out :]))),
            "fidelity_db": self.bound,
            "held_out_images": self.held_out,
        }
        placing.store(alone, wanted)
        plan = placing.fastest()
        if plan is not chosen.plan:
            by_image = judge.judge_by_image(chosen.draft.written(plan, judge.heads))
            noise = judge.total(by_image)
            left = placing.counting(noise, plan, most)
            record["placed_db"] = db_of(float(np.mean(by_image[-self.held_out :])))
        if self.recipe.repair and db_of(left) < self.bound:
            settled = placing.settled(plan, (left, noise), judge, alone, (wanted, most))
            left, noise, plan = settled.noise, settled.heads, settled.plan
            record |= settled.record(self.bound)
        ranged = Ranged(chosen.draft, plan, noise)
        if not self._goes_to_float(placing, plan):
            ranged = recut(ranged, judge, wanted, ways)
        if ranged.ranges:
            record["chosen"] += f", as placed {ranged.ranges}"
        return Placed(ranged, placing, alone, record, left if ranged.plan is plan else ranged.noise)

    def _goes_to_float(self, placing: Placing, plan: Plan) -> bool:
        """Whether a placement saves so little that `in_float.served_by` gives all of it back, whatever its ranges."""
        served = self.recipe.repair and self.recipe.format == "qdq" and placing.chained
        return served and saves_little(placing.saved(plan))
