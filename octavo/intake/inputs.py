"""How a graph takes its image: type, layout and size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.errors import ParamsError, SourceError
from octavo.intake.exported import exported_size

__all__ = ["ImageInput", "Sides", "parsed_size", "sides_of"]

# Height and width where neither the graph nor the user says: what classifiers take, and what nearly all detectors take.
VECTORS, MAPS = 224, 640
_CHANNELS = (1, 3, 4)
_NUMPY = {
    ir.DataType.FLOAT: np.float32,
    ir.DataType.FLOAT16: np.float16,
    ir.DataType.UINT8: np.uint8,
    ir.DataType.INT32: np.int32,
    ir.DataType.INT64: np.int64,
}


@dataclass(frozen=True)
class ImageInput:
    """The graph input that takes the image.

    Attributes:
        name: in the graph.
        dtype: `float32`, `float16` or `uint8`; of a file that `export` has not read also `int32` or `int64`.
        shape: as the file has it; a symbol, or None, where a size is open.
        layout: `nchw` or `nhwc`, by where 1, 3 or 4 channels stand.
        channels: 1, 3 or 4; None where the file leaves them open.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]
    layout: str
    channels: int | None

    @classmethod
    def of(cls, value: ir.Value) -> ImageInput:
        """From a 4-D input."""
        shape = tuple(size if isinstance(size, int) else size.value for size in value.shape or ())
        if len(shape) != 4:
            raise SourceError(f"input {value.name!r} has no four dimensions: {list(shape)}", "an image model takes a 4-D tensor")
        nhwc = shape[3] in _CHANNELS and shape[1] not in _CHANNELS
        channels = shape[3] if nhwc else shape[1]
        return cls(
            value.name or "",
            np.dtype(_NUMPY[value.dtype]).name,
            shape,
            "nhwc" if nhwc else "nchw",
            channels if isinstance(channels, int) else None,
        )

    @property
    def sides(self) -> tuple[int | str | None, int | str | None]:
        """(height, width) as the file has them."""
        return self.shape[1:3] if self.layout == "nhwc" else self.shape[2:4]

    def at(self, size: tuple[int, int]) -> tuple[int, ...]:
        """The shape of one image of (height, width)."""
        channels = self.channels or 3
        return (1, *size, channels) if self.layout == "nhwc" else (1, channels, *size)

    def grey(self, size: tuple[int, int]) -> np.ndarray:
        """An even grey of (height, width), in the middle of 0..1 or of 0..255."""
        return np.full(self.at(size), 0.5 if self.dtype.startswith("float") else 128, self.dtype)


@dataclass(frozen=True)
class Sides:
    """(height, width) that figures are for, and whose word that is: `graph`, `asked`, `exporter` or `default`."""

    size: tuple[int, int]
    by: str


def sides_of(image: ImageInput, asked: tuple[int, int] | None, outputs: Sequence[ir.Value], metadata: Mapping[str, str]) -> Sides:
    """The size to compute with.

    Args:
        image: the image input.
        asked: `--size`.
        outputs: the graph's; with vectors alone the default is that of classifiers.
        metadata: the file's properties, in which its exporter may have written a size.

    Raises:
        ParamsError: what was asked is not what the graph is fixed to.
    """
    fixed = image.sides
    if asked is not None:
        if not _takes(fixed, asked):
            raise ParamsError(
                f"--size {asked[0]}x{asked[1]}: the graph takes {fixed[0]}x{fixed[1]} (height x width) alone",
                "leave `--size` out, or export the model with dynamic height and width",
            )
        return Sides(asked, "graph" if all(isinstance(side, int) for side in fixed) else "asked")
    told = exported_size(metadata)
    if told and any(isinstance(side, str) or side is None for side in fixed) and _takes(fixed, told):
        return Sides(told, "exporter")
    default = VECTORS if all(value.shape is not None and len(value.shape) <= 2 for value in outputs) else MAPS
    known = next((side for side in fixed if isinstance(side, int)), default)
    size = tuple(side if isinstance(side, int) else known for side in fixed)
    return Sides(size, "graph" if all(isinstance(side, int) for side in fixed) else "default")


def _takes(fixed: tuple[int | str | None, ...], size: tuple[int, int]) -> bool:
    return all(side == wanted for side, wanted in zip(fixed, size, strict=True) if isinstance(side, int))


def parsed_size(text: str) -> tuple[int, int]:
    """`480x640` (height x width), or `640` for a square, as numbers.

    Raises:
        ParamsError: it is neither.
    """
    parts = text.lower().split("x")
    if len(parts) not in (1, 2) or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ParamsError(f"--size {text!r} is no size", "height x width in pixels: `--size 480x640`, or `--size 640` for a square")
    return int(parts[0]), int(parts[-1])
