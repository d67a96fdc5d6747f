"""What lies in a folder that somebody pulled: variants of one model, each model.onnx with its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from octavo.errors import SourceError
from octavo.files import read_json
from octavo.layout import MANIFEST, MODEL, VARIANTS
from octavo.params.grammar import Input, Task
from octavo.runtime.host import fingerprint

__all__ = ["PACKAGE", "Artifact", "artifacts"]

# Below models/<model>: what stage `package` makes, complete in itself.
PACKAGE = "package"


@dataclass(frozen=True)
class Artifact:
    """One variant, as its manifest tells; the model's bytes are not read yet.

    Attributes:
        folder: of model.onnx and manifest.json.
        manifest: `docs/deploy.md` describes it.
    """

    folder: Path
    manifest: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Artifact:
        """Of a folder with a manifest.

        Raises:
            SourceError: the manifest is no JSON, or not one of this version.
        """
        path = folder / MANIFEST
        try:
            artifact = cls(folder, read_json(path))
            _ = artifact.task, artifact.spec, artifact.variant
        except (ValueError, KeyError, TypeError, RecursionError, ValidationError) as error:
            told = "; ".join(str(error).splitlines()[:3]) if isinstance(error, ValidationError) else repr(error)
            raise SourceError(
                f"{path} is no manifest that this version reads: {told}", "update octavo, or pull it again"
            ) from error
        return artifact

    @property
    def path(self) -> Path:
        """The model's file."""
        return self.folder / MODEL

    @property
    def variant(self) -> str:
        """One of `octavo.layout.VARIANTS`."""
        return self.manifest["variant"]

    @cached_property
    def task(self) -> Any:
        """What the outputs mean: a block of `octavo.params.task`."""
        return TypeAdapter(Task).validate_python(self.manifest["task"])

    @cached_property
    def spec(self) -> Input:
        """Preprocessing."""
        return Input.model_validate(self.manifest["preprocessing"])

    @property
    def failed(self) -> list[str]:
        """Gates that validation found failed; empty also where nothing was validated."""
        return sorted(gate for gate, verdict in self.manifest.get("gates", {}).items() if verdict == "fail")

    @property
    def kept(self) -> float:
        """How much of FP32 is left, for choosing between variants that are as fast: share of the metric, else the mean cosine.

        Class maps of whole numbers have no cosine: their share of equal pixels.
        """
        accuracy = self.manifest.get("accuracy", {})
        figures = [accuracy[key] for key in ("retained", "cosine_mean", "agreement") if key in accuracy]
        return 1.0 if self.variant == "fp32" else float(next(iter(figures), 0.0))

    def measured_ms(self, provider: str, threads: int) -> float | None:
        """Median ms of one image as `benchmark` measured it on a machine like this one; None where it did not.

        Args:
            provider: short name of an execution provider.
            threads: asked for; of the counts that were measured, the largest that is not above it is taken.
        """
        latency = self.manifest.get("latency", {})
        if latency.get("host", {}).get("id") != fingerprint()["id"]:
            return None
        found = {
            figures["threads"]: figures["median_ms"]
            for figures in latency["figures"]
            if figures["provider"] == provider and figures["batch"] == 1 and figures["size"] is None
        }
        below = [count for count in found if count <= threads]
        return found[max(below)] if below else None


def artifacts(folder: str | Path) -> dict[str, Artifact]:
    """The variants below a folder, in the order of `octavo.layout.VARIANTS`.

    Args:
        folder: models/<model>, whose `package` is taken where there is one; or that package; or the folder of one variant.

    Raises:
        SourceError: there is no such folder, no model in it, or a manifest cannot be read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise SourceError(f"{folder}: no such folder", "check the path; `dvc pull` or `dvc get` fetches a model that DVC tracks")
    if (folder / MANIFEST).is_file():
        one = Artifact.read(folder)
        return {one.variant: one}
    folder = folder / PACKAGE if (folder / PACKAGE).is_dir() else folder
    found = {variant: Artifact.read(folder / variant) for variant in VARIANTS if (folder / variant / MANIFEST).is_file()}
    if not found:
        raise SourceError(
            f"{folder} holds no model: neither a {MANIFEST} nor a folder of a variant ({', '.join(VARIANTS)}) with one",
            "give models/<model>, or the folder of one variant; `dvc repro package@<model>` makes it, `dvc pull` fetches it",
        )
    return found
