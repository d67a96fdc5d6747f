"""Static INT8: uint8 activations, int8 weights, chosen by what they measure.

uint8 affine per-tensor activations x int8 symmetric per-channel weights is the one pair with fast kernels on x86. With images at
hand, what no rule decides is tried and measured on held-out ones: how ranges are cut, whether channels are equalized, and which
layers go back to float; kernel times say which of them cost least there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from octavo.calibration.statistics import Statistics
from octavo.errors import QuantizationError
from octavo.graph.inspect import check_float
from octavo.graph.macs import macs_in
from octavo.graph.names import added_apart
from octavo.graph.selection import released
from octavo.params.grammar import Int8
from octavo.quantization.decisions import Decision
from octavo.quantization.int8.begun import Begun, begin
from octavo.quantization.int8.choice import chosen_way
from octavo.quantization.int8.draft import SHIFTED, Draft, Feeds
from octavo.quantization.int8.judged import Made, judged
from octavo.quantization.int8.noise.fidelity import PICTURES, fidelity_of
from octavo.quantization.int8.noise.found import Found, SureBoxes, found_of
from octavo.quantization.int8.noise.judge import Judge
from octavo.quantization.int8.noise.objects import BoxReader, ObjectJudge, judge_of
from octavo.quantization.int8.noise.pictures import picture_judge
from octavo.quantization.int8.numbers.shifts import Attended
from octavo.quantization.int8.placed import placed
from octavo.quantization.int8.plan import Plan
from octavo.quantization.int8.pricing.costs import CostTable
from octavo.quantization.int8.pricing.measuring import measure
from octavo.quantization.int8.pricing.price import estimated, measured
from octavo.quantization.int8.record import decided, with_halves
from octavo.quantization.int8.repair import Placing
from octavo.quantization.int8.result import Int8Result
from octavo.quantization.int8.structure.heads import is_map
from octavo.quantization.int8.structure.refusals import TAIL
from octavo.quantization.int8.structure.rows import joined, placed_by_time
from octavo.quantization.int8.structure.targets import target_of
from octavo.quantization.int8.structure.units import Unit
from octavo.quantization.int8.ways import Way
from octavo.quantization.int8.without_suppression import WithoutSuppression
from octavo.quantization.int8.writing.packed import pack_constants
from octavo.quantization.int8.writing.qoperator import as_qoperator
from octavo.quantization.int8.writing.short_names import shorten_names
from octavo.quantization.regions import feeds_of
from octavo.runtime.memory import return_freed
from octavo.runtime.shapes import shape_of
from octavo.runtime.sizes import observe_sizes

__all__ = ["Images", "quantize_static"]

_NO_IMAGES = "set `calibrate.held_out` above 0 and calibrate again, or use `int8.effort: default`"
# Axes of a tensor of images.
_IMAGES = 4


@dataclass(frozen=True)
class Images:
    """What is measured on.

    Attributes:
        calibration: feeds of images that the statistics were made from.
        held_out: feeds of images that they were not made from.
        boxes: of a detector, what reads the graph's outputs as boxes: it is judged by these then (`noise.objects`).
        candidates: of a detector, what reads what its own suppression chooses among.
        sure: of a detector, what reads and pairs the boxes that it finds (`noise.found`).
        together: vectors are compared as wholes (`noise.head_judge.HeadJudge`), as those of `task: embedding` are.
    """

    calibration: Sequence[Feeds]
    held_out: Sequence[Feeds]
    boxes: BoxReader | None = None
    candidates: BoxReader | None = None
    sure: SureBoxes | None = None
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
    detects = images is not None and images.candidates is not None
    # A detector is judged by the boxes that suppression chooses among: what it has chosen has no places.
    apart = WithoutSuppression.of(model, always=detects)
    if apart is None:
        return _quantized(model, statistics, recipe, images)
    if images is not None:
        images = replace(images, boxes=images.candidates)
    recipe = recipe.model_copy(update={"keep_float": apart.asked(recipe.keep_float)})
    result = _quantized(apart.part, statistics, recipe, images, apart)
    return replace(result, model=apart.restored(result.model), decisions=apart.decided(result.decisions, TAIL))


def _quantized(
    model: ir.Model, statistics: Statistics, recipe: Int8, images: Images | None, apart: WithoutSuppression | None = None
) -> Int8Result:
    # Before anything is measured: a wrong file would be told after minutes.
    table = CostTable.load(recipe.table) if recipe.table is not None else None
    begun = begin(model, recipe, observes=images is not None and bool(images.calibration))
    complete, choosers, ready, heads, kept = begun.complete, begun.choosers, begun.ready, begun.heads, begun.kept
    as_given = images
    if images is not None and choosers:
        # What was chosen is fed: such outputs are not read as boxes.
        fed = feeds_of(complete, ready, choosers, (images.calibration, images.held_out))
        images = Images(*fed, together=images.together)
    elif images is not None and images.calibration:
        observe_sizes(ready, images.calibration[0])
    judge = picture = None
    if images is not None and images.held_out:
        picture = picture_judge(ready, images.held_out) if images.boxes is None else None
        judge = picture or judge_of(ready, heads, images.held_out, images.boxes, together=images.together)
    # Where suppression's candidates are read, these judge.
    chooses = choosers or (apart is not None and not isinstance(judge, ObjectJudge))
    found = _found(model, begun, as_given, apart) if recipe.repair and judge is not None and chooses else None
    if recipe.effort == "high" and (judge is None or not images.calibration):
        raise QuantizationError("`int8.effort: high` needs images to fit to and held-out ones to judge by", _NO_IMAGES)

    asked = PICTURES if picture is not None else fidelity_of(begun.last, recipe.effort)
    bound = recipe.fidelity if recipe.fidelity != "auto" else asked

    observed = statistics.widened(_channels(ready))
    attended = _attended(ready, judge, images)

    def make(way: Way) -> Draft:
        nonlocal observed
        seen = images.calibration if images else ()
        beside = {"by_channel": way.by_channel, "attended": attended, "picture": picture is not None}
        draft = Draft(ready, observed, way.recipe, kept, seen, **beside)
        draft.require_ranges()
        if table is not None:
            # Another network's is refused here: which units can be INT8 is the same in every way.
            measured(draft.units, table, [unit for unit, reason in draft.placed().items() if not reason])
        # What one draft had to look at holds for all of the same graph.
        observed = draft.statistics
        return draft

    chosen = chosen_way(make, recipe, judge, any(map(is_map, begun.last)), bound)
    # What a step tried and profiled lies between blocks that live on (`return_freed`).
    return_freed()
    whole, units = chosen.plan, chosen.draft.units
    costs = table or _measured_here(recipe, ready, whole, measurable=images is not None)
    prices = measured(units, costs, whole.int8) if costs is not None else estimated(units, recipe.target)
    return_freed()
    if judge is None:
        made = Made(chosen.draft, Placing(chosen.draft, whole, prices).fastest(), whole, costs)
    else:
        of = placed(chosen, prices, judge, recipe=recipe, last=begun.last, bound=bound, found=found)
        made = judged(model, of, judge, recipe=recipe, bound=bound, found=found, costs=costs)
    draft, plan = made.draft, made.plan
    result, decisions = _finished(model, draft.written(plan), plan, begun, recipe)
    rows = made.alone.rows(made.whole.reasons) if made.alone is not None else []
    beside = {"unmeasured": judge is None, "macs": macs_in(ready.graph, shape_of)}
    return Int8Result(result, decisions, plan.corrected, made.record, made.costs, rows, draft.growth, **beside)


def _finished(model: ir.Model, made: ir.Model, plan: Plan, begun: Begun, recipe: Int8) -> tuple[ir.Model, list[Decision]]:
    """What was written of a plan as the file has it, and the decisions for the nodes of FP32 as it came in."""
    choosers = begun.choosers
    result = released(made, begun.complete, choosers) if choosers else made
    if recipe.format == "qoperator" and plan.int8:
        result = as_qoperator(result)
    with added_apart(result):
        # ONNX Runtime folds what restores them; TensorRT, for one, knows no uint16.
        halves = pack_constants(result, {*begun.kept, *plan.float32}) if target_of(recipe.target).layout == "kernels" else ()
    shorten_names(result, model)
    wide = {name for name, scale in plan.scales.items() if scale.zero_point.dtype == np.uint16}
    return result, with_halves(decided(model, plan.reasons, choosers, wide), halves)


def _found(model: ir.Model, begun: Begun, images: Images, apart: WithoutSuppression | None) -> Found | None:
    """What tells which boxes are still found, by the graph's own choices, its suppression behind it where that is `apart`."""

    def whole(made: ir.Model) -> ir.Model:
        result = released(made, begun.complete, begun.choosers) if begun.choosers else made
        return apart.restored(result) if apart is not None else result

    source = apart.whole if apart is not None else model
    return found_of(source, images.held_out, images.calibration, images.sure, whole, macs=macs_in(begun.ready.graph, shape_of))


def _attended(model: ir.Model, judge: Judge | None, images: Images | None) -> Attended:
    """How much each place of heads counts on the calibration images that shifts are measured on."""
    if judge is None or not judge.attends or images is None or not images.calibration:
        return {}
    return judge.on(model, images.calibration[:SHIFTED]).attended()


def _made(model: ir.Model) -> list[ir.Value]:
    """The tensors that the graph's nodes make."""
    return [value for node in model.graph for value in node.outputs]


def _channels(model: ir.Model) -> dict[str, int]:
    """Of the tensors of images that the graph's nodes make, how many channels they have."""
    images = [value for value in _made(model) if value.shape is not None and len(value.shape) == _IMAGES]
    return {value.name or "": value.shape[1] for value in images if isinstance(value.shape[1], int)}


def _measured_here(recipe: Int8, model: ir.Model, whole: Plan, *, measurable: bool) -> CostTable | None:
    if recipe.placement == "all" or not measurable or not target_of(recipe.target).runs_here:
        return None
    return measure(model, [*whole.int8, *_joined(whole)])


def _joined(whole: Plan) -> list[Unit]:
    """INT8 layers, each as one with the activation that may compute on its rows."""
    return [joined(layer, unit) for unit, layer in placed_by_time(whole.reasons, whole.int8).items()]
