"""Which way of quantizing measures best, everything INT8: ranges, equalization, and what costs more where that falls short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.errors import QuantizationError
from octavo.params.grammar import Int8
from octavo.quantization.int8.draft import Draft
from octavo.quantization.int8.fitting.balance import balanced
from octavo.quantization.int8.fitting.effort import ROUNDED, efforts
from octavo.quantization.int8.noise.judge import Judge, db_of
from octavo.quantization.int8.noise.sensitivity import weights_noise
from octavo.quantization.int8.plan import Plan
from octavo.quantization.int8.ways import UNCUT, Way, ways_of

__all__ = ["WAY_OUT", "Chosen", "chosen_way"]

WAY_OUT = "see `int8.keep_float` in params.yaml, or use fp16"

# How many dB beyond what is enough weights are still rounded by their inputs: it costs seconds and nothing at run time, fits no
# range to the images at hand, and other images have up to 1.3 dB less than the held-out ones.
_SPARE = 2.0
# How much less noise equalization must make. A channel that is made larger has its codes end where calibration saw it end: for
# images of another kind that is a risk which held-out ones of the same kind do not show (EfficientNet-Lite0, calibrated on photos
# of a few things, gained .4 dB on others of them and lost 9 dB on ImageNet's).
_RISK = 10**0.1
# How much more noise everything in INT8 may make with weights that make less by themselves, where repair follows. It takes back
# what a few activations make, beside which weights do not show (YOLOv8n: 1 to 2 % of all noise, 20 % of what is left at 20 dB).
_HIDDEN = 10**0.1
# Of the median image's noise: more than this counts as this where ways are compared. Every way cuts off what an image has beyond
# all that calibration saw, by how much is chance, and it alone would decide: of a network that tells how pages lie one image of 16
# made 1500 times the median's noise; the way so chosen has 21.9 dB on other images, this one 23.8. Repair counts it in full.
_FAR = 16.0
# How many dB below what is enough all ranges are still searched. Where more is missing no search brings it, and layers go back to
# float: but for the few that make most of the noise it took a third of all time and found next to nothing (docs/int8-tried.md).
_REACH = 10.0
# Held-out images that rounded weights are told apart on, and how much less noise they must make: below that chance decides, too.
_WEIGHED, _LESS = 2, 10**0.2


@dataclass
class Chosen:
    """The way that measures best, everything INT8; SQNR in dB of each way tried.

    `by_image` is the noise on each held-out image, `noise` their mean, `typical` the same with images far worse than the others cut
    down; without images none and 0.
    """

    label: str
    noise: float
    typical: float
    by_image: list[float]
    draft: Draft
    plan: Plan
    tried: dict[str, float]


def chosen_way(
    make: Callable[[Way], Draft], recipe: Int8, judge: Judge | None, maps: bool, bound: float, *, equalize: bool = True
) -> Chosen:
    """Try each way and keep the one with the least noise at the heads on held-out images.

    Args:
        make: the draft of a way.
        recipe: the `int8:` block.
        judge: measures; None without images: then there is one way.
        maps: the network's heads are maps and not vectors.
        bound: SQNR in dB that is enough: what costs more (equalization, `effort`) is tried where no way reaches it, weights rounded
            by their inputs up to 2 dB beyond it.
        equalize: channels may be equalized: the draft is one of other weights then.

    Raises:
        QuantizationError: nothing of the graph can be quantized.
    """
    best: Chosen | None = None
    tried: dict[str, float] = {}
    plain: dict[str, Draft] = {}

    def attempt(label: str, draft: Draft, plan: Plan, *, allowed: float = 1.0) -> None:
        nonlocal best
        by_image = judge.judge_by_image(draft.written(plan, judge.heads)) if judge is not None else []
        noise, typical = (float(np.mean(by_image)), _typical(by_image)) if by_image else (0.0, 0.0)
        tried[label] = db_of(typical)
        if best is None or _is_better(best, draft, (noise, typical), allowed, bound if recipe.repair else None):
            best = Chosen(label, noise, typical, by_image, draft, plan, tried)

    for way in ways_of(recipe, maps=maps, measurable=judge is not None):
        draft = make(way)
        plan = draft.plan()
        if way.by_channel and judge is not None and not any(scale.by_channel for scale in plan.scales.values()):
            continue
        if not plan.int8 or not plan.codes:
            raise QuantizationError("no node of this graph can be quantized", WAY_OUT)
        attempt(way.label, draft, plan)
        plain[way.label] = draft
    if judge is not None:
        if equalize and (recipe.effort == "high" or (not maps and db_of(best.typical) < bound)):
            # Which cut serves equalized channels best, the plain ones do not tell (MobileNetV2). Which channels gain, one tells for
            # all: with those of the other the second cut measured -.4 and +.5 dB (MobileNetV2's halves) and -.1 and +.1
            # (MobileFaceNet's) against its own, for half the time. Maps gained no speed by it, and CGNet's 64 streams took 30 s;
            # on images of another kind NanoDet-m lost 4 dB.
            exponents = balanced(best.draft, best.plan, judge, best.by_image, gain=_RISK)
            # What cuts nothing is not tried again where it measures worse (MobileFaceNet, 3 of 20 s).
            cuts = [label for label, draft in plain.items() if label == best.label or draft.recipe.method != UNCUT]
            equalized: Draft | None = None
            for label in sorted(cuts, key=lambda label: label != best.label) if exponents else ():
                other = plain[label]
                # What the first had to look at of the equalized network holds for all of them.
                equalized = equalized.cut_as(other) if equalized is not None else other.equalized_by(exponents)
                if not equalized.growth:
                    break
                attempt(f"{label}, equalized", equalized, equalized.plan())
        label = best.label
        far = recipe.effort == "default" and db_of(best.typical) < bound - _REACH
        steps = efforts(best.draft, best.plan, judge, best.draft.samples, maps=maps, ranges_given=recipe.method != "auto", far=far)
        enough = bound + _SPARE
        while _worth_more(recipe, db_of(best.typical) < enough) and (step := next(steps, None)) is not None:
            what, draft = step
            enough = bound
            plan = draft.plan()
            repaired = recipe.repair and db_of(best.typical) < bound
            hidden = repaired and what == ROUNDED and _weighs_less(draft, plan, best, judge)
            attempt(f"{label}, {what}", draft, plan, allowed=_HIDDEN if hidden else 1.0)
            if maps and recipe.effort == "default":
                break
    return best


def _is_better(best: Chosen, draft: Draft, noises: tuple[float, float], allowed: float, bound: float | None) -> bool:
    """Whether another draft is taken instead of the best one so far.

    Repair counts every image in full: a draft that is close enough so keeps all of it in INT8, and one that is not gives layers
    back, however close it is on most of them. One of 16 photos had 8.7 dB in a DenseNet121 (random weights) by percentiles, which
    were .04 dB better on the others: 50 of 120 layers were INT8.

    Args:
        best: so far.
        draft: another.
        noises: of that on average, and as `Chosen.typical`.
        allowed: how many times the typical noise of the best it may make.
        bound: SQNR in dB that repair will see to; None where nothing is repaired.
    """
    noise, typical = noises
    riskier = bool(draft.growth) and not best.draft.growth
    better = typical * (_RISK if riskier else 1.0) < best.typical * allowed
    short, best_short = (bound is not None and db_of(each) < bound for each in (noise, best.noise))
    return better if short == best_short else best_short and not riskier


def _typical(by_image: Sequence[float]) -> float:
    """The mean of images' noises, none of which counts more than `_FAR` times the median."""
    middle = float(np.median(by_image))
    # Of a detector's images half may have no object.
    return float(np.mean(np.minimum(by_image, _FAR * middle) if middle > 0 else by_image))


def _weighs_less(draft: Draft, plan: Plan, best: Chosen, judge: Judge) -> bool:
    """Whether a plan's rounded weights alone, activations exact, make clearly less noise than those of the best plan."""
    samples = judge.samples[:_WEIGHED]
    after, before = (weights_noise(one.model, its, judge, samples) for one, its in ((draft, plan), (best.draft, best.plan)))
    return after * _LESS < before


def _worth_more(recipe: Int8, short: bool) -> bool:
    """Whether to go on with what costs more."""
    return recipe.effort == "high" or (short and recipe.repair and recipe.method == "auto")
