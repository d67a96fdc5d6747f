"""Execution providers: which this ONNX Runtime has, which of them can work on this machine, and what `auto` means.

onnxruntime-gpu lists its CUDA provider on machines without a GPU, too; a session then fails, or ends on the CPU with a line in
ONNX Runtime's own log that nobody reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnxruntime as ort

from octavo.errors import ModelRunError
from octavo.runtime.host import gpu

__all__ = [
    "AUTO",
    "ON_GPU",
    "PROVIDERS",
    "available_providers",
    "chosen_providers",
    "provider_warning",
    "require_provider",
    "usable_providers",
]

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
}
# Those that need an NVIDIA GPU.
ON_GPU = ("cuda", "tensorrt")
# In params.yaml: the CPU, and the GPU where there is one.
AUTO = "auto"


def available_providers() -> list[str]:
    """Short names (`cpu`, `cuda`, `tensorrt`, `openvino`) of the execution providers that this installation of ONNX Runtime has."""
    return [name for name, full in PROVIDERS.items() if full in ort.get_available_providers()]


def usable_providers() -> list[str]:
    """Those of `available_providers` whose device is there."""
    return [name for name in available_providers() if name not in ON_GPU or gpu() is not None]


def provider_warning() -> str | None:
    """What a user of an ONNX Runtime for GPUs must know on a machine without one, or None."""
    if "cuda" not in available_providers() or gpu() is not None:
        return None
    return (
        "this ONNX Runtime has CUDA and no GPU can be seen: everything runs on the CPU. On a machine with one, check that "
        "`nvidia-smi` lists it, in a container that `docker run` had `--gpus all`, or `podman run` `--device nvidia.com/gpu=all`"
    )


def chosen_providers(asked: Sequence[str]) -> list[str]:
    """What `benchmark.providers` comes to on this machine: `auto` is the CPU, then CUDA where a GPU can be used; each once."""
    auto = [name for name in ("cpu", "cuda") if name in usable_providers()]
    return list(dict.fromkeys(name for each in asked for name in (auto if each == AUTO else [each])))


def require_provider(provider: str) -> None:
    """Make sure that a session can be asked for on `provider`, a key of `PROVIDERS`.

    Raises:
        ModelRunError: this ONNX Runtime lacks it, or its GPU is not there.
    """
    there = available_providers()
    if provider not in there:
        raise ModelRunError(
            f"execution provider {provider!r} is not in this ONNX Runtime (it has: {', '.join(there)})",
            "install the extra that has it (`make repro EXTRA=gpu`, or `RUN=gpu`), or take it out of `benchmark.providers`",
        )
    if provider in ON_GPU and gpu() is None:
        raise ModelRunError(
            f"execution provider {provider!r} is asked for and no GPU can be seen on this machine",
            "`nvidia-smi` must list one (in a container: `docker run --gpus all`, `podman run --device nvidia.com/gpu=all`); "
            "`benchmark.providers: [auto]` takes a GPU only where there is one",
        )
