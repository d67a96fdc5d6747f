"""Networks that INT8 does not serve: all of it in float, int8 weights in the file where these are close enough.

Integer kernels do not pay everywhere (few channels, little work a layer), and where they do the placements that pay may be too far
from FP32. A file that computes as FP32 does is as fast, about a quarter as large, and rounded in its weights alone: their codes are
restored while ONNX Runtime loads the graph (`numbers/stored.py`). Where int8 weights of all layers are too far as well, those that
make little noise have them, and the others float16, or float32 (`halves.py`).
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from octavo.quantization.int8.draft import Draft
from octavo.quantization.int8.halves import with_float32
from octavo.quantization.int8.noise.judge import Judge, db_of
from octavo.quantization.int8.numbers.stored import is_stored
from octavo.quantization.int8.plan import Plan
from octavo.quantization.int8.pricing.costs import CostTable
from octavo.runtime.host import has_vnni
from octavo.runtime.mapped import session_of
from octavo.runtime.session import Session
from octavo.runtime.timing import Latency, interleaved

__all__ = ["Served", "in_float", "name_of", "saves_little", "served_by", "speeds_of"]

# Below this share of FP32's speed a file is slower; what lies between it and 1 may be the timer's noise.
_SLOWER = 0.95
# How many times as fast as the placement another one must run to be taken for its speed: half of that is chance.
_FASTER = 1.03
# Of float's time by prices, what INT8 has to save once repair has given layers back: with less, float is as fast.
_SAVES = 0.03
# What slows a file with 16-bit codes, for which ONNX Runtime's CPU has no kernel.
_SIXTEEN = " with `bits16`, around whose tensors layers compute in float between codes: fewer names there cost less"
# FP32 that takes less (ms) is not timed: a call that computes nothing takes a hundredth of a millisecond.
_LEAST = 0.1
# Runs of a network that takes less (ms) are timed by as many together: the clock and waking threads would tell of themselves.
_TOGETHER = 1.0
# Where the median run takes more than this times the least, other jobs have the cores: a detector that is 3.3 times as fast in INT8
# ran, beside eight of them, at .99 to 2.15 times FP32's speed by the median over ten to twenty pairs, and was taken for slower.
_BUSY = 1.5
# What timing may take (s), and how often each is run. Where a round alone takes so many seconds, two of them say enough.
_SECONDS, _FEWEST, _MOST, _LONG = 1.0, 4, 60, 4.0


@dataclass(frozen=True)
class Served:
    """What a network is written as.

    Attributes:
        plan, noise: the plan, and the noise that it leaves on held-out images.
        costs: the cost table, with the placement's speed where that was taken; None where nothing was measured.
        why: why it computes in float throughout; "" where it does not.
    """

    plan: Plan
    noise: float
    costs: CostTable | None
    why: str = ""


def served_by(
    model: ir.Model,
    draft: Draft,
    whole: Plan,
    found: Served,
    *,
    stored: Collection[str],
    rival: bool,
    saved: float,
    judge: Judge,
    wanted_db: float,
    faster: Callable[[], Sequence[Plan]],
    kept: Callable[[Plan], float | None],
) -> Served:
    """The placement that was found, or one that runs faster and does as well, or all in float where these are too far from FP32, or
    slower than FP32 or than this, or save next to no time, and rounded weights alone are close: those of all layers, or else of the
    few that make little noise, or none.

    Args:
        model: FP32 as it came in.
        draft: what plans are made with.
        whole: the plan in which everything that can be is INT8.
        found: the placement.
        stored: names of layers whose rounded weights make little noise (`Placing.store`).
        rival: prices call float fastest throughout: it is timed, too. Written with the forms that this writes, it need not run at
            FP32's speed (of PRelu networks at twice that).
        saved: of float's time, what the placement saves (`Placing.saved`).
        judge: measures.
        wanted_db: SQNR in dB that the network is held to.
        faster: makes plans that may run faster than the placement's; asked where times of them are or can be known.
        kept: the noise that such a plan leaves; None where that is too much.
    """
    costs, why, wanted = found.costs, "", 10 ** (-wanted_db / 10)
    if db_of(found.noise) < wanted_db:
        why = "none of the measured placements with INT8 in them is close enough to FP32"
    elif saves_little(saved):
        why = f"once it is close enough to FP32, INT8 saves {max(saved, 0.0):.1%} of float's time, by prices"
    elif costs is not None:
        other = in_float(draft, whole, "", _heavy(whole)) if rival else None
        others = faster() if costs.speeds or _is_timed(costs, draft) else ()
        plans = [found.plan, *([other] if other is not None else []), *others]
        timed = partial(_with_speeds, costs, model, draft, feeds=judge.samples[0])
        costs = timed(plans)
        if _is_timed(costs, draft) and (quick := _quicker(found.plan, others, costs.speeds)):
            costs = replace(costs, speeds=_twice(costs.speeds, timed([found.plan, *quick]).speeds, name_of(found.plan)))
        for plan in _quicker(found.plan, others, costs.speeds):
            if (noise := kept(plan)) is not None:
                found = replace(found, plan=plan, noise=noise)
                break
        speed = costs.speeds.get(name_of(found.plan), 1.0)
        rival_speed = costs.speeds.get(name_of(other), 0.0) if other is not None else 0.0
        if speed < _SLOWER * rival_speed:
            why = f"float ran at {rival_speed:.2f} times FP32's speed, INT8 at {speed:.2f}"
        elif speed < _SLOWER:
            why = f"INT8 ran at {speed:.2f} times FP32's speed"
        if why and any(scale.zero_point.dtype == np.uint16 for scale in found.plan.scales.values()):
            why += _SIXTEEN
    for layers in (_heavy(whole), stored, ()) if why else ():
        # All that is rounded of such a file is its weights. Nothing is closer than the last.
        plan, noise = with_float32(draft, in_float(draft, whole, why, layers), judge, wanted)
        if not layers or db_of(noise) >= wanted_db:
            return Served(plan, noise, costs, why)
    return replace(found, costs=costs)


def _quicker(plan: Plan, others: Sequence[Plan], speeds: Mapping[str, float]) -> list[Plan]:
    """Of other plans those that run faster than one by more than chance, the fastest first."""
    bound = _FASTER * speeds.get(name_of(plan), np.inf)
    quick = [other for other in others if speeds.get(name_of(other), 0.0) >= bound]
    return sorted(quick, key=lambda other: speeds[name_of(other)], reverse=True)


def _twice(once: Mapping[str, float], again: Mapping[str, float], placed: str) -> dict[str, float]:
    """Speeds of two timings, the higher one of the placement and the lower one of all others: these have to be faster in both."""
    both = {name: (max if name == placed else min)(speed, once[name]) for name, speed in again.items()}
    return {**once, **both}


def saves_little(saved: float) -> bool:
    """Whether a placement saves too little of float's time, a share by prices (`Placing.saved`), to be kept."""
    return saved < _SAVES


def _is_timed(costs: CostTable, draft: Draft) -> bool:
    return costs.source is None and (has_vnni() or draft.target.saturates)


def _with_speeds(
    costs: CostTable, model: ir.Model, draft: Draft, plans: Sequence[Plan], *, feeds: Mapping[str, np.ndarray]
) -> CostTable:
    """The table with placements' speeds, where it was made here and now by the kernels that the file is for; a table that was read
    says what it knows.
    """
    if not _is_timed(costs, draft):
        return costs
    written = {name_of(plan): draft.written(plan) for plan in plans}
    # Where the graph's own choices are fed, it has other inputs than the file.
    given = {value.name for value in model.graph.inputs}
    if any({value.name for value in graph.graph.inputs} != given for graph in written.values()):
        return costs
    return replace(costs, speeds=speeds_of(model, written, feeds))


def in_float(draft: Draft, whole: Plan, reason: str, stored: Collection[str]) -> Plan:
    """A plan that gives every layer back to float.

    Args:
        draft: what plans are made with.
        whole: the plan in which everything that can be is INT8.
        reason: why, for the manifest.
        stored: names of layers that keep int8 weights in the file.
    """
    names = [unit.main.name for unit in whole.int8]
    return draft.plan({name: f"{reason}; weights int8 in the file" if name in stored else reason for name in names}, set(stored))


def _heavy(whole: Plan) -> set[str]:
    """The layers whose weights are worth restoring, by name."""
    return {unit.main.name or "" for unit in whole.int8 if unit.kind == "linear" and is_stored(unit.main)}


def name_of(plan: Plan) -> str:
    """What a cost table calls a placement: equal where the same units are INT8."""
    return hashlib.sha256(",".join(sorted(unit.name for unit in plan.int8)).encode()).hexdigest()[:16]


def speeds_of(
    model: ir.Model, made: Mapping[str, ir.Model], feeds: Mapping[str, np.ndarray], *, threads: int = 2
) -> dict[str, float]:
    """How many times as fast as FP32 quantized graphs run, all in turns in this process, optimized as in use.

    On a machine that is busy with other jobs it is the processor time of one thread each that is compared.

    Args:
        model: FP32.
        made: the quantized graphs, by name.
        feeds: of one image.
        threads: intra-op threads.

    Returns:
        By name the median over pairs of runs, of short ones over pairs of several together; nothing where FP32 takes less than a
        tenth of a millisecond.
    """
    timed = _in_turns({"": model, **made}, feeds, threads, time.perf_counter_ns)
    # The least: whatever else the machine does makes single runs longer.
    if timed[""].samples.min() < _LEAST:
        return {}
    if any(latency.median > _BUSY * latency.samples.min() for latency in timed.values()):
        # Runs on the calling thread alone, whose clock stands still while others have the core.
        timed = _in_turns({"": model, **made}, feeds, 1, time.thread_time_ns)
    fp32 = timed.pop("")
    return {name: round(latency.speedup(fp32), 3) for name, latency in timed.items()}


def _in_turns(
    graphs: Mapping[str, ir.Model], feeds: Mapping[str, np.ndarray], threads: int, clock: Callable[[], int]
) -> dict[str, Latency]:
    # Default kernels, as on the machine that the file is for.
    sessions = {name: session_of(graph, threads=threads, entries={}) for name, graph in graphs.items()}
    once = interleaved(_runners(sessions, feeds, 1), rounds=2, warmup=1, clock=clock)
    round_ms = sum(latency.median for latency in once.values())
    if round_ms > _LONG * 1e3:
        return once
    together = math.ceil(_TOGETHER / min(once[""].samples.min(), _TOGETHER))
    rounds = int(np.clip(_SECONDS * 1e3 / (round_ms * together), _FEWEST, _MOST))
    timed = interleaved(_runners(sessions, feeds, together), rounds=rounds, warmup=0, clock=clock)
    return {name: Latency(latency.samples / together) for name, latency in timed.items()}


def _runners(sessions: Mapping[str, Session], feeds: Mapping[str, np.ndarray], together: int) -> dict[str, Callable[[], None]]:
    """What runs each session so many times."""

    def run(session: Session) -> None:
        for _ in range(together):
            session.run(feeds)

    return {name: partial(run, session) for name, session in sessions.items()}
