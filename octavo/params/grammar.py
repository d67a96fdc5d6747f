"""What may stand in params.yaml, as frozen typed objects; unknown keys are errors. All four tasks share these shapes.

One map, `models:`; a key is a model's name, and the folder names `models/<name>` and `metrics/<name>`. Later versions add
values (a method, a format, a decoder), not shapes.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

__all__ = [
    "Benchmark",
    "Block",
    "Calibrate",
    "Classification",
    "Data",
    "Detection",
    "Embedding",
    "Fp16",
    "Gates",
    "ImageSet",
    "Input",
    "Int8",
    "ModelSpec",
    "OnnxSource",
    "Packaged",
    "PackagedSets",
    "Params",
    "Resize",
    "Segmentation",
    "Source",
    "Split",
    "Task",
    "TorchSource",
    "Validate",
]

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(ge=1)]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class Block(BaseModel):
    """A block of params.yaml: frozen, and a key it does not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


# ---------------------------------------------------------------- where the FP32 model comes from


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


Source = Annotated[TorchSource | OnnxSource, Field(discriminator="kind")]

# ---------------------------------------------------------------- preprocessing: a part of the model


class Resize(Block):
    """How an image comes to the input's size, before any crop."""

    # shorter: the shorter side becomes `to`; stretch: both sides, aspect ratio lost; letterbox: fits inside, the rest padded.
    rule: Literal["shorter", "stretch", "letterbox", "none"] = "stretch"
    to: Positive | None = None
    resample: Literal["nearest", "bilinear", "bicubic", "area", "lanczos"] = "bilinear"
    # true: low-pass before shrinking (Pillow, as torchvision does); false: OpenCV's plain interpolation.
    antialias: bool = True
    # letterbox only: where the image lies, and the grey level (0..255) around it.
    align: Literal["centre", "top-left"] = "centre"
    pad: Annotated[int, Field(ge=0, le=255)] = 114

    @model_validator(mode="after")
    def _shorter_needs_to(self) -> Resize:
        if self.rule == "shorter" and self.to is None:
            raise ValueError("rule 'shorter' needs `to`, the length of the shorter side in pixels")
        if self.rule != "shorter" and self.to is not None:
            raise ValueError(f"`to` belongs to rule 'shorter', not to {self.rule!r}")
        if self.resample == "area" and self.antialias:
            raise ValueError("resample 'area' is OpenCV's and needs `antialias: false`")
        return self


class Input(Block):
    """From an image file to the network's tensor: value = (pixel / scale - mean) / std."""

    # The graph input that takes the image; only needed where a graph has several.
    name: str | None = None
    # [height, width] in pixels.
    size: tuple[Positive, Positive]
    resize: Resize = Resize()
    crop: Literal["center", "none"] = "none"
    colour: Literal["rgb", "bgr", "gray"] = "rgb"
    scale: Annotated[float, Field(gt=0)] = 255.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[Annotated[float, Field(gt=0)], ...] = (1.0,)
    layout: Literal["nchw", "nhwc"] = "nchw"
    dtype: Literal["float32", "uint8"] = "float32"

    @model_validator(mode="after")
    def _consistent(self) -> Input:
        channels = 1 if self.colour == "gray" else 3
        for key in ("mean", "std"):
            if len(getattr(self, key)) not in (1, channels):
                raise ValueError(f"`{key}` has {len(getattr(self, key))} values; colour '{self.colour}' takes 1 or {channels}")
        if self.dtype == "uint8" and (self.scale != 1 or set(self.mean) != {0.0} or set(self.std) != {1.0}):
            raise ValueError("dtype 'uint8' feeds raw pixels: it takes `scale: 1`, no mean and no std")
        shorter = self.resize.to
        if self.crop == "none" and self.resize.rule in ("shorter", "none"):
            raise ValueError(
                f"resize rule '{self.resize.rule}' gives any size: add `crop: center`, or use 'stretch' or 'letterbox'"
            )
        if shorter is not None and shorter < max(self.size):
            raise ValueError(f"the shorter side becomes {shorter} pixels, too few to crop {self.size[0]}x{self.size[1]} from")
        return self

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colour."""
        return 1 if self.colour == "gray" else 3


# ---------------------------------------------------------------- data


class Split(Block):
    """A part of one folder: the images whose place in a seeded, class-stratified order lies in [start, stop) of 0..1.

    Two parts that do not overlap never share an image, and identical files (by content) always fall on the same side.
    """

    start: Fraction = 0.0
    stop: Fraction = 1.0
    seed: int = 0

    @model_validator(mode="after")
    def _not_empty(self) -> Split:
        if self.start >= self.stop:
            raise ValueError(f"start {self.start} must be below stop {self.stop}")
        return self


class ImageSet(Block):
    """Images of one purpose."""

    # folder: every image below `path`, no labels. imagefolder: <path>/<class>/<image>; a folder named `unlabelled` counts for
    # fidelity only. The others are read by the task they belong to.
    format: Literal["folder", "imagefolder", "coco", "yolo", "voc", "masks", "identities"]
    path: str
    # imagefolder: a JSON map from folder name to class index; without it <path>/classes.json, folder names that are whole
    # numbers, or their alphabetical order. Other formats: their annotation file.
    annotations: str | None = None
    split: Split | None = None
    # Take at most this many images, chosen by `seed`.
    limit: Positive | None = None
    seed: int = 0


class Data(Block):
    """Which images; calibration, validation and training never share one (by content)."""

    calibration: ImageSet
    validation: ImageSet
    train: ImageSet | None = None
    on_bad_image: Literal["error", "skip"] = "error"


# ---------------------------------------------------------------- the stages' own blocks


class Calibrate(Block):
    """Which images the statistics are made from."""

    samples: Positive = 200
    seed: int = 0


class Fp16(Block):
    """Half-precision weights and activations."""

    # true: inputs and outputs stay float32, so that callers change nothing.
    keep_io: bool = True
    # Node names, op types or shell patterns that stay in float32.
    keep_float: tuple[str, ...] = ()


class Int8(Block):
    """Static and dynamic INT8."""

    # cpu: uint8 activations x int8 weights, for x86 with VNNI. cpu-no-vnni: 7-bit weights, so that AVX2 does not saturate.
    target: Literal["cpu", "cpu-no-vnni"] = "cpu"
    format: Literal["qdq", "qoperator"] = "qdq"
    method: Literal["minmax", "percentile", "entropy", "mse"] = "mse"
    # For method 'percentile': the share of values, in percent, that the range covers (half of the rest cut on each side).
    percentile: Annotated[float, Field(gt=50, le=100)] = 99.99
    per_channel: bool = True
    # Symmetric activations (zero point 128); costs half the range behind ReLU.
    symmetric: bool = False
    # bias: each layer's bias takes back the mean shift that rounding its weights causes.
    correction: Literal["none", "bias"] = "bias"
    # Node names, op types or shell patterns that stay in float32, each must match a node.
    keep_float: tuple[str, ...] = ()


class Qat(Block):
    """Quantization-aware training; its settings come with the stage."""

    enabled: Literal[False] = False


class Gates(Block):
    """Bounds that a quantized variant must keep; `validate` writes pass, fail or inconclusive for each."""

    # The task's metric relative to FP32's.
    retained: Fraction = 0.99
    # Mean cosine of the raw outputs to FP32's.
    similarity: Annotated[float, Field(ge=-1, le=1)] = 0.995
    # The variants that are held to them.
    variants: tuple[Literal["fp16", "int8", "int8_dynamic"], ...] = ("fp16", "int8")


class Validate(Block):
    """What is proved, and how surely."""

    gates: Gates = Gates()
    # Resamples of the paired bootstrap over images, and its seed.
    bootstrap: Annotated[int, Field(ge=100)] = 2000
    seed: int = 0
    # Images on which every layer of the INT8 model is compared with FP32.
    layer_samples: Positive = 8


class Benchmark(Block):
    """What is timed; each combination of provider, threads and batch is one measurement per variant."""

    providers: tuple[Literal["cpu", "cuda"], ...] = ("cpu",)
    threads: tuple[Positive, ...] = (1, 2)
    batch: tuple[Positive, ...] = (1,)
    # Square input sizes, for graphs whose height and width are dynamic; empty: the input's own size.
    resolutions: tuple[Positive, ...] = ()
    warmup: Positive = 3
    # Interleaved rounds; every variant runs once a round.
    rounds: Annotated[int, Field(ge=5)] = 40


# ---------------------------------------------------------------- what the outputs mean


class Classification(Block):
    """Class scores: one label an image."""

    name: Literal["classification"]
    # The graph output with the logits; only needed where a graph has several.
    output: str | None = None


class Detection(Block):
    """Boxes with classes."""

    name: Literal["detection"]
    decoder: str = "auto"
    score: Fraction = 0.001
    iou: Fraction = 0.65
    max_detections: Positive = 300


class Segmentation(Block):
    """A class for every pixel."""

    name: Literal["segmentation"]
    output: str | None = None
    void: int | None = None


class Embedding(Block):
    """A vector an image."""

    name: Literal["embedding"]
    output: str | None = None
    normalise: bool = True
    flip: bool = False


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


# `task: classification` is short for `task: {name: classification}`.
Task = Annotated[Classification | Detection | Segmentation | Embedding, Field(discriminator="name"), BeforeValidator(_named)]

# ---------------------------------------------------------------- a model


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


class Params(Block):
    """The whole file."""

    models: dict[str, ModelSpec] = Field(min_length=1)

    @field_validator("models")
    @classmethod
    def _names(cls, models: dict[str, Any]) -> dict[str, Any]:
        for name in models:
            if not NAME.fullmatch(name):
                raise ValueError(f"model name {name!r} must be letters, digits, '_' and '-': it becomes a folder's name")
        return models


# ---------------------------------------------------------------- data/sources.yaml: what `prepare` copies out of packages


class Packaged(Block):
    """A file that an installed package ships."""

    package: str
    # Its path as the package lists it.
    file: str
    # Author and terms, for data/<set>/SOURCES.md.
    licence: str
    # Where it goes inside the set: a file's path for a copy, a folder for crops.
    to: str
    # 0: copied as it is. n: n seeded square crops of the photo, each as a PNG.
    crops: Annotated[int, Field(ge=0)] = 0
    # Shortest side of a crop, in pixels.
    least: Positive = 224

    @field_validator("to")
    @classmethod
    def _inside(cls, to: str) -> str:
        if to.startswith("/") or ".." in to.split("/"):
            raise ValueError(f"`to` {to!r} must stay inside the set's folder")
        return to


class PackagedSets(Block):
    """Set name (a folder below data/) to its files."""

    sets: dict[str, list[Packaged]] = Field(min_length=1)
