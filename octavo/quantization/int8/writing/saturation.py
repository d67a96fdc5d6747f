"""The Relu or Clip at the end of a unit: the Q's saturation does its work, so that it goes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

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
    found = [*UNBOUNDED]
    for place, value in enumerate(node.inputs[1:3]):
        if value is not None:
            found[place] = float(ir.convenience.get_const_tensor(value).numpy())
    return found[0], found[1]
