"""`source:` where the FP32 model comes from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from octavo.params.block import Block

__all__ = [
    "OnnxSource",
    "Source",
    "TorchSource",
]


class TorchSource(Block):
    """A torch module: any importable factory plus a state dict."""

    kind: Literal["torch"]
    # "package.module:factory", or the name of a torchvision architecture ("inception_v3").
    entry: str
    # The state dict; loaded with weights_only, so a pickle that runs code is refused.
    file: str
    args: dict[str, Any] = Field(default_factory=dict)
    opset: Annotated[int, Field(ge=17, le=23)] = 18
    dynamic_batch: bool = True
    # Height and width of the graph's input are dynamic, too: one file serves every resolution (`benchmark.resolutions`).
    dynamic_size: bool = False
    exporter: Literal["dynamo", "torchscript"] = "dynamo"
    # Also write models/<name>/fp32/model.pt, a TorchScript trace, for libtorch users.
    trace: bool = False


class OnnxSource(Block):
    """An ONNX file as its own exporter wrote it."""

    kind: Literal["onnx"]
    file: str
    # Files below this opset are converted up; files above it are left as they are.
    opset: Annotated[int, Field(ge=17, le=23)] = 18
    # Make a fixed batch dimension symbolic; the result is checked by running it at batch 1 and 2.
    dynamic_batch: bool = False
    # What runs in place of operators that ONNX Runtime lacks: operator to an .onnx file with a function of its name. null, and what
    # is not named and not shipped (EfficientNMS_TRT is): the graph is cut before it. Files keep the operator in any case.
    custom_ops: dict[str, str | None] = Field(default_factory=dict)


Source = Annotated[TorchSource | OnnxSource, Field(discriminator="kind")]
