"""What has been made of one model, as `validate` and `benchmark` open it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.files import sha256_file
from octavo.graph.custom_ops import CustomOps
from octavo.images.dataset import Item
from octavo.images.feeds import Feeds
from octavo.images.formats import Classes
from octavo.images.input_sizes import refuse_untaken
from octavo.images.purpose import open_images
from octavo.layout import REFERENCE, present_variants, variant_dir
from octavo.manifest import model_bytes, own_manifest, read_manifest, runs_here, session_entries, unfit_providers
from octavo.params.grammar import ModelSpec
from octavo.runtime.session import Session

__all__ = ["Variants"]


@dataclass(frozen=True)
class Variants:
    """The files of one model, FP32 among them.

    Attributes:
        model: the model's name.
        manifest: FP32's.
        custom: the operators that ONNX Runtime lacks.
        feeds: from an image's tensor to what the graphs are fed.
        paths: variant to model.onnx, in the order of `octavo.layout.VARIANTS`.
        manifests: variant to manifest; None where the folder has none for this very file.
    """

    model: str
    manifest: Mapping[str, Any]
    custom: CustomOps
    feeds: Feeds
    paths: Mapping[str, Path]
    manifests: Mapping[str, Mapping[str, Any] | None]

    @classmethod
    def read(cls, model: str) -> Variants:
        """What lies in `models/<model>/`.

        Raises:
            SourceError: FP32 or its manifest is not there, or damaged.
        """
        folder = variant_dir(model, REFERENCE)
        manifest, paths = read_manifest(folder), present_variants(model)
        manifests = {variant: own_manifest(path.parent) for variant, path in paths.items()}
        return cls(model, manifest, CustomOps.read(folder, manifest), Feeds.read(manifest), paths, manifests)

    @property
    def entries(self) -> dict[str, dict[str, str]]:
        """Session entries that each file needs on this machine's CPU."""
        return {variant: session_entries(manifest) for variant, manifest in self.manifests.items()}

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each model, its external data included."""
        return {variant: model_bytes(path.parent) for variant, path in self.paths.items()}

    @property
    def hashes(self) -> dict[str, str]:
        """SHA-256 of each model.onnx."""
        # A manifest was held against its file when it was read.
        told = {variant: manifest["sha256"] for variant, manifest in self.manifests.items() if manifest is not None}
        return {variant: told.get(variant) or sha256_file(path) for variant, path in self.paths.items()}

    @property
    def elsewhere(self) -> dict[str, str]:
        """Of files for another runtime than ONNX Runtime's CPU on this machine, the target that they are for."""
        told = {variant: (manifest or {}).get("target") for variant, manifest in self.manifests.items()}
        return {variant: target for variant, target in told.items() if not runs_here(variant, target)}

    @property
    def notes(self) -> list[str]:
        """What should be known of files that are measured without a manifest of their own, or whose runtime fails on this CPU."""
        notes = [
            f"no manifest beside {self.paths[variant]} describes this very file: it is measured as it is; `dvc repro` makes it anew"
            for variant, manifest in self.manifests.items()
            if manifest is None
        ]
        return notes + [
            f"{variant} is measured in ONNX Runtime, and on a CPU like this one {provider} would not answer so: {why}. Quantize it "
            f"here (`dvc repro -f quantize_int8@{self.model}`), or with `int8.target: openvino-no-vnni`, which is right on either"
            for variant, manifest in self.manifests.items()
            for provider, why in unfit_providers(manifest).items()
        ]

    def sessions(self, compared: Sequence[str]) -> dict[str, Session]:
        """Each variant opened, so that it puts out what is `compared`.

        Raises:
            ModelRunError: ONNX Runtime cannot load one.
        """
        with self.custom.files(self.paths, outputs=compared if self.custom.bodies else []) as runs:
            return {variant: Session(path, entries=self.entries[variant]) for variant, path in runs.items()}

    def scored(self, network: Session) -> list[str] | None:
        """Outputs that the task's score gets of FP32; None where the graph is cut before them."""
        own = [output["name"] for output in self.manifest["outputs"]]
        return own if set(own) <= set(network.outputs) else None

    def images(self, spec: ModelSpec, network: Session, classes: Classes = Classes()) -> list[Item]:  # noqa: B008 - frozen
        """The validation images, once FP32 is known to take each size that `spec` asks for.

        Args:
            spec: the model's block.
            network: FP32.
            classes: what is known of the model's classes.

        Raises:
            DataError, ParamsError: as `octavo.images.purpose.open_images` and `octavo.images.input_sizes.refuse_untaken` have it.
        """
        items = open_images(spec.data, "validation", f"models.{self.model}.data", classes)
        refuse_untaken(spec, network.input_shapes[self.feeds.image], items, lambda image: network.run(self.feeds(image)))
        return items
