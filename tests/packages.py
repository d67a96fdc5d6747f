"""A small package as stage `package` lays it out: INT8 by ONNX Runtime's own quantizer and FP32, manifests and runtime.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from conftest import project_params, small_network
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from octavo.deploy.runtime_config import runtime_config
from octavo.deploy.selfcheck import check_tensor, reference
from octavo.files import sha256_file, write_json
from octavo.manifest import write_manifest
from octavo.params.grammar import Params

__all__ = ["ORDER", "noise", "replace_model", "write_package"]

ORDER = ("int8", "fp32")
SHAPE = (1, 3, 32, 32)


def noise(seed: int) -> np.ndarray:
    """A tensor as photos give it: 1 x 3 x 32 x 32."""
    return np.random.default_rng(seed).normal(0, 1, SHAPE).astype(np.float32)


class _Images(CalibrationDataReader):
    def __init__(self, preprocessing: dict[str, Any]) -> None:
        self._left = iter([check_tensor(preprocessing, SHAPE), *(noise(seed) for seed in range(8))])

    def get_next(self) -> dict[str, np.ndarray] | None:
        image = next(self._left, None)
        return None if image is None else {"image": image}


def write_package(folder: Path, *, seed: int = 0) -> dict[str, Any]:
    """Write fp32/, int8/ and runtime.json into a new folder; `seed` makes another network.

    Returns:
        runtime.json.
    """
    spec = Params.model_validate(project_params()).models["small"]
    for variant in ORDER:
        (folder / variant).mkdir(parents=True)
    onnx.save(small_network(seed=seed), folder / "fp32/model.onnx")
    quantize_static(
        folder / "fp32/model.onnx",
        folder / "int8/model.onnx",
        _Images(spec.input.model_dump(mode="json")),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        weight_type=QuantType.QInt8,
    )
    manifests = {
        variant: write_manifest(
            folder / variant, name="small", variant=variant, spec=spec, image_input="image", made={"settings": {}}
        )
        for variant in ORDER
    }
    for variant, manifest in manifests.items():
        manifest["selfcheck"] = reference(folder / variant, manifest)
        write_json(folder / variant / "manifest.json", manifest)
    config = runtime_config("small", manifests, ORDER)
    write_json(folder / "runtime.json", config)
    return config


def replace_model(folder: Path, config: dict[str, Any], variant: str, other: Path) -> None:
    """Another file in place of a variant's, its hash made right: what a stale reference looks like."""
    (folder / variant / "model.onnx").write_bytes(other.read_bytes())
    config["variants"][variant]["sha256"] = sha256_file(other)
    write_json(folder / "runtime.json", config)
