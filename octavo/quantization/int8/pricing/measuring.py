"""Measuring a cost table: every kind of work that a network's units do, once, with the kernels of the machine at hand."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from octavo.errors import QuantizationError
from octavo.graph.macs import macs_in
from octavo.graph.operators import VIEWS
from octavo.quantization.int8.pricing.costs import Borders, Cost, CostTable, is_static, signature
from octavo.quantization.int8.pricing.specimens import is_led, variants_of
from octavo.quantization.int8.structure.units import Unit
from octavo.runtime.host import fingerprint, has_vnni
from octavo.runtime.profiling import Kernel, kernel_times
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


def measure(model: ir.Model, candidates: Iterable[Unit], *, threads: int = 2, table: CostTable | None = None) -> CostTable:
    """Time the float and the INT8 form of every kind of work among some units.

    Many units stand as branches in one graph, so that two profiled sessions, run in turn, serve them all. What counts is the time
    of all kernels between a unit's neighbours of the same precision (`specimens`): borders (Q, DQ) are left out, and changes of
    layout (Transpose, ReorderInput, ReorderOutput) are in where the unit makes them necessary. An op that runs inside the Conv
    before it counts as nothing, and so does a Reshape. A Concat is timed with equal scales, where it copies. A time is the least of
    the runs, as `timeit` has it: what else the machine does only adds to it, whole time slices where a kernel waits for its second
    thread (1.5 ms became 5.5), and may do so in most of the runs.

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
    units: dict[str, Cost] = dict(table.units) if table is not None else {}
    borders = _Borders()
    probes = {f"probe{place}": _probe(shape) for place, shape in enumerate(_PROBES)} if table is None else {}
    waiting = Waiting()
    for chunk in _chunks(missing):
        branches = {f"u{place}": unit for place, (_, unit) in enumerate(chunk)} | probes
        probes = {}
        rounds = _rounds(chunk)
        both = kernel_times(variants_of(branches, opsets), threads=threads, rounds=rounds, warmup=min(WARMUP, rounds // _FEWEST))
        if table is None and threads > 1 and waiting.share > _CROWDED:
            return measure(model, missing.values(), threads=1)
        runs = [_by_branch(kernels, branches, borders, rounds) for kernels in both]
        for place, (key, _) in enumerate(chunk):
            units[key] = Cost(*(_least(found[f"u{place}"]) / 1e3 for found in runs))
    return CostTable(host, units, borders.fitted() if table is None else table.borders)


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


def _probe(shape: Sequence[int]) -> Unit:
    """A cheap unit that matters for the borders before it."""
    first, source, target = (ir.Value(name=what, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT)) for what in "axy")
    ir.Node("", "Relu", [first], outputs=[source])
    node = ir.Node("", "MaxPool", [source], [ir.AttrInt64s("kernel_shape", [1, 1])], outputs=[target], name="probe")
    return Unit("probe", "MaxPool", (node,), (source,), (target,))


def _by_branch(kernels: Sequence[Kernel], units: Mapping[str, Unit], borders: _Borders, rounds: int) -> dict[str, np.ndarray]:
    """Microseconds of the kernels between each unit's neighbours, run by run; what stands before them goes to `borders`."""
    found = {name: np.zeros(rounds) for name in units}
    reads = {f"{name}.x{place}": (unit, value) for name, unit in units.items() for place, value in enumerate(unit.inputs)}
    sizes = {name: math.prod(shape_of(value)) for name, (_, value) in reads.items()}
    sizes |= {f"{name}.fed": size for name, size in sizes.items()}
    # Tensor to its branch, and whether it lies between the unit's neighbours.
    owners: dict[str, tuple[str, bool]] = {name: (name.partition(".")[0], False) for name in sizes}
    for kernel in kernels:
        seen = [owners[name] for name in kernel.inputs if name in owners]
        if not seen:
            continue
        owner, inside = seen[0][0], any(between for _, between in seen)
        role = _role(kernel, owner)
        source = kernel.inputs[0]
        if kernel.op_type == "ReorderInput" and source in sizes:
            borders.seen["ReorderInput"].append((sizes[source], _least(kernel.us)))
        if role == "border":
            borders.seen[kernel.op_type].append((sizes[source], _least(kernel.us)))
            sizes[kernel.outputs[0]] = sizes[source]
            inside = not is_led(*reads[source.removesuffix(".fed")])
        elif role == "layout" and source in sizes:
            borders.seen["Transpose"].append((sizes[source], _least(kernel.us)))
        elif role in ("before", "after", "sink"):
            inside = role == "before"
        elif inside and kernel.op_type not in VIEWS:  # what the profiler says of these is its own time, 5 us
            found[owner] += kernel.us
        owners |= dict.fromkeys(kernel.outputs, (owner, inside))
    return found


def _least(us: np.ndarray) -> float:
    return float(us.min())


def _role(kernel: Kernel, owner: str) -> str:
    """`border`, `before`, `unit`, `after`, `sink`, or `layout`: what ONNX Runtime put between them."""
    if kernel.op_type in ("QuantizeLinear", "DequantizeLinear") and kernel.inputs[0].startswith(f"{owner}.x"):
        return "border"
    if kernel.name.endswith(".sink"):
        return "sink"
    if kernel.name.endswith(".first"):
        # Decoding goes on with channels last as often as not; then this Transpose goes (`TailOfPixelsPass`).
        return "after"
    if kernel.op_type == "Transpose" and not kernel.name.startswith(f"{owner}.unit"):
        return "layout"
    return next((role for role in ("before", "after") if kernel.name.startswith(f"{owner}.{role}")), "unit")


@dataclass
class _Borders:
    """Sizes and microseconds of the border kernels that were seen."""

    seen: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))

    def fitted(self) -> Borders:
        lines = [_line(self.seen[kind]) for kind in ("QuantizeLinear", "DequantizeLinear", "Transpose")]
        slopes, offsets = zip(*lines, strict=True)
        return Borders(*slopes, *offsets, *_line(self.seen["ReorderInput"]))


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Nanoseconds per element and microseconds at zero, neither negative, by least *relative* squares."""
    if not points:
        return 0.0, 0.0
    sizes, times = np.array(points, np.float64).T
    weight = 1 / np.maximum(times, 1)
    rows = np.stack([sizes, np.ones_like(sizes)], axis=1) * weight[:, None]
    slope, offset = np.linalg.lstsq(rows, times * weight, rcond=None)[0]
    if slope < 0:
        slope, offset = 0.0, float(np.median(times))
    elif offset < 0:
        slope, offset = float((sizes * times * weight**2).sum() / (sizes**2 * weight**2).sum()), 0.0
    return round(float(slope) * 1e3, 5), round(float(offset), 3)
