"""ShuffleNet's channel shuffles, done once and for all by the order of weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.forms.channel_moves import Channel, Mover, all_of, channels_of, movers_of, regions_of
from octavo.graph.passes.node_pass import GraphPass
from octavo.graph.passes.qdq import constant_of, forget, new_constant, pruned

__all__ = ["FETCH", "ShuffleByOrderPass"]

# What the name of a Concat that makes a tensor of its parts ends in, behind the tensor's own.
FETCH = ".fetch"

# One image in, one out, whatever the order of its channels.
_EACH = frozenset({"Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Tanh"})
_POOLS = frozenset({"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"})


class ShuffleByOrderPass(GraphPass):
    """Rewrite what only moves channels between convolutions (Concat, Split, shuffle) so that nothing is shuffled.

    A shuffle is `Reshape [N, g, c, H, W], Transpose (0, 2, 1, 3, 4), Reshape [N, C, H, W]`. ONNX Runtime's integer convolutions
    keep channels last; for every shuffle the image is brought to NCHW and back, and in float out of the blocked layout. Where
    each channel comes from is known beforehand: it is fetched there, and the convolutions around it take another order of weights.

    1. A region is made of Concats and Splits along channels and of shuffles, of images with known sizes, as far as they are
       connected. One without a shuffle stays.
    2. What leaves a region is read by Convs alone, dense ones or, on the way to such, depthwise ones, pools and functions of one
       element: these can take any order of channels. A region with a tensor that is an output of the graph, or goes elsewhere,
       stays.
    3. What enters a region and comes from a dense Conv and functions of one element, which nobody else reads, is put out in an
       order in which each part that is fetched together lies together; it is cut once, by a Split. Anything else is cut as it
       lies, and a region that this would cut into more parts than it has tensors to make of them stays.
    4. A tensor whose channels are in another order has another name.

    The result is the same up to the order in which a kernel sums.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite in place; `modified` says whether a region changed."""
        movers = {mover.output: mover for node in model.graph for mover in movers_of(node)}
        changed = False
        for region in regions_of(movers):
            changed |= _Region(model, region, movers).rewritten()
        return ir.passes.PassResult(model, changed)


@dataclass
class _Taker:
    """Nodes that take a tensor in another order.

    Attributes:
        dense: Convs that sum over its channels, with the input that they read it by.
        passing: depthwise Convs, and what handles channels alike, in the order of the graph.
    """

    dense: list[ir.Node] = field(default_factory=list)
    passing: list[ir.Node] = field(default_factory=list)


class _Region:
    def __init__(self, model: ir.Model, members: Sequence[Mover], movers: dict[ir.Value, Mover]) -> None:
        self.model, self.members, self.movers = model, members, movers
        self.nodes = {node for mover in members for node in mover.nodes}

    def rewritten(self) -> bool:
        exits = [mover.output for mover in self.members if self._readers(mover.output) or mover.output.is_graph_output()]
        takers = {value: self._taker(value) for value in exits}
        if not exits or any(taker is None for taker in takers.values()):
            return False
        origins = {value: [self._origin(channel) for channel in self.movers[value].channels] for value in exits}
        sources = list(dict.fromkeys(source for found in origins.values() for source, _ in found))
        # By whom each channel is fetched: those that go the same ways stay together.
        ways: dict[Channel, list[int]] = {}
        for place, value in enumerate(exits):
            for channel in origins[value]:
                ways.setdefault(channel, []).append(place)
        parts: dict[ir.Value, list[list[int]]] = {}
        emitters = {source: self._emitter(source) for source in sources}
        for source in sources:
            parts[source] = _parts([tuple(ways.get(channel, ())) for channel in all_of(source)], sort=emitters[source] is not None)
        if sum(map(len, parts.values())) > len(self.members) * max(2, len(exits)):
            return False
        segments: dict[Channel, tuple[ir.Value, list[Channel]]] = {}
        for source in sources:
            self._cut(source, parts[source], emitters[source], segments)
        for value in exits:
            self._fetch(value, origins[value], takers[value], segments)
        old = list(dict.fromkeys(node for mover in reversed(self.members) for node in reversed(mover.nodes)))
        pruned(self.model, old)
        return True

    def _readers(self, value: ir.Value) -> list[ir.Node]:
        """Nodes outside the region that read a tensor."""
        return [use.node for use in value.uses() if use.node not in self.nodes]

    def _origin(self, channel: Channel) -> Channel:
        while channel[0] in self.movers and self.movers[channel[0]] in self.members:
            channel = self.movers[channel[0]].channels[channel[1]]
        return channel

    def _taker(self, value: ir.Value) -> _Taker | None:
        """What reads a tensor outside the region; None where an order of its own would be seen."""
        found, ahead = _Taker(), [(value, self._readers(value))]
        while ahead:
            read, nodes = ahead.pop()
            if read.is_graph_output():
                return None
            for node in nodes:
                kind = _conv_kind(node, read)
                if kind == "dense":
                    found.dense.append(node)
                elif kind == "depthwise" or (node.op_type in _EACH | _POOLS and node.inputs[0] is read and len(node.outputs) == 1):
                    if any(use.node in self.nodes for use in node.outputs[0].uses()):
                        return None
                    found.passing.append(node)
                    ahead.append((node.outputs[0], [use.node for use in node.outputs[0].uses()]))
                else:
                    return None
        return found

    def _emitter(self, source: ir.Value) -> list[ir.Node] | None:
        """The dense Conv that makes a tensor and what comes behind it, where no one else reads any of it."""
        if self._readers(source) or source.is_graph_output():
            return None
        chain: list[ir.Node] = []
        node = source.producer()
        while node is not None:
            chain.append(node)
            if node.op_type == "Conv":
                return chain[::-1] if _is_plain(node) and _group(node) == 1 else None
            before = node.inputs[0] if node.op_type in _EACH else None
            if before is None or len(list(before.uses())) != 1 or before.is_graph_output():
                return None
            node = before.producer()
        return None

    def _cut(
        self,
        source: ir.Value,
        parts: Sequence[Sequence[int]],
        emitter: Sequence[ir.Node] | None,
        segments: dict[Channel, tuple[ir.Value, list[Channel]]],
    ) -> None:
        order = [place for part in parts for place in part]
        if emitter is not None and order != sorted(order):
            conv = emitter[0]
            for place in (1, 2):
                if place < len(conv.inputs) and conv.inputs[place] is not None:
                    self._reorder(conv, place, np.array(order), 0)
            for node in emitter:
                node.outputs[0].name = f"{node.outputs[0].name}.ordered"
        values = [source]
        if len(parts) > 1:
            sizes = new_constant(self.model, f"{source.name}.parts", np.array([len(part) for part in parts], np.int64))
            split = ir.node("Split", [source, sizes], {"axis": 1}, num_outputs=len(parts), name=f"{source.name}.split")
            for place, (value, part) in enumerate(zip(split.outputs, parts, strict=True)):
                self._describe(value, f"{source.name}.part{place}", source, len(part))
            maker, graph = source.producer(), self.model.graph
            if maker is None:
                graph.insert_before(next(iter(graph)), split)
            else:
                graph.insert_after(maker, split)
            values = list(split.outputs)
        for value, part in zip(values, parts, strict=True):
            whole = [(source, place) for place in part]
            segments |= dict.fromkeys(whole, (value, whole))

    def _fetch(
        self,
        value: ir.Value,
        origin: Sequence[Channel],
        taker: _Taker,
        segments: dict[Channel, tuple[ir.Value, list[Channel]]],
    ) -> None:
        """Make a tensor of its parts, and have its readers take them as they come."""
        pieces = dict(segments[channel] for channel in origin)
        place_of = {channel: place for place, channel in enumerate(origin)}
        order = np.array([place_of[channel] for whole in pieces.values() for channel in whole])
        first = self.movers[value].nodes[-1]
        if len(pieces) == 1:
            (fetched,) = pieces
        else:
            concat = ir.node("Concat", list(pieces), {"axis": 1}, name=f"{value.name}{FETCH}")
            fetched = concat.outputs[0]
            self._describe(fetched, f"{value.name}.fetched", value, len(origin))
            self.model.graph.insert_before(first, concat)
        for use in list(value.uses()):
            if use.node not in self.nodes:
                use.node.replace_input_with(use.idx, fetched)
        if (order == np.arange(len(order))).all():
            return
        for node in taker.dense:
            self._reorder(node, 1, order, 1)
        for node in taker.passing:
            if node.op_type == "Conv":
                for place in range(1, len(node.inputs)):
                    if node.inputs[place] is not None:
                        self._reorder(node, place, order, 0)
            node.outputs[0].name = f"{node.outputs[0].name}.ordered"

    def _describe(self, value: ir.Value, name: str, like: ir.Value, channels: int) -> None:
        value.name, value.dtype = name, like.dtype
        value.shape = ir.Shape([like.shape[0], channels, *like.shape[2:]])

    def _reorder(self, node: ir.Node, place: int, order: np.ndarray, axis: int) -> None:
        old = node.inputs[place]
        array = np.take(constant_of(old), order, axis=axis)
        node.replace_input_with(place, new_constant(self.model, f"{old.name}.of.{node.name}", array))
        forget(self.model, old)


def _parts(ways: Sequence[tuple[int, ...]], *, sort: bool) -> list[list[int]]:
    """Channels that go the same ways, in runs; sorted by way where the order is free."""
    places: Iterable[int] = range(len(ways))
    if sort:
        places = sorted(places, key=lambda place: (ways[place], place))
    found: list[list[int]] = []
    for place in places:
        if found and ways[found[-1][-1]] == ways[place]:
            found[-1].append(place)
        else:
            found.append([place])
    return found


def _group(conv: ir.Node) -> int:
    return conv.attributes["group"].as_int() if "group" in conv.attributes else 1


def _is_plain(conv: ir.Node) -> bool:
    """Whether a Conv's weights and bias are constants."""
    return conv.domain in ("", "ai.onnx") and all(
        value is None or constant_of(value) is not None for value in list(conv.inputs)[1:]
    )


def _conv_kind(node: ir.Node, read: ir.Value) -> str:
    if node.op_type != "Conv" or node.inputs[0] is not read or not _is_plain(node):
        return ""
    weights = constant_of(node.inputs[1])
    if _group(node) == 1:
        return "dense"
    return "depthwise" if weights.shape[1] == 1 and weights.shape[0] == _group(node) == channels_of(read) else ""
