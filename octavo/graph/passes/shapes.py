"""Infer shapes and types without losing any and without failing on operators that ONNX does not know."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from octavo.graph.logs import captured_logs

__all__ = ["InferShapesPass"]


class InferShapesPass(ir.passes.InPlacePass):
    """Shape inference by the onnx package; weights above 1 kB stay out of it, so size does not matter.

    1. Operators of other domains (com.microsoft) are passed over: what depends on them may stay unknown.
    2. A graph on which inference fails is left as it is; `problem` then says why, in one line.
    3. Names of graph inputs and outputs' dimensions stay as they are.

    Attributes:
        problem: the reason of rule 2; empty when inference ran.
    """

    def __init__(self) -> None:
        super().__init__()
        self.problem = ""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Edit the model."""
        with captured_logs() as lines:
            result = common.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
        failures = [line for line in lines if line.startswith("Shape inference failed")]
        self.problem = failures[0] if failures else ""
        return result
