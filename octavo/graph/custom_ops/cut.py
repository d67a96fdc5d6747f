"""Cutting a graph before some of its nodes, and putting what was cut off back behind another version of the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir

from octavo.errors import SourceError
from octavo.graph.custom_ops.names import operator
from octavo.graph.passes.cleaning.node_names import NodeNamesPass

__all__ = ["Chosen", "cut", "reads", "rejoin", "tail", "with_inner"]

Chosen = Callable[[ir.Node], bool]


def tail(graph: ir.Graph, chosen: Chosen) -> list[ir.Node]:
    """The nodes of the main graph that `chosen` picks and all that depend on them, in graph order.

    A node counts with its subgraphs: what is picked or read inside them is picked or read by it.
    """
    found: dict[ir.Node, None] = {}
    for node in graph:
        if any(map(chosen, with_inner(node))) or any(value.producer() in found for value in reads(node)):
            found[node] = None
    return list(found)


def _boundary(cut_off: list[ir.Node]) -> list[ir.Value]:
    """Values that the nodes cut off read from the rest, in the order of their first use; graph inputs and weights left out."""
    behind = set(cut_off)
    found = {value: None for node in cut_off for value in reads(node)}
    return [value for value in found if value.producer() is not None and value.producer() not in behind]


def _is_computed(value: ir.Value) -> bool:
    return value.producer() is not None and value.producer().op_type != "Constant"


def _is_float(value: ir.Value) -> bool:
    """Whether a value is computed and is, as far as is known, a float32 tensor."""
    if value.dtype is None:
        return _is_computed(value)
    return _is_computed(value) and isinstance(value.type, ir.TensorType) and value.dtype == ir.DataType.FLOAT


def _floats_before(values: list[ir.Value]) -> list[ir.Value]:
    """The nearest float tensors that the values are computed from, in the order in which they are met."""
    found: dict[ir.Value, None] = {}
    seen, left = set(values), list(values)
    while left:
        producer = left.pop(0).producer()
        for value in () if producer is None else reads(producer):
            if _is_float(value):
                found[value] = None
            elif value not in seen:
                seen.add(value)
                left.append(value)
    return list(found)


def cut(model: ir.Model, chosen: Chosen, *, measured: bool) -> None:
    """Take the tail off in place: outputs that remain, then the boundary, are the outputs.

    Args:
        model: the graph.
        chosen: what it is cut before.
        measured: it is one that quantization measures. Where no output is float (a plugin colours the classes of an ArgMax), the
            nearest float tensors before them are put out besides: integers do not tell how close two models are.

    Raises:
        SourceError: nothing that can be run remains.
    """
    graph = model.graph
    off = tail(graph, chosen)
    if not off:
        return
    edge = _boundary(off)
    behind = set(off)
    remaining = [value for value in graph.outputs if value.producer() not in behind]
    counts = _is_float if measured else _is_computed
    if measured and not any(map(_is_float, (*remaining, *edge))):
        edge += _floats_before([*remaining, *edge])
    if not any(map(counts, (*remaining, *edge))):
        raise SourceError(
            f"nothing lies before the custom operator {operator(off[0])!r} (node {off[0].name!r}), where the graph would be cut",
            f"a body lets what lies behind it count: `source.custom_ops: {{{operator(off[0])}: file.onnx}}`",
        )
    graph.outputs.clear()
    graph.remove(off, safe=False)
    for node in off:
        for inner in with_inner(node):
            for place in range(len(inner.inputs)):
                inner.replace_input_with(place, None)
    graph.outputs.extend(dict.fromkeys([*remaining, *edge]))
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]


def rejoin(made: ir.Model, original: ir.Model, chosen: Chosen) -> None:
    """Put the tail of `original` behind `made`, which was made from `original` after a cut; in place.

    1. Tensors are found by name: `made` has all those that the tail reads.
    2. Where it has one in float16, a Cast brings it back to float32: the tail is untouched.
    3. The outputs are those of `original`, in its order.

    Args:
        original: as it was before the cut; it is not changed.
    """
    whole = original.clone()
    off = tail(whole.graph, chosen)
    outputs = list(whole.graph.outputs)
    read = [value for node in off for value in reads(node)]
    whole.graph.outputs.clear()
    whole.graph.remove(off, safe=False)
    known = {value.name: value for value in (*made.graph.inputs, *made.graph.initializers.values())}
    known |= {value.name: value for node in made.graph for value in node.outputs}
    inside = {value for node in off for inner in with_inner(node) for value in inner.outputs}
    replaced: dict[ir.Value, ir.Value] = {}
    for value in read:
        if value not in inside and value not in replaced:
            replaced[value] = _weight(made, value) if value.is_initializer() else _as_before(made, known[value.name], value)
    for node in off:
        for inner in with_inner(node):
            for place, value in enumerate(inner.inputs):
                if value in replaced:
                    inner.replace_input_with(place, replaced[value])
    made.graph.extend(off)
    made.graph.outputs.clear()
    made.graph.outputs.extend(value if value in inside else known[value.name] for value in outputs)
    for domain, version in original.opset_imports.items():
        made.graph.opset_imports.setdefault(domain, version)
    NodeNamesPass()(made)


def _as_before(made: ir.Model, now: ir.Value, before: ir.Value) -> ir.Value:
    if now.dtype != ir.DataType.FLOAT16 or before.dtype != ir.DataType.FLOAT:
        return now
    cast = ir.node("Cast", [now], {"to": ir.DataType.FLOAT.value}, name=f"{now.name}/float32")
    made.graph.append(cast)
    result = cast.outputs[0]
    result.name, result.dtype, result.shape = f"{now.name}/float32", ir.DataType.FLOAT, before.shape
    return result


def _weight(made: ir.Model, value: ir.Value) -> ir.Value:
    """A weight of the tail as an initializer of `made`: the one that stands there, if it still is the same."""
    mine = made.graph.initializers.get(value.name)
    if mine is not None and _same(mine.const_value, value.const_value):
        return mine
    name = value.name
    while name in made.graph.initializers:
        name += "/tail"
    copy = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
    made.graph.register_initializer(copy)
    return copy


def _same(first: ir.TensorProtocol | None, second: ir.TensorProtocol | None) -> bool:
    if first is None or second is None or first.dtype != second.dtype or list(first.shape) != list(second.shape):
        return False
    return first.tobytes() == second.tobytes()


def with_inner(node: ir.Node) -> Iterator[ir.Node]:
    """The node and all nodes of its subgraphs."""
    yield node
    for attribute in node.attributes.values():
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            for graph in [attribute.value] if attribute.type == ir.AttributeType.GRAPH else attribute.value:
                for inner in graph:
                    yield from with_inner(inner)


def reads(node: ir.Node) -> Iterator[ir.Value]:
    """Values of the main graph that the node or its subgraphs read."""
    for inner in with_inner(node):
        for value in inner.inputs:
            if value is not None and (inner is node or value.graph is node.graph):
                yield value
