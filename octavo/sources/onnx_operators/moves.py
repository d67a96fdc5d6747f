"""Operators that move values and compute none: shapes, slices, pads; those that are told places by a tensor are in `gathers.py`."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from octavo.sources.onnx_operators.node import Builder, Call, Node, Unsupported, tensor_of
from octavo.sources.onnx_operators.sizes import backwards

__all__ = ["MOVES"]

# Of ONNX and of numpy.
PAD_MODES = ("reflect", "edge", "wrap")


def _reshape(node: Node) -> Call:
    zero_is_zero = bool(node.int("allowzero", 0))

    def run(value: torch.Tensor, shape: np.ndarray) -> torch.Tensor:
        lengths = shape.tolist()
        if not zero_is_zero:
            lengths = [value.shape[axis] if _is(length, 0) else length for axis, length in enumerate(lengths)]
        return value.reshape(lengths)

    return Call(run)


def _is(length: int | torch.SymInt, number: int) -> bool:
    """Whether a length is this number; one that is open is none."""
    return isinstance(length, int) and length == number


def _flatten(node: Node) -> Call:
    axis = node.int("axis", 1)
    shape = node.node.inputs[0].shape
    if axis == 1 and shape is not None and len(shape) > 1:
        return Call(nn.Flatten(1))
    return Call(lambda value: value.reshape(math.prod(value.shape[:axis]), math.prod(value.shape[axis:])))


def _transpose(node: Node) -> Call:
    order = node.ints("perm")
    return Call(lambda value: value.permute(list(range(value.dim()))[::-1] if order is None else order))


def _squeeze(node: Node) -> Call:
    axes = node.ints("axes")
    if axes is None and not node.has(1):
        shape = node.shape(0)
        if shape is None:
            raise Unsupported("it drops all axes of length 1, and its input's shape is unknown")
        axes = [axis for axis, length in enumerate(shape) if length == 1]
    return Call(lambda value, given=None: value.squeeze(tuple(axes if given is None else given.reshape(-1).tolist())))


def _unsqueeze(node: Node) -> Call:
    axes = node.ints("axes")

    def run(value: torch.Tensor, given: np.ndarray | None = None) -> torch.Tensor:
        new = axes if given is None else given.reshape(-1).tolist()
        rank = value.dim() + len(new)
        for axis in sorted(axis % rank for axis in new):
            value = value.unsqueeze(axis)
        return value

    return Call(run)


def _expand(node: Node) -> Call:  # noqa: ARG001
    def run(value: torch.Tensor, shape: np.ndarray) -> torch.Tensor:
        lengths = shape.tolist()
        lengths = [1] * (value.dim() - len(lengths)) + lengths
        # Both are broadcast: a 1 leaves the data's own length.
        before = len(lengths) - value.dim()
        return value.expand([-1 if _is(length, 1) and axis >= before else length for axis, length in enumerate(lengths)])

    return Call(run)


def _tile(node: Node) -> Call:  # noqa: ARG001
    return Call(lambda value, repeats: value.repeat(repeats.tolist()))


def _concat(node: Node) -> Call:
    axis = node.int("axis", 0)
    return Call(lambda *values: torch.cat(values, dim=axis))


def _split(node: Node) -> Call:
    axis, count = node.int("axis", 0), len(node.node.outputs)

    def run(value: torch.Tensor, lengths: np.ndarray | None = None) -> tuple[torch.Tensor, ...]:
        return torch.split(value, -(-value.shape[axis] // count) if lengths is None else lengths.tolist(), dim=axis)

    return Call(run)


def _slice(node: Node) -> Call:  # noqa: ARG001
    def run(
        value: torch.Tensor, starts: np.ndarray, ends: np.ndarray, axes: np.ndarray | None = None, steps: np.ndarray | None = None
    ) -> torch.Tensor:
        cut: list[slice] = [slice(None)] * value.dim()
        for place, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            axis = place if axes is None else axes[place]
            step = 1 if steps is None else steps[place]
            if step > 0:
                cut[axis] = slice(start, end, step)
            else:  # torch slices forwards only
                places = list(backwards(start, end, step, value.shape[axis]))
                value = value.index_select(axis, torch.tensor(places, dtype=torch.int64, device=value.device))
        return value[tuple(cut)]

    return Call(run)


def _pad(node: Node) -> Call:
    mode = node.string("mode", "constant")
    if mode != "constant" and mode not in PAD_MODES:
        raise Unsupported(f"`mode` {mode}")
    filling = node.scalar(2) if node.has(2) else 0.0
    if filling is None:
        raise Unsupported("a value that is computed")

    def run(value: torch.Tensor, pads: np.ndarray, axes: np.ndarray | None = None) -> torch.Tensor:
        lengths = pads.reshape(-1).tolist()
        chosen = list(range(value.dim())) if axes is None else [axis % value.dim() for axis in axes.tolist()]
        borders = dict(zip(chosen, zip(lengths[: len(chosen)], lengths[len(chosen) :], strict=True), strict=True))
        if mode == "constant":
            first = min((axis for axis, border in borders.items() if border != (0, 0)), default=value.dim())
            around = [length for axis in range(value.dim() - 1, first - 1, -1) for length in borders.get(axis, (0, 0))]
            return F.pad(value, around, value=filling) if around else value
        for axis, border in borders.items():
            if border != (0, 0):
                places = _bordered(value.shape[axis], border, mode)
                value = value.index_select(axis, torch.tensor(places, device=value.device))
        return value

    return Call(run, (0, 1, 3))


def _bordered(length: int, border: tuple[int, int], mode: str) -> list[int]:
    """Which element stands at each place of an axis once it is padded; a negative border takes away, and first."""
    before, behind = border
    left = np.arange(max(-before, 0), length - max(-behind, 0))
    return np.pad(left, (max(before, 0), max(behind, 0)), mode=mode).tolist()


def _depth_to_space(node: Node) -> Call:
    block = node.int("blocksize", 1)
    if node.string("mode", "DCR") == "CRD":
        return Call(nn.PixelShuffle(block))

    def run(value: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = value.shape
        each = channels // block**2
        blocks = value.reshape(batch, block, block, each, height, width).permute(0, 3, 4, 1, 5, 2)
        return blocks.reshape(batch, each, height * block, width * block)

    return Call(run)


def _space_to_depth(node: Node) -> Call:
    block = node.int("blocksize", 1)

    def run(value: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = value.shape
        blocks = value.reshape(batch, channels, height // block, block, width // block, block).permute(0, 3, 5, 1, 2, 4)
        return blocks.reshape(batch, channels * block**2, height // block, width // block)

    return Call(run)


def _filled(node: Node) -> Call:
    attribute = node.node.attributes.get("value")
    value = torch.zeros(1) if attribute is None else tensor_of(attribute.as_tensor().numpy())
    filling, dtype = value.reshape(-1)[0].item(), value.dtype
    return Call(lambda shape, device: torch.full(shape.tolist(), filling, dtype=dtype, device=device), on_device=True)


def _range(node: Node) -> Call:
    dtype = node.output_dtype()

    def run(start: np.ndarray, limit: np.ndarray, step: np.ndarray, device: torch.device) -> torch.Tensor:
        return torch.arange(*(bound.reshape(-1)[0] for bound in (start, limit, step)), dtype=dtype, device=device)

    return Call(run, on_device=True)


def _trilu(node: Node) -> Call:
    keep: Callable[..., torch.Tensor] = torch.triu if node.int("upper", 1) else torch.tril
    return Call(lambda value, diagonal=None: keep(value, 0 if diagonal is None else int(diagonal.reshape(-1)[0])))


MOVES: dict[str, Builder] = {
    "Concat": _concat,
    "ConstantOfShape": _filled,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
