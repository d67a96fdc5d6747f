"""What float16 costs on real inputs: the reach of FP32's tensors, and each tensor's SQNR, in the memory of one inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from octavo.errors import ModelRunError
from octavo.graph.names import unique
from octavo.quantization.fp16.prepare import ONNX
from octavo.quantization.fp16.probes import FP32, Differences, Reaches, beside, lay_given
from octavo.runtime.noise import SQNR_CAP, sqnr_db
from octavo.runtime.session import halved
from octavo.runtime.tensors import float_activations, open_groups, read_tensors

__all__ = ["Loss", "broken", "compare", "reach", "rounded_everywhere"]

Feeds = dict[str, np.ndarray]


@dataclass
class Loss:
    """Running comparison of one tensor with FP32's.

    Attributes:
        signal, noise: sums of squares of FP32's values and of the difference, where FP32 is finite.
        broken: a value is NaN or infinite where FP32's is finite.
        comparable: the shapes agree on every sample; they may not where the data decide (boxes after NMS).
        noises: what of `noise` each sample adds, in order.
    """

    signal: float = 0.0
    noise: float = 0.0
    broken: bool = False
    comparable: bool = True
    noises: list[float] = field(default_factory=list)

    def update(self, signal: float, noise: float, *, finite: bool = True) -> None:
        """Add one sample's sums; `noise` is NaN or infinite where the difference is, `finite` whether FP16's other values are."""
        if not finite or not np.isfinite(noise):
            self.broken = True
            self.noises.append(0.0)
            return
        self.noises.append(noise)
        self.signal += signal
        self.noise += noise

    @property
    def sqnr_db(self) -> float:
        """10 log10(signal / noise), within +-SQNR_CAP; -SQNR_CAP where values are broken."""
        if self.broken:
            return -SQNR_CAP
        return sqnr_db(self.signal, self.noise) if self.comparable else SQNR_CAP


def reach(model: ir.Model, feeds: Sequence[Feeds]) -> dict[str, float]:
    """Largest finite |x| of each float32 tensor over the samples, graph inputs first.

    Raises:
        ModelRunError: FP32 does not run, or an output of it is NaN.
    """
    inputs = {value.name for value in model.graph.inputs}
    names = float_activations(model)
    outputs = {value.name for value in model.graph.outputs}
    found = {name: max((_largest(feed[name]) for feed in feeds), default=0.0) for name in names if name in inputs}
    inner = [name for name in names if name not in inputs]
    for group in open_groups(model, [inner] if inner else [], optimization="basic", tap=Reaches(outputs), what="FP32"):
        for place, feed in enumerate(feeds):
            read = group.read(feed)
            for name in inner:
                if name in outputs and np.isnan(read[name]).any():
                    raise ModelRunError(
                        f"FP32's output {name!r} holds NaN on sample {place}",
                        "check the weights and `input:` (scale, mean, std) in params.yaml",
                    )
                found[name] = max(found.get(name, 0.0), float(read[f"{name}.reach"]))
    return found


def compare(
    reference: ir.Model, half: ir.Model, feeds: Sequence[Feeds], names: Sequence[str], known: Sequence[Feeds] | None = None
) -> dict[str, Loss]:
    """Compare tensors of two graphs, by name, over the samples: what is lost where each float16 tensor is rounded, as on a GPU.

    Both run as one graph (`octavo.quantization.fp16.probes`).

    Args:
        reference, half: FP32 and FP16.
        feeds: float32.
        names: tensors that both have.
        known: what `reference` has for those of them that it computes, by name, on each of the feeds; computed where None.
    """
    losses = {name: Loss() for name in names}
    inputs = {value.name for value in reference.graph.inputs}
    halves = {value.name for value in half.graph.inputs if value.dtype == ir.DataType.FLOAT16}
    for feed in feeds:
        for name, got in halved(feed, halves).items():
            if name in losses:
                losses[name].update(*_sums(feed[name], got))
    inner = [f"{FP32}{name}" for name in names if name not in inputs]
    if known is None:
        merged = rounded_everywhere(beside(reference, half))
    else:
        merged = rounded_everywhere(half)
        given = lay_given(merged, reference, [name for name in names if name not in inputs])
        feeds = [feed | {given[name]: found[name] for name in given} for feed, found in zip(feeds, known, strict=True)]
    for group in open_groups(merged, [inner] if inner else [], optimization="off", tap=Differences(), what="FP16"):
        for feed in feeds:
            read = group.read(feed)
            for name in inner:
                loss = losses[name.removeprefix(FP32)]
                signal, noise, broken = map(float, read[f"{name}.loss"])
                if f"{name}.shapes" in read and not _same(read[f"{name}.shapes"]):
                    loss.comparable = False
                    loss.update(0.0, 0.0, finite=not broken)
                else:
                    loss.update(signal, noise)
    return losses


def broken(reference: ir.Model, half: ir.Model, feeds: Sequence[Feeds], names: Sequence[str]) -> list[str]:
    """Which tensors are NaN or infinite where FP32's are not, both run as deployed, with all of ONNX Runtime's optimizations.

    Args:
        reference, half: FP32 and FP16.
        feeds: float32.
        names: tensors that both have.
    """
    named = {f"sample {place}": feed for place, feed in enumerate(feeds)}
    endless: dict[str, dict[str, np.ndarray]] = {}
    for where, got in read_tensors(half, names, named.items, what="FP16"):
        odd = {name: ~np.isfinite(array) for name, array in got.items() if not np.isfinite(array).all()}
        if odd:
            endless.setdefault(where, {}).update(odd)
    if not endless:
        # FP32, which ran before, is asked for what is not finite alone.
        return []
    asked = [name for name in names if any(name in odd for odd in endless.values())]
    found = set()
    for place, expected in read_tensors(reference, asked, {place: named[place] for place in endless}.items, what="FP32"):
        for name in expected.keys() & endless[place].keys():
            array, odd = expected[name], endless[place][name]
            # Where the shapes differ, because the data decide them, no value is another's counterpart.
            if array.shape != odd.shape or (odd & np.isfinite(array)).any():
                found.add(name)
    return [name for name in names if name in found]


def rounded_everywhere(model: ir.Model) -> ir.Model:
    """A copy in which ONNX Runtime's CPU rounds each float16 tensor, as a GPU does.

    It has few float16 kernels: it runs nodes in float32 between casts and drops a cast to float16 that is followed by one back,
    through Identity, Reshape and even double, at every optimization level. An overflow in the middle of the graph then does not
    show (measured with 1.31). Unsqueeze and Squeeze do run in float16 and copy nothing: a pair behind each node is the barrier.
    """
    copy = model.clone()
    graph = copy.graph
    taken = {value.name for node in graph for value in node.outputs} | set(graph.initializers) | {v.name for v in graph.inputs}
    names = {node.name for node in graph}
    version = next((graph.opset_imports[domain] for domain in ONNX if domain in graph.opset_imports), 0)
    axis = ir.Value(
        name=unique("first_axis", taken), const_value=ir.tensor(np.array([0], np.int64)), type=ir.TensorType(ir.DataType.INT64)
    )
    if version >= 13:
        graph.register_initializer(axis)
    for node in list(graph):
        for value in node.outputs:
            readers = list(value.uses())
            if value.dtype != ir.DataType.FLOAT16 or not readers:
                continue
            before = value
            barrier = []
            for op_type in ("Unsqueeze", "Squeeze"):
                inputs, attributes = ([before, axis], {}) if version >= 13 else ([before], {"axes": [0]})
                step = ir.node(op_type, inputs, attributes, name=unique(f"{value.name}_{op_type}", names))
                before = step.outputs[0]
                before.name, before.type = unique(f"{value.name}_{op_type.lower()}", taken), ir.TensorType(ir.DataType.FLOAT16)
                barrier.append(step)
            graph.insert_after(node, barrier)
            for use in readers:
                use.node.replace_input_with(use.idx, before)
    return copy


def _largest(array: np.ndarray) -> float:
    size = np.abs(array, dtype=np.float32)
    return float(size.max(initial=0.0, where=np.isfinite(size)))


def _sums(expected: np.ndarray, got: np.ndarray) -> tuple[float, float]:
    kept = np.isfinite(expected)
    a, b = expected[kept].astype(np.float64), got[kept].astype(np.float64)
    return float(np.vdot(a, a)), float(np.vdot(a - b, a - b))


def _same(shapes: np.ndarray) -> bool:
    """Of two shapes in one vector, each led by its length."""
    first = shapes[1 : 1 + shapes[0]]
    return np.array_equal(first, shapes[2 + shapes[0] :])
