"""What the kernels of two graphs of specimens tell: the time of each unit, and of what stands at its borders."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from octavo.graph.operators import VIEWS
from octavo.quantization.int8.pricing.costs import Borders
from octavo.quantization.int8.pricing.specimens import is_led
from octavo.quantization.int8.structure.units import Unit
from octavo.runtime.profiling import Kernel
from octavo.runtime.shapes import shape_of

__all__ = ["BordersSeen", "by_branch"]


@dataclass
class BordersSeen:
    """Sizes and microseconds of the border kernels that were seen."""

    seen: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, others: BordersSeen) -> None:
        """Take in what others saw."""
        for kind, points in others.seen.items():
            self.seen[kind] += points

    def times(self, factor: float) -> BordersSeen:
        """The same, had the machine taken so many times as long."""
        found = BordersSeen()
        for kind, points in self.seen.items():
            found.seen[kind] = [(size, us * factor) for size, us in points]
        return found

    def fitted(self) -> Borders:
        """The prices."""
        lines = [_line(self.seen[kind]) for kind in ("QuantizeLinear", "DequantizeLinear", "Transpose")]
        slopes, offsets = zip(*lines, strict=True)
        return Borders(*slopes, *offsets, *_line(self.seen["ReorderInput"]))


def by_branch(
    kernels: Sequence[Kernel], units: Mapping[str, Unit], borders: BordersSeen, rounds: int, *, untold: Collection[str] = ()
) -> dict[str, float]:
    """Microseconds of the kernels between each unit's neighbours, the least of the runs; what stands before goes to `borders`.

    Args:
        kernels: of one of the two graphs.
        units: by branch.
        borders: what is seen of them is added.
        rounds: runs that each kernel has times of.
        untold: branches whose borders are left out.
    """
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
        # What stands before a unit, and is its border.
        at_border = source in sizes and (role in ("border", "layout") or kernel.op_type == "ReorderInput")
        if at_border and owner not in untold:
            borders.seen[kernel.op_type].append((sizes[source], _least(kernel.us)))
        if role == "border":
            sizes[kernel.outputs[0]] = sizes[source]
            inside = not is_led(*reads[source.removesuffix(".fed")])
        elif role in ("before", "after", "sink"):
            inside = role == "before"
        elif inside and not at_border and kernel.op_type not in VIEWS:  # what the profiler says of these is its own time, 5 us
            found[owner] += kernel.us
        owners |= dict.fromkeys(kernel.outputs, (owner, inside))
    return {name: _least(us) for name, us in found.items()}


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
