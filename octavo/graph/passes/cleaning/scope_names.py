"""Name nodes and tensors after the torch modules that they come from."""

from __future__ import annotations

import ast

import onnx_ir as ir

from octavo.graph.names import unique

__all__ = ["ScopeNamesPass"]

# Written by torch.onnx.export(dynamo=True): "['', 'features', 'features.0', 'features.0.0', 'conv2d']".
SCOPES = "pkg.torch.onnx.name_scopes"
# torch.export's stand-in for the scope of an operation that it added itself.
NO_SCOPE = "_empty_nn_module_stack_from_metadata_hook"


class ScopeNamesPass(ir.passes.InPlacePass):
    """Replace `node_Conv_811` by `features.0.0/Conv`, and the tensor `getitem_3` by the name of the node that makes it.

    1. A node's name is the path of its module, `/`, and its op type; a node of the outermost module is its op type alone. The
       second of a name gets `_1`, and so on, in graph order.
    2. Its module is the one whose `weight` the node takes, else the innermost one in the metadata: a convolution with a folded
       BatchNorm carries the BatchNorm's scope.
    3. The output of a node with one output takes the node's name.
    4. Graph inputs, graph outputs and initializers keep their names; so do the outputs of a node that has several.
    5. A node without that metadata, or in a subgraph, is left alone.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Edit the model."""
        nodes = [(node, module) for node in model.graph if (module := _module(node)) is not None]
        scoped = {id(node) for node, _ in nodes}
        used_nodes = {node.name for node in model.graph if id(node) not in scoped}
        used_values = {value.name for value in (*model.graph.inputs, *model.graph.initializers.values())}
        for node in ir.traversal.RecursiveGraphIterator(model.graph):
            used_values.update(value.name for value in node.outputs)
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH:
                    used_values.update(value.name for value in (*attribute.value.inputs, *attribute.value.initializers.values()))
        for node, module in nodes:
            node.name = unique(f"{module}/{node.op_type}" if module else node.op_type, used_nodes)
            if len(node.outputs) == 1 and not node.outputs[0].is_graph_output():
                node.outputs[0].name = unique(node.name, used_values)
        return ir.passes.PassResult(model, bool(nodes))


def _module(node: ir.Node) -> str | None:
    """The path of the node's module; None where the exporter left no scopes."""
    try:
        scopes = ast.literal_eval(node.metadata_props.get(SCOPES, ""))
    except (SyntaxError, ValueError):
        return None
    # The last entry is the operation itself.
    if not isinstance(scopes, list) or len(scopes) < 2 or not isinstance(scopes[-2], str):
        return None
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    if weight is not None and weight.is_initializer() and (weight.name or "").endswith(".weight"):
        return weight.name.removesuffix(".weight")
    return "" if scopes[-2] == NO_SCOPE else scopes[-2]
