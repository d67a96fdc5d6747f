"""ONNX Runtime's quantize_static at its best setting for x86: U8S8, per-channel, MinMax, after quant_pre_process.

MODEL.onnx FOLDER_OF_NPY OUT.onnx REPORT.json
"""

import sys
import tempfile
from pathlib import Path

import onnx
from child import Arrays, measured, prepared
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process


def main(model: str, arrays: str, out: str, report: str) -> None:
    """Quantize and report."""

    def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            raised, clean = Path(folder) / "raised.onnx", Path(folder) / "clean.onnx"
            graph, name = prepared(model)
            onnx.save(graph, raised)
            quant_pre_process(raised, clean)
            quantize_static(
                clean,
                out,
                Arrays(arrays, name),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=CalibrationMethod.MinMax,
            )

    measured(work, report, ["onnxruntime", "onnx"])


if __name__ == "__main__":
    main(*sys.argv[1:])
