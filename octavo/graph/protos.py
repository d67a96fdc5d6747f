"""Graphs as ONNX protobufs, for what is written node by node and run once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx
from onnx import helper, numpy_helper

__all__ = ["branchless", "leading_to", "names_read", "part_of"]


def names_read(node: onnx.NodeProto) -> Iterator[str]:
    """Names that a node reads, and those that its bodies read of the graph around them; "" for an input left out."""
    yield from node.input
    for attribute in node.attribute:
        for body in (*([attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else []), *attribute.graphs):
            own = {name for inner in body.node for name in inner.output} | {value.name for value in body.input}
            own |= {tensor.name for tensor in body.initializer}
            inside = [*(name for inner in body.node for name in names_read(inner)), *(value.name for value in body.output)]
            yield from (name for name in inside if name not in own)


def leading_to(nodes: Sequence[onnx.NodeProto], names: Iterable[str]) -> list[onnx.NodeProto]:
    """The nodes, in topological order, that these tensors are computed by; ONNX Runtime would run all others as well."""
    wanted, found = set(names), []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.output):
            wanted.update(names_read(node))
            found.append(node)
    return found[::-1]


def branchless(nodes: Iterable[onnx.NodeProto], constants: Mapping[str, onnx.TensorProto]) -> Iterator[onnx.NodeProto]:
    """The nodes, `PRelu(x, s)` with all s <= 1 as Max(x, s x): the same bits, without a branch at each element.

    ONNX Runtime's PRelu takes up to 5 ns an element where signs change often, Mul and Max together half of one. The output keeps
    its name, and Max that of the node.
    """
    for node in nodes:
        slopes = constants.get(node.input[1]) if node.op_type == "PRelu" else None
        if slopes is None or numpy_helper.to_array(slopes).max(initial=0) > 1:
            yield node
            continue
        below = f"{node.output[0]}.octavo.below"
        yield helper.make_node("Mul", list(node.input), [below])
        yield helper.make_node("Max", [node.input[0], below], [node.output[0]], name=node.name)


def part_of(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str],
    constants: Sequence[onnx.TensorProto],
) -> bytes:
    """A graph of its own, with the operator sets and functions of a model, as ONNX Runtime loads it from memory.

    Args:
        model: not changed.
        nodes: in topological order.
        inputs: what the nodes read of others.
        outputs: names of what is wanted of them.
        constants: what else the nodes read.
    """
    wanted = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(nodes, "octavo.part", inputs, wanted, constants)
    part = onnx.ModelProto()
    part.ir_version = max(model.ir_version, 10)
    part.opset_import.extend(model.opset_import)
    part.functions.extend(model.functions)
    part.graph.CopyFrom(graph)
    # Each holds the weights: no more than two at once.
    del graph
    return part.SerializeToString()
