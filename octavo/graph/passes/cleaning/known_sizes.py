"""Sizes that a graph asks of tensors whose shape is known in part."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, new_constant, pruned

__all__ = ["KnownSizesPass"]


class KnownSizesPass(NodePass):
    """Write `Gather(Shape(x), i)` and `Slice(Shape(x), a, b)` as a constant, where other sizes of x are open and these are known.

    Constant folding does so where all sizes of x are known. A batch may be open, or how many boxes a detector finds, and exporters
    ask for all sizes one by one (`boxes.reshape(other.shape)`). ONNX Runtime fuses such questions and a Reshape to one to
    `[0, -1]`, which ends in an error where no box is found: torchvision's RetinaNet and FCOS. torch's exporter computes
    attention's scale, the root of the last size of the queries, by a Slice: with the batch open, in each of its runs.

    1. The indices, or where the Slice begins and ends, are constant, and name axes of known size alone.
    2. An output of the graph keeps its node.

    The result is the same to the last bit.
    """

    op_type = "Shape"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        shape = node.inputs[0].shape if node.inputs[0] is not None else None
        if shape is None:
            return False
        start, end = (node.attributes.get_int(name, default) for name, default in (("start", 0), ("end", len(shape))))
        sizes, written = list(shape)[start:end], []
        for reader in {use.node: None for use in node.outputs[0].uses()}:
            places = _places(reader, node.outputs[0], len(sizes))
            if places is None or not places.size or reader.outputs[0].is_graph_output():
                continue
            named = [sizes[place] for place in places.reshape(-1)]
            if all(isinstance(size, int) for size in named):
                array = np.array(named, dtype=np.int64).reshape(places.shape)
                known = new_constant(model, f"{reader.outputs[0].name}.known", array)
                reader.outputs[0].replace_all_uses_with(known)
                written.append(reader)
        pruned(model, [*written, node] if written else [])
        return bool(written)


def _places(reader: ir.Node, asked: ir.Value, count: int) -> np.ndarray | None:
    """Which of `count` sizes a node takes out of the list of them, in the shape that it has them in; None where it does not say."""
    if reader.domain not in ("", "ai.onnx") or reader.inputs[0] is not asked:
        return None
    if reader.op_type == "Gather":
        indices = constant_of(reader.inputs[1])
        inside = indices is not None and indices.size and indices.min() >= -count and indices.max() < count
        return indices if inside else None
    if reader.op_type != "Slice":
        return None
    # A list has one axis: whichever name of it the node gives.
    bounds = [constant_of(value) for value in reader.inputs[1:3]]
    steps = constant_of(reader.inputs[4]) if len(reader.inputs) > 4 and reader.inputs[4] is not None else np.ones(1, np.int64)
    if any(bound is None or bound.size != 1 for bound in (*bounds, steps)):
        return None
    return np.arange(count)[slice(*(int(bound.item()) for bound in (*bounds, steps)))]
