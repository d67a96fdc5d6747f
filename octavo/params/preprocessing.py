"""`input:` from an image file to the network's tensor; preprocessing is a part of the model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from octavo.params.block import Block, Positive

__all__ = [
    "Input",
    "Resize",
]

Level = Annotated[int, Field(ge=0, le=255)]


class Resize(Block):
    """How an image comes to the input's size, before any crop."""

    # shorter: the shorter side becomes `to`; stretch: both sides, aspect ratio lost; letterbox: fits inside, the rest padded.
    rule: Literal["shorter", "stretch", "letterbox", "none"] = "stretch"
    to: Positive | None = None
    resample: Literal["nearest", "bilinear", "bicubic", "area", "lanczos"] = "bilinear"
    # true: low-pass before shrinking (Pillow, as torchvision does); false: OpenCV's plain interpolation.
    antialias: bool = True
    # letterbox only: where the image lies; around it a grey level (0..255), or [red, green, blue] whatever `colour` is.
    align: Literal["centre", "top-left"] = "centre"
    pad: Level | tuple[Level, Level, Level] = 114
    # letterbox only: pad each side just to the next multiple of this many pixels, at most to `size`, so that the input keeps the
    # photo's aspect ratio (YOLOv5's rectangular inference). The graph's height and width must be dynamic.
    stride: Positive | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Resize:
        if self.rule == "shorter" and self.to is None:
            raise ValueError("rule 'shorter' needs `to`, the length of the shorter side in pixels")
        if self.rule != "shorter" and self.to is not None:
            raise ValueError(f"`to` belongs to rule 'shorter', not to {self.rule!r}")
        if self.rule != "letterbox" and self.stride is not None:
            raise ValueError(f"`stride` belongs to rule 'letterbox', not to {self.rule!r}")
        if self.resample == "area" and self.antialias:
            raise ValueError("resample 'area' is OpenCV's and needs `antialias: false`")
        return self


class Input(Block):
    """From an image file to the network's tensor: value = (pixel / scale - mean) / std."""

    # The graph input that takes the image; only needed where a graph has several.
    name: str | None = None
    # [height, width] in pixels; with `resize.stride` the most that they can be.
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
        stride = self.resize.stride
        if stride is not None and (self.size[0] % stride or self.size[1] % stride):
            raise ValueError(f"`size` {list(self.size)} must be multiples of `resize.stride` {stride}, which sides are padded to")
        if stride is not None and self.crop != "none":
            raise ValueError("`resize.stride` gives inputs of any aspect ratio: it goes with `crop: none`")
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

    def at(self, size: tuple[int, int]) -> Input:
        """The same for an input of another (height, width); what the shorter side becomes before a crop grows with it."""
        to = self.resize.to
        grown = None if to is None else max(*size, round(to * max(size) / max(self.size)))
        return self.model_copy(update={"size": size, "resize": self.resize.model_copy(update={"to": grown})})
