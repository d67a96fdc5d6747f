"""What float16 costs on real inputs: the reach of FP32's tensors, and each tensor's SQNR, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.errors import ModelRunError
from octavo.quantization.fp16.prepare import ONNX, unique
from octavo.runtime.noise import SQNR_CAP, sqnr_db
from octavo.runtime.tensors import float_activations, read_tensors

__all__ = ["Loss", "as_fed", "compare", "reach", "rounded_everywhere"]

Feeds = dict[str, np.ndarray]


@dataclass
class Loss:
    """Running comparison of one tensor with FP32's.

    Attributes:
        signal, noise: sums of squares of FP32's values and of the difference, where FP32 is finite.
        broken: a value is NaN or infinite where FP32's is finite.
        comparable: the shapes agree on every sample; they may not where the data decide (boxes after NMS).
    """

    signal: float = 0.0
    noise: float = 0.0
    broken: bool = False
    comparable: bool = True

    def update(self, expected: np.ndarray, got: np.ndarray) -> None:
        """Add one sample."""
        if expected.shape != got.shape:
            self.comparable = False
            self.broken |= not np.isfinite(got).all()
            return
        finite = np.isfinite(expected)
        a, b = expected[finite].astype(np.float64), got[finite].astype(np.float64)
        if not np.isfinite(b).all():
            self.broken = True
            return
        self.signal += float(np.vdot(a, a))
        self.noise += float(np.vdot(a - b, a - b))

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
    found: dict[str, float] = {}
    outputs = {value.name for value in model.graph.outputs}
    for sample, tensors in read_tensors(model, float_activations(model), lambda: _named(feeds), optimization="basic", what="FP32"):
        for name, array in tensors.items():
            if name in outputs and np.isnan(array).any():
                raise ModelRunError(
                    f"FP32's output {name!r} holds NaN on {sample}",
                    "check the weights and `input:` (scale, mean, std) in params.yaml",
                )
            size = np.abs(array, dtype=np.float32)
            found[name] = max(found.get(name, 0.0), float(size.max(initial=0.0, where=np.isfinite(size))))
    return found


def compare(
    reference: ir.Model, half: ir.Model, feeds: Sequence[Feeds], names: Sequence[str], *, optimization: str = "off"
) -> dict[str, Loss]:
    """Compare tensors of two graphs, by name, over the samples.

    Args:
        reference, half: FP32 and FP16; the latter as `rounded_everywhere` gives it, for a loss as on a GPU.
        feeds: float32.
        names: tensors that both have.
        optimization: ONNX Runtime's level for FP16.
    """
    losses = {name: Loss() for name in names}
    fed = [as_fed(half, feed) for feed in feeds]
    pairs = zip(
        read_tensors(reference, names, lambda: _named(feeds), optimization="basic", what="FP32"),
        read_tensors(half, names, lambda: _named(fed), optimization=optimization, what="FP16"),
        strict=True,
    )
    for (_, expected), (_, got) in pairs:
        for name, array in expected.items():
            losses[name].update(array, got[name])
    return losses


def as_fed(model: ir.Model, feeds: Feeds) -> Feeds:
    """Feeds in the float types that the graph's inputs have."""
    halves = {value.name for value in model.graph.inputs if value.dtype == ir.DataType.FLOAT16}
    with np.errstate(over="ignore"):
        return {name: array.astype(np.float16) if name in halves else array for name, array in feeds.items()}


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


def _named(feeds: Sequence[Feeds]) -> Iterable[tuple[str, Feeds]]:
    return ((f"sample {place}", feed) for place, feed in enumerate(feeds))
