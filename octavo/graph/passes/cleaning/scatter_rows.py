"""Whole rows that are put in their places value by value."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.arithmetic import is_op, replace_last
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import new_constant

__all__ = ["ScatterRowsPass"]


class ScatterRowsPass(NodePass):
    """Rewrite `ScatterElements(x, Expand(i), rows)` along the first axis as `ScatterND(x, i, rows)`.

    torch's exporter writes an assignment to rows, `x[i] = rows`, as one of values, with a place for each of them. torchvision's
    Faster and Mask R-CNN put what RoiAlign cuts out of each level of the pyramid in its place among all regions so: 1000 regions
    are 12.5 million places of 8 bytes, which are made and read one by one. ScatterND copies each row at once.

    1. Expand repeats one place along each row: what it reads is one wide on all axes but the first, of which it has as many as x.
    2. Rows are as wide as those of x, by sizes that are known.
    3. Nothing is added up (`reduction`).

    The same values: which of several rows is left in one place neither operator says.
    """

    op_type = "ScatterElements"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        data, indices, rows = node.inputs
        repeated, reduction = indices.producer(), node.attributes.get_string("reduction", "none")
        if node.attributes.get_int("axis", 0) != 0 or reduction != "none" or not is_op(repeated, "Expand"):
            return False
        places = repeated.inputs[0]
        if any(value.shape is None for value in (data, places, rows)) or len(places.shape) != len(data.shape):
            return False
        wide = list(data.shape)[1:]
        if not wide or not all(isinstance(size, int) for size in wide):
            return False
        if list(rows.shape)[1:] != wide or list(places.shape)[1:] != [1] * len(wide):
            return False
        flat, axis = (new_constant(model, f"{node.name}.{what}", np.array([one])) for what, one in (("flat", -1), ("axis", 1)))
        count = ir.node("Shape", [rows], {"start": 0, "end": 1}, name=f"{node.name}.count")
        row = ir.node("Reshape", [places, flat], name=f"{node.name}.row")
        # As many places as rows: one is repeated for none, too.
        each = ir.node("Expand", [row.outputs[0], count.outputs[0]], name=f"{node.name}.each")
        column = ir.node("Unsqueeze", [each.outputs[0], axis], name=f"{node.name}.column")
        made = [count, row, each, column]
        model.graph.insert_before(node, made)
        for one in made:
            one.outputs[0].name, one.outputs[0].type = one.name, ir.TensorType(ir.DataType.INT64)
        replace_last(model, node, ir.node("ScatterND", [data, column.outputs[0], rows], name=node.name))
        return True
