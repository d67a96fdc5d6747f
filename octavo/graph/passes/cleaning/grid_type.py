"""A GridSample's grid has the type of the image that it samples."""

from __future__ import annotations

import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass

__all__ = ["GridTypePass"]


class GridTypePass(NodePass):
    """Rewrite `GridSample(x, grid)` as `GridSample(x, Cast(grid))`, where only the grid is float64.

    torch's exporter without dynamo writes some constants of float32 arithmetic as float64 (`2 * places - 1` of deformable
    attention), and casts what meets them. ONNX allows the mixture, and ONNX Runtime has no kernel for it.

    1. `x` is float32, and `grid` float64: torch samples one type only, so that the grid was float32 there.
    """

    op_type = "GridSample"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        image, grid = node.inputs[:2]
        if image is None or grid is None or (image.dtype, grid.dtype) != (ir.DataType.FLOAT, ir.DataType.DOUBLE):
            return False
        cast = ir.node("Cast", [grid], {"to": ir.DataType.FLOAT.value}, name=f"{node.name}.grid.cast")
        narrow = cast.outputs[0]
        narrow.name, narrow.dtype, narrow.shape = f"{node.name}.grid", ir.DataType.FLOAT, grid.shape
        model.graph.insert_before(node, cast)
        node.replace_input_with(1, narrow)
        return True
