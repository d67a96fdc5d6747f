"""Infer shapes and types without losing any and without failing on operators that ONNX does not know."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

from octavo.graph.logs import captured_logs

__all__ = ["InferShapesPass"]


FAILED = "Shape inference failed"


class InferShapesPass(ir.passes.InPlacePass):
    """Shape inference by the onnx package; weights above 1 kB stay out of it, so size does not matter.

    1. Operators of other domains (com.microsoft) are passed over: what depends on them may stay unknown.
    2. Where a node contradicts its inputs or a shape that the file states, `problem` says so in one line, and the shapes that
       can be inferred without that node are.
    3. Names of graph inputs and outputs' dimensions stay as they are.

    Attributes:
        problem: the contradiction of rule 2; empty when there is none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.problem = ""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Edit the model."""
        self.problem = ""
        with captured_logs() as lines:
            result = common.ShapeInferencePass(check_type=False, strict_mode=True, data_prop=True)(model)
            # The library reports it as a warning, and then has inferred nothing.
            failures = [line for line in lines if line.startswith(FAILED)]
            if failures:
                self.problem = failures[0].partition("unchanged: ")[2] or failures[0]
                result = common.ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
        return result
