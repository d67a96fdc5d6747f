"""What options of ONNX Runtime's CUDA provider do to the latency of torchvision's classifiers in FP32 and Octavo's FP16.

    python benchmarks/cuda_options.py [--networks resnet50,inception_v3,mobilenet_v2] [--batch 1,32] [--rounds 30]

Random weights (latency does not ask for others), a dynamic batch, inputs and outputs in the GPU's memory, all variants in turns.
Prints a table of median milliseconds.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
import torchvision

from octavo import cli
from octavo.graph.io import load, save
from octavo.quantization.fp16 import convert
from octavo.runtime.host import fingerprint
from octavo.runtime.providers import PROVIDERS, require_provider
from octavo.runtime.timing import interleaved

SIZES = {"inception_v3": 299}
OPTIONS = {
    "default": {},
    "prefer_nhwc": {"prefer_nhwc": "1"},
    "cudnn_conv_use_max_workspace": {"cudnn_conv_algo_search": "EXHAUSTIVE", "cudnn_conv_use_max_workspace": "1"},
    "enable_cuda_graph": {"enable_cuda_graph": "1"},
}


def main() -> None:
    """Parse, export, time, print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--networks", default="resnet50,inception_v3,mobilenet_v2", help="torchvision's names")
    arguments.add_argument("--batch", default="1,32")
    arguments.add_argument("--rounds", type=int, default=30)
    given = arguments.parse_args()
    require_provider("cuda")
    ort.preload_dlls()
    host = fingerprint()
    print(f"Host {host['id']}: {host['cpu']}, {host['gpu']}, onnxruntime {host['onnxruntime']}; median ms.\n")
    print(f"| network | batch | file | {' | '.join(OPTIONS)} |\n|{'---|' * (3 + len(OPTIONS))}")
    with tempfile.TemporaryDirectory(prefix="octavo-") as scratch:
        for name in given.networks.split(","):
            files, size = _files(name, Path(scratch)), SIZES.get(name, 224)
            for batch in map(int, given.batch.split(",")):
                image = np.random.default_rng(0).normal(size=(batch, 3, size, size)).astype(np.float32)
                runs = {(kind, option): _run(file, OPTIONS[option], image) for kind, file in files.items() for option in OPTIONS}
                taken = interleaved(runs, rounds=given.rounds, warmup=5)
                for kind in files:
                    print(
                        f"| {name} | {batch} | {kind} | {' | '.join(f'{taken[kind, option].median:.2f}' for option in OPTIONS)} |"
                    )


def _files(name: str, folder: Path) -> dict[str, Path]:
    torch.manual_seed(0)
    network = torchvision.models.get_model(name, weights=None).eval()
    files = {kind: folder / f"{name}.{kind}.onnx" for kind in ("fp32", "fp16")}
    example = torch.zeros(1, 3, *[SIZES.get(name, 224)] * 2)
    torch.onnx.export(
        network, (example,), files["fp32"], opset_version=17, dynamo=False,
        input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "n"}, "y": {0: "n"}},
    )  # fmt: skip
    save(convert(load(files["fp32"])).model, files["fp16"])
    return files


def _run(file: Path, options: dict[str, str], image: np.ndarray) -> Callable[[], None]:
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    session = ort.InferenceSession(str(file), settings, providers=[(PROVIDERS["cuda"], options)])
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(image, "cuda", 0))
    # A recorded CUDA graph writes to one place.
    binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(np.zeros((len(image), 1000), np.float32), "cuda", 0))

    def once() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    return once


if __name__ == "__main__":
    cli.run(main)
