"""Folders that are complete in themselves: each variant's model with all that is known of it, and how to run them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.deploy.artifact import Artifact
from octavo.deploy.choice import FALLBACK, chain, fastest
from octavo.deploy.figures import accuracy_of, gates_of, latency_of
from octavo.deploy.runtime_config import runtime_config
from octavo.deploy.selfcheck import reference
from octavo.files import write_json
from octavo.layout import MANIFEST
from octavo.manifest import read_manifest
from octavo.tasks.detection.families import FAMILIES
from octavo.tasks.labels import labels_of

__all__ = ["RUNTIME", "package"]

RUNTIME = "runtime.json"


def package(
    folder: Path, variants: Mapping[str, Path], accuracy: Mapping[str, Any], latency: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Write <folder>/<variant>/{model.onnx, manifest.json} of what can be deployed, and <folder>/runtime.json.

    That is FP32, and the variants that params.yaml holds to gates (`validate.gates.variants`), whatever their verdict: the loader
    leaves those aside that failed, runtime.json does not name them, and `make release` refuses them.

    Args:
        folder: empty.
        variants: variant to its folder below models/<model>.
        accuracy, latency: the records of metrics/<model>/.

    Returns:
        The manifests written.

    Raises:
        SourceError: a model is not the one that its manifest describes.
        ModelRunError: a model does not run.
    """
    written: dict[str, dict[str, Any]] = {}
    for variant, source in variants.items():
        gates = gates_of(accuracy, variant)
        if variant != "fp32" and not gates:
            continue
        artifact = Artifact(source, read_manifest(source))
        manifest = dict(artifact.manifest) | {
            "labels": labels_of(artifact.task),
            # What validation told by photos; of a graph that chooses boxes an even grey would tell nothing. Of a graph that was cut
            # the file has other outputs than those that were read.
            "decoder": decoder if (decoder := accuracy.get("decoder")) in FAMILIES else None,
            "gates": gates,
            "accuracy": accuracy_of(accuracy, variant),
            "latency": latency_of(latency, variant),
            "selfcheck": reference(artifact.path, artifact.manifest),
        }
        (folder / variant).mkdir()
        for name in manifest["files"]:
            shutil.copyfile(source / name, folder / variant / name)
        write_json(folder / variant / MANIFEST, manifest)
        written[variant] = manifest
    usable = {variant: Artifact(folder / variant, manifest) for variant, manifest in written.items()}
    usable = {variant: artifact for variant, artifact in usable.items() if not artifact.failed}
    order = chain(_first(usable), list(usable))
    write_json(folder / RUNTIME, runtime_config(written["fp32"]["name"], written, order))
    return written


def _first(usable: Mapping[str, Artifact]) -> str:
    """The variant to try first where nobody measures: the fastest on the CPU of the machine that ran `benchmark`."""
    taken = {}
    for variant, artifact in usable.items():
        figures = artifact.manifest["latency"]["figures"]
        alone = [one for one in figures if (one["provider"], one["batch"], one["size"]) == ("cpu", 1, None)]
        if not alone:
            return next(variant for variant in FALLBACK if variant in usable)
        taken[variant] = max(alone, key=lambda one: one["threads"])["median_ms"]
    return fastest(taken, usable)
