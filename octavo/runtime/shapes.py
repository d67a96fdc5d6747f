"""Shapes of a graph's tensors, and their sizes: as it says, or as they were on an image where it leaves them open."""

from __future__ import annotations

import math

import onnx_ir as ir

__all__ = ["FED", "SEEN", "bytes_of", "fed_shape", "fixed_shape", "images_within", "shape_of"]

# Where a value keeps the shape that was seen of it, beside the graph: no file says so.
SEEN = "octavo.seen_shape"
# The same of the shape that it has where less is fed than there is in use.
FED = "octavo.fed_shape"
# A tensor of which the graph does not tell how many sizes it has counts as this many bytes, and so does a map of open height and
# width. Of others with open sizes the first counts as this, of rows that values choose (boxes), and any behind it.
_UNKNOWN, _ROWS, _OPEN = 8 << 20, 100, 10
_MAP = 4  # axes
# Bytes of tensors of the images that a question is asked of: all 32 of EfficientNet-B0 at 224x224.
_MEASURED = 3e9


def fixed_shape(value: ir.Value) -> tuple[int, ...] | None:
    """A tensor's shape at batch 1: a symbolic first size counts as 1, but one that is computed of the batch (torch's exporter names
    that of tokens in rows `196*batch`). None where the graph leaves another one open.
    """
    if value.shape is None:
        return None
    sizes = [1 if place == 0 and _may_be_batch(size) else size for place, size in enumerate(value.shape)]
    return tuple(sizes) if all(isinstance(size, int) for size in sizes) else None


def shape_of(value: ir.Value) -> tuple[int, ...] | None:
    """A tensor's shape at batch 1, as it was seen where the graph leaves it open; None where it was not looked at."""
    seen = value.meta.get(SEEN)
    return seen if seen is not None else fixed_shape(value)


def fed_shape(value: ir.Value) -> tuple[int, ...] | None:
    """As `shape_of`, but as it is in runs on what is fed, where that is less than there is in use."""
    fed = value.meta.get(FED)
    return fed if fed is not None else shape_of(value)


def _may_be_batch(size: int | ir.SymbolicDim) -> bool:
    return not isinstance(size, int) and (size.value is None or str(size.value).isidentifier())


def bytes_of(value: ir.Value) -> int:
    """A tensor's size for one image, as far as the graph tells or was seen."""
    # A symbolic batch dimension is 1 here: images are read one at a time.
    shape = shape_of(value)
    if shape is not None:
        return 4 * math.prod(shape[1:])
    sizes = list(value.shape or ())
    if not sizes or (len(sizes) == _MAP and not any(isinstance(size, int) for size in sizes[2:])):
        return _UNKNOWN
    return 4 * math.prod(size if isinstance(size, int) else _OPEN if place else _ROWS for place, size in enumerate(sizes))


def images_within(model: ir.Model, at_most: int, most: float = _MEASURED) -> int:
    """How many images to work on, 1 to `at_most`, so that the tensors that the graph makes of them stay within `most` bytes."""
    image = sum(bytes_of(value) for node in model.graph for value in node.outputs)
    return int(min(max(1, most // max(1, image)), at_most))
