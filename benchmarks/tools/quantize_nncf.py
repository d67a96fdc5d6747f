"""NNCF's post-training quantization of ONNX with its defaults, on all calibration arrays.

MODEL.onnx FOLDER_OF_NPY OUT.onnx REPORT.json
"""

import sys

import nncf
import onnx
from child import Arrays, measured, prepared


def main(model: str, arrays: str, out: str, report: str) -> None:
    """Quantize and report."""

    def work() -> None:
        graph, name = prepared(model)
        feeds = Arrays(arrays, name)
        onnx.save(nncf.quantize(graph, nncf.Dataset(feeds), subset_size=len(feeds)), out)

    measured(work, report, ["nncf", "onnxruntime", "onnx"])


if __name__ == "__main__":
    main(*sys.argv[1:])
