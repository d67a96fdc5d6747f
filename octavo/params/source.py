"""`source:` where the FP32 model comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from octavo.params.block import Block, Whole

__all__ = [
    "OTHER_EXPORTER",
    "ExportedSource",
    "OnnxSource",
    "Source",
    "TorchSource",
    "TransformersSource",
    "UltralyticsSource",
]


# What to try where one fails.
OTHER_EXPORTER = {"dynamo": "torchscript", "torchscript": "dynamo"}


class ExportedSource(Block):
    """What all modules of torch have in common: they are exported to ONNX here."""

    # The weights.
    file: str

    def recorded(self) -> dict[str, Any]:
        """For manifests: where files lay on this machine is nobody's business, their names are."""
        return _recorded(self)

    opset: Annotated[Whole, Field(ge=17, le=23)] = 18
    dynamic_batch: bool = True
    # Height and width of the graph's input are dynamic, too: one file serves every resolution (`benchmark.resolutions`).
    dynamic_size: bool = False
    exporter: Literal["dynamo", "torchscript"] = "dynamo"
    # Also write models/<name>/fp32/model.pt, a TorchScript trace, for libtorch users.
    trace: bool = False


class TorchSource(ExportedSource):
    """A torch module: any importable factory plus a state dict, which is loaded with weights_only: no pickle runs code."""

    kind: Literal["torch"]
    # "package.module:factory", or the name of a torchvision architecture ("inception_v3").
    entry: str
    args: dict[str, Any] = Field(default_factory=dict)


class TransformersSource(ExportedSource):
    """A detector of transformers: `file` is a folder with config.json and model.safetensors, as `save_pretrained` writes it."""

    kind: Literal["transformers"]
    # torch 2.14's dynamo exporter fails on RT-DETRv2 and D-FINE (it has no aten._is_all_true, which their checks of shapes become),
    # and on RT-DETR takes ten times as long and fixes the batch.
    exporter: Literal["dynamo", "torchscript"] = "torchscript"
    # With one image all shapes are known, which measured placement lives on, and half of the nodes, which compute shapes, go
    # (D-FINE: 1564 to 761). true: any batch, with a third of the tensors of unknown shape.
    dynamic_batch: bool = False


class UltralyticsSource(ExportedSource):
    """A detector that ultralytics (AGPL-3.0, not among our dependencies) builds from its YAML, and a state dict."""

    kind: Literal["ultralytics"]
    # The head keeps its grid from one run to the next, where the dynamo exporter wants to see any batch size.
    exporter: Literal["dynamo", "torchscript"] = "torchscript"
    # A YAML of the package (yolov8n.yaml), or the path of one.
    entry: str
    # `nc`, the number of classes, where it is not the YAML's.
    args: dict[str, Any] = Field(default_factory=dict)


class OnnxSource(Block):
    """An ONNX file as its own exporter wrote it."""

    kind: Literal["onnx"]
    file: str
    # Files below this opset are converted up; files above it are left as they are.
    opset: Annotated[Whole, Field(ge=17, le=23)] = 18
    # Make a fixed batch dimension symbolic; the result is checked by running it at batch 1 and 2.
    dynamic_batch: bool = False
    # What runs in place of operators that ONNX Runtime lacks: operator to an .onnx file with a function of its name. `Op` means
    # those of any domain that no `domain::Op` names. null, and what is not named and not shipped (EfficientNMS_TRT is): the graph
    # is cut before it. Files keep the operator in any case.
    custom_ops: dict[str, str | None] = Field(default_factory=dict)

    def recorded(self) -> dict[str, Any]:
        """For manifests, as `ExportedSource.recorded`."""
        bodies = {name: None if path is None else Path(path).name for name, path in self.custom_ops.items()}
        return _recorded(self) | {"custom_ops": bodies}


def _recorded(source: ExportedSource | OnnxSource) -> dict[str, Any]:
    found = source.model_dump(mode="json") | {"file": Path(source.file).name}
    if isinstance(source, UltralyticsSource):
        found["entry"] = Path(source.entry).name
    return found


Source = Annotated[TorchSource | OnnxSource | TransformersSource | UltralyticsSource, Field(discriminator="kind")]
