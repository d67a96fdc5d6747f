"""`task:` what the outputs mean."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from octavo.params.block import Block, Fraction, Number, Positive, Whole

__all__ = [
    "DECODERS",
    "Classification",
    "Detection",
    "Embedding",
    "Head",
    "Segmentation",
    "Task",
]


# The families of octavo/tasks/detection/families, which this layer cannot import.
DECODERS = (
    "efficientnms",
    "efficientnms-shares",
    "efficientnms-yx",
    "efficientnms-yx-shares",
    "tensorflow",
    "tensorflow-shares",
    "tflite",
    "tflite-shares",
    "torchvision",
    "torchvision-shares",
    "chosen",
    "chosen-shares",
    "paddle",
    "yolov7-end2end",
    "yolonas-flat",
    "nanodet",
    "nanodet-plus",
    "yolov3-keras",
    "yolov4",
    "yolov5",
    "yolov5-shares",
    "yolov8",
    "yolov8-shares",
    "yolov8-obb",
    "yolov8-apart",
    "yolov8-apart-shares",
    "yolov8-levels",
    "yolox",
    "yolox-decoded",
    "yolox-decoded-shares",
    "yolov8-rows",
    "yolov8-rows-shares",
    "retinaface",
    "scrfd",
    "yunet",
    "ssd-raw",
    "anchored",
    "ssd",
    "ssd-yx",
    "yolonas",
    "yolonas-shares",
    "decoded",
    "decoded-shares",
    "decoded-yx",
    "decoded-yx-shares",
    "yolov10",
    "yolov10-shares",
    "yolov10-obb",
    "rtdetr-chosen",
    "rtdetr",
    "detr",
)
# COCO's ids that no class has are called so in lists of names, as often as there are such.
_NO_CLASS = "N/A"
_HEAD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class Classification(Block):
    """Class scores: one label an image."""

    name: Literal["classification"]
    # The graph output with the logits; only needed where a graph has several.
    output: str | None = None
    # The class names in the order of the class index, or imagenet1k (torchvision's names of ILSVRC-2012's classes).
    classes: Literal["imagenet1k"] | tuple[str, ...] | None = None


class Detection(Block):
    """Boxes with classes."""

    name: Literal["detection"]
    # How the outputs are read: a family of octavo/tasks/detection/families, or the first that fits.
    decoder: str = "auto"
    # The model's class names in the order of its class index, or coco80, or coco91 (torchvision's and TensorFlow's: COCO's own
    # category ids), or coco90 (TFLite's: the same without the background).
    # Without them the classes of a COCO file or of YOLO labels are the model's, in their order.
    classes: Literal["coco80", "coco90", "coco91"] | tuple[str, ...] | None = None
    # What metrics see: boxes above this score, after suppression of those that overlap by more than `iou`, at most so many.
    score: Fraction = 0.001
    iou: Fraction = 0.65
    max_detections: Positive = 300
    # Boxes of at least this score are compared with FP32's, box by box, and drawn.
    sure: Fraction = 0.25

    @field_validator("decoder")
    @classmethod
    def _is_known(cls, name: str) -> str:
        known = ("auto", *DECODERS)
        if name not in known:
            near = difflib.get_close_matches(name.lower(), known, n=2)
            hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
            raise ValueError(f"there is no detector family {name!r}; {hint}there are: {', '.join(known)}")
        return name

    @field_validator("classes")
    @classmethod
    def _names_differ(cls, classes: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        counted = Counter(classes if isinstance(classes, tuple) else ())
        twice = [name for name, count in counted.items() if count > 1 and name != _NO_CLASS]
        if twice:
            raise ValueError(f"{twice[0]!r} names {counted[twice[0]]} classes: annotations and metrics tell classes apart by name")
        return classes


class Head(Block):
    """One output with class maps."""

    # The graph output with the class maps; only needed where a graph has several. Of one of several heads: its name, unless said.
    output: str | None = None
    # The model's class names in the order of its class index.
    classes: tuple[str, ...] | None = None
    # The masks' value for pixels that count for nothing.
    void: Whole | None = None
    # How scores are laid out behind the batch; told by the input's size, unless the output's shape fits both.
    layout: Literal["nchw", "nhwc"] | None = None
    # Of one map of scores: above it is class 1. 0.5 where the graph lets them lie in 0..1 alone (a Sigmoid behind them), else 0.
    threshold: Number | None = None


class Segmentation(Head):
    """A class for every pixel, of one head or of several (drivable area and lanes, say), each with its own classes and masks."""

    name: Literal["segmentation"]
    # A head's name, as metrics have it, to its output and classes; instead of the keys of one head.
    heads: dict[str, Head] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_or_several(self) -> Segmentation:
        beside = [key for key in Head.model_fields if getattr(self, key) is not None]
        if self.heads and beside:
            raise ValueError(f"`{beside[0]}` stands beside `heads`: say it of each head")
        for name in self.heads:
            if not _HEAD.fullmatch(name):
                raise ValueError(
                    f"a head's name {name!r} must be letters, digits, '_' and '-': it becomes part of the metrics' keys"
                )
        output, count = Counter(head.output for head in self.each.values()).most_common(1)[0]
        if count > 1:
            raise ValueError(f"{count} heads read one output, {output!r}: give each its own `output`")
        return self

    @property
    def each(self) -> Mapping[str, Head]:
        """Head by name, each with its output; the one head of the short form is named ""."""
        filled = {name: head.model_copy(update={"output": head.output or name}) for name, head in self.heads.items()}
        return filled or {"": self}

    def filled(self, told: Mapping[str, Mapping[str, Any]]) -> Segmentation:
        """With what was told of the outputs, where a head leaves it open.

        Args:
            told: head, by its name in `each`, to `layout` and `threshold`.
        """
        each = {
            name: {key: value for key, value in told.get(name, {}).items() if getattr(head, key) is None}
            for name, head in self.each.items()
        }
        if not self.heads:
            return self.model_copy(update=each[""])
        return self.model_copy(update={"heads": {name: head.model_copy(update=each[name]) for name, head in self.heads.items()}})


class Embedding(Block):
    """A vector an image."""

    name: Literal["embedding"]
    # The graph output with the vector; only needed where a graph has several.
    output: str | None = None
    # Vectors are compared at length 1 (L2), and the mean absolute error is of such.
    normalise: bool = True
    # The vector is the mean of the image's and its mirror's (left and right), before its length is made 1: two runs an image.
    flip: bool = False


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


# `task: classification` is short for `task: {name: classification}`.
Task = Annotated[Classification | Detection | Segmentation | Embedding, Field(discriminator="name"), BeforeValidator(_named)]
