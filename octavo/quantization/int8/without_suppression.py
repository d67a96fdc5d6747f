"""Quantizing a detector without the suppression at its end, which nothing changes.

torchvision's SSD chooses class by class: 1500 of its 1900 nodes stand behind the last layers' scores, and run for half a second an
image. Carried along, they are opened, gone through and run once for each of the graphs that are tried.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import onnx_ir as ir

from octavo.graph.custom_ops.cut import cut, rejoin
from octavo.graph.io import copied
from octavo.graph.names import added_apart
from octavo.graph.passes.cleaning.opset_up import OpsetUpPass
from octavo.graph.selection import suppression
from octavo.quantization.decisions import Decision
from octavo.quantization.select import asked

__all__ = ["WithoutSuppression"]

# Fewer nodes than this cost little.
_WORTH = 100


@dataclass(frozen=True)
class WithoutSuppression:
    """A graph, and what is quantized of it.

    Attributes:
        whole: FP32 as it came in.
        off: the nodes that are left as they are (`octavo.graph.selection.suppression`), by name.
        part: what lies before them; its outputs are what they read.
    """

    whole: ir.Model
    off: dict[str, ir.Node]
    part: ir.Model

    @classmethod
    def of(cls, model: ir.Model, *, always: bool = False) -> Self | None:
        """None where there is none (or little, unless `always`), or nodes have no names to be told by; `model` is not changed."""
        nodes = list(model.graph)
        if len({node.name for node in nodes if node.name}) < len(nodes):
            return None
        off = {node.name or "": node for node in suppression(model)}
        if len(off) < (1 if always else _WORTH):
            return None
        part = copied(model)
        cut(part, lambda node: node.name in off, measured=False)
        return cls(model, off, part)

    def asked(self, patterns: Iterable[str]) -> tuple[str, ...]:
        """The patterns of `keep_float` that name nodes of the part, or no node at all."""
        return asked(patterns, self.part, ((name, node.op_type) for name, node in self.off.items()))

    def restored(self, made: ir.Model) -> ir.Model:
        """What was made from the part, in place, with the rest behind it."""
        whole = self.whole.clone()
        OpsetUpPass(made.opset_imports[""])(whole)
        with added_apart(made):
            rejoin(made, whole, lambda node: node.name in self.off)
        return made

    def decided(self, decisions: Iterable[Decision], reason: str) -> list[Decision]:
        """Decisions for all nodes in the graph's order, those that were left out with a reason of their own."""
        made = {decision.node: decision for decision in decisions}
        others = [node for node in self.off.values() if node.op_type != "Constant"]
        made |= {node.name or "": Decision(node.name or "", node.op_type, "float", reason) for node in others}
        return [made[node.name or ""] for node in self.whole.graph if node.name in made]
