"""What costs more than a candidate of `auto`, kept only where it measures better on held-out images.

`effort: high` does all of it. By default it is done as far as it takes to reach `fidelity`, before any layer goes back to float: it
costs about what finding out which layers these would be does, and nothing at run time. The first step is taken up to 2 dB beyond
`fidelity`. Networks that answer with maps stop at it then: a search of ranges takes minutes on their large images.

From the way of quantizing that measured best so far: layers rounded by their inputs (`refinement`), then ranges chosen by the error
at the heads (`cuts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from octavo.quantization.int8.draft import Draft, Feeds
from octavo.quantization.int8.fitting.cuts import SMALL, searched_scales
from octavo.quantization.int8.fitting.refinement import refined_codes
from octavo.quantization.int8.noise.judge import Judge
from octavo.quantization.int8.noise.worth import images_worth, roundings_worth
from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.plan import Plan
from octavo.runtime.shapes import images_within

__all__ = ["ROUNDED", "efforts"]

# The step that changes codes of weights and biases alone.
ROUNDED = "rounded"

# Calibration images that ranges are tried on: heads that are one vector an image, and heads that are maps, of which each is many.
_VECTORS, _MAPS = 8, 2
# How often the network runs on an image for each range, about: as it is, narrower and wider, and on held-out images.
_TRIES = 4
# The share of all noise from which on a tensor's range is searched where the network is far from what is wanted.
_LOUD = 0.05
# Images that layers are fitted to where heads are maps: they have many positions (NanoDet-m gains 1.2 dB with 8, 1.5 with 32).
_FITTED_MAPS = 8
# How many times the noise of the ranges before, and of the median image, those of the other calibration images have that live by
# what was cut off.
_CUT = 2.0


def efforts(
    draft: Draft, plan: Plan, judge: Judge, samples: Sequence[Feeds], *, maps: bool, ranges_given: bool, far: bool = False
) -> Iterator[tuple[str, Draft]]:
    """Ways to quantize better than a plan.

    Args:
        draft: that the plan is of.
        plan: where to start.
        judge: of the network's heads on images that the statistics were not made from.
        samples: feeds of calibration images: what is fitted is fitted to these, and has to be judged on others.
        maps: whether heads have more than one position.
        ranges_given: the user chose a method: ranges are its.
        far: the network is too far from what is wanted for ranges to bring it there: those of the loudest alone are searched.

    Yields:
        (what was done, the draft that does it).
    """
    if not samples:
        return
    recipe = draft.recipe
    correct = recipe.correction == "bias"
    codes = refined_codes(
        draft.model,
        plan,
        samples[:_FITTED_MAPS] if maps else samples,
        per_channel=recipe.per_channel,
        correct=correct,
        peaks=draft.peaks(plan.int8, plan.scales),
    )
    yield ROUNDED, draft.with_choices({}, codes)
    if ranges_given:
        return
    few = _MAPS if maps else images_worth(draft.model, _TRIES * len(plan.scales), _VECTORS)
    held_out = judge.samples if few == _VECTORS else judge.samples[: few if maps else 2 * few]
    judges = judge.on(draft.model, samples[:few]), judge.on(draft.model, held_out)
    most = roundings_worth(draft.model, _TRIES * few) if recipe.effort == "default" else None
    scales = _searched(draft, plan, judges, samples[few:], share=_LOUD if far else SMALL, most=most)
    if scales:
        # Codes hardly depend on how an input is cut: fitting them again measured no better (EfficientNet-Lite0 25.97 dB
        # against 26.27, MobileNetV2 23.94 against 24.00).
        yield f"{ROUNDED}, ranges", draft.with_choices(scales, codes)


def _searched(
    draft: Draft, plan: Plan, judges: tuple[Judge, Judge], unseen: Sequence[Feeds], **bounds: float | None
) -> dict[str, QParams]:
    """Ranges by the error at the heads, and again with those calibration images that live by what was cut off.

    A mean over an image is one value: what few images have of it may lie beyond all that the measured ones have (a classifier of an
    image's mean, searched on 2 of 16 calibration images, was cut to a seventh and answered half of what others ask for).

    Args:
        draft: that the plan is of.
        judges: on some calibration images, and on held-out ones.
        unseen: the other calibration images.
        bounds: of `searched_scales`.
    """
    model, fixed, (judge, others) = draft.model, draft.fixed, judges
    scales = searched_scales(model, plan, judge, others, fixed, **bounds)
    unseen = unseen[: images_within(model, len(unseen))] if scales and unseen else []
    if not unseen:
        return scales
    every = judge.on(model, unseen)

    def noises(judge: Judge, draft: Draft) -> np.ndarray:
        return np.array(judge.judge_by_image(draft.written(draft.plan(), judge.heads)))

    cut = noises(every, draft.rescaled(scales))
    loud = [int(place) for place in np.argsort(-cut)[:_VECTORS] if cut[place] > _CUT * np.median(cut)]
    if loud:
        before = noises(every.only(loud), draft)
        loud = [place for place, noise in zip(loud, before, strict=True) if cut[place] > _CUT * noise]
    if not loud:
        return scales
    again = judge.on(model, [*judge.samples, *(every.samples[place] for place in loud)])
    share = (len(judge.samples) + len(every.samples) - len(loud)) / len(judge.samples)
    weights = [share] * len(judge.samples) + [1.0] * len(loud)
    return searched_scales(model, plan, again, others, fixed | (set(plan.scales) - set(scales)), weights=weights, **bounds)
