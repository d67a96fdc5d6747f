"""Choices among values inside a graph: TopK over queries, non-maximum suppression, thresholds.

What lies behind one depends on which values are the largest. Two graphs that compute the same to within rounding choose rows in
another order, or other rows where two are close: all that lies behind differs, and neither is wrong.
"""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["SELECTS", "selects"]

# Behind these one value more or less moves all others.
SELECTS = frozenset({"ArgMax", "ArgMin", "NonMaxSuppression", "NonZero", "TopK", "Unique"})


def selects(model: ir.Model) -> bool:
    """Whether outputs depend on a choice among values (TopK, NonMaxSuppression, ArgMax), where small differences become large."""
    return any(node.op_type in SELECTS for node in ir.traversal.RecursiveGraphIterator(model.graph))
