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
from octavo.errors import ParamsError, SourceError
from octavo.layout import INT8_VARIANTS
from octavo.runtime.session import PROVIDERS

__all__ = ["FORMAT", "runtime_config", "schema"]

# Grows when a program that reads an older format would go wrong; new keys alone do not make it grow.
FORMAT = 1
CPU, CUDA = PROVIDERS["cpu"], PROVIDERS["cuda"]
TENSORRT, OPENVINO = "TensorrtExecutionProvider", "OpenVINOExecutionProvider"
# ONNX Runtime's names of types, as other languages call them.
_TYPES = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(uint8)": "uint8", "tensor(double)": "float64"}

_VNNI = {
    "architecture": "x86_64",
    "any_of": ["avx512_vnni", "avx_vnni", "amx_int8"],
    "otherwise": {"session.x64quantprecision": "1"},
    "reason": "without VNNI, ONNX Runtime's uint8 x int8 kernels saturate; the entry takes exact, slower ones",
}
# What INT8 files for a target want of the CPU (octavo/quantization/int8/targets.py).
_CPU_NEEDS: dict[str, dict[str, Any]] = {
    "cpu": _VNNI,
    "arm": {
        "architecture": "arm64",
        "any_of": ["asimddp", "i8mm"],
        "otherwise": {},
        "reason": "without dot products INT8 is right and gains little",
    },
    "openvino": {**_VNNI, "otherwise": {}, "reason": "without VNNI, OpenVINO's INT8 gains little"},
}


def runtime_config(
    name: str,
    manifests: Mapping[str, Mapping[str, Any]],
    order: Sequence[str],
    *,
    references: Mapping[str, Mapping[str, Any]] | None = None,
    accelerators: Sequence[str] = ("cuda",),
    threads: int = 0,
) -> dict[str, Any]:
    """The content of runtime.json for a folder that holds `<variant>/model.onnx` for each variant.

    Args:
        name: the model's name.
        manifests: variant to its manifest (`octavo.manifest`).
        order: the variants in the order in which a program tries them.
        references: variant to what `octavo.deploy.selfcheck.reference` gave for its file; one that is not there cannot be checked.
        accelerators: `tensorrt` and `cuda`, those that FP32 and FP16 take where they are there, in this order.
        threads: intra-op threads; 0 is one a physical core.

    Returns:
        JSON values; the same arguments give the same content.

    Raises:
        SourceError: a variant of `order` has no manifest, or manifests are of different models.
        ParamsError: an accelerator is not known.
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
        "outputs": [dict(output) for output in first["outputs"]],
        "preprocessing": dict(first["preprocessing"]),
        "fallback": list(order),
        "variants": {
            variant: _variant(variant, manifests[variant], (references or {}).get(variant), accelerators, threads)
            for variant in order
        },
        "selfcheck": {
            "pattern": PATTERN,
            "input": check_input(first),
            "onnxruntime": onnxruntime.__version__,
        },
    }


def schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of runtime.json, with a description of every field."""
    return json.loads((resources.files("octavo.deploy") / "schemas" / "runtime.schema.json").read_text(encoding="utf-8"))


def _variant(
    variant: str, manifest: Mapping[str, Any], checked: Mapping[str, Any] | None, accelerators: Sequence[str], threads: int
) -> dict[str, Any]:
    """One entry of `variants`."""
    settings = manifest.get("made", {}).get("settings", {})
    # Training rounds for the kernels of target `cpu`, unless it says otherwise.
    target = settings.get("target", "cpu") if variant in INT8_VARIANTS else None
    cpu = _CPU_NEEDS.get(target) if target is not None and variant != "int8_dynamic" else None
    entry: dict[str, Any] = {
        "file": f"{variant}/{manifest['file']}",
        "sha256": manifest["sha256"],
        "bytes": manifest["bytes"],
        "input_type": _TYPES.get(image_input(manifest)["type"], image_input(manifest)["type"]),
        "needs": {"cpu": cpu, "custom_ops": sorted(manifest.get("custom_ops", {}))},
        "providers": _providers(target, accelerators),
        "session": {
            "graph_optimization_level": "all",
            "execution_mode": "sequential",
            "intra_op_threads": threads,
            "inter_op_threads": 1,
            "config_entries": dict(manifest.get("session", {})),
        },
    }
    if "opset" in manifest:
        entry["opset"] = manifest["opset"]
    if checked is not None:
        entry["selfcheck"] = dict(checked)
    return entry


def _providers(target: str | None, accelerators: Sequence[str]) -> list[dict[str, Any]]:
    """Execution providers in order of priority; the CPU's, which has every operator, is always the last.

    Args:
        target: what an INT8 file is for; None for FP32 and FP16.
        accelerators: those that float files take.
    """
    plain = {"name": CPU, "options": {}}
    cuda = {"name": CUDA, "options": {}}
    if target == "tensorrt":
        cached = {"trt_int8_enable": "1", "trt_fp16_enable": "1", "trt_engine_cache_enable": "1"}
        return [{"name": TENSORRT, "options": cached}, cuda, plain]
    if target == "openvino":
        return [{"name": OPENVINO, "options": {"device_type": "CPU"}}, plain]
    if target is not None:
        # The file's integer kernels are the CPU's: on CUDA every one of them would be a float kernel between Q and DQ.
        return [plain]
    known = {"cuda": cuda, "tensorrt": {"name": TENSORRT, "options": {"trt_fp16_enable": "1", "trt_engine_cache_enable": "1"}}}
    unknown = [name for name in accelerators if name not in known]
    if unknown:
        raise ParamsError(f"accelerator {unknown[0]!r} is not known", f"it is one of: {', '.join(known)}")
    return [*(known[name] for name in accelerators), plain]
