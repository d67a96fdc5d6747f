"""Identity nodes, taken out where no output of a graph needs them."""

from __future__ import annotations

import contextlib

import onnx_ir as ir

__all__ = ["NoIdentitiesPass"]


class NoIdentitiesPass(ir.passes.InPlacePass):
    """Take out `y = Identity(x)`, in the main graph and in the bodies of If, Loop and Scan.

    onnx_ir's own pass gives x the name of y without asking where x comes from: of two outputs with one value the second name is
    lost, and a body is left without the node that makes its output.

    1. Where y is no output, its readers read x.
    2. Where y is an output, and x is made by a node of the same graph and no output itself, x takes y's place and name.
    3. Every other Identity stays: it is what makes the output. Its x is an input, a constant, an output of its own, or comes from
       the graph around the body.

    What is known of y's shape and type is kept.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Edit the model."""
        found = [
            node
            for node in ir.traversal.RecursiveGraphIterator(model.graph)
            if node.op_type == "Identity" and node.domain in ("", "ai.onnx") and node.inputs[0] is not None
        ]
        removed = [_removed(node) for node in found]
        return ir.passes.PassResult(model, any(removed))


def _removed(node: ir.Node) -> bool:
    """Whether the rules let the node go; it is gone then."""
    source, made = node.inputs[0], node.outputs[0]
    is_output = made.is_graph_output()
    if is_output and not _can_be_output(source, node.graph):
        return False
    with contextlib.suppress(ValueError):  # shapes that a file states wrongly
        source.merge_shapes(made.shape)
    source.type = source.type or made.type
    ir.convenience.replace_all_uses_with(made, source, replace_graph_outputs=True)
    if is_output:
        source.name = made.name
    node.graph.remove(node, safe=True)
    return True


def _can_be_output(value: ir.Value, graph: ir.Graph) -> bool:
    maker = value.producer()
    return maker is not None and maker.graph is graph and not value.is_graph_output()
