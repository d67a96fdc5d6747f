"""A placement by measured noise as its file has it: float throughout, or some weights float32, where only that is close enough."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import onnx_ir as ir

from octavo.params.grammar import Int8
from octavo.quantization.int8.draft import Draft
from octavo.quantization.int8.halves import with_float32
from octavo.quantization.int8.in_float import Served, served_by
from octavo.quantization.int8.noise.found import Found
from octavo.quantization.int8.noise.judge import Judge, db_of
from octavo.quantization.int8.noise.objects import ObjectJudge
from octavo.quantization.int8.placed import Placed
from octavo.quantization.int8.plan import Plan
from octavo.quantization.int8.pricing.costs import CostTable
from octavo.quantization.int8.pricing.trade import Noise
from octavo.quantization.int8.rivals import rivals_of

__all__ = ["Made", "judged"]


@dataclass(frozen=True)
class Made:
    """What is written.

    Attributes:
        draft, plan: of it.
        whole: the plan with everything in INT8.
        costs: the table that it was placed by, with the speeds that were measured; None where no times were.
        alone: noise of each rounding; None where nothing was measured.
        record: what it was chosen by, for manifests.
    """

    draft: Draft
    plan: Plan
    whole: Plan
    costs: CostTable | None
    alone: Noise | None = None
    record: dict[str, Any] = field(default_factory=dict)


def judged(
    model: ir.Model, of: Placed, judge: Judge, *, recipe: Int8, bound: float, found: Found | None, costs: CostTable | None
) -> Made:
    """What is written of a placement.

    Args:
        model: FP32 as it came in.
        of: the placement.
        judge: of the held-out images, which it was placed by.
        recipe: the `int8:` block.
        bound: SQNR in dB that the network is held to.
        found: of a detector that chooses boxes by itself, what tells which it still finds.
        costs: the table that it was placed by; None where there is none.
    """
    draft, plan, noise, placing, record = of.ranged.draft, of.ranged.plan, of.ranged.noise, of.placing, of.record
    # The speed of operator form is not asked for.
    asked = recipe.repair and (recipe.format == "qdq" or db_of(of.left) < record["fidelity_db"])
    wanted = 10 ** (-record["fidelity_db"] / 10)

    def kept(rival: Plan) -> float | None:
        heads = judge.judge(draft.written(rival, judge.heads))
        left = max(heads, found.noise(found.f1(draft.written(rival)))) if found is not None and heads <= wanted else heads
        return heads if left <= wanted else None

    if asked and draft.target.layout == "kernels":
        served = served_by(
            model,
            draft,
            placing.whole,
            Served(plan, of.left, costs),
            stored=placing.stored,
            rival=placing.float_is_fastest,
            saved=placing.saved(plan),
            judge=judge,
            wanted_db=record["fidelity_db"],
            faster=partial(rivals_of, of, wanted),
            kept=kept,
        )
        if served.plan is not plan:
            noise = served.noise
        rivalled = set(served.plan.int8) - set(plan.int8)
        if rivalled:
            record["faster_in_int8"] = [unit.main.name for unit in served.plan.int8 if unit in rivalled]
        plan, costs = served.plan, served.costs
        if served.why:
            record["in_float"] = served.why
            if db_of(noise) >= bound:
                # What of it was too dear in INT8 says nothing of this file.
                record = {key: value for key, value in record.items() if not key.startswith("dear")} | {"fidelity_db": bound}
    if "in_float" not in record and draft.target.layout == "kernels":
        plan, noise = with_float32(draft, plan, judge, wanted)
    if found is not None:
        as_placed = plan is of.ranged.plan and draft is placing.draft
        record["found_f1"] = round(placing.f1(plan) if as_placed else found.f1(draft.written(plan)), 4)
    record |= {"db": db_of(noise)} | ({"expected_loss": round(noise, 4)} if isinstance(judge, ObjectJudge) else {})
    record |= {"times_of": costs.machine} if costs is not None else {}
    return Made(draft, plan, placing.whole, costs, of.alone, record)
