"""Convert, run both, and give back to float32 what a measurement speaks against."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir

from octavo.errors import QuantizationError
from octavo.graph.io import load
from octavo.graph.selection import choosing, held
from octavo.quantization.choices import with_choices
from octavo.quantization.fp16.convert import Fp16Result, convert
from octavo.quantization.fp16.culprits import culprits
from octavo.quantization.fp16.measure import Loss, broken, compare, reach
from octavo.quantization.fp16.prepare import prepare
from octavo.quantization.fp16.schema import is_float
from octavo.quantization.fp16.weights import LARGEST
from octavo.quantization.select import select
from octavo.runtime.tensors import float_activations

__all__ = ["quantize_fp16"]

# A handful of samples does not show the largest value there is: a tensor that comes within this factor of the end counts as over.
HEADROOM = 2.0
# Below this the outputs are visibly not the same; float16 alone gives 55 to 75 dB.
ENOUGH_DB = 40.0
ROUNDS = 6


def quantize_fp16(
    model: ir.Model | str | Path,
    *,
    keep_io: bool = True,
    keep_float_patterns: Iterable[str] = (),
    samples: Iterable[dict[str, np.ndarray]],
) -> Fp16Result:
    """Convert a model to FP16 and prove it on samples.

    1. FP32 runs, and each float tensor's reach is read: nodes that touch one beyond float16's range stay float32.
    2. The converted model runs with every float16 tensor rounded, and its outputs are compared with FP32's. Nodes that choose among
       values (TopK, NonMaxSuppression) get FP32's choices there, and what they read is compared as outputs are.
    3. Where an output is not finite or its SQNR is below 40 dB, the nodes that lose first go back to float32, at most 6 times;
       the best of these models is the result. Outputs whose size the data decide count by being finite only.

    Args:
        model: FP32, or its path; it is not changed.
        keep_io: graph inputs and outputs stay float32.
        keep_float_patterns: node names, op types or shell patterns that stay float32.
        samples: feeds in float32, a handful of real ones; all are held in memory.

    Returns:
        The model, a decision for each node with its measured reason, and the SQNR of each float output (before an output of
        integers, that of the nearest float tensors).

    Raises:
        QuantizationError: no sample; a pattern matches nothing; an output is not finite even so; with `keep_io` false, an input or
            output beyond float16's range; and what `convert` raises.
        ModelRunError: FP32 does not run on the samples.
    """
    reference = prepare(model if isinstance(model, ir.Model) else load(model))
    feeds = list(samples)
    if not feeds:
        raise QuantizationError("there is no sample to verify the FP16 model on", "check `data.calibration` in params.yaml")
    nodes = [(node.name or "", node.op_type) for node in reference.graph]
    kept = {name: f"keep_float: {pattern}" for name, pattern in select(keep_float_patterns, nodes).items()}
    # Reasons are tried before any run: an already quantized model or a broken weight shows here.
    convert(reference, keep_io=keep_io, keep_float=kept)
    kept = _overflowing(reference, feeds, keep_io=keep_io) | kept

    # What lies behind a choice is compared on FP32's choices: one other row, and no value behind it is the same.
    choosers = choosing(reference, before_layers=False)
    judged, judged_on = held(reference, choosers), with_choices(reference, choosers, feeds)
    watched = _watched(judged)
    best: tuple[Fp16Result, dict[str, Loss]] | None = None
    for _ in range(ROUNDS + 1):
        result = convert(reference, keep_io=keep_io, keep_float=kept)
        half = held(result.model, choosers)
        losses = compare(judged, half, judged_on, watched)
        if best is None or _worst(losses) > _worst(best[1]):
            best = result, losses
        failing = [name for name, loss in losses.items() if loss.sqnr_db < ENOUGH_DB]
        if not failing:
            break
        found = culprits(judged, result.decisions, _inner(judged, half, judged_on), failing, ENOUGH_DB)
        if not found:
            break
        kept |= found
    result, losses = best
    _require_finite([name for name, loss in losses.items() if loss.broken])
    # And as it will be deployed: ONNX Runtime's optimizer may trip over what ran without it.
    _require_finite(broken(reference, result.model, feeds, _watched(reference)))
    measured = {name: round(loss.sqnr_db, 2) for name, loss in losses.items() if loss.comparable}
    return Fp16Result(result.model, result.decisions, measured)


def _worst(losses: Mapping[str, Loss]) -> float:
    return min((loss.sqnr_db for loss in losses.values()), default=0.0)


def _inner(reference: ir.Model, half: ir.Model, feeds: list[dict[str, np.ndarray]]) -> dict[str, Loss]:
    there = {value.name for node in half.graph for value in node.outputs} | {value.name for value in half.graph.inputs}
    return compare(reference, half, feeds, [name for name in float_activations(reference) if name in there])


def _watched(reference: ir.Model) -> list[str]:
    """Float outputs; before an output of integers (classes, selected boxes), the nearest float tensors."""
    found: dict[str, None] = {}
    waiting = list(reference.graph.outputs)
    seen: set[ir.Value] = set()
    while waiting:
        value = waiting.pop(0)
        producer = value.producer()
        if value in seen or producer is None:
            continue
        seen.add(value)
        if is_float(value) and value.name:
            found[value.name] = None
        else:
            waiting += [before for before in producer.inputs if before is not None]
    return list(found)


def _require_finite(names: Iterable[str]) -> None:
    """Of tensors that are not."""
    for name in names:
        raise QuantizationError(
            f"{name!r} is NaN or infinite in FP16, and giving nodes back to float32 did not mend it",
            "name the part of the graph before it in `fp16.keep_float`",
        )


def _overflowing(reference: ir.Model, feeds: list[dict[str, np.ndarray]], *, keep_io: bool) -> dict[str, str]:
    reached = reach(reference, feeds)
    if not keep_io:
        for value in (*reference.graph.inputs, *reference.graph.outputs):
            if reached.get(value.name or "", 0.0) > LARGEST:
                raise QuantizationError(
                    f"{value.name!r} reaches {reached[value.name]:.6g} on the samples, beyond float16's 65504",
                    "set `fp16.keep_io: true`",
                )
    kept = {}
    for node in reference.graph:
        for value in (*node.inputs, *node.outputs):
            size = reached.get(value.name or "", 0.0) if value is not None else 0.0
            if size > LARGEST / HEADROOM:
                relation = "ends at" if size > LARGEST else f"has less than {HEADROOM:g}x headroom to"
                kept[node.name] = f"{value.name} reaches {size:.6g} on the samples, float16 {relation} 65504"
                break
    return kept
