"""Static INT8: uint8 activations, int8 weights, chosen by what they measure.

uint8 affine per-tensor activations x int8 symmetric per-channel weights is the one pair with fast kernels on x86. With images at
hand, what no rule decides is tried and measured on held-out ones: how ranges are cut, whether channels are equalized, and which
layers go back to float; kernel times say which of them cost least there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from octavo.calibration.statistics import Statistics
from octavo.errors import QuantizationError
from octavo.graph.custom_ops.running import LAYERS
from octavo.graph.inspect import check_float
from octavo.graph.passes.pad_depthwise import PadDepthwisePass
from octavo.graph.passes.rows_of_anchors import RowsOfAnchorsPass
from octavo.graph.passes.tail_of_pixels import TailOfPixelsPass
from octavo.graph.prepared import prepared
from octavo.graph.selection import choosing, held, released
from octavo.params.grammar import Int8
from octavo.quantization.choices import with_choices
from octavo.quantization.decisions import Decision
from octavo.quantization.int8.choice import WAY_OUT, Chosen, chosen_way
from octavo.quantization.int8.draft import SHIFTED, Draft, Feeds, Plan
from octavo.quantization.int8.in_float import Served, served_by
from octavo.quantization.int8.noise.fidelity import are_masks, fidelity_of, least_of
from octavo.quantization.int8.noise.judge import Judge, db_of
from octavo.quantization.int8.noise.objects import BoxReader, ObjectJudge, judge_of
from octavo.quantization.int8.numbers.shifts import Attended
from octavo.quantization.int8.pricing.costs import CostTable
from octavo.quantization.int8.pricing.measuring import measure
from octavo.quantization.int8.pricing.price import estimated, measured
from octavo.quantization.int8.pricing.trade import Noise
from octavo.quantization.int8.repair import Placing
from octavo.quantization.int8.result import Int8Result
from octavo.quantization.int8.structure.carried import carried
from octavo.quantization.int8.structure.heads import heads_of, is_map
from octavo.quantization.int8.structure.placement import decisions_of
from octavo.quantization.int8.structure.rows import joined, placed_by_time
from octavo.quantization.int8.structure.sizes import observe_sizes
from octavo.quantization.int8.structure.targets import target_of
from octavo.quantization.int8.structure.units import Unit, units_of
from octavo.quantization.int8.ways import Way
from octavo.quantization.int8.writing.packed import pack_constants
from octavo.quantization.int8.writing.qoperator import as_qoperator
from octavo.quantization.int8.writing.short_names import shorten_names
from octavo.quantization.select import select

__all__ = ["Begun", "Images", "begin", "decided", "quantize_static"]

_NO_IMAGES = "set `calibrate.held_out` above 0 and calibrate again, or use `int8.effort: default`"
# Axes of a tensor of images.
_IMAGES = 4
# Operators that preparation makes one node of where exporters spelled them out.
_OF_SEVERAL = frozenset({"Gelu", "HardSigmoid", "HardSwish", "LayerNormalization"})
# The opset that brought 16-bit QuantizeLinear.
SIXTEEN_BITS = 21


@dataclass(frozen=True)
class Images:
    """What is measured on.

    Attributes:
        calibration: feeds of images that the statistics were made from.
        held_out: feeds of images that they were not made from.
        boxes: of a detector, what reads the graph's outputs as boxes: it is judged by these then (`noise.objects`).
        together: vectors are compared as wholes (`noise.judge.HeadJudge`), as those of `task: embedding` are.
    """

    calibration: Sequence[Feeds]
    held_out: Sequence[Feeds]
    boxes: BoxReader | None = None
    together: bool = False


def quantize_static(model: ir.Model, statistics: Statistics, recipe: Int8, images: Images | None = None) -> Int8Result:
    """Quantize a graph.

    Args:
        model: FP32, opset >= 17, shapes inferred; it is not changed.
        statistics: of the calibration images.
        recipe: the `int8:` block.
        images: to choose by measurement and to repair; without them nothing is measured: `method: auto` is mse,
            `placement: measured` is `all`, and nothing is repaired.

    Raises:
        QuantizationError: the graph is quantized already, nothing can be quantized, `keep_float` names nothing, `ranges` names what
            is not quantized or gives tensors that share a scale different ranges, `effort: high` lacks images, or the cost table
            that `placement` names is damaged or another network's.
        CalibrationError: the statistics are another model's, a tensor that needs a range was empty on every calibration image, or
            `ranges` names nothing.
    """
    check_float(model, QuantizationError)
    statistics.require_tensors(value.name or "" for value in (*model.graph.inputs, *_made(model)))
    begun = begin(model, recipe)
    complete, choosers, ready, heads, kept = begun.complete, begun.choosers, begun.ready, begun.heads, begun.kept
    if images is not None and choosers:
        # What was chosen is fed: such outputs are not read as boxes.
        fed = (with_choices(complete, choosers, feeds) for feeds in (images.calibration, images.held_out))
        images = Images(*fed, together=images.together)
    if images is not None and images.calibration:
        observe_sizes(ready, images.calibration[0])
    judge = None
    if images is not None and images.held_out:
        judge = judge_of(ready, heads, images.held_out, images.boxes, together=images.together)
    if recipe.effort == "high" and (judge is None or not images.calibration):
        raise QuantizationError("`int8.effort: high` needs images to fit to and held-out ones to judge by", _NO_IMAGES)

    bound = recipe.fidelity if recipe.fidelity != "auto" else fidelity_of(heads, recipe.effort)

    observed = statistics.widened(_channels(ready))
    attended = _attended(ready, judge, images)

    def make(way: Way) -> Draft:
        nonlocal observed
        seen = images.calibration if images else ()
        draft = Draft(ready, observed, way.recipe, kept, seen, by_channel=way.by_channel, attended=attended)
        draft.require_ranges()
        # What one draft had to look at holds for all of the same graph.
        observed = draft.statistics
        return draft

    chosen = chosen_way(make, recipe, judge, any(is_map(value) for value in heads), bound)
    draft, whole = chosen.draft, chosen.plan
    costs = _costs(recipe, ready, whole, measurable=images is not None)
    prices = measured(draft.units, costs, whole.int8) if costs is not None else estimated(draft.units, recipe.target)
    placing = Placing(draft, whole, prices)
    alone: Noise | None = None
    record: dict[str, Any] = {}
    if judge is None:
        plan = placing.fastest()
    else:
        for_repair = recipe.repair and db_of(chosen.noise) < bound
        alone = placing.alone(judge, chosen.by_image, for_repair=for_repair, masks=are_masks(heads))
        plan, noise, record = _placed(chosen, placing, judge, alone=alone, recipe=recipe, bound=bound)
        if recipe.repair and recipe.format == "qdq" and draft.target.layout == "kernels":
            found = served_by(
                model,
                draft,
                whole,
                Served(plan, noise, costs),
                stored=placing.stored,
                rival=placing.float_is_fastest,
                judge=judge,
                wanted_db=record["fidelity_db"],
            )
            plan, noise, costs = found.plan, found.noise, found.costs
            record |= {"in_float": found.why} if found.why else {}
        record |= {"db": db_of(noise)} | ({"expected_loss": round(noise, 4)} if isinstance(judge, ObjectJudge) else {})
    result = released(draft.written(plan), complete, choosers) if choosers else draft.written(plan)
    if recipe.format == "qoperator":
        result = as_qoperator(result)
    # ONNX Runtime folds what restores them; TensorRT, for one, knows no uint16.
    halves = pack_constants(result, kept) if target_of(recipe.target).layout == "kernels" else ()
    shorten_names(result, model)
    rows = alone.rows(whole.reasons) if alone is not None else []
    decisions = [_in_file(one, halves) for one in decided(model, plan.reasons, choosers)]
    return Int8Result(result, decisions, plan.corrected, record, costs, rows, unmeasured=judge is None)


def _placed(
    chosen: Chosen, placing: Placing, judge: Judge, *, alone: Noise, recipe: Int8, bound: float
) -> tuple[Plan, float, dict[str, Any]]:
    """The placement by cost and repair, the noise that it leaves, and what it was chosen by."""
    noise, wanted = chosen.noise, 10 ** (-bound / 10)
    record: dict[str, Any] = {
        "chosen": chosen.label,
        "tried_db": chosen.tried,
        "equalized_tensors": len(chosen.draft.growth),
        "all_int8_db": db_of(noise),
        "fidelity_db": bound,
        "held_out_images": len(judge.samples),
    }
    placing.store(alone, wanted)
    plan = placing.fastest()
    if plan is not chosen.plan:
        noise = judge.judge(chosen.draft.written(plan, judge.heads))
        record["placed_db"] = db_of(noise)
    if recipe.repair and db_of(noise) < bound:
        least = least_of(bound) if recipe.fidelity == "auto" else bound
        settled = placing.settled(plan, noise, judge, alone, (wanted, 10 ** (-least / 10)))
        noise, plan = settled.noise, settled.plan
        record |= settled.record(bound)
    return plan, noise, record


@dataclass(frozen=True)
class Begun:
    """A graph as it is quantized, before anything is known of its values.

    Attributes:
        complete: FP32 in the form that integer kernels exist for.
        choosers: nodes that choose among values before layers (RT-DETR's queries, Faster R-CNN's regions).
        ready: `complete` on FP32's choices: with one row in another place all that layers behind put out would count as noise.
        heads: the tensors behind the last weights.
        kept: node name to the pattern of `keep_float` that names it.
    """

    complete: ir.Model
    choosers: list[str]
    ready: ir.Model
    heads: list[ir.Value]
    kept: dict[str, str]


def begin(model: ir.Model, recipe: Int8) -> Begun:
    """What every quantization begins with; `octavo.quantization.int8.forecast` asks no more.

    Raises:
        QuantizationError: no node has weights to quantize, `keep_float` names nothing, or `bits16` asks for an opset that a graph
            with bodies of custom operators cannot be converted to.
    """
    opset = model.opset_imports.get("") or 0
    if recipe.bits16 and model.functions and opset < SIXTEEN_BITS:
        raise QuantizationError(
            f"`int8.bits16` needs opset {SIXTEEN_BITS}; this graph has {opset}, and a graph with bodies of custom ops stays there",
            f"set `source.opset: {SIXTEEN_BITS}`",
        )
    kept = select(recipe.keep_float, ((node.name or "", node.op_type) for node in model.graph))
    target = target_of(recipe.target)
    kernels = target.layout == "kernels"
    complete = prepared(model, SIXTEEN_BITS if recipe.bits16 else 0, depthwise_norms=kernels)
    kept = carried(model, complete, kept)
    if kernels:
        # What ONNX Runtime's kernels gain by; no other runtime was seen to.
        PadDepthwisePass()(complete)
        if recipe.float_heads:
            RowsOfAnchorsPass(kept)(complete)
    if target.channels_last:
        TailOfPixelsPass(convs=True)(complete)
    choosers = choosing(complete, before_layers=True)
    ready = held(complete, choosers) if choosers else complete
    heads = heads_of(units_of(ready))
    if not heads:
        raise QuantizationError("no node of this graph has weights to quantize", WAY_OUT)
    return Begun(complete, choosers, ready, heads, kept)


def _attended(model: ir.Model, judge: Judge | None, images: Images | None) -> Attended:
    """How much each place of heads counts on the calibration images that shifts are measured on."""
    if judge is None or images is None or not images.calibration:
        return {}
    return judge.on(model, images.calibration[:SHIFTED]).attended()


def _in_file(decision: Decision, halves: Collection[str]) -> Decision:
    if decision.precision != "float" or decision.node not in halves:
        return decision
    return replace(decision, reason=f"{decision.reason}; weights float16 in the file")


def _made(model: ir.Model) -> list[ir.Value]:
    """The tensors that the graph's nodes make."""
    return [value for node in model.graph for value in node.outputs]


def _channels(model: ir.Model) -> dict[str, int]:
    """Of the tensors of images that the graph's nodes make, how many channels they have."""
    images = [value for value in _made(model) if value.shape is not None and len(value.shape) == _IMAGES]
    return {value.name or "": value.shape[1] for value in images if isinstance(value.shape[1], int)}


def _costs(recipe: Int8, model: ir.Model, whole: Plan, *, measurable: bool) -> CostTable | None:
    if recipe.placement == "all" or not target_of(recipe.target).runs_here:
        return None
    if recipe.placement == "measured":
        return measure(model, [*whole.int8, *_joined(whole)]) if measurable else None
    return CostTable.load(recipe.placement.removeprefix("table:"))


def _joined(whole: Plan) -> list[Unit]:
    """INT8 layers, each as one with the activation that may compute on its rows."""
    return [joined(layer, unit) for unit, layer in placed_by_time(whole.reasons, whole.int8).items()]


def decided(model: ir.Model, reasons: Mapping[Unit, str], choosers: Collection[str]) -> list[Decision]:
    """A record for every node of the graph as it came in; what preparation rewrote says so.

    Args:
        model: FP32 as it came in.
        reasons: each unit of the prepared graph, and why it stays float ("" for INT8).
        choosers: nodes that choose among values before layers.
    """
    made = {decision.node: decision for decision in decisions_of(reasons)}
    names = {node.name for node in model.graph}
    records = []
    for node in model.graph:
        if node.op_type == "Constant":
            continue
        decision = made.get(node.name or "")
        if node.name in choosers:
            decision = Decision(node.name, node.op_type, "float", "chooses among values, which one rounding may reorder")
        elif decision is None and (parts := _parts(node, made, names)):
            decision = _of_parts(parts)
        elif decision is None and (one := _became(node, made)) is not None:
            decision = one
        elif decision is None:
            # In what it was folded into: what it read, else what reads it.
            beside = [value.producer() for value in node.inputs if value is not None]
            beside += [use.node for value in node.outputs for use in value.uses()]
            near = next((made[other.name] for other in beside if other is not None and other.name in made), None)
            precision = near.precision if near is not None else "int8"
            decision = Decision(node.name or "", node.op_type, precision, "folded into the layers around it")
        records.append(Decision(node.name or "", node.op_type, decision.precision, decision.reason))
    return records


def _became(node: ir.Node, made: Mapping[str, Decision]) -> Decision | None:
    """What preparation made of several nodes, this one among them: it has the last one's name, and all paths lead there."""
    ends, ahead, seen = set(), [node], set()
    while ahead:
        one = ahead.pop()
        if one.name in made:
            ends.add(one)
        elif one not in seen:
            seen.add(one)
            ahead += [use.node for value in one.outputs for use in value.uses()]
    if len(ends) != 1:
        return None
    (end,) = ends
    found = made[end.name or ""]
    return found if found.op_type != end.op_type and found.op_type in _OF_SEVERAL else None


def _parts(node: ir.Node, made: Mapping[str, Decision], names: Collection[str | None]) -> list[Decision]:
    """What preparation made of a node for some channels each: their names begin with its layer's (`RowsOfAnchorsPass`)."""
    before = [node]
    for one in before:
        makers = [value.producer() for value in one.inputs if value is not None] if one.op_type not in LAYERS else []
        before += [maker for maker in makers if maker is not None and maker.name not in made and maker not in before]
    starts = tuple(f"{one.name}." for one in before)
    return [one for one in made.values() if one.op_type == node.op_type and one.node.startswith(starts) and one.node not in names]


def _of_parts(parts: Sequence[Decision]) -> Decision:
    floats = [part for part in parts if part.precision == "float"]
    reason = f"in {len(parts)} parts: {(floats or parts)[0].reason}"
    if floats and len(floats) < len(parts):
        named = ", ".join(part.node for part in floats)
        reason = f"{len(parts) - len(floats)} of its {len(parts)} parts are int8, and not {named}: {floats[0].reason}"
    return replace((floats or parts)[0], reason=reason)
