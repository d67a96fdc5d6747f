"""Convert, run both, and give back to float32 what a measurement speaks against."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir

from octavo.errors import ModelRunError, QuantizationError
from octavo.graph.io import load
from octavo.quantization.fp16.convert import Fp16Result, convert
from octavo.quantization.fp16.culprits import culprits
from octavo.quantization.fp16.measure import Loss, broken, reach
from octavo.quantization.fp16.prepare import prepare
from octavo.quantization.fp16.proof import Proof, halves, ratio
from octavo.quantization.fp16.stretches import Stretch, loudest, stretches
from octavo.quantization.fp16.watched import watched
from octavo.quantization.fp16.weights import LARGEST, NORMAL
from octavo.quantization.select import select

__all__ = ["quantize_fp16"]

# A handful of samples does not show the largest value there is: a tensor that comes within this factor of the end counts as over.
HEADROOM = 2.0
# Below this more is lost than may be; float16 alone gives 45 to 75 dB. At 41.6 dB YOLOX-nano kept all of its AP on a CPU and .998
# on a GPU, whose kernels sum less exactly (37 dB); at 44 .999 there (docs/gpu.md).
ENOUGH_DB = 44.0
_WANTED = 10 ** (-ENOUGH_DB / 10)
ROUNDS = 6
# Where a larger share of the bytes in float16 went back than this, it is said.
_MOST = 0.5


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
       values (TopK, NonMaxSuppression) or make whole numbers of them (a Cast: the pixels at which a mask is pasted) get FP32's
       choices there, and what they read is compared as outputs are.
    3. Where an output is not finite, the nodes that break first go back to float32; where its SQNR is below 44 dB, those whose
       rounding alone makes most of the noise there (`stretches`). At most 6 times; the best of these models is the result, with a
       warning where it is below 44 dB still.
       Outputs whose size the data decide count by being finite only, parts of one tensor that rows are chosen by together, and
       so do levels of a pyramid (`watched`).

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
            output beyond float16's range; ONNX Runtime runs the result without its optimizations only; and what `convert` raises.
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
    reached = reach(reference, feeds)
    kept = _overflowing(reference, reached, keep_io=keep_io) | kept

    proof = Proof.of(reference, feeds, keep_io=keep_io)
    parts: list[Stretch] | None = None
    missed: dict[str, Loss] = {}
    at_first = 0
    best: tuple[Fp16Result, dict[str, Loss]] | None = None
    for _ in range(ROUNDS + 1):
        result = proof.convert(kept)
        losses = proof.losses(result)
        at_first = at_first or _bytes_in_float16(result.model)
        if best is None or _worst(losses) > _worst(best[1]):
            best = result, losses
        failing = {name: loss for name, loss in losses.items() if loss.sqnr_db < ENOUGH_DB}
        missed = failing | missed
        if not failing:
            break
        if ruined := [name for name, loss in failing.items() if loss.broken]:
            parts_of = [part for part, name in proof.watched.items() if name in ruined]
            found = culprits(proof.judged, result.decisions, proof.inner_losses(result), parts_of)
        else:
            if parts is None:
                parts = stretches(halves(result), partial(proof.alone, result, kept, failing), _WANTED)
            given = loudest(parts, {name: ratio(loss) for name, loss in failing.items()}, _WANTED)
            parts = [part for part in parts if part not in given]
            found = {name: _reason(part) for part in given for name in part.nodes if name not in kept}
        if not found:
            break
        kept |= found
    result, losses = best
    if proof.thinned:
        losses = Proof.of(reference, feeds, keep_io=keep_io, thins=False).losses(result)
    _require_finite([name for name, loss in losses.items() if loss.broken])
    _require_finite(_broken_as_deployed(reference, result.model, feeds))
    measured = {name: round(loss.sqnr_db, 2) for name, loss in losses.items() if loss.comparable}
    back = 1 - _bytes_in_float16(result.model) / at_first if at_first else 0.0
    warnings = [*(_faint(missed, reached) or _given_back(back, missed)), *_too_far(measured)]
    return Fp16Result(result.model, result.decisions, measured, warnings)


def _reason(part: Stretch) -> str:
    tensor, noise = max(part.noise.items(), key=lambda item: item[1])
    nodes = part.nodes[0] if len(part.nodes) == 1 else f"{part.nodes[0]} to {part.nodes[-1]}"
    return f"{tensor} has {-10 * np.log10(noise):.1f} dB SQNR in float16 of {nodes} alone"


def _worst(losses: Mapping[str, Loss]) -> float:
    return min((loss.sqnr_db for loss in losses.values()), default=0.0)


def _too_far(measured: Mapping[str, float]) -> list[str]:
    return [
        f"{name!r} is {found:.1f} dB from FP32 where {ENOUGH_DB:g} are asked of FP16, and giving nodes back to float32 did not "
        "mend it; name the part of the graph before it in `fp16.keep_float`, or deploy fp32"
        for name, found in measured.items()
        if found < ENOUGH_DB
    ]


def _given_back(share: float, missed: Mapping[str, Loss]) -> list[str]:
    """Where most of what float16 could hold went back: how far the outputs were that asked for it."""
    if share <= _MOST or not missed:
        return []
    name, loss = min(missed.items(), key=lambda item: item[1].sqnr_db)
    found = "was NaN or infinite" if loss.broken else f"had {loss.sqnr_db:.1f} dB"
    return [
        f"{share:.0%} of the weights that float16 can hold went back to float32, so that outputs keep {ENOUGH_DB:g} dB ({name!r} "
        f"{found} before): this network makes more of roundings than float16 has room for, as untrained ones do, and the file "
        "gains little over fp32"
    ]


def _bytes_in_float16(model: ir.Model) -> int:
    """Of matrices and kernels, which files consist of."""
    held = [value.const_value for value in model.graph.initializers.values() if value.dtype == ir.DataType.FLOAT16]
    return sum(tensor.nbytes for tensor in held if len(tensor.shape) > 1)


def _faint(missed: Iterable[str], reached: Mapping[str, float]) -> list[str]:
    """Of outputs that fell short: those at which all samples are below what float16 has all digits of, a mask of nothing."""
    return [
        f"FP32 itself puts out no more than {reached[name]:.2g} at {name!r} on all samples, and nodes stay float32 for the digits "
        "of that; if it finds nothing there, take images on which it finds something, or correct `input:` (scale, mean, std)"
        for name in missed
        if 0 < reached.get(name, 0.0) < NORMAL
    ]


def _broken_as_deployed(reference: ir.Model, half: ir.Model, feeds: Sequence[Mapping[str, np.ndarray]]) -> list[str]:
    """Outputs that break as they will be deployed: ONNX Runtime's optimizer may trip over what ran without it."""
    try:
        return broken(reference, half, feeds, list(watched(reference, ())))
    except ModelRunError as error:
        raise QuantizationError(
            f"ONNX Runtime runs this graph in FP16 without its optimizations only: {error.problem}",
            "its fusions may not take float16 there: name the nodes around it (attention, a norm) in `fp16.keep_float`, or deploy "
            "fp32",
        ) from error


def _require_finite(names: Iterable[str]) -> None:
    """Of tensors that are not."""
    for name in names:
        raise QuantizationError(
            f"{name!r} is NaN or infinite in FP16, and giving nodes back to float32 did not mend it",
            "name the part of the graph before it in `fp16.keep_float`",
        )


def _overflowing(reference: ir.Model, reached: Mapping[str, float], *, keep_io: bool) -> dict[str, str]:
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
