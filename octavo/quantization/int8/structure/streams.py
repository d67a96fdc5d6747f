"""Streams: tensors whose channels can be scaled together, between the layers that make them and the layers that read them.

Channel c of a tensor can be multiplied by s_c in the weights and the bias of the Conv or Gemm that makes it, and divided by s_c in
the weights of those that read it, as long as nothing but homogeneous operators stands between: Relu, ReLU6 within its bound,
LeakyRelu, PRelu, pools, Resize, Mul by a gate, Add (then both branches are scaled alike, and so all of a residual stream), Concat,
Split and Slice (then channels move, and a tensor has several streams' channels). Followed channel by channel, the graph falls apart
into streams. Layers with the same weights scale alike, so that these stay the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from scipy import sparse
from scipy.sparse import csgraph

from octavo.graph.operators import VIEWS
from octavo.quantization.int8.structure.alike import alike
from octavo.quantization.int8.structure.units import Unit, constant, readers

__all__ = ["Stream", "streams_of"]

_HOMOGENEOUS = frozenset({"AveragePool", "GlobalAveragePool", "LeakyRelu", "MaxPool", "Relu", "Resize", "prelu"})


@dataclass(frozen=True, eq=False)
class Stream:
    """Tensors whose channels are scaled together.

    Attributes:
        name: that of its first tensor.
        factors: number of factors: channels that are one value on its way through the graph share one.
        tensors: each with the factor of each of its channels, -1 where a channel is another stream's or must stay as it is.
        makers: layers whose output channels are scaled.
        takers: layers that take it back.
    """

    name: str
    factors: int
    tensors: dict[ir.Value, np.ndarray]
    makers: tuple[Unit, ...]
    takers: tuple[Unit, ...]


def streams_of(model: ir.Model, units: list[Unit]) -> list[Stream]:
    """The streams of a graph, in topological order.

    Args:
        model: FP32.
        units: all its units.
    """
    channels = _Channels(model, units)
    for unit in units:
        channels.follow(unit)
    for first, *others in alike(unit for unit in units if unit.kind == "linear"):
        for other in others:
            channels.match(first, other)
    return list(channels.streams())


class _Channels:
    """Which channels are one, which must stay, told unit by unit."""

    def __init__(self, model: ir.Model, units: list[Unit]) -> None:
        self.units = units
        self.at: dict[ir.Value, np.ndarray] = {}
        self.count = 0
        self.same: list[tuple[np.ndarray, np.ndarray]] = []
        self.kept: list[np.ndarray] = []
        values = [*model.graph.inputs, *(value for unit in units for value in (*unit.inputs, *unit.inner, *unit.outputs))]
        for value in values:
            size = _size(value)
            if value not in self.at and size is not None:
                self.at[value] = np.arange(self.count, self.count + size)
                self.count += size
        members = {node for unit in units for node in unit.nodes}
        outside = [value for value in self.at if any(reader not in members for reader in readers(value))]
        self.keep([*model.graph.inputs, *model.graph.outputs, *outside])

    def keep(self, values: Iterable[ir.Value]) -> None:
        """These must stay as they are."""
        self.kept += [self.at[value] for value in values if value in self.at]

    def follow(self, unit: Unit) -> None:
        """What a unit does to channels."""
        last = unit.nodes[-1]
        if last.op_type == "Clip" and not _from_zero(last):
            self.keep([*unit.inputs, *unit.outputs])
        elif unit.kind == "linear":
            self._layer(unit)
        elif not self._passes(unit):
            self.keep([*unit.inputs, *unit.inner, *unit.outputs])

    def match(self, one: Unit, other: Unit) -> None:
        """Two layers with the same weights: what scales those of one scales the other's."""
        for first, second in ((one.inputs[0], other.inputs[0]), (one.outputs[0], other.outputs[0])):
            if first not in self.at or second not in self.at or not self._tie(first, second):
                self.keep([first, second])

    def _layer(self, unit: Unit) -> None:
        """A layer's input ends here and its output begins, unless its weights cannot be told channel by channel."""
        if unit.main.op_type != "Conv":
            rank = len(unit.inputs[0].shape or ())
            if rank != 2 or len(unit.inputs) != 1:
                self.keep([*unit.inputs, *unit.outputs])

    def _passes(self, unit: Unit) -> bool:
        """Whether channels go through one by one; then they are tied."""
        if unit.kind == "Shape":
            return True
        outputs, inputs = unit.outputs, [value for value in unit.main.inputs if value is not None]
        if any(value not in self.at for value in (*unit.inputs, *outputs)):
            return False
        kind = unit.kind
        if kind == "Add" and len(unit.inputs) == 2:
            return all(self._tie(value, outputs[0]) for value in unit.inputs)
        if kind == "Mul" and len(unit.inputs) == 2:
            gates = [value for value in unit.inputs if not _spreads(value)]
            if len(gates) != 1:
                return False
            self.keep(gates)
            return self._tie(next(value for value in unit.inputs if value is not gates[0]), outputs[0])
        if kind == "Concat":
            parts = [self.at[value] for value in inputs if value in self.at]
            return _axis(unit.main) == 1 and len(parts) == len(inputs) and self._tied(np.concatenate(parts), self.at[outputs[0]])
        if kind == "Split":
            return _axis(unit.main) == 1 and self._tied(self.at[inputs[0]], np.concatenate([self.at[value] for value in outputs]))
        if kind == "Slice":
            return self._sliced(unit.main)
        if kind in _HOMOGENEOUS and len(unit.inputs) == 1:
            return self._tie(unit.inputs[0], outputs[0])
        if kind in VIEWS and len(unit.inputs) == 1:
            return not _spreads(unit.inputs[0]) and not _spreads(outputs[0]) and self._tie(unit.inputs[0], outputs[0])
        return False

    def _tie(self, one: ir.Value, other: ir.Value) -> bool:
        return self._tied(self.at[one], self.at[other])

    def _tied(self, one: np.ndarray, other: np.ndarray) -> bool:
        if len(one) != len(other):
            return False
        self.same.append((one, other))
        return True

    def _sliced(self, node: ir.Node) -> bool:
        """Channels [start:stop:step]; a slice along other axes alone keeps them all."""
        if len(node.inputs) < 4 or any(value is not None and not constant(value) for value in node.inputs[1:]):
            return False
        given = [None if value is None else ir.convenience.get_const_tensor(value).numpy().tolist() for value in node.inputs[1:]]
        starts, ends, axes, *rest = given
        if axes is None or any(axis < 0 for axis in axes):
            return False
        steps = rest[0] if rest and rest[0] is not None else [1] * len(axes)
        channels = self.at[node.inputs[0]]
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            if axis == 1:
                channels = channels[start:end:step]
        return self._tied(channels, self.at[node.outputs[0]])

    def streams(self) -> Iterator[Stream]:
        """Channels that are one get one factor; the factors that a layer's output has are one stream."""
        label = _components(self.count, self.same)
        stays = np.zeros(self.count, bool)
        stays[label[np.concatenate([np.zeros(0, np.int64), *self.kept])]] = True
        factors = {value: np.where(stays[label[channels]], -1, label[channels]) for value, channels in self.at.items()}
        layers = [unit for unit in self.units if unit.kind == "linear"]
        # Layers are numbered behind the factors.
        made = [(place, factors.get(unit.outputs[0], np.zeros(0, np.int64))) for place, unit in enumerate(layers, self.count)]
        stream = _components(self.count + len(layers), [(np.full((own >= 0).sum(), place), own[own >= 0]) for place, own in made])
        found = dict.fromkeys(stream[place] for place, own in made if (own >= 0).any())
        for name in found:
            yield self._stream(np.append(stream[: self.count] == name, False), factors, layers)

    def _stream(self, mine: np.ndarray, factors: dict[ir.Value, np.ndarray], layers: list[Unit]) -> Stream:
        place = np.where(mine, np.cumsum(mine) - 1, -1)
        tensors = {value: place[own] for value, own in factors.items() if mine[own].any()}
        return Stream(
            next(iter(tensors)).name or "",
            int(mine.sum()),
            tensors,
            tuple(unit for unit in layers if unit.outputs[0] in tensors),
            tuple(unit for unit in layers if unit.inputs[0] in tensors),
        )


def _components(count: int, pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """A number for each of `count` things, the same for those that pairs connect."""
    one, other = (np.concatenate([np.zeros(0, np.int64), *side]) for side in zip(*pairs, strict=True)) if pairs else ((), ())
    edges = sparse.coo_matrix((np.ones(len(one), np.int8), (one, other)), (count, count))
    return csgraph.connected_components(edges, directed=False)[1]


def _size(value: ir.Value) -> int | None:
    """Channels of a tensor, along axis 1; None where the graph does not tell."""
    size = value.shape[1] if value.shape is not None and len(value.shape) >= 2 else None
    return size if isinstance(size, int) else None


def _axis(node: ir.Node) -> int:
    return node.attributes["axis"].as_int() if "axis" in node.attributes else 0


def _spreads(value: ir.Value) -> bool:
    """Whether a channel has more than one value, or may have."""
    return value.shape is None or any(size != 1 for size in value.shape[2:])


def _from_zero(clip: ir.Node) -> bool:
    bound = clip.inputs[1] if len(clip.inputs) > 1 else None
    return constant(bound) and not np.any(ir.convenience.get_const_tensor(bound).numpy())
