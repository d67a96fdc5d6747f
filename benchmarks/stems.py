"""What `ConvOnColumnsPass` is worth: stems of networks in INT8, as ONNX Runtime would run them and on blocks of columns.

    python benchmarks/stems.py [--rounds 100] [--threads 2]

Each graph is a QuantizeLinear, the stem and a 1x1 Conv behind it, random weights, all INT8, timed in turns. Prints median
milliseconds as a table.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from unittest import mock

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper as onh
import onnx_ir as ir

from octavo.calibration.collector import collect
from octavo.graph.passes.kernels import kernel_forms
from octavo.graph.passes.kernels.conv_on_columns import ConvOnColumnsPass
from octavo.params.grammar import Int8
from octavo.quantization.int8 import quantize_static
from octavo.runtime.host import fingerprint
from octavo.runtime.session import Session
from octavo.runtime.timing import interleaved

# Height, width, outputs, kernel, stride, padding.
STEMS = (
    (240, 320, 16, 3, 2, 1),
    (224, 224, 32, 3, 2, 1),
    (360, 640, 16, 3, 2, 1),
    (640, 640, 16, 3, 2, 1),
    (224, 224, 32, 5, 2, 2),
    (640, 640, 16, 6, 2, 2),
    (224, 224, 64, 7, 2, 3),
    (360, 480, 16, 3, 1, 1),
    (112, 112, 64, 3, 1, 1),
    (224, 224, 96, 4, 4, 0),
)


def main() -> None:
    """Parse, quantize, time, print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=100)
    arguments.add_argument("--threads", type=int, default=2)
    given = arguments.parse_args()
    host = fingerprint()
    print(f"Host {host['id']}: {host['cpu']}, onnxruntime {host['onnxruntime']}; median ms, {given.threads} threads.\n")
    print("| image | outputs | kernel | stride | as it is | on columns |\n|---|---|---|---|---|---|")
    plain = tuple(form for form in kernel_forms.FORMS if form is not ConvOnColumnsPass)
    for height, width, outputs, kernel, stride, pad in STEMS:
        image = np.random.default_rng(0).random((1, 3, height, width), np.float32)
        model = _stem((height, width), outputs, kernel, {"strides": [stride] * 2, "pads": [pad] * 4})
        runs = {}
        for name, forms in (("as it is", plain), ("on columns", kernel_forms.FORMS)):
            with mock.patch.object(kernel_forms, "FORMS", forms):
                runs[name] = _runner(model, image, given.threads)
        taken = interleaved(runs, rounds=given.rounds, warmup=5)
        times = " | ".join(f"{taken[name].median:.2f}" for name in runs)
        print(f"| {height}x{width} | {outputs} | {kernel}x{kernel} | {stride} | {times} |", flush=True)


def _stem(side: tuple[int, int], outputs: int, kernel: int, how: dict[str, list[int]]) -> ir.Model:
    generator = np.random.default_rng(1)
    weights = {"stem": (outputs, 3, kernel, kernel), "behind": (outputs, outputs, 1, 1)}
    graph = oh.make_graph(
        [
            oh.make_node("Conv", ["x", "stem"], ["a"], "stem", **how),
            oh.make_node("Relu", ["a"], ["r"], "r"),
            oh.make_node("Conv", ["r", "behind"], ["b"], "behind"),
            oh.make_node("GlobalAveragePool", ["b"], ["y"], "y"),
        ],
        "stem",
        [oh.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, *side])],
        [oh.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onh.from_array(generator.standard_normal(shape).astype(np.float32), name) for name, shape in weights.items()],
    )
    proto = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=10)
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def _runner(model: ir.Model, image: np.ndarray, threads: int) -> Callable[[], object]:
    statistics = collect(model, lambda: [("image", {"x": image})])
    made = quantize_static(model, statistics, Int8(method="minmax", placement="all", repair=False)).model
    session = Session(ir.to_proto(made).SerializeToString(), threads=threads)
    return lambda: session.run({"x": image})


if __name__ == "__main__":
    main()
