"""Where things lie: models/<model>/<variant>/, models/<model>/calibration/, metrics/<model>/, metrics/hosts/<host>/, .octavo/."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "GROWTH",
    "HOSTS",
    "INT8_VARIANTS",
    "MACHINE",
    "MANIFEST",
    "MODEL",
    "PARITY",
    "REFERENCE",
    "SENSITIVITY",
    "SKIPPED",
    "TORCH_OUTPUTS",
    "VARIANTS",
    "artifact_name",
    "calibration_dir",
    "checkpoint_dir",
    "host_record",
    "metrics_dir",
    "present_variants",
    "shared_artifact",
    "skipped_variants",
    "variant_dir",
]

MODEL = "model.onnx"
# What the machine is that the pipeline runs on, and which packages it has (stage `machine`); not in git.
MACHINE = Path(".octavo")
# The last latencies from each host, in git: latency.json has those of one.
HOSTS = Path("metrics") / "hosts"
MANIFEST = "manifest.json"
# Beside an INT8 model.onnx: the noise of each rounding alone.
SENSITIVITY = "sensitivity.json"
# Beside it, where channels were equalized: how many times as large as FP32's each channel of a tensor is in the file.
GROWTH = "growth.json"
# Share of positions (images, pixels) at which a trained file must name the class that the network it was written from names.
PARITY = 0.999
# In place of model.onnx and its manifest, where a variant is not made: why.
SKIPPED = "skipped.json"
# Beside an exported model.onnx: the torch module's outputs on some images.
TORCH_OUTPUTS = "torch_outputs.npz"
# What every other variant is held against.
REFERENCE = "fp32"
# In the order of every table.
VARIANTS = ("fp32", "fp16", "int8", "int8_dynamic", "qat")
# Those that are made for speed: FP16 is a size format on a CPU.
INT8_VARIANTS = ("int8", "int8_dynamic", "qat")


def artifact_name(model: str, variant: str | None = None) -> str:
    """What dvc.yaml and tags call a model's package, or one variant of it: dashes, as older GTO refuses underscores."""
    return "-".join([model, *([variant] if variant else [])]).replace("_", "-")


def shared_artifact(models: Iterable[str]) -> tuple[str, str, str] | None:
    """Two models of which something would have one name in the registry, and that name; None where all differ."""
    owners: dict[str, str] = {}
    for model in models:
        for artifact in (artifact_name(model, variant) for variant in (None, *VARIANTS)):
            if owners.setdefault(artifact, model) != model:
                return owners[artifact], model, artifact
    return None


def variant_dir(model: str, variant: str) -> Path:
    """The folder of one variant: model.onnx and manifest.json."""
    return Path("models") / model / variant


def calibration_dir(model: str) -> Path:
    """The folder of a model's statistics."""
    return Path("models") / model / "calibration"


def checkpoint_dir(model: str) -> Path:
    """The folder of a training run that is not done; nobody's output."""
    return Path("models") / model / ".qat"


def metrics_dir(model: str) -> Path:
    """The folder of a model's metrics and plots' data."""
    return Path("metrics") / model


def host_record(host: str, model: str) -> Path:
    """The last latencies of a model from one host, by `host.id`."""
    return HOSTS / host / f"{model}.json"


def present_variants(model: str) -> dict[str, Path]:
    """Variants that have been made, in the order of `VARIANTS`, with their model files."""
    paths = {variant: variant_dir(model, variant) / MODEL for variant in VARIANTS}
    return {variant: path for variant, path in paths.items() if path.is_file()}


def skipped_variants(model: str) -> dict[str, str]:
    """`<variant>.skipped`: why a variant that params.yaml asks for was not made."""
    found = {}
    for variant in VARIANTS:
        path = variant_dir(model, variant) / SKIPPED
        told = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if told.get("asked"):
            found[f"{variant}.skipped"] = told["reason"]
    return found
