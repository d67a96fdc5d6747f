"""What only moves channels of images about, and where each channel comes from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.qdq import constant_of

__all__ = ["Channel", "Mover", "all_of", "channels_of", "movers_of", "regions_of"]

# A channel of a tensor.
Channel = tuple[ir.Value, int]


@dataclass(frozen=True)
class Mover:
    """How one tensor is made of the channels of others.

    Attributes:
        output: the tensor.
        channels: for each of its channels, where it comes from.
        nodes: that do so.
        shuffles: whether they are a shuffle.
    """

    output: ir.Value
    channels: tuple[Channel, ...]
    nodes: tuple[ir.Node, ...]
    shuffles: bool = False


def channels_of(value: ir.Value | None) -> int | None:
    """How many channels an image of known size has."""
    if value is None or value.shape is None or len(value.shape) != 4:
        return None
    return value.shape[1] if all(isinstance(size, int) for size in value.shape[1:]) else None


def all_of(value: ir.Value) -> list[Channel]:
    """The channels of an image."""
    return [(value, place) for place in range(channels_of(value) or 0)]


def movers_of(node: ir.Node) -> list[Mover]:
    """The tensors that a Concat, a Split or the last Reshape of a shuffle makes; none for any other node."""
    if node.domain not in ("", "ai.onnx") or any(channels_of(value) is None for value in node.outputs):
        return []
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
    if node.op_type == "Concat" and axis in (1, -3) and all(channels_of(value) for value in node.inputs):
        return [Mover(node.outputs[0], tuple(channel for value in node.inputs for channel in all_of(value)), (node,))]
    if node.op_type == "Split" and axis in (1, -3) and channels_of(node.inputs[0]):
        channels, start, found = all_of(node.inputs[0]), 0, []
        for value in node.outputs:
            found.append(Mover(value, tuple(channels[start : start + channels_of(value)]), (node,)))
            start += channels_of(value)
        return found if start == len(channels) else []
    return _shuffle(node) if node.op_type == "Reshape" else []


def _shuffle(last: ir.Node) -> list[Mover]:
    swap = last.inputs[0].producer() if last.inputs[0] is not None else None
    first = swap.inputs[0].producer() if swap is not None and swap.op_type == "Transpose" and swap.inputs[0] is not None else None
    if first is None or first.op_type != "Reshape" or "perm" not in swap.attributes:
        return []
    image, shape = first.inputs[0], constant_of(first.inputs[1])
    alone = all(len(list(node.outputs[0].uses())) == 1 and not node.outputs[0].is_graph_output() for node in (first, swap))
    if channels_of(image) is None or shape is None or shape.size != 5 or not alone:
        return []
    if tuple(swap.attributes["perm"].as_ints()) != (0, 2, 1, 3, 4) or list(last.outputs[0].shape[1:]) != list(image.shape[1:]):
        return []
    groups, size = int(shape[1]), int(shape[2])
    if groups < 2 or groups * size != channels_of(image) or list(shape[3:]) != list(image.shape[2:]):
        return []
    order = np.arange(groups * size).reshape(groups, size).T.ravel()
    return [Mover(last.outputs[0], tuple((image, int(place)) for place in order), (first, swap, last), True)]


def regions_of(movers: dict[ir.Value, Mover]) -> list[list[Mover]]:
    """Movers that hand tensors to each other or cut one together, where one of them shuffles; in the order of the graph."""
    group: dict[ir.Value, list[Mover]] = {value: [mover] for value, mover in movers.items()}

    def join(one: ir.Value, other: ir.Value) -> None:
        if group[one] is not group[other]:
            group[one].extend(group[other])
            for mover in group[other]:
                group[mover.output] = group[one]

    cuts: dict[ir.Node, ir.Value] = {}
    for value, mover in movers.items():
        join(cuts.setdefault(mover.nodes[-1], value), value)
        for source in dict.fromkeys(source for source, _ in mover.channels):
            if source in movers:
                join(source, value)
    places = {value: place for place, value in enumerate(movers)}
    unique = list({id(found): found for found in group.values()}.values())
    ordered = [sorted(found, key=lambda mover: places[mover.output]) for found in unique]
    return [found for found in ordered if any(mover.shuffles for mover in found)]
