"""What `method: auto` tries: how ranges are cut."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.params.grammar import Int8
from octavo.quantization.int8.structure.targets import target_of

__all__ = ["UNCUT", "Way", "ways_of"]

# Cuts nothing off. A vector is made of all positions or tokens, few of which hold the largest values: it mostly measures worse than
# what cuts these, but far better where the rest is normalised by them (attention's large activations).
UNCUT = "minmax"


@dataclass(frozen=True)
class Way:
    """One way to quantize a network.

    Attributes:
        label: what the manifest calls it.
        recipe: with a method in place of `auto`.
        by_channel: what only depthwise Convs read has a scale for each channel; for targets that can.
    """

    label: str
    recipe: Int8
    by_channel: bool = False


def ways_of(recipe: Int8, *, maps: bool, measurable: bool) -> list[Way]:
    """The ways worth trying.

    Args:
        recipe: the `int8:` block.
        maps: the network's heads are maps and not vectors.
        measurable: there are images to choose by; without them there is one way.
    """
    target = target_of(recipe.target)
    methods = [recipe.method]
    if recipe.method == "auto":
        methods = list(target.map_methods) if maps else ["mse", "percentile", UNCUT]
        methods = methods if measurable else methods[:1]
    found = []
    for method in methods:
        changes: dict[str, object] = {"method": method}
        if recipe.method == "auto" and method == "percentile":
            changes["percentile"] = target.percentile
        chosen = recipe.model_copy(update=changes)
        if target.depthwise and recipe.per_channel:
            found.append(Way(f"{method}, by channel", chosen, by_channel=True))
        if measurable or not found:
            found.append(Way(method, chosen))
    return found
