"""What INT8 quantization hands back, static or dynamic."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from octavo.quantization.decisions import Decision

__all__ = ["Int8Result"]


@dataclass(frozen=True)
class Int8Result:
    """A quantized graph.

    Attributes:
        model: the graph, in topological order.
        decisions: for every node of the FP32 graph, its precision and the reason.
        corrected: how many layers' biases were corrected.
    """

    model: ir.Model
    decisions: list[Decision]
    corrected: int = 0
