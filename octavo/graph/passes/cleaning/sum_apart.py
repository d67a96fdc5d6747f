"""A Conv that the graph puts out and a sum reads, as ONNX Runtime leaves it alone."""

from __future__ import annotations

import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass

__all__ = ["SumApartPass"]


class SumApartPass(NodePass):
    """Put an Identity between a Conv and the graph's output, where nobody but an Add reads the Conv besides.

    ONNX Runtime (its ConvAddActivationFusion, 1.31) makes one kernel of a Conv, the Add and the activation behind it where its
    blocked layout does not hold the channels (21; on ARM64 any), does not see that the graph puts out what the Conv does, and
    fails to load the file then. Of two readers it sees both.

    1. The output keeps its name; the Add reads the Conv itself, whose tensor is named after the output.
    2. Run it behind `NoIdentitiesPass`, which would take it out again.
    """

    op_type = "Conv"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        value = node.outputs[0]
        uses = list(value.uses())
        if not value.is_graph_output() or len(uses) != 1 or uses[0].node.op_type != "Add":
            return False
        kept = ir.node("Identity", [value], name=f"{node.name}.output")
        (out,) = kept.outputs
        out.type, out.shape = value.type, value.shape
        out.name, value.name = value.name, f"{value.name}.summed"
        model.graph.insert_after(node, kept)
        for place, output in enumerate(model.graph.outputs):
            if output is value:
                model.graph.outputs[place] = out
        return True
