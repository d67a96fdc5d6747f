"""One measurement of `benchmarks/calibration.py`, in a process that imports only what it measures."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx_ir as ir

LITE0_SIZE = 224


def arrays(arguments: argparse.Namespace) -> float:
    """Decode and preprocess images into one .npy file each."""
    from octavo.images.dataset import Images, open_set
    from octavo.params.grammar import ImageSet, Input

    size = arguments.size or LITE0_SIZE
    # EfficientNet-Lite's own: (pixel - 127) / 128.
    spec = Input(size=(size, size), scale=1, mean=(127,), std=(128,))
    items = [item for path in arguments.images for item in open_set(ImageSet(format="folder", path=path), "--images")]
    arguments.arrays.mkdir()
    taken = cycle(tensor for _, tensor in Images(items[: arguments.samples], spec, "error"))
    for place, tensor in enumerate(islice(taken, arguments.samples)):
        np.save(arguments.arrays / f"{place:05d}.npy", tensor)
    return 0.0


def export(arguments: argparse.Namespace) -> float:
    """resnet50 with random weights, shapes inferred."""
    import onnx
    import torch
    import torchvision

    torch.manual_seed(0)
    model = torchvision.models.resnet50(weights=None).eval()
    torch.onnx.export(model, torch.zeros(1, 3, 640, 640), arguments.model, opset_version=18, dynamo=False, input_names=["image"])
    onnx.save(onnx.shape_inference.infer_shapes(onnx.load(arguments.model)), arguments.model)
    return 0.0


def feeds(arguments: argparse.Namespace, name: str) -> Iterator[dict[str, np.ndarray]]:
    """The arrays, one at a time."""
    for path in sorted(arguments.arrays.glob("*.npy"))[: arguments.samples]:
        yield {name: np.load(path)}


def octavo(arguments: argparse.Namespace) -> float:
    """From the file to statistics, as the calibrate stage does it; they are saved once the clock has stopped."""
    from octavo.calibration.collector import collect
    from octavo.graph.io import load

    names: list[str] = []

    def loaded() -> ir.Model:
        # Read once, and held by nobody else, as in the stage: a second reading would pay for letting go of what the first one left.
        model = load(arguments.model)
        names.append(model.graph.inputs[0].name)
        return model

    start = time.perf_counter()
    found = collect(loaded(), lambda: ((str(place), feed) for place, feed in enumerate(feeds(arguments, names[0]))))
    seconds = time.perf_counter() - start
    found.save(arguments.statistics)
    return seconds


def calibrator(arguments: argparse.Namespace) -> float:
    """ONNX Runtime's calibrator of that name with its defaults."""
    from onnxruntime import InferenceSession
    from onnxruntime.quantization.calibrate import CalibrationDataReader, CalibrationMethod, create_calibrator

    name = InferenceSession(arguments.model).get_inputs()[0].name

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = feeds(arguments, name)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.left, None)

    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        method = CalibrationMethod[arguments.what]
        made = create_calibrator(arguments.model, augmented_model_path=f"{folder}/augmented.onnx", calibrate_method=method)
        made.collect_data(Reader())
        made.compute_data()
        return time.perf_counter() - start


def inference(arguments: argparse.Namespace) -> float:
    """Plain FP32 inference with ONNX Runtime's defaults."""
    from onnxruntime import InferenceSession

    start = time.perf_counter()
    session = InferenceSession(arguments.model)
    for feed in feeds(arguments, session.get_inputs()[0].name):
        session.run(None, feed)
    return time.perf_counter() - start


def ranges(arguments: argparse.Namespace) -> float:
    """The ranges of all tensors by all methods, from the saved statistics."""
    from octavo.calibration.choice import chosen_ranges
    from octavo.calibration.ranges import METHODS
    from octavo.calibration.statistics import Statistics
    from octavo.params.grammar import Int8

    start = time.perf_counter()
    found = Statistics.load(arguments.statistics)
    for method in METHODS:
        chosen_ranges(found, Int8(method=method))
    return time.perf_counter() - start


WORK: dict[str, Callable[[argparse.Namespace], float]] = {
    "arrays": arrays,
    "export": export,
    "octavo": octavo,
    "MinMax": calibrator,
    "Percentile": calibrator,
    "Entropy": calibrator,
    "inference": inference,
    "ranges": ranges,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=WORK)
    parser.add_argument("model")
    parser.add_argument("arrays", type=Path)
    parser.add_argument("--samples", type=int)
    parser.add_argument("--size", type=int)
    parser.add_argument("--images", action="append")
    parser.add_argument("--statistics", type=Path)
    chosen = parser.parse_args()
    seconds = WORK[chosen.what](chosen)
    # Linux counts in KiB, macOS in bytes.
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    print(json.dumps({"seconds": seconds, "megabytes": megabytes}))
