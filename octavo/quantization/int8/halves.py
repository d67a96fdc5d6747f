"""Float layers whose weights are not float16 in the file, because the network would fall below what it is held to by that.

Half precision keeps 60 dB of each channel's weights (`writing/packed.py`), which next to no network feels. One whose weights cancel
each other does: a MobileOne of random weights, float throughout, answered with 22.7 dB where 24.5 were asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from octavo.graph.io import copied
from octavo.quantization.int8.draft import Draft
from octavo.quantization.int8.noise.judge import Judge
from octavo.quantization.int8.plan import Plan
from octavo.quantization.int8.writing.packed import pack_constants

__all__ = ["with_float32"]

# So many groups of layers are told apart, on so many images, those with the most noise; halves of all, and halves of what makes too
# much, are measured, so many at most. (Each group alone took 31 runs, 48 of an Inception V3's 360 s with other jobs beside.)
_GROUPS, _IMAGES, _MEASURED = 32, 2, 14
# Roundings that make next to no noise still move it: YOLOv5n with eight layers in float16, and with any seven of them, has 19.73 to
# 20.16 dB, NanoDet-m of twelve 19.29 to 19.93. Noise beyond what is wanted by no more than this share is such chance, and so many
# layers, those with the fewest weights first, are asked whether it comes out otherwise without one.
_CHANCE, _ONE = 1.1, 3
# The share of the noise that is left to make which layers in float16 may make by what each group makes alone.
_SHARE = 0.5


def with_float32(draft: Draft, plan: Plan, judge: Judge, wanted: float) -> tuple[Plan, float]:
    """A plan with the layers whose weights stay float32 in the file, and the noise that this makes at the heads.

    - None, where the noise wanted is kept with all of them in float16, or is not without.
    - One, where that does.
    - Else those that make most noise, and all where that does not do.

    Args:
        draft: what plans are made with.
        plan: the plan; what it gives back to float is written as `pack_constants` does it.
        judge: measures.
        wanted: a noise-to-signal ratio.
    """
    written = draft.written(plan, judge.heads)

    def measured(kept: set[str], by: Judge) -> tuple[set[str], float, list[float]]:
        graph = copied(written)
        halves = pack_constants(graph, {*draft.kept, *kept})
        by_image = by.judge_by_image(graph)
        return halves, by.total(by_image), by_image

    halves, noise, by_image = measured(set(), judge)
    if not halves or noise <= wanted:
        return plan, noise
    names = sorted(halves)
    for name in sorted(names, key=_weights(written).__getitem__)[: _ONE if noise <= _CHANCE * wanted else 0]:
        one = measured({name}, judge)[1]
        if one <= wanted:
            return replace(plan, float32=frozenset({name})), one
    *_, least, without = measured(set(names), judge)
    if least > wanted:
        return plan, noise
    worst = np.argsort(by_image)[-_IMAGES:]
    some, base = judge.only(worst), float(np.mean(np.array(without)[worst]))
    groups = [group.tolist() for group in np.array_split(names, min(len(names), _GROUPS))]

    def own(part: Collection[str]) -> float:
        return measured(set(names).difference(part), some)[1] - base

    kept = set(names).difference(_quiet(groups, own, _SHARE * (wanted - least)))
    noise = measured(kept, judge)[1]
    kept, noise = (kept, noise) if noise <= wanted else (set(names), least)
    return replace(plan, float32=frozenset(kept)), noise


def _weights(model: ir.Model) -> dict[str, int]:
    """How many weights each node has, by its name."""
    sizes = {value: value.const_value.size for value in model.graph.initializers.values() if value.const_value is not None}
    return {node.name or "": sum(sizes.get(value, 0) for value in node.inputs) for node in model.graph}


def _quiet(groups: Sequence[Sequence[str]], own: Callable[[Collection[str]], float], left: float) -> set[str]:
    """Names of as many groups as make no more noise together than a bound, of halves the quieter one first.

    Args:
        groups: of names.
        own: what some names make.
        left: the bound.
    """
    found: set[str] = set()
    waiting, asked = [groups], 0
    while waiting:
        part = waiting.pop()
        middle = len(part) // 2
        if not middle or asked >= _MEASURED:
            continue
        halves = [(own([name for group in half for name in group]), half) for half in (part[:middle], part[middle:])]
        asked += len(halves)
        loud = []
        for noise, half in sorted(halves, key=lambda pair: pair[0]):
            if noise <= left:
                left -= max(noise, 0.0)
                found.update(name for group in half for name in group)
            else:
                loud.insert(0, half)
        waiting += loud
    return found
