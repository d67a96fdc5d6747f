"""How far each stream's channels are equalized: what makes the least noise at the heads, measured.

Growing small channels spares them rounding and costs the next layer's weights, and where a few values of an image are large, the
grown channels are cut off with them. No rule tells which of it weighs more (MobileNetV2: ten streams lose what thirty others gain).
The noise of single roundings adds up, so each stream is measured by itself, with all of them equalized alike at once. Streams none
of whose channels grow are not measured, and nothing is tried where those that are make too little of all noise for it to matter:
of Inception V3 (random weights), whose last modules make most of it with channels of one size, three of 91 streams spared it 1 %.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.quantization.int8.draft import Draft
from octavo.quantization.int8.noise.judge import Judge
from octavo.quantization.int8.noise.sensitivity import joint_noise
from octavo.quantization.int8.noise.worth import images_worth
from octavo.quantization.int8.numbers.equalization import spared
from octavo.quantization.int8.plan import Plan
from octavo.quantization.int8.structure.streams import Stream, streams_of

__all__ = ["balanced"]

# Tried on every stream.
EXPONENTS = (0.3, 0.6)
# Images that ranges of what is tried are chosen on: their extremes are known from all.
_TRIED = 8
# A stream's noise has to fall to this share of what it was, and streams that could be spared less than this share of all streams'
# are left alone, however much they make.
_WORTH, _SMALL = 0.8, 0.005
# The share of what is asked of equalizing that must be in sight, and that streams, each by itself, must have been measured to
# bring. Both are rough: of MobileNetV2's noise their sum says .23, and .25 goes; a small network of uneven channels could spare .84
# of what is asked by count, and spares more than all of it.
_SURE = 0.5


def balanced(draft: Draft, plan: Plan, judge: Judge, by_image: Sequence[float], *, gain: float = 1.0) -> dict[str, float]:
    """How far to equalize channels (`Draft.equalized_by`), by stream; those where it measures no better are left out.

    Args:
        draft: with no channel equalized.
        plan: of it, as much INT8 as can be.
        judge: of the network's heads on images that the statistics were not made from.
        by_image: the noise of the plan on each of them.
        gain: how many times less noise is asked of equalizing: nothing is equalized where that is out of sight.
    """
    quantized = [stream for stream in streams_of(draft.model, draft.units) if any(v.name in plan.scales for v in stream.tensors)]
    sparing = {stream: spared(stream, draft.units, draft.statistics, max(EXPONENTS)) for stream in quantized}
    streams = [stream for stream in quantized if sparing[stream] > 0]
    if not streams:
        return {}
    count = images_worth(draft.model, len(streams) * (len(EXPONENTS) + 1), len(judge.samples))

    def noise(draft: Draft, plan: Plan, streams: list[Stream]) -> list[float]:
        together = [([value.name for value in stream.tensors], [unit.main.name for unit in stream.takers]) for stream in streams]
        return joint_noise(draft.model, plan, judge, judge.samples[:count], together)

    measured = dict(zip(streams, noise(draft, plan, streams), strict=True))
    loud = [stream for stream, own in measured.items() if own * sparing[stream] > _SMALL * sum(measured.values())]
    asked = float(np.mean(by_image[:count])) * (1 - 1 / gain)
    if sum(measured[stream] * sparing[stream] for stream in loud) < _SURE * asked:
        return {}
    least = {stream: measured[stream] * _WORTH for stream in loud}
    chosen: dict[str, float] = {}
    for exponent in EXPONENTS:
        other = draft.equalized_by({stream.name: exponent for stream in least}, _TRIED)
        if not other.growth:
            break
        for stream, own in zip(least, noise(other, other.plan(), list(least)), strict=True):
            if own < least[stream]:
                least[stream] = own
                chosen[stream.name] = exponent
    saved = sum(measured[stream] - least[stream] for stream in loud if stream.name in chosen)
    return chosen if saved >= _SURE * asked else {}
