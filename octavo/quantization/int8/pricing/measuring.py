"""Measuring a cost table: every kind of work that a network's units do, once, with the kernels of the machine at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.errors import QuantizationError
from octavo.graph.macs import macs_in
from octavo.quantization.int8.pricing.costs import Cost, CostTable, is_static, signature
from octavo.quantization.int8.pricing.reading import BordersSeen, by_branch
from octavo.quantization.int8.pricing.specimens import variants_of
from octavo.quantization.int8.structure.units import Unit
from octavo.runtime.host import fingerprint, has_vnni
from octavo.runtime.profiling import kernel_times
from octavo.runtime.shapes import shape_of
from octavo.runtime.waiting import Waiting

__all__ = ["measure"]

ROUNDS = 11
WARMUP = 2
# What multiplies more than this (tens of milliseconds) has a chunk of its own and is run as often as makes so many multiplications,
# at least so often: time slices of other jobs are little beside it. A Conv on the 1000 regions of Faster R-CNN v2 (29e9) takes a
# second of one core in float.
_HEAVY, _WORK, _FEWEST = 1e9, 2e10, 3
# Where the thread that measures has no core in more than this share of its time, other jobs have them, and a kernel on two threads
# takes twice as long in every run in which the second has none. Three tables of YOLOv5n's kinds of work beside eight jobs: how many
# times as fast INT8 is differed 1.36 times between them (median; 2.0 in a tenth of them), on one thread 1.08 (1.38), and was there
# within 2 to 6 % of a table that no other job delayed.
_CROWDED = 0.15
# A chunk's weights are held some six times over (graphs, files, sessions' packed copies); its activations once. With 96 units
# NanoDet-m's tables took 150 MB, with 16 they take 45, as little time, and tell gains whose sums lie within 3 % (medians of four).
_CHUNK_WEIGHTS = 8 * 2**20
_CHUNK_UNITS = 16
# Tensors whose borders are timed with every table, beside those that the network itself brings.
_PROBES = ((1, 16, 8, 8), (1, 32, 32, 32), (1, 32, 80, 80), (1, 32, 160, 160))
# Every chunk has this 3x3 Conv on so many channels of so many rows and columns, too, which tells its pace: a virtual machine may
# take 1.6 times as long for some seconds (host 7ca432ccf350, no other job beside: FP32 networks 1.6, INT8 ones 1.4 times). A chunk
# whose pace is this many times that of another is timed again, at most so often; what is slow still is brought to the others' pace.
_PACE, _SLOW, _AGAIN = (32, 40), 1.2, 2


def measure(model: ir.Model, candidates: Iterable[Unit], *, threads: int = 2, table: CostTable | None = None) -> CostTable:
    """Time the float and the INT8 form of every kind of work among some units.

    Many units stand as branches in one graph, so that two profiled sessions, run in turn, serve them all. What counts is the time
    of all kernels between a unit's neighbours of the same precision (`specimens`): borders (Q, DQ) are left out, and changes of
    layout (Transpose, ReorderInput, ReorderOutput) are in where the unit makes them necessary. An op that runs inside the Conv
    before it counts as nothing, and so does a Reshape. A Concat is timed with equal scales, where it copies. A time is the least of
    the runs, as `timeit` has it: what else the machine does only adds to it, whole time slices where a kernel waits for its second
    thread (1.5 ms became 5.5), and may do so in most of the runs. What the machine timed in a slower state than the rest is timed
    again (`_PACE`).

    On x86 without VNNI the *default* kernels are timed (uint8 x int8, which saturate there), although results are computed without
    them: of this machine's kernels, their speed stands nearest to the VNNI machine that `target: cpu` is meant for. `host` says so
    (`vnni` false, `session` "default").

    Args:
        model: FP32, as prepared for INT8, with inferred shapes. A symbolic batch size counts as 1.
        candidates: units that could be INT8; those with sizes that are not static are left out.
        threads: intra-op threads, where nothing else has the cores.
        table: what is known already; it is extended, and its borders' prices stay.

    Returns:
        The table; `table` itself where it knows all candidates.

    Raises:
        QuantizationError: `table` was measured on another machine or with another number of threads, and entries are missing.
        ModelRunError: ONNX Runtime cannot run a unit.
    """
    wanted = {signature(unit): unit for unit in candidates if is_static(unit)}
    missing = {key: unit for key, unit in sorted(wanted.items()) if table is None or key not in table.units}
    if table is not None and not missing:
        return table
    host = {
        **fingerprint(),
        "threads": threads,
        "session": "default" if has_vnni() else "default (saturating uint8 x int8 kernels)",
    }
    if table is not None and (table.host.get("id"), table.host.get("threads")) != (host["id"], threads):
        raise QuantizationError(
            f"the cost table {table.source or ''} lacks {len(missing)} kinds of units of this network ({next(iter(missing))}, ...) "
            f"and another machine made it ({table.host.get('cpu')}, {table.host.get('threads')} threads)",
            "times of two machines cannot stand in one table: measure where the table comes from, or set `placement: measured`",
        )
    opsets = dict(model.opset_imports)
    chunks, timed = list(_chunks(missing)), list[_Timed]()

    def taken(place: int) -> _Timed:
        return _timed(chunks[place], opsets, threads, probed=table is None and place == 0)

    waiting = Waiting()
    for place in range(len(chunks)):
        timed.append(taken(place))
        if table is None and threads > 1 and waiting.share > _CROWDED:
            return measure(model, missing.values(), threads=1)
    timed = _at_one_pace(timed, taken)
    units: dict[str, Cost] = dict(table.units) if table is not None else {}
    borders = BordersSeen()
    for one in timed:
        units |= one.costs
        for seen in one.borders:
            borders.add(seen)
    return CostTable(host, units, borders.fitted() if table is None else table.borders)


@dataclass(frozen=True)
class _Timed:
    """What was measured of a chunk.

    Attributes:
        costs: of its units, by signature.
        borders: what was seen of them, in the float graph and in the INT8 one.
        pace: of the Conv that all chunks share; its times tell how fast the machine was.
        heavy: it takes seconds and is not timed again.
    """

    costs: Mapping[str, Cost]
    borders: tuple[BordersSeen, BordersSeen]
    pace: Cost
    heavy: bool

    def slowness(self, pace: Cost) -> float:
        """How many times as long the machine took as at a pace."""
        return max(self.pace.float_ms / pace.float_ms, self.pace.int8_ms / pace.int8_ms)

    def at(self, pace: Cost) -> _Timed:
        """As it would have been measured at a pace."""
        in_float, in_int8 = pace.float_ms / self.pace.float_ms, pace.int8_ms / self.pace.int8_ms
        costs = {key: Cost(round(c.float_ms * in_float, 4), round(c.int8_ms * in_int8, 4)) for key, c in self.costs.items()}
        borders = self.borders[0].times(in_float), self.borders[1].times(in_int8)
        return _Timed(costs, borders, pace, self.heavy)


def _timed(chunk: Sequence[tuple[str, Unit]], opsets: Mapping[str, int], threads: int, *, probed: bool) -> _Timed:
    branches = {f"u{place}": unit for place, (_, unit) in enumerate(chunk)} | {"pace": _pace()}
    if probed:
        branches |= {f"probe{place}": _probe(shape) for place, shape in enumerate(_PROBES)}
    rounds, borders = _rounds(chunk), (BordersSeen(), BordersSeen())
    both = kernel_times(variants_of(branches, opsets), threads=threads, rounds=rounds, warmup=min(WARMUP, rounds // _FEWEST))
    # Each chunk has that Conv: its borders would be what the line of all is drawn by.
    runs = [by_branch(kernels, branches, seen, rounds, untold={"pace"}) for kernels, seen in zip(both, borders, strict=True)]
    found = {name: Cost(*(us[name] / 1e3 for us in runs)) for name in branches}
    costs = {key: found[f"u{place}"] for place, (key, _) in enumerate(chunk)}
    # The profiler counts whole microseconds.
    pace = Cost(max(found["pace"].float_ms, 1e-3), max(found["pace"].int8_ms, 1e-3))
    return _Timed(costs, borders, pace, heavy=rounds < ROUNDS)


def _at_one_pace(timed: list[_Timed], again: Callable[[int], _Timed]) -> list[_Timed]:
    """Chunks as they are at the fastest one's pace: measured once more, or else by what all of them share."""
    for _ in range(_AGAIN):
        pace = _fastest(timed)
        slow = [place for place, one in enumerate(timed) if one.slowness(pace) > _SLOW and not one.heavy]
        for place in slow:
            other = again(place)
            if other.slowness(pace) < timed[place].slowness(pace):
                timed[place] = other
    pace = _fastest(timed)
    return [one.at(pace) if one.slowness(pace) > _SLOW else one for one in timed]


def _fastest(timed: Sequence[_Timed]) -> Cost:
    return Cost(min(one.pace.float_ms for one in timed), min(one.pace.int8_ms for one in timed))


def _chunks(units: dict[str, Unit]) -> Iterator[list[tuple[str, Unit]]]:
    """Units that are timed together; of heavy ones, which come last, each by itself."""
    heavy = {key: unit for key, unit in units.items() if macs_in(unit.nodes, shape_of) > _HEAVY}
    chunk: list[tuple[str, Unit]] = []
    held = 0
    for key, unit in units.items():
        if key in heavy:
            continue
        weights = [ir.convenience.get_const_tensor(value) for node in unit.nodes for value in node.inputs if value is not None]
        size = sum(tensor.nbytes for tensor in weights if tensor is not None)
        if chunk and (held + size > _CHUNK_WEIGHTS or len(chunk) == _CHUNK_UNITS):
            yield chunk
            chunk, held = [], 0
        chunk.append((key, unit))
        held += size
    if chunk or not heavy:
        yield chunk
    yield from ([pair] for pair in heavy.items())


def _rounds(chunk: Sequence[tuple[str, Unit]]) -> int:
    macs = max((macs_in(unit.nodes, shape_of) for _, unit in chunk), default=0)
    return ROUNDS if macs <= _HEAVY else int(min(max(_FEWEST, _WORK // macs), ROUNDS))


def _pace() -> Unit:
    """A Conv behind a tensor that something else made."""
    channels, side = _PACE
    first, source, target = _values("axy", (1, channels, side, side))
    ir.Node("", "Relu", [first], outputs=[source])
    weights = np.linspace(-1, 1, channels * channels * 9, dtype=np.float32).reshape(channels, channels, 3, 3)
    (constant,) = _values("w", weights.shape)
    constant.const_value = ir.tensor(weights)
    pads = [ir.AttrInt64s("pads", [1, 1, 1, 1])]
    node = ir.Node("", "Conv", [source, constant], pads, outputs=[target], name="pace")
    return Unit("pace", "linear", (node,), (source,), (target,))


def _values(names: str, shape: Sequence[int]) -> Iterator[ir.Value]:
    for name in names:
        yield ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))


def _probe(shape: Sequence[int]) -> Unit:
    """A cheap unit that matters for the borders before it."""
    first, source, target = _values("axy", shape)
    ir.Node("", "Relu", [first], outputs=[source])
    node = ir.Node("", "MaxPool", [source], [ir.AttrInt64s("kernel_shape", [1, 1])], outputs=[target], name="probe")
    return Unit("probe", "MaxPool", (node,), (source,), (target,))
