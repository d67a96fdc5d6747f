"""AMD Quark's quantizer of ONNX: uint8 activations, int8 per-channel weights, MinMax, without fine-tuning.

MODEL.onnx FOLDER_OF_NPY OUT.onnx REPORT.json
"""

import sys

from child import Arrays, measured, prepared
from quark.onnx import ModelQuantizer
from quark.onnx.quantization.config.config import QConfig
from quark.onnx.quantization.config.spec import CalibMethod, Int8Spec, QLayerConfig, QuantGranularity, UInt8Spec


def main(model: str, arrays: str, out: str, report: str) -> None:
    """Quantize and report."""

    def work() -> None:
        graph, name = prepared(model)
        layer = QLayerConfig(
            activation=UInt8Spec(calibration_method=CalibMethod.MinMax),
            weight=Int8Spec(symmetric=True, calibration_method=CalibMethod.MinMax, quant_granularity=QuantGranularity.Channel),
        )
        ModelQuantizer(QConfig(global_config=layer)).quantize_model(graph, out, Arrays(arrays, name))

    measured(work, report, ["amd-quark", "onnxruntime", "torch", "onnx"])


if __name__ == "__main__":
    main(*sys.argv[1:])
