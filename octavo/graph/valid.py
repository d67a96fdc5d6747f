"""The ONNX checker, but for one thing that ONNX Runtime does not ask for."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import common

__all__ = ["check_valid"]


def check_valid(model: ir.Model) -> None:
    """Hold a graph against ONNX' rules; the model is left as it is.

    An output of which nothing tells how many dimensions it has passes: tf2onnx writes such, and so does torch behind a Loop or If
    whose body says nothing of them.

    Raises:
        onnx.checker.ValidationError: it breaks one.
    """
    unknown = [value for value in model.graph.outputs if value.shape is None and isinstance(value.type, ir.TensorType)]
    try:
        for value in unknown:
            # The field has to be there; what it says is not held against the graph.
            value.shape = ir.Shape([])
        common.CheckerPass()(model)
    finally:
        for value in unknown:
            value.shape = None
