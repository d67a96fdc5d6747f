"""Names of what is added to a graph: FP32 may have any name, those that rules derive from others (`<node>.scale`) among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import onnx_ir as ir

__all__ = ["added_apart", "names_held", "set_apart", "take_place", "unique"]

# Tensors and nodes, each with its name.
Held = tuple[dict[ir.Value, str | None], dict[ir.Node, str | None]]


def unique(wanted: str, taken: set[str]) -> str:
    """`wanted`, or with the first free number behind it; the result is added to `taken`."""
    name, number = wanted, 1
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    taken.add(name)
    return name


@contextmanager
def added_apart(model: ir.Model) -> Iterator[None]:
    """Rename those of the tensors and nodes added meanwhile whose name something else has: `set_apart`."""
    before = names_held(model)
    yield
    set_apart(model, before)


def names_held(model: ir.Model) -> Held:
    """All tensors and all nodes, those of subgraphs included, with their names."""
    tensors, nodes = _held(model)
    return {one: one.name for one in tensors}, {one: one.name for one in nodes}


def set_apart(model: ir.Model, before: Held) -> None:
    """Rename those of the tensors and nodes added since whose name something else has: `unique`.

    1. What had its name before keeps it, and so do inputs and outputs of the graph; of several new ones the first.
    2. Tensors and nodes are named apart from each other; those of subgraphs count with the graph's.

    Args:
        model: changed in place.
        before: what there was (`names_held`).
    """
    ends = {*model.graph.inputs, *model.graph.outputs}
    for found, held in zip(_held(model), before, strict=True):
        holders: dict[str, list[ir.Value] | list[ir.Node]] = {}
        for one in dict.fromkeys(found):
            if one.name:
                holders.setdefault(one.name, []).append(one)
        shared = {name: several for name, several in holders.items() if len(several) > 1}
        taken = set(holders) if shared else set()
        for name, several in shared.items():
            kept = [one for one in several if held.get(one) == name or one in ends] or several[:1]
            for one in several:
                if one not in kept:
                    one.name = unique(name, taken)


def take_place(model: ir.Model, gone: Sequence[ir.Node], made: Sequence[ir.Node], old: ir.Value, new: ir.Value) -> None:
    """Put nodes where others stood; what read `old` reads `new`, which has its name: statistics are found by it.

    Args:
        model: changed in place.
        gone: the nodes to remove; the new ones are put behind the first of these.
        made: in topological order.
        old: what the nodes to remove put out.
        new: what stands for it; it has its type and shape from then on, where these are known.
    """
    name, old.name = old.name, f"{old.name}.old"
    ir.convenience.replace_nodes_and_values(model.graph, gone[0], gone, made, [old], [new])
    new.name = name


def _held(model: ir.Model) -> tuple[list[ir.Value], list[ir.Node]]:
    """All tensors and all nodes, those of subgraphs included.

    Every rewriting pass that finds something to look at asks for them, hundreds of times a quantization: of an SSD's 1900 nodes it
    takes 5 ms, and by `ir.Model.graphs`, which goes through each node with an iterator of its own, it took 12.
    """
    tensors: list[ir.Value] = []
    nodes: list[ir.Node] = []
    left = [model.graph]
    while left:
        graph = left.pop()
        tensors.extend(graph.inputs)
        tensors.extend(graph.initializers.values())
        inside: list[ir.Graph] = []
        for node in graph:
            nodes.append(node)
            tensors.extend(node.outputs)
            for attribute in node.attributes.values() if node.attributes else ():
                if attribute.type == ir.AttributeType.GRAPH:
                    inside.append(attribute.value)
                elif attribute.type == ir.AttributeType.GRAPHS:
                    inside.extend(attribute.value)
        left.extend(reversed(inside))
    return tensors, nodes
