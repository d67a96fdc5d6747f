"""Every variant at further input sizes: what accuracy and agreement with FP32 are there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from octavo.evidence.validation import REFERENCE, Validation
from octavo.images.dataset import Images, Item
from octavo.images.input_sizes import named, refuse_fixed_size
from octavo.params.grammar import ModelSpec

__all__ = ["at_resolutions"]

# Of a whole record, what is kept of a further size.
KEYS = ("retained", "retained_low", "retained_high", "cosine_mean", "sqnr_db")


def at_resolutions(
    spec: ModelSpec,
    validation: Validation,
    items: Sequence[Item],
    track: Callable[[Images, str], Iterable[tuple[Item, np.ndarray]]] = lambda images, _: images,
) -> dict[str, Any]:
    """Validate at each of `benchmark.resolutions`.

    Args:
        spec: the model's block.
        validation: of the model's own size.
        items: the validation images.
        track: shows progress: (images, title) to the same images.

    Returns:
        `<variant>.<height>x<width>.<key>`: the task's metric, how far it is kept, and fidelity to FP32.

    Raises:
        ParamsError: the graph takes one size.
    """
    shape = validation.sessions[REFERENCE].input_shapes[validation.input_name]
    refuse_fixed_size(spec.benchmark.sizes, shape, spec.input)
    found: dict[str, Any] = {}
    for size in spec.benchmark.sizes:
        sized = replace(validation, spec=spec.input.at(size), images=[])
        sized.run(track(Images(list(items), sized.spec, spec.data.on_bad_image), f"validating at {named(size)}"))
        record = sized.record(spec.validation)
        score = sized.scores.get(REFERENCE)
        keys = (*KEYS, score.metric, score.agrees) if score else KEYS
        found |= {
            f"{variant}.{named(size)}.{key}": record[f"{variant}.{key}"]
            for variant in sized.sessions
            for key in keys
            if f"{variant}.{key}" in record
        }
    return found
