"""Ranges of a placement once more, by the images that they come from as well.

Ways of cutting are compared on held-out images with everything in INT8, where images far worse than the others are cut down. What
they cut off may be what one image in fifty lives by. A trained EfficientNet-B0, as placed, by percentiles and with nothing cut off:
29.2 and 27.8 dB on the 16 held-out images, 23.6 and 29.3 on the 48 that the ranges come from, 17.3 and 30.0 on 64 others, of which
the worst has -.6 and 17.4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.quantization.int8.draft import Draft, Plan
from octavo.quantization.int8.noise.judge import Judge
from octavo.quantization.int8.ways import UNCUT
from octavo.runtime.tensors import images_within

__all__ = ["Ranged", "uncut"]

# How much less noise it must make on calibration and held-out images together: 2 dB. Images that ranges come from are kind to
# ranges that cut none of them, and a network without such an image has its way of cutting for a reason.
_LESS = 10**0.2
# Bytes of tensors of the calibration images that are measured: all 32 of EfficientNet-B0 at 224x224.
_BYTES = 3e9


@dataclass(frozen=True)
class Ranged:
    """A placement, the draft that it was made with, and the noise that it leaves on held-out images."""

    draft: Draft
    plan: Plan
    noise: float


def uncut(found: Ranged, judge: Judge, wanted: float) -> Ranged:
    """A placement whose ranges cut nothing off, where calibration images say that this is clearly better.

    Args:
        found: the placement as it was chosen; its draft has the calibration images.
        judge: of the held-out images.
        wanted: noise-to-signal ratio that the network is held to on held-out images: what keeps to it goes on to.

    Returns:
        The same units in INT8; `found` where it is left as it is.
    """
    if not found.draft.cuts_peaks or not found.draft.samples or not found.plan.scales:
        return found
    draft = found.draft.cut_by(UNCUT)
    plan = draft.plan({unit.main.name or "": why for unit, why in found.plan.reasons.items() if why}, set(found.plan.stored))
    other = Ranged(draft, plan, judge.judge(draft.written(plan, judge.heads)))
    if other.noise > max(found.noise, wanted):
        return found
    counted = judge.on(draft.model, draft.samples[: images_within(draft.model, _BYTES, len(draft.samples))])

    def over_all(one: Ranged) -> float:
        of_counted = counted.judge(one.draft.written(one.plan, judge.heads))
        return float(np.average([one.noise, of_counted], weights=[len(judge.samples), len(counted.samples)]))

    return other if over_all(other) * _LESS < over_all(found) else found
