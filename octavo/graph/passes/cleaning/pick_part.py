"""What is taken out of a Concat again, taken from the part that has it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, new_constant, pruned

__all__ = ["PickPartPass"]


class PickPartPass(NodePass):
    """Rewrite `Gather(Concat(a, b, c), i)` as `Gather(b, i - offset)`, and `Gather(Unsqueeze(x), 0)` as `x`.

    Decoders of queries stack what each of their layers puts out and answer with the last layer's (DETR, RT-DETR). The heads of the
    other layers are computed for nothing, and to whoever looks for a network's heads they look like the one that answers.

    1. The indices are constant and lie in one part; both nodes work on the same axis.
    2. The sizes of all parts along this axis are known, or 1 by an Unsqueeze.
    3. An output of the graph keeps its node.

    The result is the same to the last bit. Other readers of the Concat keep it.
    """

    op_type = "Gather"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        source, indices = node.inputs[0], constant_of(node.inputs[1])
        joined = source.producer() if source is not None else None
        rank = _rank(source)
        if indices is None or not indices.size or joined is None or joined.op_type != "Concat" or rank is None:
            return False
        axis = _axis(node, rank)
        if joined.domain not in ("", "ai.onnx") or _axis(joined, rank) != axis:
            return False
        sizes = [_size(part, axis, rank) for part in joined.inputs]
        if None in sizes:
            return False
        ends = np.cumsum(sizes)
        places = np.where(indices < 0, indices + ends[-1], indices)
        held = np.searchsorted(ends, places, side="right").reshape(-1)
        if places.min() < 0 or places.max() >= ends[-1] or (held != held[0]).any():
            return False
        part, start = joined.inputs[held[0]], int(ends[held[0]]) - sizes[held[0]]
        inner = part.producer()
        if indices.ndim == 0 and _adds(inner, axis, rank) and not node.outputs[0].is_graph_output():
            node.outputs[0].replace_all_uses_with(inner.inputs[0])
        else:
            node.replace_input_with(0, part)
            node.replace_input_with(1, new_constant(model, f"{node.name}.place", places - start))
        pruned(model, [node, joined])
        return True


def _rank(value: ir.Value | None) -> int | None:
    return len(value.shape) if value is not None and value.shape is not None else None


def _axis(node: ir.Node, rank: int) -> int:
    return (node.attributes["axis"].as_int() if "axis" in node.attributes else 0) % rank


def _adds(node: ir.Node | None, axis: int, rank: int) -> bool:
    """Whether a node is the Unsqueeze that adds this axis alone."""
    if node is None or node.op_type != "Unsqueeze" or node.domain not in ("", "ai.onnx"):
        return False
    axes = constant_of(node.inputs[1])
    return axes is not None and (axes.reshape(-1) % rank).tolist() == [axis]


def _size(part: ir.Value, axis: int, rank: int) -> int | None:
    if _adds(part.producer(), axis, rank):
        return 1
    size = part.shape[axis] if _rank(part) == rank else None
    return size if isinstance(size, int) else None
