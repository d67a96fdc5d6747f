"""Sizes that a graph asks of tensors whose shape is known in part."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, new_constant, pruned

__all__ = ["KnownSizesPass"]


class KnownSizesPass(NodePass):
    """Write `Gather(Shape(x), i)` as a constant, where other sizes of x are open and this one is known.

    Constant folding does so where all sizes of x are known. A batch may be open, or how many boxes a detector finds, and exporters
    ask for all sizes one by one (`boxes.reshape(other.shape)`). ONNX Runtime fuses such questions and a Reshape to one to
    `[0, -1]`, which ends in an error where no box is found: torchvision's RetinaNet and FCOS.

    1. The indices are constant, and each names an axis of known size.
    2. An output of the graph keeps its node.

    The result is the same to the last bit.
    """

    op_type = "Gather"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        asks = node.inputs[0].producer() if node.inputs[0] is not None else None
        indices = constant_of(node.inputs[1])
        if asks is None or asks.op_type != "Shape" or asks.domain not in ("", "ai.onnx") or node.outputs[0].is_graph_output():
            return False
        shape = asks.inputs[0].shape
        if indices is None or not indices.size or shape is None:
            return False
        start, end = (asks.attributes.get_int(name, default) for name, default in (("start", 0), ("end", len(shape))))
        sizes = list(shape)[start:end]
        if indices.min() < -len(sizes) or indices.max() >= len(sizes):
            return False
        named = [sizes[int(place)] for place in indices.reshape(-1)]
        if not all(isinstance(size, int) for size in named):
            return False
        known = new_constant(model, f"{node.outputs[0].name}.known", np.array(named, dtype=np.int64).reshape(indices.shape))
        node.outputs[0].replace_all_uses_with(known)
        pruned(model, [node, asks])
        return True
