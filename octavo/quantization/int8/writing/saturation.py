"""The Relu or Clip at the end of a unit: the Q's saturation does its work, so that it goes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.qdq import number_of
from octavo.quantization.int8.structure.units import Unit

__all__ = ["UNBOUNDED", "bounds_of", "folded"]

UNBOUNDED = (-np.inf, np.inf)


def folded(unit: Unit) -> tuple[ir.Node | None, list[ir.Node]]:
    """The Relu or Clip at the end of a unit that is more than that, and the nodes before it."""
    *before, last = unit.nodes
    return (last, before) if before and last.op_type in ("Relu", "Clip") else (None, list(unit.nodes))


def bounds_of(node: ir.Node | None) -> tuple[float, float]:
    """What a folded Relu or Clip keeps its values between."""
    if node is None:
        return UNBOUNDED
    if node.op_type == "Relu":
        return 0.0, np.inf
    # Some exporters give bounds an axis of one, which ONNX Runtime takes, too.
    low, high = (number_of(node.inputs[place]) if len(node.inputs) > place else None for place in (1, 2))
    return UNBOUNDED[0] if low is None else low, UNBOUNDED[1] if high is None else high
