"""Rows of channels that are laid out as a map and taken as rows again."""

from __future__ import annotations

import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, pruned

__all__ = ["RowsAgainPass"]

_ROWS, _IMAGE = 2, 4


class RowsAgainPass(NodePass):
    """Rewrite `Reshape(Transpose(Transpose(Reshape(rows))))` as the rows that it begins with.

    Layers that are Gemms over pixels hand each other maps. ONNX Runtime cancels both Transposes and joins both Reshapes in one, of
    rows to the same rows, which costs 3 to 4 us a run: YOLOX-nano has eleven.

    1. The first Reshape lays rows [n, C] out as [N, H, W, C]; the last one, of [N, H, W, C], puts out rows of C again.
    2. The Transposes are each other's inverse, or there are none. Others may read what lies between.

    The values are the same.
    """

    op_type = "Reshape"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        sizes = constant_of(node.inputs[1])
        between: list[ir.Node] = []
        source = node.inputs[0].producer() if node.inputs[0] is not None else None
        while source is not None and source.op_type == "Transpose":
            between.append(source)
            source = source.inputs[0].producer()
        if sizes is None or sizes.size != _ROWS or source is None or source.op_type != "Reshape" or not _cancels(between):
            return False
        rows, image = source.inputs[0], constant_of(source.inputs[1])
        known = rows.shape is not None and len(rows.shape) == _ROWS and isinstance(rows.shape[-1], int)
        if not known or image is None or image.size != _IMAGE or not rows.shape[-1] == int(image[-1]) == int(sizes[-1]) > 0:
            return False
        if node.outputs[0].is_graph_output():
            return False
        ir.convenience.replace_all_uses_with([node.outputs[0]], [rows])
        pruned(model, [node, *between, source])
        return True


def _cancels(transposes: list[ir.Node]) -> bool:
    """Whether these leave every axis where it was."""
    order = list(range(_IMAGE))
    for node in transposes:
        perm = list(node.attributes.get_ints("perm", ()))
        if len(perm) != _IMAGE:
            return False
        order = [perm[axis] for axis in order]
    return order == list(range(_IMAGE))
