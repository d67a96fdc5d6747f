"""Gates on what quantization is for: a file larger or slower than FP32 is reported, and fails where params.yaml says so.

Layers that were quantized and run in float are such a failure, too, and so is a file that is not the network that was trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from octavo.evidence.bootstrap import Interval
from octavo.evidence.gates import judge, judge_interval
from octavo.layout import INT8_VARIANTS, PARITY, REFERENCE
from octavo.manifest import X86, runs_here
from octavo.params.grammar import Gates
from octavo.runtime.session import Session
from octavo.runtime.timing import Latency, interleaved

__all__ = ["cost_gates", "kernel_gates", "speed_ratio"]

# Seconds that both graphs together are timed for, and bounds on the rounds that come of it.
SECONDS, ROUNDS = 2.0, (11, 400)
WARMUP = 3


def speed_ratio(reference: Callable[[], object], other: Callable[[], object], *, seconds: float = SECONDS) -> Interval:
    """How many times faster `other` is: median over interleaved rounds of the reference's time over its own.

    Args:
        reference, other: a call each, timed as a whole.
        seconds: about how long to measure, the warm-up aside.

    Returns:
        The median with its 95 % interval from order statistics: short measurements on a busy machine have wide ones.
    """
    both = {"reference": reference, "other": other}
    tried = interleaved(both, rounds=3, warmup=WARMUP)
    round_ms = sum(latency.median for latency in tried.values())
    timed = interleaved(both, rounds=int(np.clip(seconds * 1e3 / round_ms, *ROUNDS)), warmup=0)
    ratios = Latency(timed["other"].speedups(timed["reference"]))
    return Interval(ratios.median, *ratios.interval())


def cost_gates(
    gates: Gates,
    sizes: Mapping[str, int],
    sessions: Mapping[str, Session],
    feeds: Mapping[str, np.ndarray],
    manifests: Mapping[str, Mapping[str, Any] | None],
) -> tuple[dict[str, str], list[str]]:
    """Judge size and speed of the variants that are held to gates.

    Speed is measured only where `allow_slower` is false: it belongs to this machine, and costs seconds. Of the result only the
    verdict is a metric: a ratio that differs a little each time would fill every diff.

    Args:
        gates: `validate.gates`.
        sizes: bytes of each variant, `fp32` among them.
        sessions: of each variant.
        feeds: of one image.
        manifests: of each variant, as `kernel_gates` has them. A file for another runtime is not timed: ONNX Runtime's CPU runs
            its Q/DQ in another way than the runtime that they are laid out for.

    Returns:
        `<variant>.gate.size` and `<variant>.gate.speed` where asked for, and lines for the log: what was measured, what was not,
        and which variant is larger than FP32.
    """
    record: dict[str, str] = {}
    notes: list[str] = []
    for variant in (variant for variant in sessions if variant != REFERENCE):
        larger = sizes[variant] > sizes[REFERENCE]
        if larger:
            notes.append(f"{variant} is larger than FP32: {sizes[variant]:,} bytes against {sizes[REFERENCE]:,}")
        if variant not in gates.variants:
            continue
        if not gates.allow_larger:
            record[f"{variant}.gate.size"] = "fail" if larger else "pass"
        if gates.allow_slower or variant not in INT8_VARIANTS:
            continue
        target = (manifests.get(variant) or {"target": "cpu"})["target"]
        if not runs_here(variant, target):
            notes.append(
                f"{variant} is for {target}, and its speed is not judged (`allow_slower: false`): that runtime alone tells"
            )
        else:
            ratio = speed_ratio(lambda: sessions[REFERENCE].run(feeds), lambda variant=variant: sessions[variant].run(feeds))
            record[f"{variant}.gate.speed"] = judge_interval(ratio, 1.0)
            notes.append(
                f"{variant} runs at {ratio.estimate:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}] of FP32's speed on this machine"
            )
    return record, notes


def kernel_gates(gates: Gates, manifests: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Any]:
    """Judge what was found out about files when they were made.

    Args:
        gates: `validate.gates`.
        manifests: of the variants, by name; None where a file has none.

    Returns:
        `<variant>.int8_share` of INT8 variants: the share of the multiplications in integer kernels; and of those held to gates
        `<variant>.gate.integer_layers`: whether every quantized layer runs in such a kernel, of files for ONNX Runtime on x86 (what
        it makes of others says nothing of the runtime that they are for); and
        `<variant>.gate.parity` of trained ones: whether the file answers as the network in torch that it was written from.
    """
    record: dict[str, Any] = {}
    for variant, manifest in manifests.items():
        made = manifest["made"] if manifest is not None else {}
        ran = made.get("executed", {})
        if "int8_share" in ran:
            record[f"{variant}.int8_share"] = ran["int8_share"]
        if variant not in gates.variants or not ran:
            continue
        if manifest["target"] in X86:
            record[f"{variant}.gate.integer_layers"] = "pass" if ran["int8_layers_integer"] == ran["int8_layers"] else "fail"
        if "agreement" in made.get("parity", {}):
            record[f"{variant}.gate.parity"] = judge(made["parity"]["agreement"], PARITY)
    return record
