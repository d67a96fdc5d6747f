"""Static INT8: uint8 activations, int8 weights, chosen by what they measure.

uint8 affine per-tensor activations x int8 symmetric per-channel weights is the one pair with fast kernels on x86. With images at
hand, what no rule decides is tried and measured on held-out ones: how ranges are cut, whether channels are equalized, and which
layers go back to float.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from octavo.calibration.statistics import Statistics
from octavo.errors import QuantizationError
from octavo.params.grammar import Int8
from octavo.quantization.decisions import Decision
from octavo.quantization.int8.draft import Draft, Feeds, Plan, prepared
from octavo.quantization.int8.effort import efforts
from octavo.quantization.int8.judge import Judge, heads_of
from octavo.quantization.int8.placement import decisions_of
from octavo.quantization.int8.price import latency_of
from octavo.quantization.int8.qoperator import as_qoperator
from octavo.quantization.int8.repair import Trade, give_back
from octavo.quantization.int8.result import Int8Result
from octavo.quantization.int8.sensitivity import unit_noise
from octavo.quantization.int8.units import units_of
from octavo.quantization.select import select
from octavo.runtime.noise import sqnr_db

__all__ = ["Images", "quantize_static"]

# `fidelity: auto`, in dB: heads that are one vector an image, and heads that are maps.
POOLED, MAPS = 24.0, 18.0
# What `effort: high` asks of vectors beyond that.
_MORE = 2.5
_WAY_OUT = "see `int8.keep_float` in params.yaml, or use fp16"
_NO_IMAGES = "set `calibrate.held_out` above 0 and calibrate again, or use `int8.effort: default`"
# Percentile that `method: auto` tries beside mse.
_PERCENTILE = 99.97
# Images on which each unit is measured alone; the judge uses all held-out ones.
_ALONE = 2
# How much less noise than wanted the moves are planned for, because predictions are a little off.
_BEYOND = 4.0


@dataclass(frozen=True)
class Images:
    """What is measured on.

    Attributes:
        calibration: feeds of images that the statistics were made from.
        held_out: feeds of images that they were not made from.
    """

    calibration: Sequence[Feeds]
    held_out: Sequence[Feeds]


def quantize_static(model: ir.Model, statistics: Statistics, recipe: Int8, images: Images | None = None) -> Int8Result:
    """Quantize a graph.

    Args:
        model: FP32, opset >= 17, shapes inferred; it is not changed.
        statistics: of the calibration images.
        recipe: the `int8:` block.
        images: to choose by measurement and to repair; without them `method: auto` is mse and nothing is repaired.

    Raises:
        QuantizationError: nothing can be quantized, or `keep_float` names nothing, or `effort: high` lacks images.
        CalibrationError: a tensor that needs a range was empty on every calibration image, or `ranges` names nothing.
    """
    kept = select(recipe.keep_float, ((node.name or "", node.op_type) for node in model.graph))
    ready = prepared(model)
    units = units_of(ready)
    heads = heads_of(units)
    if not heads:
        raise QuantizationError("no node of this graph has weights to quantize", _WAY_OUT)
    maps = any(_is_map(value) for value in heads)
    judge = Judge(ready, [value.name for value in heads], images.held_out) if images is not None and images.held_out else None
    if recipe.effort == "high" and (judge is None or not images.calibration):
        raise QuantizationError("`int8.effort: high` needs images to fit to and held-out ones to judge by", _NO_IMAGES)

    tried: dict[str, float] = {}
    ways: list[tuple[float, Draft, Plan]] = []
    for label, chosen, equalized in _candidates(recipe, maps, judge is not None):
        draft = Draft(ready, statistics, chosen, kept, images.calibration if images else (), equalized=equalized)
        if equalized and not draft.equalized:
            continue
        plan = draft.plan()
        if not plan.int8 or not plan.codes:
            raise QuantizationError("no node of this graph can be quantized", _WAY_OUT)
        noise = judge.judge(draft.written(plan, judge.heads)) if judge is not None else 0.0
        tried[label] = _db(noise)
        ways.append((noise, draft, plan))
    noise, draft, plan = min(ways, key=lambda way: way[0])
    measured: dict[str, object] = {}
    if judge is not None:
        bound = recipe.fidelity if recipe.fidelity != "auto" else _bound(maps, recipe.effort)
        label = list(tried)[min(range(len(ways)), key=lambda place: ways[place][0])]
        steps = efforts(draft, plan, judge.heads, images.calibration, maps=maps, ranges_given=recipe.method != "auto")
        while _worth_more(recipe, maps, _db(noise) < bound) and (step := next(steps, None)) is not None:
            what, better = step
            then = better.plan()
            left = judge.judge(better.written(then, judge.heads))
            tried[f"{label}, {what}"] = _db(left)
            if left < noise:
                noise, draft, plan = left, better, then
        measured = {"tried_db": tried, "all_int8_db": _db(noise), "fidelity_db": bound, "held_out_images": len(judge.samples)}
        if recipe.repair and _db(noise) < bound:
            noise, plan = _repaired(draft, plan, noise, judge, bound)
        measured |= {"db": _db(noise)}
    result = draft.written(plan)
    if recipe.format == "qoperator":
        result = as_qoperator(result)
    return Int8Result(result, _decisions(model, plan), plan.corrected, measured)


def _is_map(value: ir.Value) -> bool:
    """Whether a head has more than one position."""
    return value.shape is None or any(dim != 1 for dim in value.shape[2:])


def _bound(maps: bool, effort: str) -> float:
    """What `fidelity: auto` comes to."""
    return MAPS if maps else POOLED + (_MORE if effort == "high" else 0.0)


def _worth_more(recipe: Int8, maps: bool, short: bool) -> bool:
    """Whether to go on with what costs more."""
    return recipe.effort == "high" or (short and recipe.repair and not maps and recipe.method == "auto")


def _candidates(recipe: Int8, maps: bool, measurable: bool) -> list[tuple[str, Int8, bool]]:
    """(label, recipe, equalized) of each way worth trying."""
    methods = [recipe.method]
    if recipe.method == "auto":
        methods = ["peaks"] if maps else ["mse", "percentile"] if measurable else ["mse"]
    found = []
    for method in methods:
        changes = {"method": method}
        if recipe.method == "auto" and method == "percentile":
            changes["percentile"] = _PERCENTILE
        chosen = recipe.model_copy(update=changes)
        found.append((method, chosen, False))
        if measurable:
            found.append((f"{method}, equalized", chosen, True))
    return found


def _repaired(draft: Draft, plan: Plan, noise: float, judge: Judge, bound: float) -> tuple[float, Plan]:
    """The plan that gives back as little as measures well enough."""
    alone = unit_noise(draft.model, plan, judge, judge.samples[:_ALONE])
    trade = Trade(draft.model, draft.units, draft.kept, alone, latency_of(draft.units))
    wanted = 10 ** (-bound / 10)
    moves = give_back(trade, wanted / _BEYOND)
    # Prediction orders the moves, bisection on what is measured says how many of them are needed.
    best = (noise, plan)
    fewest, enough = 1, len(moves) + 1
    while fewest < enough:
        count = (fewest + enough) // 2
        then = draft.plan({name: reason for move in moves[:count] for name, reason in move.items()})
        if not then.codes:
            # Nothing would be left in INT8: that many is no answer.
            enough = count
            continue
        measured = judge.judge(draft.written(then, judge.heads))
        if measured <= wanted:
            best, enough = (measured, then), count
            continue
        fewest = count + 1
        if wanted < best[0] and measured < best[0]:
            best = (measured, then)
    return best


def _decisions(model: ir.Model, plan: Plan) -> list[Decision]:
    """A record for every node of the graph as it came in; what preparation rewrote says so."""
    made = {decision.node: decision for decision in decisions_of(plan.reasons)}
    records = []
    for node in model.graph:
        if node.op_type == "Constant":
            continue
        decision = made.get(node.name or "")
        if decision is None:
            decision = Decision(node.name or "", node.op_type, "int8", "folded into the layers around it")
        records.append(Decision(node.name or "", node.op_type, decision.precision, decision.reason))
    return records


def _db(noise: float) -> float:
    return round(sqnr_db(1.0, noise), 2)
