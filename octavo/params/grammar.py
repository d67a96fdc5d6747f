"""What may stand in params.yaml, as frozen typed objects; unknown keys are errors. All four tasks share these shapes.

One map, `models:`; a key is a model's name, and names the folders `models/<name>` and `metrics/<name>`. Later versions add values
(a method, a format, a decoder), not shapes. Each block is described in the module it is imported from.
"""

from __future__ import annotations

import difflib
import re
from typing import Any

from pydantic import Field, field_validator, model_validator

from octavo.layout import shared_artifact
from octavo.params.block import Block
from octavo.params.data import Data, Dataset, HeadMasks, ImageSet, Packaged, PackagedSets, Rendered, Split
from octavo.params.preprocessing import Input, Resize
from octavo.params.recipe import Benchmark, Calibrate, Fp16, Gates, Int8, Qat, TensorRange, Validate
from octavo.params.source import ExportedSource, OnnxSource, Source, TorchSource, TransformersSource, UltralyticsSource
from octavo.params.task import Classification, Detection, Embedding, Head, Segmentation, Task

__all__ = [
    "Benchmark",
    "Block",
    "Calibrate",
    "Classification",
    "Data",
    "Dataset",
    "Detection",
    "Embedding",
    "ExportedSource",
    "Fp16",
    "Gates",
    "Head",
    "HeadMasks",
    "ImageSet",
    "Input",
    "Int8",
    "ModelSpec",
    "OnnxSource",
    "Packaged",
    "PackagedSets",
    "Params",
    "Qat",
    "Rendered",
    "Resize",
    "Segmentation",
    "Source",
    "Split",
    "Task",
    "TensorRange",
    "TorchSource",
    "TransformersSource",
    "UltralyticsSource",
    "Validate",
]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
# Folders beside those of models: metrics/hosts has the figures of every machine.
RESERVED = frozenset({"hosts"})


class ModelSpec(Block):
    """One model. Every stage's block must stand there, because DVC watches it; `{}` takes the defaults."""

    task: Task
    source: Source
    input: Input
    data: Data
    calibrate: Calibrate
    fp16: Fp16
    int8: Int8
    qat: Qat = Qat()
    # `validate` is a method of pydantic's; the key in the file keeps its name.
    validation: Validate = Field(alias="validate")
    benchmark: Benchmark

    @model_validator(mode="after")
    def _trains_on_something(self) -> ModelSpec:
        if self.qat.enabled and self.data.train is None:
            raise ValueError(
                "`qat.enabled: true` needs images to train on: add `data.train: {format: folder, path: ...}`, labelled or not"
            )
        return self

    @model_validator(mode="after")
    def _is_measured_on_what_the_graph_takes(self) -> ModelSpec:
        further = [size for size in self.benchmark.sizes if size != self.input.size]
        stride = self.input.resize.stride
        for size in further:
            if stride is not None and any(side % stride for side in size):
                raise ValueError(
                    f"benchmark.resolutions: the sides of {list(size)} must be multiples of `input.resize.stride` {stride}, "
                    "which they are padded to"
                )
        if not isinstance(self.source, ExportedSource):
            # An ONNX file tells by itself.
            return self
        if further and not self.source.dynamic_size:
            raise ValueError(
                f"benchmark.resolutions: {list(further[0])} is not `input.size` {list(self.input.size)}, the only one that the "
                "exported graph takes: set `source.dynamic_size: true`, or give each size an entry of its own (`<<: *name`, "
                "another `input.size`)"
            )
        if max(self.benchmark.batch) > 1 and not self.source.dynamic_batch:
            raise ValueError(
                f"benchmark.batch: the exported graph takes one image at a time, not {max(self.benchmark.batch)}: set "
                "`source.dynamic_batch: true`, or `batch: [1]`"
            )
        return self

    @model_validator(mode="after")
    def _identities_are_of_embeddings(self) -> ModelSpec:
        if self.data.validation.of_identities and not isinstance(self.task, Embedding):
            raise ValueError(
                f"data.validation.format: '{self.data.validation.format}' has identities, which no output of task "
                f"{self.task.name!r} stands for: `task: embedding`, or `format: imagefolder` for classes"
            )
        if not isinstance(self.task, Embedding) and isinstance(self.validation.gates.auc_drop, float):
            raise ValueError("validate.gates.auc_drop: is of `task: embedding`; for other tasks say `retained`")
        if self.input.resize.rule == "similarity" and isinstance(self.task, Detection | Segmentation):
            raise ValueError(
                f"input.resize: a similarity warp has no way back for boxes and masks of task {self.task.name!r}: use 'letterbox'"
            )
        for purpose in ("calibration", "validation", "train"):
            images: ImageSet | None = getattr(self.data, purpose)
            if images is not None and self.input.landmarks and images.landmarks is None:
                raise ValueError(
                    f"data.{purpose}: `input.resize: {{rule: similarity}}` takes points of each image: name their file in "
                    "`landmarks`, or give the same ones for all in `input.resize.points`"
                )
            if images is not None and images.landmarks is not None and not self.input.landmarks:
                raise ValueError(
                    f"data.{purpose}.landmarks: nothing uses them: `input.resize: {{rule: similarity}}` without `points` would"
                )
        return self

    @model_validator(mode="after")
    def _masks_are_of_the_task_s_heads(self) -> ModelSpec:
        heads = tuple(self.task.heads) if isinstance(self.task, Segmentation) else ()
        for purpose in ("calibration", "validation", "train"):
            images: ImageSet | None = getattr(self.data, purpose)
            for name in images.heads if images is not None else ():
                if name not in heads:
                    near = difflib.get_close_matches(name, heads, n=1)
                    hint = f"did you mean {near[0]!r}? " if near else ""
                    known = f"it has: {', '.join(heads)}" if heads else "it has none"
                    raise ValueError(f"data.{purpose}.heads.{name}: no head of `task.heads`; {hint}{known}")
        if heads and self.data.validation.format == "masks" and not self.data.validation.heads:
            raise ValueError(
                "data.validation: `task.heads` are several, which masks are whose? "
                f"`heads: {{{heads[0]}: {{annotations: folder}}, ...}}`; for images without masks use `format: folder`"
            )
        return self


class Params(Block):
    """The whole file."""

    models: dict[str, ModelSpec] = Field(min_length=1)
    # Folders, or files, that paths of this file may lead to, besides the project's folder (`octavo.params.places`).
    allow_outside: tuple[str, ...] = ()

    @field_validator("models")
    @classmethod
    def _names(cls, models: dict[str, Any]) -> dict[str, Any]:
        for name in models:
            if not NAME.fullmatch(name):
                raise ValueError(f"model name {name!r} must be letters, digits, '_' and '-': it becomes a folder's name")
            if name.lower() in RESERVED:
                raise ValueError(f"model name {name!r} is taken: metrics/{name} is no model's folder; call it something else")
        shared = shared_artifact(models)
        if shared is not None:
            one, other, artifact = shared
            raise ValueError(
                f"models {one!r} and {other!r}: both would have the artifact {artifact!r} in the model registry, where '_' is '-', "
                "and variants follow a model's name; call one of them something else"
            )
        return models
