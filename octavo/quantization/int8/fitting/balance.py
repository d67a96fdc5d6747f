"""How far each stream's channels are equalized: what makes the least noise at the heads, measured.

Growing small channels spares them rounding and costs the next layer's weights, and where a few values of an image are large, the
grown channels are cut off with them. No rule tells which of it weighs more (MobileNetV2: ten streams lose what thirty others gain).
The noise of single roundings adds up, so each stream is measured by itself, with all of them equalized alike at once.
"""

from __future__ import annotations

from octavo.quantization.int8.draft import Draft, Plan
from octavo.quantization.int8.noise.judge import Judge
from octavo.quantization.int8.noise.sensitivity import images_worth, joint_noise
from octavo.quantization.int8.structure.streams import Stream, streams_of

__all__ = ["balanced"]

# Tried on every stream.
EXPONENTS = (0.3, 0.6)
# Images that ranges of what is tried are chosen on: their extremes are known from all.
_TRIED = 8
# A stream's noise has to fall to this share of what it was, and streams with less than this share of all streams' are left alone.
_WORTH, _SMALL = 0.8, 0.005


def balanced(draft: Draft, plan: Plan, judge: Judge) -> dict[str, float]:
    """How far to equalize channels (`Draft.equalized_by`), by stream; those where it measures no better are left out.

    Args:
        draft: with no channel equalized.
        plan: of it, as much INT8 as can be.
        judge: of the network's heads on images that the statistics were not made from.
    """
    streams = [stream for stream in streams_of(draft.model, draft.units) if any(v.name in plan.scales for v in stream.tensors)]
    if not streams:
        return {}
    count = images_worth(draft.model, len(streams) * (len(EXPONENTS) + 1), len(judge.samples))

    def noise(draft: Draft, plan: Plan, streams: list[Stream]) -> list[float]:
        together = [([value.name for value in stream.tensors], [unit.main.name for unit in stream.takers]) for stream in streams]
        return joint_noise(draft.model, plan, judge, judge.samples[:count], together)

    measured = dict(zip(streams, noise(draft, plan, streams), strict=True))
    least = {stream: own * _WORTH for stream, own in measured.items() if own > _SMALL * sum(measured.values())}
    chosen: dict[str, float] = {}
    for exponent in EXPONENTS:
        other = draft.equalized_by({stream.name: exponent for stream in least}, _TRIED)
        if not other.growth:
            break
        for stream, own in zip(least, noise(other, other.plan(), list(least)), strict=True):
            if own < least[stream]:
                least[stream] = own
                chosen[stream.name] = exponent
    return chosen
