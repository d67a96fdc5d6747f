"""Give every node a name of its own."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

__all__ = ["NodeNamesPass"]


class NodeNamesPass(ir.passes.InPlacePass):
    """Name the nodes, so that `keep_float`, reports and reasons can point at each.

    1. A node without a name is called `<op type>_<first output>` (`Conv_345`): that does not change when nodes are added
       before it, as a running number would.
    2. A name that stands twice gets `_1`, `_2`, ... from its second use on.
    3. Values keep their names, except that a name used for two values is made unique the same way; graph inputs and outputs
       come first and are never renamed.
    4. A graph whose names are unique is left alone.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Edit the model."""
        return common.NameFixPass(_OpAndOutput())(model)


class _OpAndOutput(common.naming.SimpleNameGenerator):
    def generate_node_name(self, node: ir.Node) -> str:
        return node.name or f"{node.op_type}_{node.outputs[0].name if node.outputs else ''}"
