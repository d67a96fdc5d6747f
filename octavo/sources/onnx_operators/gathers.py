"""Operators that take values from places, or put them there, which a tensor gives: gathers, scatters, one-hot, grid samples."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from octavo.sources.onnx_operators.node import Builder, Call, Node, Unsupported, tensor_of

__all__ = ["GATHERS"]


def _from_start(places: torch.Tensor, length: int) -> torch.Tensor:
    """Places that are counted from the end, counted from the start."""
    return torch.where(places < 0, places + length, places)


def _gather(node: Node) -> Call:
    axis, constant = node.int("axis", 0), node.constant(1)
    if constant is not None and constant.ndim == 0:
        place = int(constant)
        return Call(lambda value: value.select(axis, place), (0,))
    return Call(partial(_taken, axis, constant is None or bool(constant.min(initial=0) < 0)))


def _taken(axis: int, signed: bool, value: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    axis %= value.dim()
    if signed:
        places = _from_start(places, value.shape[axis])
    found = value.index_select(axis, places.reshape(-1))
    return found if places.dim() == 1 else found.reshape(*value.shape[:axis], *places.shape, *value.shape[axis + 1 :])


def _gather_elements(node: Node) -> Call:
    axis = node.int("axis", 0)
    return Call(lambda value, places: torch.gather(value, axis, _from_start(places, value.shape[axis]).long()))


def _gather_nd(node: Node) -> Call:
    batches = node.int("batch_dims", 0)

    def run(value: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return value[_tuple_of(value, places, batches)]

    return Call(run)


def _tuple_of(value: torch.Tensor, places: torch.Tensor, batches: int) -> tuple[torch.Tensor, ...]:
    """Indices of ONNX's ..ND operators as torch takes them: one tensor an axis, those of the batches first."""
    rows = []
    for axis in range(batches):
        shape = [1] * (places.dim() - 1)
        shape[axis] = value.shape[axis]
        rows.append(torch.arange(value.shape[axis], device=value.device).reshape(shape))
    return (*rows, *(_from_start(part, value.shape[batches + axis]) for axis, part in enumerate(places.unbind(-1))))


def _scatter_nd(node: Node) -> Call:
    reduction = node.string("reduction", "none")
    if reduction not in ("none", "add"):
        raise Unsupported(f"`reduction` {reduction}")

    def run(value: torch.Tensor, places: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
        return value.index_put(_tuple_of(value, places, 0), updates, accumulate=reduction == "add")

    return Call(run)


def _scatter_elements(node: Node) -> Call:
    axis, reduction = node.int("axis", 0), node.string("reduction", "none")
    if reduction not in ("none", "add"):
        raise Unsupported(f"`reduction` {reduction}")
    scatter = torch.scatter_add if reduction == "add" else torch.scatter
    return Call(lambda value, places, updates: scatter(value, axis, _from_start(places, value.shape[axis]).long(), updates))


def _one_hot(node: Node) -> Call:
    axis, values = node.int("axis", -1), node.weight(2, "pair of values")
    off, on = tensor_of(values).tolist()
    dtype = tensor_of(values).dtype

    def run(places: torch.Tensor, depth: np.ndarray) -> torch.Tensor:
        count = depth.reshape(-1)[0]
        places = _from_start(places.long(), count).unsqueeze(axis)
        shape = [1] * places.dim()
        shape[axis] = count
        hot = places == torch.arange(count, device=places.device).reshape(shape)
        return torch.where(
            hot, torch.tensor(on, dtype=dtype, device=places.device), torch.tensor(off, dtype=dtype, device=places.device)
        )

    return Call(run, (0, 1))


def _grid_sample(node: Node) -> Call:
    modes = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest", "cubic": "bicubic", "bicubic": "bicubic"}
    mode, padding = modes[node.string("mode", "linear")], node.string("padding_mode", "zeros")
    return Call(partial(F.grid_sample, mode=mode, padding_mode=padding, align_corners=bool(node.int("align_corners", 0))))


GATHERS: dict[str, Builder] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "GridSample": _grid_sample,
    "OneHot": _one_hot,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
}
