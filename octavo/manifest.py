"""manifest.json beside each model.onnx: what it is, what it was made from, with which settings and versions."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from octavo.errors import SourceError
from octavo.files import read_json, sha256_bytes, sha256_file, write_json
from octavo.graph.custom_ops import CustomOps
from octavo.graph.io import load
from octavo.layout import MANIFEST, MODEL
from octavo.params.grammar import Block, ModelSpec
from octavo.runtime.host import fingerprint, versions
from octavo.runtime.session import Session, session_config

__all__ = ["block_hash", "model_bytes", "own_manifest", "read_manifest", "write_manifest"]


def block_hash(block: Block) -> str:
    """SHA-256 of a params block's content, defaults filled in, so that spelling out a default changes nothing."""
    return sha256_bytes(block.model_dump_json(by_alias=True).encode())


def model_bytes(folder: str | Path) -> int:
    """Bytes of a variant's model: model.onnx and its external data."""
    return sum(path.stat().st_size for path in Path(folder).glob(f"{MODEL}*"))


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
    folder = Path(folder)
    custom_ops = custom_ops or CustomOps()
    with custom_ops.files({variant: folder / MODEL}) as runs:
        session = Session(runs[variant])
    outputs = session.output_shapes
    if custom_ops.bodies:
        # As the file has them: what runs may be cut.
        outputs = {value.name: _shape(value) for value in load(folder / MODEL).graph.outputs}
    manifest = {
        "name": name,
        "variant": variant,
        "task": spec.task.model_dump(mode="json"),
        "file": MODEL,
        "sha256": sha256_file(folder / MODEL),
        "bytes": model_bytes(folder),
        "inputs": [{"name": key, "shape": session.input_shapes[key], "type": session.input_types[key]} for key in session.inputs],
        "image_input": image_input,
        "outputs": [{"name": key, "shape": shape} for key, shape in outputs.items()],
        # Operators that a service needs a plugin for; `body` (below models/<model>/fp32) is what ran here in their place.
        "custom_ops": custom_ops.record(),
        "preprocessing": spec.input.model_dump(mode="json"),
        "made": dict(made),
        "versions": {"octavo": importlib.metadata.version("octavo"), **versions()},
        "host": fingerprint(),
        # What ONNX Runtime had to be told on that machine for right INT8 results; a service on such a machine needs it too.
        "session": session_config(),
    }
    write_json(folder / MANIFEST, manifest)
    return manifest


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest of a variant's folder, after checking that the model is the one it describes.

    Raises:
        SourceError: there is none, or the model file is another one.
    """
    folder = Path(folder)
    try:
        manifest = read_json(folder / MANIFEST)
        digest = sha256_file(folder / MODEL)
    except FileNotFoundError as error:
        raise SourceError(f"{error.filename}: no such file", "run `dvc repro` to make it, or `dvc pull` to fetch it") from error
    if digest != manifest["sha256"]:
        raise SourceError(f"{folder / MODEL} is not the file that its manifest describes", "run `dvc checkout`, or `dvc repro`")
    return manifest


def own_manifest(folder: str | Path) -> dict[str, Any] | None:
    """The manifest of a variant's folder, or None where there is none for this very file: what it tells would be of another."""
    try:
        return read_manifest(folder)
    except SourceError:
        return None


def _shape(value: ir.Value) -> list[int | str | None] | None:
    return None if value.shape is None else [dim if isinstance(dim, int) else dim.value for dim in value.shape]
