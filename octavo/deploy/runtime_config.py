"""runtime.json beside a package's variants: all that a program in any language needs to open, feed and check the right one.

docs/runtime.md describes the format, `schemas/runtime.schema.json` every field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import onnxruntime

from octavo.deploy.selfcheck import PATTERN, check_input, image_input
from octavo.errors import SourceError
from octavo.images.feeds import Feeds
from octavo.params.preprocessing import Input
from octavo.runtime.providers import PROVIDERS

__all__ = ["FORMAT", "runtime_config", "schema"]

# Grows when a program that reads an older format would go wrong; new keys alone do not make it grow.
FORMAT = 1
# ONNX Runtime's names of types, as other languages call them.
_TYPES = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(uint8)": "uint8", "tensor(double)": "float64"}

_VNNI = {
    "architecture": "x86_64",
    "any_of": ["avx512_vnni", "avx_vnni", "amx_int8"],
    "otherwise": {"session.x64quantprecision": "1"},
    "without": [],
    "reason": "without VNNI, ONNX Runtime's uint8 x int8 kernels saturate; the entry takes exact, slower ones",
}
# What INT8 files for a target want of the CPU (octavo/quantization/int8/structure/targets.py).
_CPU_NEEDS: dict[str, dict[str, Any]] = {
    "cpu": _VNNI,
    "arm": {
        "architecture": "arm64",
        "any_of": ["asimddp", "i8mm"],
        "otherwise": {},
        "without": [],
        "reason": "without dot products INT8 is right and gains little",
    },
    "openvino": {
        **_VNNI,
        "without": [PROVIDERS["openvino"]],
        "reason": "without VNNI, OpenVINO's INT8 kernels saturate, and none are exact: the entry makes ONNX Runtime's exact; for "
        "OpenVINO there, quantize for openvino-no-vnni",
    },
}


def runtime_config(
    name: str,
    manifests: Mapping[str, Mapping[str, Any]],
    order: Sequence[str],
    *,
    threads: int = 0,
) -> dict[str, Any]:
    """The content of runtime.json for a folder that holds `<variant>/model.onnx` for each variant.

    Args:
        name: the model's name.
        manifests: variant to its manifest (`octavo.manifest`); one without `selfcheck` cannot be checked.
        order: the variants in the order in which a program tries them.
        threads: intra-op threads; 0 is one a physical core.

    Returns:
        JSON values; the same arguments give the same content.

    Raises:
        SourceError: a variant of `order` has no manifest, or manifests are of different models.
    """
    missing = [variant for variant in order if variant not in manifests]
    if missing or not order:
        raise SourceError(
            f"{name}: no manifest of variant {missing[0]!r}" if missing else f"{name}: no variant to package",
            f"run `dvc repro`; there are: {', '.join(manifests) or 'none'}",
        )
    first = manifests[order[0]]
    for variant in order:
        for key in ("task", "preprocessing", "image_input"):
            if manifests[variant][key] != first[key]:
                raise SourceError(
                    f"{name}: `{key}` of {variant}'s manifest is not that of {order[0]}'s", "run `dvc repro`: one of them is stale"
                )
    return {
        "format": FORMAT,
        "model": name,
        "task": dict(first["task"]),
        "image_input": {
            "name": first["image_input"],
            "shape": image_input(first)["shape"],
            "type": first["preprocessing"]["dtype"],
        },
        "other_inputs": Feeds.read(first).record(),
        "decoder": first.get("decoder"),
        "labels": first.get("labels"),
        "outputs": [dict(output) for output in first["outputs"]],
        "preprocessing": _preprocessing(first),
        "fallback": list(order),
        "variants": {variant: _variant(variant, manifests[variant], threads) for variant in order},
        "selfcheck": {
            "pattern": PATTERN,
            "input": check_input(first),
            "onnxruntime": onnxruntime.__version__,
        },
    }


def schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of runtime.json, with a description of every field."""
    return json.loads((resources.files("octavo.deploy") / "schemas" / "runtime.schema.json").read_text(encoding="utf-8"))


def _preprocessing(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest's block; a template's name becomes its points."""
    block = manifest["preprocessing"]
    return {**block, "resize": {**block["resize"], "template": Input.model_validate(block).template}}


def _variant(variant: str, manifest: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """One entry of `variants`."""
    target = manifest["target"]
    cpu = _CPU_NEEDS.get(target) if target is not None and variant != "int8_dynamic" else None
    entry: dict[str, Any] = {
        "file": f"{variant}/{manifest['file']}",
        "sha256": manifest["sha256"],
        "bytes": manifest["bytes"],
        "opset": manifest["opset"],
        "input_type": _TYPES.get(image_input(manifest)["type"], image_input(manifest)["type"]),
        "needs": {"cpu": cpu, "custom_ops": sorted(manifest.get("custom_ops", {}))},
        "providers": _providers(manifest),
        "session": {
            "graph_optimization_level": "all",
            "execution_mode": "sequential",
            "intra_op_threads": threads,
            "inter_op_threads": 1,
            "config_entries": dict(manifest.get("session", {})),
        },
    }
    if "selfcheck" in manifest:
        entry["selfcheck"] = dict(manifest["selfcheck"])
    return entry


def _providers(manifest: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The manifest's execution providers with their options, in order; the CPU's, which has every operator, is always the last."""
    int8 = {"trt_int8_enable": "1"} if manifest["target"] is not None else {}
    options = {
        "tensorrt": {"trt_fp16_enable": "1", "trt_engine_cache_enable": "1", **int8},
        "openvino": {"device_type": "CPU"},
    }
    return [{"name": PROVIDERS[name], "options": options.get(name, {})} for name in manifest["providers"]]
