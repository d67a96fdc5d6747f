"""Ranges of a placement once more, tensor by tensor, by the images that they come from as well.

Ways of cutting are compared on held-out images with everything in INT8, one way for all tensors: a few that go back to float
make most of the noise there, and images far worse than the others are cut down. What a way cuts off may be what one image in fifty
lives by, and another tensor of the same network wants it cut. Once layers are placed, each tensor is therefore rounded alone with
the range that each way gives it, on the images that the placement serves worst and on some of the others, and has the one that
measures best. A trained EfficientNet-B0's file by percentiles has 26.1 dB on 16 held-out images, 8.5 on 60 others and -6.0 on the
worst of them; tensor by tensor the same placement has 25.6, 18.9 and 5.0. What no calibration image has it cannot know: one photo
in 200 stays at -12.7.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np

from octavo.quantization.int8.draft import Draft
from octavo.quantization.int8.fitting.cuts import sharing
from octavo.quantization.int8.noise.judge import Judge
from octavo.quantization.int8.noise.sensitivity import joint_noise
from octavo.quantization.int8.noise.worth import images_worth
from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.plan import Plan
from octavo.quantization.int8.ways import Way
from octavo.runtime.shapes import images_within

__all__ = ["Ranged", "recut"]

# How many times the held-out images' noise calibration images make where ranges cut what these live by, though none of the other
# ways is better for all tensors. A little more they make anyway: it was held-out images that the placement was chosen by.
_CUT = 2.0
# Images that single roundings are measured on, half of them those with the most noise, which stand for themselves alone.
_IMAGES = 8
# How many of them networks of many layers keep where all images together have what is wanted: trained Inception V3, 28.8 dB on
# held-out images and 26.2 with the others where 24.5 are wanted, took 23 of 97 processor seconds for two and found nothing.
_OF_MANY = 1
# How many dB beyond what is wanted they are close enough by any tensor's range, where ranges cut nothing that one of them lives by:
# Swin-T and DeiT-tiny took 22 of 107 and 25 of 83 processor seconds for single roundings there, and found nothing.
_SPARE = 2.0
# Tensors that make up less than this share of all noise are left alone, and noise has to fall to this share of what it was:
# less is a chance of few images.
_SMALL, _WORTH = 0.002, 0.95
# A placement that makes so many times the noise wanted on calibration and held-out images together (6 dB) is none: layers go back
# to float by what these make, with the ranges that make the least of it.
_LOST = 4.0
# How much less noise all of it together must make on calibration and held-out images: 1 dB. Images that ranges come from are kind
# to ranges that cut none of them.
_LESS = 10**0.1


@dataclass(frozen=True)
class Ranged:
    """A placement, the draft that it was made with, and the noise that it leaves on held-out images.

    Attributes:
        ranges: how its ranges are cut, where not as the draft was made; for manifests.
        anew: of calibration and then the held-out images, where these make far more noise than is wanted: by them it has to be
            placed once more.
    """

    draft: Draft
    plan: Plan
    noise: float
    ranges: str = ""
    anew: Judge | None = None


def recut(found: Ranged, judge: Judge, wanted: float, ways: Sequence[Way]) -> Ranged:
    """A placement whose tensors have the ranges that measure best, each of one of some ways.

    Nothing more is looked for where none of the other ways, for all tensors, makes less noise than the one that was chosen, and
    calibration images make little more of it than held-out ones. Where they make far more than is wanted by any ranges, not all
    that is in INT8 can stay so: `Ranged.anew`.

    Args:
        found: the placement as it was chosen; its draft has the calibration images.
        judge: of the held-out images.
        wanted: noise-to-signal ratio that the network is held to on held-out images: what keeps to it goes on to.
        ways: that there are.

    Returns:
        The same units in INT8; `found` where it is left as it is.
    """
    draft = found.draft
    others = [way for way in ways if way.recipe.method != draft.recipe.method and way.by_channel == draft.by_channel]
    if not ways or not draft.cuts_peaks or not draft.samples or not found.plan.scales:
        return found
    every, weights = _images(draft, judge)
    count = len(every.samples) - len(judge.samples)
    by_image = every.judge_by_image(draft.written(found.plan, judge.heads))
    before = float(np.average(by_image, weights=weights))
    # With less noise than the placement has, and how much that is over all images.
    better: list[tuple[float, Ranged]] = []

    def measure(draft: Draft, ranges: str) -> None:
        given = {unit.main.name or "": why for unit, why in found.plan.reasons.items() if why}
        plan = draft.plan(given, set(found.plan.stored))
        noise = every.judge_below(draft.written(plan, judge.heads), before, weights)
        if noise is not None:
            better.append((float(np.average(noise, weights=weights)), Ranged(draft, plan, float(np.mean(noise[count:])), ranges)))

    for way in others:
        measure(draft.cut_by(way.recipe), way.label)
    is_cut = count > 0 and np.average(by_image[:count], weights=weights[:count]) > _CUT * found.noise
    if not better and not is_cut:
        return found
    bounds = {} if better or before > wanted else {"least": _OF_MANY}
    enough = not is_cut and before * 10 ** (_SPARE / 10) <= wanted
    chosen, ranges = _by_tensor(found, every, by_image, weights, others, **bounds) if others and not enough else ({}, "")
    if chosen:
        measure(draft.rescaled(chosen), ranges)
    able = [pair for pair in better if pair[1].noise <= max(found.noise, wanted)]
    least, best = min(able, key=itemgetter(0), default=(before, found))
    if draft.recipe.repair and is_cut and least > _LOST * wanted:
        return replace(min(better, key=itemgetter(0), default=(before, found))[1], anew=every)
    return best if least * _LESS < before else found


def _images(draft: Draft, judge: Judge) -> tuple[Judge, list[float]]:
    """Calibration images, then the held-out ones; how many each stands for. Where not all of them can be measured, those of
    calibration are taken on which FP32 answers farthest from what it mostly does, and some of the others.
    """
    most = images_within(draft.model, len(draft.samples))
    samples = draft.samples if judge.tells_signal else draft.samples[:most]
    every = judge.on(draft.model, [*samples, *judge.samples])
    # It leaves out images on which the network finds nothing.
    count = len(every.samples) - len(judge.samples)
    if count <= most:
        return every, [1.0] * len(every.samples)
    places, weights = _telling(every.signal_by_image()[:count], most)
    return every.only([*places, *range(count, len(every.samples))]), [*weights, *[1.0] * len(judge.samples)]


def _by_tensor(
    found: Ranged, judge: Judge, by_image: Sequence[float], counting: Sequence[float], ways: Sequence[Way], **bounds: int
) -> tuple[dict[str, QParams], str]:
    """Scales that measure better than those of a placement, and of how many tensors by which way; `bounds` as of `images_worth`."""
    draft, plan = found.draft, found.plan
    groups = [names for names in sharing(plan) if draft.fixed.isdisjoint(names)]
    if not groups:
        # The recipe says what range each of them has (`int8.ranges: {"*": ...}`).
        return {}, ""
    others = {way.label: draft.scales_by(way.recipe, plan) for way in ways}
    count = images_worth(draft.model, len(groups) * (1 + len(others)), min(_IMAGES, len(by_image)), **bounds)
    places, weights = _telling(by_image, count)
    weights = [each * counting[place] for each, place in zip(weights, places, strict=True)]
    samples = [judge.samples[place] for place in places]

    def noise(scales: dict[str, QParams], groups: Sequence[Sequence[str]]) -> list[float]:
        rounded = replace(plan, scales={**plan.scales, **scales})
        return joint_noise(draft.model, rounded, judge, samples, [(names, ()) for names in groups], weights=weights)

    least = dict(zip(map(tuple, groups), noise({}, groups), strict=True))
    loud = [names for names in least if least[names] > _SMALL * sum(least.values())]
    least = {names: least[names] * _WORTH for names in loud}
    best: dict[tuple[str, ...], str] = {}
    for label, scales in others.items():
        tried = [names for names in loud if any(scales[name].scale != plan.scales[name].scale for name in names)]
        for names, own in zip(tried, noise(scales, tried), strict=True):
            if own < least[names]:
                least[names], best[names] = own, label
    said = ", ".join(f"{count} by {label}" for label, count in sorted(Counter(best.values()).items()))
    return {name: others[label][name] for names, label in best.items() for name in names}, said


def _telling(by_image: Sequence[float], count: int) -> tuple[list[int], list[float]]:
    """Images with the most noise and some of the others, evenly from the worst on; how many images each of them stands for."""
    ranked = sorted(range(len(by_image)), key=by_image.__getitem__, reverse=True)
    worst = -(-count // 2)
    rest = ranked[worst:]
    some = [rest[place * len(rest) // (count - worst)] for place in range(count - worst)] if rest else []
    return [*ranked[:worst], *some], [1.0] * worst + [len(rest) / len(some)] * len(some) if some else [1.0] * worst
