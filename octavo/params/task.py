"""`task:` what the outputs mean."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from octavo.params.block import Block, Fraction, Positive

__all__ = [
    "Classification",
    "Detection",
    "Embedding",
    "Segmentation",
    "Task",
]


class Classification(Block):
    """Class scores: one label an image."""

    name: Literal["classification"]
    # The graph output with the logits; only needed where a graph has several.
    output: str | None = None


class Detection(Block):
    """Boxes with classes."""

    name: Literal["detection"]
    # How the outputs are read: a family of octavo/tasks/detection, or the first that fits.
    decoder: str = "auto"
    # The model's class names in the order of its class index, or coco80, or coco91 (torchvision's: COCO's own category ids).
    # Without them the classes of a COCO file or of YOLO labels are the model's, in their order.
    classes: Literal["coco80", "coco91"] | tuple[str, ...] | None = None
    # What metrics see: boxes above this score, after suppression of those that overlap by more than `iou`, at most so many.
    score: Fraction = 0.001
    iou: Fraction = 0.65
    max_detections: Positive = 300
    # Boxes of at least this score are compared with FP32's, box by box, and drawn.
    sure: Fraction = 0.25


class Segmentation(Block):
    """A class for every pixel."""

    name: Literal["segmentation"]
    # The graph output with the class maps; only needed where a graph has several (heads for road and lanes, say).
    output: str | None = None
    # The model's class names in the order of its class index.
    classes: tuple[str, ...] | None = None
    # The masks' value for pixels that count for nothing.
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
