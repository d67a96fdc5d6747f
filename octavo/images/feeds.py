"""What a graph is fed for one image: the image's tensor, and what its other inputs take.

Detectors as their own exporters write them often take more than the image: the size that boxes are scaled to (RT-DETR, D-FINE),
how the photo was resized (PaddleDetection), thresholds. None of it depends on the photo here: boxes come out in pixels of the
image's tensor, and go from there to the photo one way for all families (`octavo.images.frame`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.errors import SourceError
from octavo.params.preprocessing import Input

__all__ = ["USUAL", "Feeds"]

Value = int | float | str
# By name, what exporters call them: `export_onnx.py` of RT-DETR (https://github.com/lyuwenyu/RT-DETR) and D-FINE, PaddleDetection
# (https://github.com/PaddlePaddle/PaddleDetection, deploy), YOLOv3 of ONNX's model zoo (https://github.com/onnx/models).
USUAL: dict[str, tuple[Value, ...]] = {
    "orig_target_sizes": ("width", "height"),
    "im_shape": ("height", "width"),
    "image_shape": ("height", "width"),
    "scale_factor": (1, 1),
}
# ONNX Runtime's names of element types.
_TYPES: dict[str, type[np.generic]] = {
    f"tensor({name})": kind
    for name, kind in {
        "float": np.float32,
        "float16": np.float16,
        "double": np.float64,
        "int64": np.int64,
        "int32": np.int32,
        "uint8": np.uint8,
        "bool": np.bool_,
    }.items()
}


@dataclass(frozen=True)
class _Other:
    """An input beside the image.

    Attributes:
        shape: as the graph has it; symbols and None are open.
        values: numbers, `height` and `width`; one for each element behind the batch, or one for all.
    """

    name: str
    type: str
    shape: tuple[Any, ...]
    values: tuple[Value, ...]

    def at(self, batch: int, sides: Mapping[str, int]) -> np.ndarray:
        """What it is fed beside a batch of images of these sides."""
        flat = np.array([sides[value] if isinstance(value, str) else value for value in self.values])
        first, behind = ([], list(self.shape)) if len(self.shape) < 2 else ([self.shape[0]], list(self.shape[1:]))
        first = [size if isinstance(size, int) else batch for size in first]
        # An open size is as long as there are values for it.
        known = math.prod(size for size in behind if isinstance(size, int))
        opened = [place for place, size in enumerate(behind) if not isinstance(size, int)]
        for place in opened:
            behind[place] = max(1, flat.size // max(known, 1)) if place == opened[0] else 1
        try:
            laid = flat.reshape(() if flat.size == 1 else behind)
            return np.array(np.broadcast_to(laid, [*first, *behind]), _TYPES[self.type])
        except ValueError:
            wanted = described(self.type, self.shape)
            raise SourceError(
                f"`input.others.{self.name}` has {len(self.values)} values, the graph's input is {wanted}",
                "give one for each element behind the batch, or one for all",
            ) from None


@dataclass(frozen=True)
class Feeds:
    """From an image's tensor to all that a graph is fed.

    Attributes:
        image: the graph input that takes the image.
        layout: of its tensor.
        others: the other inputs.
    """

    image: str
    layout: str = "nchw"
    others: tuple[_Other, ...] = ()

    @classmethod
    def of(cls, inputs: Sequence[Mapping[str, Any]], image: str, spec: Input) -> Feeds:
        """Of a graph.

        Args:
            inputs: `name`, `shape` and `type` of each (`octavo.runtime.session.Session.signature`).
            image: the one that takes the image.
            spec: the model's `input:` block; what its `others` leaves out is fed as usual (`USUAL`).

        Raises:
            SourceError: nothing says what an input takes, it takes no numbers, or `others` does not fit the graph.
        """
        beside = {each["name"]: each for each in inputs if each["name"] != image}
        strays = [name for name in spec.others if name not in beside]
        if strays:
            listed = ", ".join(f"{name!r} {described(each['type'], each['shape'])}" for name, each in beside.items()) or "none"
            raise SourceError(
                f"`input.others` names {strays[0]!r}, which is {'the image' if strays[0] == image else 'no input of the graph'}; "
                f"inputs beside the image: {listed}",
                "correct or remove it",
            )
        found = []
        for name, each in beside.items():
            values = spec.others.get(name, USUAL.get(name))
            if values is None:
                raise SourceError(
                    f"the graph takes {name!r} {described(each['type'], each['shape'])} beside the image {image!r}, and nothing "
                    "says what to feed",
                    f"say it in params.yaml: `input: {{others: {{{name}: [...]}}}}` with numbers, or `height` and `width` of the "
                    "image's tensor, which are the same for all photos; or export it with the image as its only input",
                )
            if each["type"] not in _TYPES:
                raise SourceError(
                    f"the graph takes {name!r} {described(each['type'], each['shape'])}, which numbers cannot fill",
                    "export it with the image as its only input",
                )
            found.append(_Other(name, each["type"], tuple(each["shape"] or ()), tuple(values)))
        feeds = cls(image, spec.layout, tuple(found))
        for other in found:
            other.at(1, dict(zip(("height", "width"), spec.size, strict=True)))
        return feeds

    @classmethod
    def read(cls, manifest: Mapping[str, Any]) -> Feeds:
        """Of a variant, from its manifest."""
        return cls.of(manifest["inputs"], manifest["image_input"], Input.model_validate(manifest["preprocessing"]))

    def __call__(self, tensor: np.ndarray) -> dict[str, np.ndarray]:
        """All inputs for the image's tensor, batch dimension first."""
        rows, columns = tensor.shape[1:3] if self.layout == "nhwc" else tensor.shape[2:4]
        sides = {"height": rows, "width": columns}
        return {self.image: tensor} | {other.name: other.at(len(tensor), sides) for other in self.others}

    def record(self) -> list[dict[str, Any]]:
        """`other_inputs` of runtime.json: `name`, `type` (numpy's word), `shape` and `values` of each; JSON values."""
        return [
            {
                "name": other.name,
                "type": np.dtype(_TYPES[other.type]).name,
                "shape": list(other.shape),
                "values": list(other.values),
            }
            for other in self.others
        ]

    @property
    def told(self) -> list[str]:
        """What each other input is fed, in words, for the user to check."""
        return [f"input {other.name!r} is fed [{', '.join(map(str, other.values))}] (`input.others`)" for other in self.others]


def described(kind: str, shape: Sequence[Any] | None) -> str:
    """An input's type and shape in words: `int64 [N, 2]`."""
    sizes = "of unknown shape" if shape is None else f"[{', '.join('?' if size is None else str(size) for size in shape)}]"
    return f"{kind.removeprefix('tensor(').removesuffix(')')} {sizes}"
