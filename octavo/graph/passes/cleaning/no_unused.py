"""What no output needs any more, what only branches that are gone have read included."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

__all__ = ["NoUnusedPass"]


class NoUnusedPass(ir.passes.InPlacePass):
    """Remove nodes and initializers that no output needs, as onnx-ir does it, behind branches too.

    A node that is removed reads nothing any more; the nodes inside its branches (of an If that nobody reads, or whose condition is
    constant) still count as readers of the tensors around them. These looked read more often than they are, which keeps rules from
    nodes with one reader, and what was made for them alone stayed in the file.

    1. A reader that stands in no graph of the model is none.
    2. That is looked at again as long as nodes go.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Edit the model."""
        modified = _forget_gone(model)
        while common.RemoveUnusedNodesPass()(model).modified:
            modified = True
            if not _forget_gone(model):
                break
        return ir.passes.PassResult(model, modified)


def _forget_gone(model: ir.Model) -> bool:
    """Take readers that are in no graph off the tensors that they read; whether there were any."""
    nodes = list(ir.traversal.RecursiveGraphIterator(model.graph))
    there = set(nodes)
    values = [*model.graph.inputs, *model.graph.initializers.values(), *(value for node in nodes for value in node.outputs)]
    gone = [use for value in values for use in value.uses() if use.node not in there]
    for use in gone:
        use.node.replace_input_with(use.idx, None)
    return bool(gone)
