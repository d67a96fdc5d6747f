"""What every quantizing child shares: the arrays, a graph that per-channel QDQ can be written into, and the report of its cost.

A child runs in its tool's own environment, so this needs numpy and onnx alone.
"""

from __future__ import annotations

import importlib.metadata
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

# Per-channel QuantizeLinear came with opset 13.
LEAST_OPSET = 13


class Arrays:
    """The calibration tensors of a folder, read one at a time in the order of their names.

    It is ONNX Runtime's (and Quark's) calibration reader: `get_next` gives a feed, None at the end, `rewind` starts again.

    Args:
        folder: holds `*.npy`, one input tensor each.
        name: the graph input that they feed.
    """

    def __init__(self, folder: str | Path, name: str) -> None:
        self.files = sorted(Path(folder).glob("*.npy"))
        self.name = name
        self.rewind()

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self):
        for file in self.files:
            yield {self.name: np.load(file)}

    def rewind(self) -> None:
        """Start again."""
        self._left = iter(self)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next feed, None at the end."""
        return next(self._left, None)


def prepared(path: str):
    """The FP32 graph, initializers out of its inputs, at opset 13 or above; the name of its image input.

    Returns:
        (onnx.ModelProto, input name).
    """
    import onnx
    from onnx import version_converter

    model = onnx.load(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    # IR 3 demands that initializers are inputs.
    model.ir_version = max(model.ir_version, 8)
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if opset < LEAST_OPSET:
        model = version_converter.convert_version(model, LEAST_OPSET)
    return model, inputs[0].name


def measured(work: Callable[[], None], report: str, packages: Sequence[str]) -> None:
    """Do the work and write what it cost, imports not counted in the time: seconds, peak_mib, versions."""
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    found = {"seconds": seconds, "peak_mib": _peak_mib(), "versions": {name: _version(name) for name in packages}}
    Path(report).write_text(json.dumps(found), encoding="utf-8")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        # onnxruntime is in several distributions: onnxruntime-gpu, onnxruntime-openvino.
        return str(importlib.import_module(package).__version__)


def _peak_mib() -> float:
    """Peak resident memory of this process since it became this program.

    Not getrusage's ru_maxrss: that survives exec, so a child of a large process would report its parent's size.
    """
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024
