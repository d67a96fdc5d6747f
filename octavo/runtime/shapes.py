"""Shapes of a graph's tensors: as it says, or as they were on an image where it leaves them open."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["FED", "SEEN", "fed_shape", "fixed_shape", "shape_of"]

# Where a value keeps the shape that was seen of it, beside the graph: no file says so.
SEEN = "octavo.seen_shape"
# The same of the shape that it has where less is fed than there is in use.
FED = "octavo.fed_shape"


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
