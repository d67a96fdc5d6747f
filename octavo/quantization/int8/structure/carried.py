"""Where the nodes went that preparation rewrote."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from octavo.graph.nodes import ends_ahead
from octavo.graph.passes.forms.shuffle_by_order import FETCH

__all__ = ["carried"]


def carried(model: ir.Model, prepared: ir.Model, kept: Mapping[str, str]) -> dict[str, str]:
    """What is to stay float, by the names of the prepared graph.

    A node that is there no more lives on in the one that makes its tensor now, a Conv that a BatchNormalization was folded into, or
    in the one that makes the first tensor behind it that is still there: what several nodes became (a Gelu), or a Linear with its
    bias; of a shuffle in the Concat that fetches its channels. That one is float then, and so are those that preparation made of it
    for the parts of a Concat.

    Args:
        model: as it came in; each node has a name.
        prepared: what preparation made of it.
        kept: names of nodes of `model`, and why each stays float.

    Returns:
        Names of nodes of either graph to reasons.
    """
    there = {node.name for node in prepared.graph}
    makers = {value.name: node for node in prepared.graph for value in node.outputs}
    makers |= {node.name.removesuffix(FETCH): node for node in prepared.graph if (node.name or "").endswith(FETCH)}
    found = dict(kept)
    for node in model.graph:
        if node.name not in kept or node.name in there:
            continue
        # Before a Concat, a node for each part.
        found |= {name: kept[node.name] for name in there if (name or "").startswith(f"{node.name}.part") and name not in found}
        for end in ends_ahead(node, lambda one: any(value.name in makers for value in one.outputs)):
            # What became two nodes (a mean: a pool and what drops its axes) has its name on the first of them.
            heirs = [makers[value.name].name for value in end.outputs if value.name in makers]
            heirs += [end.name] if end.name in there else []
            found |= {heir or "": kept[node.name] for heir in heirs if heir not in found}
    return found
