"""The loops that passes share."""

from __future__ import annotations

import abc
from collections.abc import Collection
from typing import ClassVar

import onnx_ir as ir

from octavo.graph.names import names_held, set_apart

__all__ = ["GraphPass", "NodePass", "SparingPass", "SpelledPass"]


class GraphPass(ir.passes.InPlacePass):
    """An edit of a graph in place, which names what it adds after what is there: no other tensor or node has its name."""

    def __call__(self, model_or_result: ir.Model | ir.passes.PassResult, /) -> ir.passes.PassResult:
        """Edit the model (`call`)."""
        model = model_or_result.model if isinstance(model_or_result, ir.passes.PassResult) else model_or_result
        # Most passes find nothing in most graphs, and what is named how takes longer to tell than that.
        if not self._concerns(model):
            return ir.passes.PassResult(model, False)
        before = names_held(model)
        result = super().__call__(model)
        if result.modified:
            set_apart(model, before)
        return result

    def _concerns(self, _: ir.Model) -> bool:
        """Whether there may be anything to edit."""
        return True


class SparingPass(GraphPass):
    """An edit that leaves nodes alone by their names: a form that only integers gain by, where a user keeps its node in float.

    Args:
        kept: the names.
    """

    def __init__(self, kept: Collection[str] = ()) -> None:
        super().__init__()
        self.kept = kept


class NodePass(GraphPass):
    """Offers each node of one op type of the ONNX domain, in graph order, to `_rewrite`.

    1. Nodes of the main graph only, as they stood when the pass began: what a rewrite adds is not offered.
    2. Nodes of other domains are left alone, whatever their op type.
    """

    op_type: ClassVar[str]

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite in place; `modified` says whether a node changed."""
        modified = False
        for node in list(model.graph):
            if self._is_offered(node):
                modified |= self._rewrite(model, node)
        return ir.passes.PassResult(model, modified)

    def _concerns(self, model: ir.Model) -> bool:
        return any(map(self._is_offered, model.graph))

    def _is_offered(self, node: ir.Node) -> bool:
        return node.op_type == self.op_type and node.domain in ("", "ai.onnx")

    @abc.abstractmethod
    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        """Rewrite one node where the rules allow it; whether the graph changed."""


class SpelledPass(GraphPass):
    """Offers each node to `_rewrite`, the last first: of nodes that spell one operator out those before belong to the last.

    1. Nodes of the main graph only, as they stood when the pass began, but for those that a rewrite has removed.
    2. A model below `opset` is left alone.
    """

    opset: ClassVar[int]

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite in place; `modified` says whether a node went."""
        found = [node.graph is not None and self._rewrite(model, node) for node in reversed(list(model.graph))]
        return ir.passes.PassResult(model, any(found))

    def _concerns(self, model: ir.Model) -> bool:
        return (model.opset_imports.get("") or 0) >= self.opset

    @abc.abstractmethod
    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        """Rewrite what one node ends where the rules allow it; whether the graph changed."""
