"""manifest.json beside each model.onnx: what it is, what it was made from, with which settings and versions.

Reading one needs no package that edits graphs: a service reads manifests, too (`octavo.deploy`).
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import SourceError
from octavo.files import read_json, sha256_bytes, sha256_file, write_json
from octavo.layout import INT8_VARIANTS, MANIFEST, MODEL
from octavo.params.grammar import Block, ModelSpec, Segmentation
from octavo.runtime.entries import session_config
from octavo.runtime.environment import image
from octavo.runtime.host import fingerprint, has_vnni, versions
from octavo.runtime.session import Session

if TYPE_CHECKING:
    import onnx_ir as ir

    from octavo.graph.custom_ops import CustomOps

__all__ = [
    "X86",
    "as_exported",
    "block_hash",
    "model_bytes",
    "own_manifest",
    "read_manifest",
    "recommended_providers",
    "runs_here",
    "session_entries",
    "unfit_providers",
    "write_manifest",
]

# What else can run a file that was laid out for one runtime; the CPU comes last and runs everything.
_FIRST = {"openvino": ("openvino",), "openvino-no-vnni": ("openvino",), "tensorrt": ("tensorrt", "cuda")}

# Targets whose integer kernels are ONNX Runtime's on x86.
X86 = ("cpu", "cpu-no-vnni")
# What Linux, and macOS and Windows call it.
_ARM64 = ("aarch64", "arm64")
# What a variant's folder may hold of the model: `_files`.
_OWN = re.compile(re.escape(MODEL) + r"[A-Za-z0-9._-]*")


def block_hash(block: Block) -> str:
    """SHA-256 of a params block's content, defaults filled in, so that spelling out a default changes nothing."""
    return sha256_bytes(block.model_dump_json(by_alias=True).encode())


def as_exported(spec: ModelSpec, manifest: Mapping[str, Any]) -> ModelSpec:
    """A model's params with what `export` told of class maps that are still read, where params.yaml leaves it open.

    Args:
        spec: the model's block.
        manifest: FP32's.
    """
    task, told = spec.task, manifest["task"]
    if not isinstance(task, Segmentation) or told["name"] != task.name:
        return spec
    exported = Segmentation.model_validate(told).each
    same = {name: head for name, head in exported.items() if name in task.each and head.output == task.each[name].output}
    filled = task.filled({name: {"layout": head.layout, "threshold": head.threshold} for name, head in same.items()})
    return spec.model_copy(update={"task": filled})


def model_bytes(folder: str | Path) -> int:
    """Bytes of a variant's model: model.onnx and its external data."""
    return sum(path.stat().st_size for path in _files(folder))


def session_entries(manifest: Mapping[str, Any] | None) -> dict[str, str]:
    """Session entries that a file needs on this machine's CPU for right results.

    Args:
        manifest: the file's; without one, or without a `target` in it, it may be any.
    """
    # A file that is not quantized has None for a target.
    return session_config(fits16=(manifest or {}).get("target", "cpu") in (None, "cpu-no-vnni", "openvino-no-vnni"))


def unfit_providers(manifest: Mapping[str, Any] | None) -> dict[str, str]:
    """Execution providers that would put out wrong numbers of a file on this machine's CPU, each with the reason.

    Args:
        manifest: the file's; nothing is known of one without.
    """
    if (manifest or {}).get("target") != "openvino" or "openvino" not in manifest.get("providers", ()) or has_vnni():
        return {}
    return {
        "openvino": "the file is `target: openvino`, made where the CPU has VNNI; without it OpenVINO cuts sums off at 16 bits "
        "and answers otherwise"
    }


def runs_here(variant: str, target: str | None) -> bool:
    """Whether ONNX Runtime's CPU on this machine is what a file was made for; arguments as of `recommended_providers`."""
    if variant == "int8_dynamic" or target in (None, *X86):
        return True
    return target == "arm" and platform.machine().lower() in _ARM64


def recommended_providers(variant: str, target: str | None = None) -> list[str]:
    """Execution providers to try, best first, by the short names of `octavo.runtime.providers.PROVIDERS`.

    Args:
        variant: one of `octavo.layout.VARIANTS`.
        target: `int8.target`, for which Q and DQ were laid; None of a file that is not quantized. CUDA runs Q and DQ as nodes of
            their own and computes in float between them: files for CPUs stay on the CPU.
    """
    if target is None:
        return ["cuda", "cpu"] if variant in ("fp32", "fp16") else ["cpu"]
    # Codes that are found at run time are for ONNX Runtime on x86, whatever the static file beside is for.
    return ["cpu"] if variant == "int8_dynamic" else [*_FIRST.get(target, ()), "cpu"]


def write_manifest(
    folder: str | Path,
    *,
    name: str,
    variant: str,
    spec: ModelSpec,
    image_input: str,
    made: Mapping[str, Any],
    custom_ops: CustomOps | None = None,
) -> dict[str, Any]:
    """Write manifest.json for the model.onnx in `folder`, after loading it once.

    Args:
        folder: holds model.onnx; the manifest goes beside it.
        name: the model's name.
        variant: one of `octavo.layout.VARIANTS`.
        spec: the model's params.
        image_input: the graph input that takes the image.
        made: what it was made from and with which settings; JSON values.
        custom_ops: the operators in it that ONNX Runtime lacks; bodies are loaded in their place, and recorded.

    Raises:
        ModelRunError: ONNX Runtime cannot load the model.
    """
    from octavo.graph.custom_ops import CustomOps, as_in_file
    from octavo.graph.io import load

    folder = Path(folder)
    custom_ops = custom_ops or CustomOps()
    # Training knows one target only.
    target = made.get("settings", {}).get("target", "cpu") if variant in INT8_VARIANTS else None
    written = load(folder / MODEL)
    opset, shapes = written.opset_imports[""], {value.name: _shape(value) for value in written.graph.outputs}
    # Its weights need not lie in memory beside the session's.
    del written
    with custom_ops.files({variant: folder / MODEL}) as runs:
        session = Session(runs[variant])
    outputs = session.output_shapes
    if custom_ops.bodies:
        # As the file has them: what runs may be cut.
        outputs = shapes
    manifest = {
        "name": name,
        "variant": variant,
        "task": spec.task.model_dump(mode="json"),
        "file": MODEL,
        "sha256": sha256_file(folder / MODEL),
        # Of the model and of its external data, where it has any.
        "files": {path.name: sha256_file(path) for path in _files(folder)},
        "bytes": model_bytes(folder),
        "inputs": session.signature,
        "opset": opset,
        "image_input": image_input,
        "outputs": [{"name": key, "shape": shape} for key, shape in outputs.items()],
        # Operators that a service needs a plugin for; `body` (below models/<model>/fp32) is what ran here in their place.
        "custom_ops": custom_ops.record(),
        # The runtime that Q and DQ were laid for; null where nothing was.
        "target": target,
        "providers": recommended_providers(variant, target),
        "preprocessing": spec.input.model_dump(mode="json"),
        "made": as_in_file(dict(made)),
        "versions": {"octavo": importlib.metadata.version("octavo"), **versions()},
        # The container that it was made in, or null.
        "image": image(),
        "host": fingerprint(),
        # What ONNX Runtime had to be told on that machine for right INT8 results; a service on such a machine needs it too.
        "session": session_entries({"target": target}),
    }
    write_json(folder / MANIFEST, manifest)
    return manifest


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest of a variant's folder, after checking that the model is the one it describes.

    Raises:
        SourceError: there is none, it names files elsewhere, or the model file, or its external data, is another one or damaged.
    """
    folder = Path(folder)
    try:
        manifest = read_json(folder / MANIFEST)
        strays = [name for name in (*manifest["files"], manifest["file"]) if not _OWN.fullmatch(name)]
        if strays:
            raise SourceError(
                f"{folder / MANIFEST} names the file {strays[0]!r}, which is none of a variant's folder",
                "fetch the model again, from who made it",
            )
        found = {name: sha256_file(folder / name) for name in manifest["files"]}
    except FileNotFoundError as error:
        raise SourceError(f"{error.filename}: no such file", "run `dvc repro` to make it, or `dvc pull` to fetch it") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SourceError(f"{folder / MANIFEST} is no manifest of this version: {error!r}", "run `dvc repro`") from error
    other = [name for name, digest in manifest["files"].items() if found[name] != digest]
    if other:
        raise SourceError(
            f"{folder / other[0]} is damaged, or not the file that its manifest describes",
            "fetch it again (`dvc checkout`, `dvc pull` or `dvc get --force`), or run `dvc repro`",
        )
    return manifest


def own_manifest(folder: str | Path) -> dict[str, Any] | None:
    """The manifest of a variant's folder, or None where there is none for this very file: what it tells would be of another."""
    try:
        return read_manifest(folder)
    except SourceError:
        return None


def _files(folder: str | Path) -> list[Path]:
    """A variant's model.onnx and its external data."""
    return sorted(Path(folder).glob(f"{MODEL}*"))


def _shape(value: ir.Value) -> list[int | str | None] | None:
    return None if value.shape is None else [dim if isinstance(dim, int) else dim.value for dim in value.shape]
