"""What single roundings, or some together, cost in fidelity: graphs with switches (`switches.py`), run once for each and image.

Nothing changes before what is rounded. The network is therefore cut into stretches: the roundings of one are switched in a graph
that begins where the stretch does, reads what FP32 has there and computes only what follows, up to the heads that one of them
changes. Most roundings stand far behind the large images of the first layers, or on one of several branches, and cost a fraction
of a whole run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import onnx_ir as ir

from octavo.calibration.statistics import Statistics
from octavo.quantization.int8.noise.judge import Judge
from octavo.quantization.int8.noise.merged import apart, chained
from octavo.quantization.int8.noise.switches import LAYER, READ, TENSOR, FloatGraph, Key, Stretch
from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.numbers.shifts import before_heads, own_shifts
from octavo.quantization.int8.plan import Plan
from octavo.quantization.int8.pricing.trade import Noise
from octavo.quantization.int8.structure.units import CARRIERS, CUTS, EXTREMES, Unit
from octavo.runtime.host import cores
from octavo.runtime.lanes import LANES, in_lanes
from octavo.runtime.spilled import Spill

__all__ = ["joint_noise", "noise_of", "weights_noise"]

# Stretches at most, and roundings that are worth a session of their own.
_STRETCHES, _ROUNDINGS = 12, 16
# The noise of a rounding that leaves no number (below zero before a square root). Placements are found by sums of these.
_NO_NUMBER = 1e3

# From the heads on some images to their mean noise.
_Mean = Callable[[Iterable[Mapping[str, np.ndarray]]], float]


def noise_of(
    model: ir.Model,
    plan: Plan,
    judge: Judge,
    samples: Sequence[Mapping[str, np.ndarray]],
    *,
    statistics: Statistics | None = None,
    together: int = 1,
) -> Noise:
    """Noise of each rounding alone, all else float; of a tensor that several layers read, what of it comes by each.

    What a Sigmoid puts out within SiLU is rounded together with what it reads: one measurement less of four.

    Args:
        model: FP32, as prepared for INT8.
        plan: which units are INT8, and what they would be written with.
        judge: tells the network's heads and their power; noise is held against `model` itself.
        samples: feeds of some images.
        statistics: of the plan's draft; needed where several are measured together.
        together: how many roundings of a chain are measured at once, and parted (`merged.apart`).
    """
    copies = _copies(plan)
    layers = {unit.main.name: unit.name for unit in plan.int8 if unit.kind == "linear"}
    inner = _inner(plan, copies)
    tensors = [name for name in plan.scales if name not in copies and name not in inner.values()]
    shared = _shared(plan, copies)
    reading = [unit.main.name for units in shared.values() for unit in units]
    keys = [(what, name) for what, names in ((TENSOR, tensors), (LAYER, layers), (READ, reading)) for name in names]
    groups = chained(plan, statistics, keys, together) if together > 1 else [[key] for key in keys]
    within = {(TENSOR, name): (TENSOR, other) for name, other in inner.items()}
    sets = [[*group, *(within[key] for key in group if key in within)] for group in groups]
    found: dict[Key, float] = {}
    for group, noise in zip(groups, _measured(model, plan, judge, samples, sets), strict=True):
        found |= apart(plan, statistics, group, noise) if len(group) > 1 else {group[0]: noise}
    rounded = {name: noise for (what, name), noise in found.items() if what == TENSOR}
    for name, unit in copies.items():
        # Rounded behind a float unit instead, it loses what its inputs would.
        rounded[name] = sum(rounded[value.name] for value in unit.inputs)
    reads: dict[tuple[str, str], float] = {}
    for name, units in shared.items():
        single = [found[READ, unit.main.name] for unit in units]
        # What two of them do adds up or cancels: together they make what the tensor was measured to make.
        share = rounded[name] / sum(single) if sum(single) else 0.0
        reads |= {(name, unit.name): share * noise for unit, noise in zip(units, single, strict=True)}
    return Noise(rounded, {unit: found[LAYER, name] for name, unit in layers.items()}, frozenset(copies), reads)


def _inner(plan: Plan, copies: Collection[str]) -> dict[str, str]:
    """Of activations, the tensors that they alone read, each with what they round within: that makes next to no noise."""
    readers = Counter(value for unit in plan.reasons for value in unit.inputs)
    return {
        value.name or "": unit.inner[0].name or ""
        for unit in plan.int8
        if unit.inner
        for value in unit.inputs
        if readers[value] == 1 and value.producer() is not None and value.name in plan.scales and value.name not in copies
    }


def _shared(plan: Plan, copies: Collection[str]) -> dict[str, list[Unit]]:
    """Quantized tensors that several layers read, and nothing else, with these."""
    readers: dict[str, list[Unit]] = {}
    for unit in plan.reasons:
        for value in unit.inputs:
            readers.setdefault(value.name or "", []).append(unit)
    int8 = {unit for unit in plan.int8 if unit.kind == "linear"}
    return {
        name: units
        for name, units in readers.items()
        if name in plan.scales
        and name not in copies
        and len(units) > 1
        and all(unit in int8 and unit.main.inputs[0].name == name and len(unit.inputs) == 1 for unit in units)
    }


def joint_noise(
    model: ir.Model,
    plan: Plan,
    judge: Judge,
    samples: Sequence[Mapping[str, np.ndarray]],
    together: Sequence[tuple[Collection[str], Collection[str]]],
    *,
    weights: Sequence[float] | None = None,
) -> list[float]:
    """Noise of some roundings at a time, all else float.

    Args:
        model, plan, judge, samples: as for `noise_of`.
        together: names of tensors, and of nodes with weights, that are rounded together; what the plan does not round is exact.
        weights: how much each sample counts; all alike without. None of the samples may be one that the judge leaves out.
    """
    copies = _copies(plan)
    sets = [
        [
            *((TENSOR, name) for name in tensors if name in plan.scales and name not in copies),
            *((LAYER, name) for name in layers if name in plan.codes),
        ]
        for tensors, layers in together
    ]
    found = iter(_measured(model, plan, judge, samples, [keys for keys in sets if keys], weights=weights))
    return [next(found) if keys else 0.0 for keys in sets]


def weights_noise(model: ir.Model, plan: Plan, judge: Judge, samples: Sequence[Mapping[str, np.ndarray]]) -> float:
    """Noise of all rounded weights together, no tensor rounded; arguments as for `noise_of`."""
    return joint_noise(model, plan, judge, samples, [((), plan.codes)])[0]


def _measured(
    model: ir.Model,
    plan: Plan,
    judge: Judge,
    samples: Sequence[Mapping[str, np.ndarray]],
    sets: Sequence[Sequence[Key]],
    *,
    weights: Sequence[float] | None = None,
) -> list[float]:
    if not sets:
        return []
    # What biases take back of the rounding of each tensor; noise is what is left.
    judge, units = judge.on(model, samples), list(plan.reasons)
    attended = before_heads(units, judge.attended())
    tensors = any(what != LAYER for keys in sets for what, _ in keys)
    shifts = own_shifts(model, units, plan.scales, samples, attended) if plan.taken and tensors else {}

    def mean(results: Iterable[Mapping[str, np.ndarray]]) -> float:
        noise = float(np.average(judge.noise_by_image(results), weights=weights))
        return noise if np.isfinite(noise) else _NO_NUMBER

    found = dict(_noise(FloatGraph(model, plan, shifts, judge.heads), sets, mean, samples))
    return [found[place] for place in range(len(sets))]


def _copies(plan: Plan) -> dict[str, Unit]:
    """The tensors that INT8 units only hand codes on to, by name, with these units."""
    return {value.name: unit for unit in plan.int8 for value in unit.outputs if _only_copies(unit, plan.scales)}


def _noise(
    graph: FloatGraph, sets: Sequence[Sequence[Key]], mean: _Mean, samples: Sequence[Mapping[str, np.ndarray]]
) -> Iterator[tuple[int, float]]:
    """Place and noise of each set of roundings, stretch by stretch."""
    begin = [min(map(graph.place, keys)) for keys in sets]
    ordered = sorted(range(len(sets)), key=begin.__getitem__)
    length = max(_ROUNDINGS, -(-len(ordered) // _STRETCHES))
    parts = [ordered[start : start + length] for start in range(0, len(ordered), length)]
    every = [list(dict.fromkeys(key for place in part for key in sets[place])) for part in parts]
    changed = [graph.changed(keys) for keys in every]
    held: list[Mapping[str, np.ndarray]] = list(samples)
    # What was made before a stretch is held as well, but for the first, before which nothing was run.
    later = [{name for name in graph.heads if graph.place((TENSOR, name)) >= begin[part[0]]} for part in parts]
    later[0] = {name for name in graph.heads if name not in samples[0]}
    branches = any(not names <= set(heads) for names, heads in zip(later, changed, strict=True))
    exact = _exact_heads(graph, samples) if branches else [{} for _ in samples]
    # Before the first rounding there may be nodes as well: a Cast of raw pixels, say.
    nodes = graph.nodes
    # A rounding on each core: elementwise kernels gain little from a second thread.
    with ThreadPoolExecutor(min(LANES, cores())) as pool:
        for part, keys, heads, following in zip(parts, every, changed, [*parts[1:], None], strict=True):
            wanted = graph.border(begin[following[0]]) if following is not None else []
            made = [name for name in wanted if name not in held[0]]
            heads = heads or [name for name in graph.heads if name not in held[0]]
            stretch = Stretch(graph, keys, nodes, held[0], [*heads, *made])
            known = list(zip(exact, held, strict=True))
            yield from zip(part, pool.map(partial(_of_one, stretch, heads, mean, known), [sets[at] for at in part]), strict=True)
            # A file of its own, which goes with the next one's. Copies: what ONNX Runtime hands out keeps all its session's memory.
            spill, ran = Spill(), (stretch.run((), made, values) if made else values for values in held)
            held = [spill.put({name: values[name].copy() if name in made else values[name] for name in wanted}) for values in ran]
            nodes = graph.rest(begin[following[0]]) if following is not None else []
            # Its weights need not lie beside those of the next one.
            del stretch


def _exact_heads(graph: FloatGraph, samples: Sequence[Mapping[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """FP32's heads on each sample, which hold where no rounding of a stretch changes them."""
    whole = Stretch(graph, (), graph.nodes, samples[0], graph.heads)
    found, spill = in_lanes(lambda feeds: whole.run((), graph.heads, feeds), samples), Spill()
    return [spill.put({name: values[name] for name in graph.heads}) for values in found]


def _of_one(
    stretch: Stretch,
    heads: Sequence[str],
    mean: _Mean,
    known: Sequence[tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]],
    keys: Collection[Key],
) -> float:
    # One image's heads at a time: those of a detector of 640x640 pixels are 9 MB.
    return mean({**exact, **stretch.run(keys, heads, values)} for exact, values in known)


def _only_copies(unit: Unit, scales: Mapping[str, QParams]) -> bool:
    """Whether a unit hands codes on as they are, cuts them or chooses among them: its outputs' rounding adds nothing."""
    if unit.kind not in CARRIERS | CUTS | EXTREMES | {"Concat"}:
        return False
    around = [scales.get(value.name) for value in (*unit.inputs, *unit.outputs)]
    return all(one is not None and not one.by_channel and one == around[0] for one in around)
