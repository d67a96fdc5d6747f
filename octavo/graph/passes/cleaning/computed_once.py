"""What a graph computes twice is computed once."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping

import onnx_ir as ir

from octavo.graph.passes.node_pass import SparingPass
from octavo.graph.passes.qdq import constant_of, forget

__all__ = ["ComputedOncePass", "repeated"]

# No two of them put out the same.
_RANDOM = frozenset(
    {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
# Constants that nodes are held to be alike by have at most so many values: axes, sizes, bounds, not weights.
_FEW = 64


class ComputedOncePass(SparingPass):
    """Have those who read a node that does what an earlier one does read that one, and remove it.

    ONNX Runtime does so in float while it loads a graph. What looks for one operator in several nodes does not see it otherwise: a
    norm that writes `x - mean` once for its square's either side and once for the quotient had integer differences, and a
    variance of these (-1 dB of 27).

    1. Both are of the ONNX domain and the main graph, without subgraphs and of no chance, with equal attributes.
    2. They read the same tensors, or equal constants of at most 64 values, and put out float32.
    3. The later one puts out nothing that is an output of the graph.

    The result is the same to the last bit.

    Args:
        kept: names of nodes that are left alone.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite in place; `modified` says whether a node went."""
        modified = False
        for node, first in list(repeated(model.graph, self.kept)):
            for old, new in zip(node.outputs, first.outputs, strict=True):
                ir.convenience.replace_all_uses_with(old, new)
            read = list(node.inputs)
            model.graph.remove(node, safe=True)
            for value in read:
                forget(model, value)
            modified = True
        return ir.passes.PassResult(model, modified)


def repeated(graph: ir.Graph, kept: Collection[str] = ()) -> Iterator[tuple[ir.Node, ir.Node]]:
    """(a node that does what an earlier one does, the first that does it), by the rules of `ComputedOncePass`, in order.

    Args:
        graph: in topological order; it is left as it is.
        kept: names of nodes that are taken for no other's double.
    """
    first: dict[Hashable, ir.Node] = {}
    same: dict[ir.Value, ir.Value] = {}
    for node in graph:
        key = None if node.name in kept else _key(node, same)
        if key is None or first.setdefault(key, node) is node or any(value.is_graph_output() for value in node.outputs):
            continue
        same.update(zip(node.outputs, first[key].outputs, strict=True))
        yield node, first[key]


def _key(node: ir.Node, same: Mapping[ir.Value, ir.Value]) -> Hashable | None:
    """Equal for nodes that do the same with the same; None for a node that is alone in what it does."""
    if node.domain not in ("", "ai.onnx") or node.op_type in _RANDOM:
        return None
    if any(value.dtype != ir.DataType.FLOAT for value in node.outputs if list(value.uses())):
        return None  # sizes cost nothing, and nobody looks for patterns of them
    settings = []
    for name, attribute in sorted(node.attributes.items()):
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS, ir.AttributeType.TENSORS):
            return None
        value = attribute.value
        if isinstance(value, ir.TensorProtocol):
            value = (str(value.dtype), tuple(value.shape), value.tobytes())
        settings.append((name, tuple(value) if isinstance(value, list | tuple) else value))
    return node.op_type, len(node.outputs), tuple(_read(same.get(value, value)) for value in node.inputs), tuple(settings)


def _read(value: ir.Value | None) -> Hashable:
    array = constant_of(value)
    if array is None or array.size > _FEW:
        return id(value)
    return str(array.dtype), array.shape, array.tobytes()
