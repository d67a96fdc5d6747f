"""The QOperator form of a QDQ graph: ONNX Runtime's own fusions, saved, so that the two forms hold the same kernels."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx_ir as ir
import onnxruntime as ort
from onnx_ir.passes import common

__all__ = ["as_qoperator"]


def as_qoperator(model: ir.Model) -> ir.Model:
    """QLinearConv, QLinearMatMul and their like instead of Q/DQ pairs.

    The graph also holds com.microsoft operators (QLinearAdd, QGemm, QuickGelu, FusedConv): it is for ONNX Runtime alone. Nothing of
    this machine goes in: layouts and instruction sets are chosen when a session is made from it.

    Args:
        model: as `write_qdq` gives it; it is not changed.
    """
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory(prefix="octavo-") as folder:
        path = Path(folder) / "model.onnx"
        options.optimized_model_filepath = str(path)
        ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"])
        fused = ir.load(path)
    fused.graph.name = model.graph.name
    # It writes each operator set that it knows, and an older one refuses a file that names a version it does not.
    common.RemoveUnusedOpsetsPass()(fused)
    return fused
