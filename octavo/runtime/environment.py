"""Which packages made a result, and in which container image: what has to be made again when they change, and what is said of it.

Stages depend on the versions of the packages that decide what they write (stage `machine` writes them to .octavo/), not on lock
files or on images: another pytest, another dvc or an image built anew of the same packages changes no model.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["GROUPS", "IMAGE_FILE", "image", "versions_of"]

# Distributions of which a machine has one: what follows is the same code on a CPU. (onnxruntime-gpu of one version makes the same
# files and answers as onnxruntime; what it does on a GPU is measured under the GPU's host.)
_EITHER = {
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino"),
    "opencv": ("opencv-python-headless", "opencv-python", "opencv-contrib-python-headless", "opencv-contrib-python"),
}
_IMAGES = ("numpy", "opencv", "pillow")
_RUNTIME = (*_IMAGES, "faster-coco-eval", "onnx", "onnx-ir", "onnxruntime", "onnxscript", "scikit-learn", "scipy")
# Group to what decides the bytes of what its stages write: data sets; calibration, quantization, evidence; export and training. The
# others of pyproject.toml (pydantic, pyyaml, psutil, rich) read settings, count memory and print.
GROUPS = {
    "images": _IMAGES,
    "runtime": _RUNTIME,
    "training": (*_RUNTIME, "torch", "torchao", "torchvision", "transformers", "ultralytics"),
}
# Written into our images when they are built (Dockerfile.cpu, Dockerfile.gpu).
IMAGE_FILE = Path("/usr/local/share/octavo/image.json")


def versions_of(names: Sequence[str]) -> dict[str, str | None]:
    """Name to installed version; None where it is not installed."""
    return {name: _version(name) for name in names}


def image() -> dict[str, Any] | None:
    """The container image that this process runs in.

    Returns:
        `image` (octavo-cpu, octavo-gpu), `target` (pipeline, runtime), `lock` (SHA-256 of the lock file that it was built of) and
        `digest` (of the image itself, where what started it has said so: `OCTAVO_IMAGE_DIGEST`); None outside of our images.
    """
    try:
        built = json.loads(IMAGE_FILE.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return {**built, "digest": os.environ.get("OCTAVO_IMAGE_DIGEST") or None}


def _version(name: str) -> str | None:
    for distribution in _EITHER.get(name, (name,)):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
