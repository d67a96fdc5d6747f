"""`input:` from an image file to the network's tensor; preprocessing is a part of the model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from octavo.params.block import Block, Level, Number, Positive, Side, Whole

__all__ = [
    "TEMPLATES",
    "Input",
    "Resize",
]

# x and y.
Point = tuple[Number, Number]
Points = tuple[Point, ...]

# Where eyes, nose and corners of the mouth come to lie, in pixels of an input of (height, width): InsightFace's five points
# (https://github.com/deepinsight/insightface, face_align.py), for 112x96 eight pixels further to the left.
_FIVE = ((30.2946, 51.6963), (65.5318, 51.5014), (48.0252, 71.7366), (33.5493, 92.3655), (62.7299, 92.2041))
TEMPLATES: dict[str, tuple[tuple[int, int], Points]] = {
    "arcface": ((112, 112), tuple((x + 8.0, y) for x, y in _FIVE)),
    "arcface_112x96": ((112, 96), _FIVE),
}


# What an input beside the image is fed; a number alone is a list of one.
Values = Annotated[
    tuple[Whole | Number | Literal["height", "width"], ...],
    BeforeValidator(lambda given: given if isinstance(given, list | tuple) else [given]),
]


class Resize(Block):
    """How an image comes to the input's size, before any crop."""

    # shorter: the shorter side becomes `to`; stretch: both sides, aspect ratio lost; letterbox: fits inside, the rest padded;
    # similarity: shifted, turned and scaled so that points of the image come to lie on a template's, the rest black.
    rule: Literal["shorter", "stretch", "letterbox", "similarity", "none"] = "stretch"
    to: Side | None = None
    resample: Literal["nearest", "bilinear", "bicubic", "area", "lanczos"] = "bilinear"
    # true: low-pass before shrinking (Pillow, as torchvision does); false: OpenCV's plain interpolation, as similarity always has.
    antialias: bool = True
    # letterbox only: where the image lies; around it a grey level (0..255), or [red, green, blue] whatever `colour` is.
    align: Literal["centre", "top-left"] = "centre"
    pad: Level | tuple[Level, Level, Level] = 114
    # letterbox only: pad each side just to the next multiple of this many pixels, at most to `size`, so that the input keeps the
    # photo's aspect ratio (YOLOv5's rectangular inference). The graph's height and width must be dynamic.
    stride: Positive | None = None
    # similarity only: where points come to lie. arcface: eyes, nose, corners of the mouth on 112x112 (or a square of another size);
    # arcface_112x96: the same on 112 rows x 96 columns; else [[x, y], ...] in pixels of the input, two or more.
    template: Literal["arcface", "arcface_112x96"] | Points | None = None
    # similarity only: the same points on every image, [[x, y], ...] as shares of its width and height. Without them each image's
    # own, which the set's `landmarks` name.
    points: Points | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Resize:
        if self.rule == "shorter" and self.to is None:
            raise ValueError("rule 'shorter' needs `to`, the length of the shorter side in pixels")
        if self.rule != "shorter" and self.to is not None:
            raise ValueError(f"`to` belongs to rule 'shorter', not to {self.rule!r}")
        if self.rule != "letterbox" and self.stride is not None:
            raise ValueError(f"`stride` belongs to rule 'letterbox', not to {self.rule!r}")
        if self.resample == "area" and (self.antialias or self.rule == "similarity"):
            raise ValueError("resample 'area' is OpenCV's and needs `antialias: false` and another rule than 'similarity'")
        for key in ("template", "points"):
            if self.rule != "similarity" and getattr(self, key) is not None:
                raise ValueError(f"`{key}` belongs to rule 'similarity', not to {self.rule!r}")
        return self

    @model_validator(mode="after")
    def _points_on_points(self) -> Resize:
        if self.rule != "similarity":
            return self
        if self.template is None:
            raise ValueError(f"rule 'similarity' needs `template`: {', '.join(TEMPLATES)}, or [[x, y], ...] in pixels of the input")
        template = self.template if isinstance(self.template, tuple) else TEMPLATES[self.template][1]
        for key, points in (("template", template), ("points", self.points)):
            if points is not None and len(set(points)) < 2:
                raise ValueError(f"`{key}` has {len(set(points))} different point(s): a similarity takes two or more")
        if self.points is not None and len(self.points) != len(template):
            raise ValueError(f"`points` has {len(self.points)} points, `template` {len(template)}: each comes to lie on one")
        outside = [point for point in self.points or () if not all(0 <= share <= 1 for share in point)]
        if outside:
            raise ValueError(f"`points` has {list(outside[0])}: they are shares of the image's width and height, 0..1, not pixels")
        return self


class Input(Block):
    """From an image file to the network's tensor: value = (pixel / scale - mean) / std."""

    # The graph input that takes the image; only needed where a graph has several.
    name: str | None = None
    # [height, width] in pixels; with `resize.stride` the most that they can be.
    size: tuple[Side, Side]
    resize: Resize = Resize()
    crop: Literal["center", "none"] = "none"
    colour: Literal["rgb", "bgr", "gray"] = "rgb"
    scale: Annotated[Number, Field(gt=0)] = 255.0
    mean: tuple[Number, ...] = (0.0,)
    std: tuple[Annotated[Number, Field(gt=0)], ...] = (1.0,)
    layout: Literal["nchw", "nhwc"] = "nchw"
    dtype: Literal["float32", "uint8"] = "float32"
    # What a graph that takes more than the image is fed besides, by input: numbers, `height` and `width` of the image's tensor, one
    # for each element behind the batch, or one for all. Inputs that exporters are known for need none (`octavo.images.feeds`).
    others: dict[str, Values] = Field(default_factory=dict)

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

    @model_validator(mode="after")
    def _template_fits(self) -> Input:
        template = self.resize.template
        if self.resize.rule == "similarity" and self.crop != "none":
            raise ValueError("resize rule 'similarity' fills the input: it goes with `crop: none`")
        if isinstance(template, str):
            rows, columns = TEMPLATES[template][0]
            if self.size[0] * columns != self.size[1] * rows:
                fitting = [name for name, (size, _) in TEMPLATES.items() if self.size[0] * size[1] == self.size[1] * size[0]]
                hint = f"`template: {fitting[0]}` does" if fitting else "give the points themselves"
                raise ValueError(
                    f"template {template!r} is for {rows}x{columns} or its multiples, `size` is {self.size[0]}x{self.size[1]}: "
                    f"{hint}"
                )
        return self

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colour."""
        return 1 if self.colour == "gray" else 3

    @property
    def template(self) -> Points | None:
        """Where the points of `resize.rule: similarity` come to lie, in pixels of the input; None of other rules."""
        template = self.resize.template
        if isinstance(template, str):
            (rows, _), points = TEMPLATES[template]
            return tuple((x * self.size[0] / rows, y * self.size[0] / rows) for x, y in points)
        return template

    @property
    def landmarks(self) -> bool:
        """Whether each image must bring points of its own."""
        return self.resize.rule == "similarity" and self.resize.points is None

    def at(self, size: tuple[int, int]) -> Input:
        """The same for an input of another (height, width).

        What the shorter side becomes before a crop grows with it, and so do the points of a template.
        """
        to = self.resize.to
        changed = {"to": None if to is None else max(*size, round(to * max(size) / max(self.size)))}
        if isinstance(self.resize.template, tuple):
            across, down = size[1] / self.size[1], size[0] / self.size[0]
            changed["template"] = tuple((x * across, y * down) for x, y in self.resize.template)
        return self.model_copy(update={"size": size, "resize": self.resize.model_copy(update=changed)})
