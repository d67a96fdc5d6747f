"""Every variant at further input sizes: what accuracy and agreement with FP32 are there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from octavo.evidence.validation import Validation
from octavo.images.dataset import Images, Item
from octavo.images.input_sizes import further_sizes, named
from octavo.layout import REFERENCE
from octavo.params.grammar import ModelSpec

__all__ = ["at_resolutions"]

# What is kept of a further size, besides the task's metric, also by the objects' size, and its agreement with FP32; intervals are
# for the model's own size.
KEYS = ("retained", "cosine_mean", "sqnr_db")


def at_resolutions(
    spec: ModelSpec,
    validation: Validation,
    items: Sequence[Item],
    track: Callable[[Images, str], Iterable[tuple[Item, np.ndarray]]] = lambda images, _: images,
) -> dict[str, Any]:
    """Validate at each of `benchmark.resolutions` that the graph takes (`octavo.images.input_sizes.refuse_untaken`).

    Args:
        spec: the model's block.
        validation: of the model's own size.
        items: the validation images.
        track: shows progress: (images, title) to the same images.

    Returns:
        `<variant>.<height>x<width>.<key>`: the task's metric, how far it is kept, and fidelity to FP32, over what is not held out.
    """
    found: dict[str, Any] = {}
    counted = [item for item in items if item.dataset not in validation.holdout]
    for size in further_sizes(spec):
        sized = replace(validation, spec=spec.input.at(size), images=[])
        sized.run(track(Images(counted, sized.spec, spec.data.on_bad_image), f"validating at {named(size)}"))
        score = sized.scores.get(REFERENCE)
        keys = (*KEYS, score.metric, *score.by_size, score.agrees) if score else KEYS
        figures = sized.figures()
        for variant, values in figures.items():
            of = figures[REFERENCE].get(score.metric) if score else None
            if of and of >= sized.least and variant != REFERENCE:
                values["retained"] = values[score.metric] / of
            found |= {f"{variant}.{named(size)}.{key}": round(values[key], 6) for key in keys if key in values}
    return found
