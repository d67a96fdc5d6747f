"""What calibration wants to know of a tensor, computed where the tensor is: by nodes beside it, in ONNX Runtime's own kernels.

Sums and extremes of each channel and the values to count come out instead of the tensor. Taken from arrays in Python they cost as
much as the network itself, most of it with the interpreter's lock held: EfficientNet-Lite0 (224x224) 22 ms an image beside 20 of
inference; as nodes they add 7 to a single-threaded run and leave 4 to Python.

Only what has a fixed shape gets nodes: no operator reduces an empty tensor, and how far apart counted values lie follows from the
shape. Other tensors are read as they are.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from octavo.calibration.channels import channel_axis
from octavo.calibration.histogram import stride
from octavo.calibration.tally import OUTPUT, Probed, Tally
from octavo.runtime.shapes import bytes_of

__all__ = ["Probes"]

# The opset in which ReduceMax and ReduceMin take their axes as an input.
_AXES_AS_INPUT = 18
_END = np.iinfo(np.int64).max
# One in so many of the bytes of all tensors is there at a time: plain inference adds 31 MB of 328 (CGNet), 46 of 215 (YOLOv5n).
_ALIVE = 8


class Probes:
    """Lays probes into the graph of a group of tensors (`octavo.runtime.tensors.open_groups`, `tap`).

    Args:
        axes: where the channels of a tensor are, where `channel_axis` does not tell.
        batch: the symbols that stand for one image.
        infinite: tensors that may be infinite.

    Attributes:
        tally: what the probes of the last group add up to.
    """

    def __init__(self, axes: Mapping[str, int], batch: frozenset[str], infinite: Collection[str] = ()) -> None:
        self._axes, self._batch, self._infinite = axes, batch, infinite
        self.tally = Tally([])

    def __call__(self, model: ir.Model, values: Sequence[ir.Value]) -> list[ir.Value]:
        """Lay probes beside these tensors.

        Returns:
            What to put out: the tensors without a probe, and what all probes found (`OUTPUT`).
        """
        plain, probed, found = [], [], []
        # ONNX Runtime goes back from the outputs and takes what was added last first: laid from the last tensor on, each probe runs
        # right behind its tensor, which is let go then. Otherwise all tensors are held to the end.
        for value in reversed(values):
            one = self._probed(value)
            if one is None:
                plain.append(value)
                continue
            probed.append(one)
            found.append(_lay(model, value, self._channel(value), self._step(value)))
        self.tally = Tally(probed[::-1])
        if not found:
            return plain
        # One vector of all: each output costs an array, and each piece of one in Python more than its copy here.
        whole = _joined(model, [part for kind in zip(*found[::-1], strict=True) for part in kind])
        whole.name, whole.dtype = OUTPUT, ir.DataType.FLOAT
        return [*plain, whole]

    def size(self, value: ir.Value) -> int:
        """Bytes that come out for a tensor of one image."""
        one = self._probed(value)
        return bytes_of(value) if one is None else 4 * (3 * one.channels + one.counted)

    def held(self, value: ir.Value) -> int:
        """Bytes that a tensor of one image takes while the graph runs."""
        return bytes_of(value) if self._probed(value) is None else bytes_of(value) // _ALIVE

    def knows(self, value: ir.Value) -> bool:
        """Whether the shape of a tensor is known as far as it matters: vectors are read as they are."""
        return (value.shape is not None and len(value.shape) < 3) or self._probed(value) is not None

    def _probed(self, value: ir.Value) -> Probed | None:
        """What a probe would find; None where the shape is not known, and for vectors and inputs, which cost nothing to read."""
        if value.producer() is None or value.shape is None or len(value.shape) < 3:
            return None
        sizes = self._sizes(value)
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            return None
        whole, channels = math.prod(sizes), sizes[self._channel(value)]
        axis, counted = self._axes.get(value.name or ""), -(-whole // self._step(value))
        return Probed(value.name or "", channels, whole // channels, counted, axis, value.name in self._infinite)

    def _channel(self, value: ir.Value) -> int:
        rank = len(value.shape)
        return self._axes.get(value.name or "", channel_axis(rank)) % rank

    def _sizes(self, value: ir.Value) -> list[int | ir.SymbolicDim]:
        """A tensor's shape with one image: what lies along its first axis may be windows of it (Swin), or regions."""
        first, *rest = value.shape
        return [first if isinstance(first, int) or first.value not in self._batch else 1, *rest]

    def _step(self, value: ir.Value) -> int:
        return stride(tuple(self._sizes(value)))


def _lay(model: ir.Model, value: ir.Value, channel: int, step: int) -> list[ir.Value]:
    """What `OUTPUT` holds of a tensor: the least and the largest value of each channel, the sums, and what to count."""
    axes = [axis for axis in range(len(value.shape)) if axis != channel]
    row = _added(model, ir.node("Reshape", [value, _constant(model, [-1])]))
    if step > 1:
        row = _added(model, ir.node("Slice", [row, *(_constant(model, [number]) for number in (0, _END, 0, step))]))
    return [*(_reduced(model, op_type, value, axes) for op_type in ("ReduceMin", "ReduceMax", "ReduceSum")), row]


def _reduced(model: ir.Model, op_type: str, value: ir.Value, axes: list[int]) -> ir.Value:
    if op_type == "ReduceSum" or model.opset_imports[""] >= _AXES_AS_INPUT:
        return _added(model, ir.node(op_type, [value, _constant(model, axes)], {"keepdims": 0}))
    return _added(model, ir.node(op_type, [value], {"keepdims": 0, "axes": axes}))


def _joined(model: ir.Model, parts: Sequence[ir.Value]) -> ir.Value:
    return _added(model, ir.node("Concat", parts, {"axis": 0}))


def _added(model: ir.Model, node: ir.Node) -> ir.Value:
    model.graph.append(node)
    return node.outputs[0]


def _constant(model: ir.Model, numbers: list[int]) -> ir.Value:
    name = f"octavo.probe.{'_'.join(map(str, numbers))}"
    if name not in model.graph.initializers:
        tensor = ir.tensor(np.array(numbers, np.int64), name=name)
        value = ir.Value(name=name, const_value=tensor, shape=tensor.shape, type=ir.TensorType(tensor.dtype))
        model.graph.register_initializer(value)
    return model.graph.initializers[name]
