"""Resize: torch's own interpolation where it is the same, else the same weights applied along one axis after the other."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from octavo.sources.onnx_operators.node import Builder, Call, Node, Unsupported

__all__ = ["RESIZE", "coordinates", "nearest"]

LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}
# Where an output pixel lies in the input: ONNX's names.
COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric")


def coordinates(where: str, before: int, after: int, scale: float) -> np.ndarray:
    """Where each of `after` output pixels lies on an axis of `before` input pixels; ONNX's `coordinate_transformation_mode`.

    Args:
        scale: output length by input length, as the graph gives it; `after` is its product with `before`, rounded down.

    Returns:
        [after] float64.
    """
    places = np.arange(after, dtype=np.float64)
    if where == "asymmetric":
        return places / scale
    if where == "align_corners":
        return places * ((before - 1) / (after - 1)) if after > 1 else places * 0
    if where == "pytorch_half_pixel" and after == 1:
        return places * 0
    found = (places + 0.5) / scale - 0.5
    if where == "half_pixel_symmetric":
        found += before / 2 * (1 - after / (scale * before))
    return found


def nearest(where: np.ndarray, rule: str, before: int) -> np.ndarray:
    """The input pixel that each output pixel takes; ONNX's `nearest_mode`."""
    # ONNX Runtime computes these in float32: a place between two pixels is one there only.
    where = where.astype(np.float32)
    rounded = {
        "round_prefer_floor": np.ceil(where - np.float32(0.5)),
        "round_prefer_ceil": np.floor(where + np.float32(0.5)),
        "floor": np.floor(where),
        "ceil": np.ceil(where),
    }[rule]
    return rounded.astype(np.int64).clip(0, before - 1)


def _resize(node: Node) -> Call:
    mode = node.string("mode", "nearest")
    where = node.string("coordinate_transformation_mode", "half_pixel")
    rule, axes = node.string("nearest_mode", "round_prefer_floor"), node.ints("axes")
    refused = {
        f"`mode` {mode}": mode not in ("nearest", "linear", "cubic"),
        f"`coordinate_transformation_mode` {where}": where not in COORDINATES,
        "`antialias`": bool(node.int("antialias", 0)),
        "`keep_aspect_ratio_policy`": node.string("keep_aspect_ratio_policy", "stretch") != "stretch",
        f"`mode` cubic with `coordinate_transformation_mode` {where}": mode == "cubic"
        and where not in ("half_pixel", "align_corners"),
        "`mode` cubic with `cubic_coeff_a` other than -0.75": mode == "cubic"
        and abs(node.float("cubic_coeff_a", -0.75) + 0.75) > 1e-6,
        "`mode` cubic with `exclude_outside`": mode == "cubic" and bool(node.int("exclude_outside", 0)),
    }
    if any(refused.values()):
        raise Unsupported(", ".join(reason for reason, holds in refused.items() if holds))
    by_scale = node.has(2)

    def run(value: torch.Tensor, scales: np.ndarray | None = None, sizes: np.ndarray | None = None) -> torch.Tensor:
        chosen = list(range(value.dim())) if axes is None else [axis % value.dim() for axis in axes]
        given = (scales if by_scale else sizes).tolist()
        new = {}
        for axis, number in zip(chosen, given, strict=True):
            if axis == 0 and not by_scale and number == 1:
                continue  # the batch of a graph that was exported with one image
            before = value.shape[axis]
            if by_scale and number != 1:
                new[axis] = (
                    int(np.floor(np.float32(before) * np.float32(number))) if isinstance(before, int) else None,
                    float(number),
                )
            elif not by_scale and (isinstance(number, int) or axis > 1) and number is not before and number != before:
                new[axis] = (number, number / before)
        if not new:
            return value
        if any(not isinstance(size, int) for axis, (length, _) in new.items() for size in (length, value.shape[axis])):
            return _open(value, new, mode, where, rule)
        return {"nearest": _nearest, "linear": _linear, "cubic": _cubic}[mode](value, new, where, rule)

    return Call(run, (0, 2, 3))


# Of each axis that changes: its new length, None where that is an open length times a scale; and the scale.
New = dict[int, tuple[int | torch.SymInt | None, float]]


def _spatial(value: torch.Tensor, new: New) -> list[int] | None:
    """The new lengths of all axes behind batch and channels, where only these change."""
    if min(new) < 2 or value.dim() not in LINEAR:
        return None
    return [new[axis][0] if axis in new else value.shape[axis] for axis in range(2, value.dim())]


def _open(value: torch.Tensor, new: New, mode: str, where: str, rule: str) -> torch.Tensor:
    """Of an image whose height or width is a symbol: what torch computes by itself."""
    lengths = _spatial(value, new)
    whole = all(length is None and scale.is_integer() for length, scale in new.values())
    alike = {
        # At a whole scale all take the pixel that the output pixel lies in, and no tie is met.
        "nearest": (where, rule) == ("asymmetric", "floor") or (whole and where == "half_pixel" and "prefer" in rule),
        "linear": where in ("half_pixel", "pytorch_half_pixel"),
        "cubic": False,
    }
    if lengths is None or not alike[mode]:
        raise Unsupported(f"`mode` {mode} with {where} of an image whose size is open")
    options = {} if mode == "nearest" else {"mode": LINEAR[value.dim()], "align_corners": False}
    if None not in lengths:
        return F.interpolate(value, size=lengths, **options)
    scales = [new[axis][1] if axis in new else 1.0 for axis in range(2, value.dim())]
    return F.interpolate(value, scale_factor=scales, recompute_scale_factor=False, **options)


def _nearest(value: torch.Tensor, new: New, where: str, rule: str) -> torch.Tensor:
    lengths = _spatial(value, new)
    taken = {
        axis: nearest(coordinates(where, value.shape[axis], length, scale), rule, value.shape[axis])
        for axis, (length, scale) in new.items()
    }
    for mode, shift in (("nearest", 0.0), ("nearest-exact", 0.5)):
        if lengths is not None and all(
            np.array_equal(places, np.floor((np.arange(len(places)) + shift) * (value.shape[axis] / len(places))))
            for axis, places in taken.items()
        ):
            return F.interpolate(value, size=lengths, mode=mode)
    for axis, places in taken.items():
        value = value.index_select(axis, torch.tensor(places.tolist(), device=value.device))
    return value


def _whole(value: torch.Tensor, new: New) -> bool:
    """Whether each new length is the old one times its scale, so that torch's scale is the graph's."""
    return all(abs(length - scale * value.shape[axis]) < 1e-6 for axis, (length, scale) in new.items())


def _linear(value: torch.Tensor, new: New, where: str, rule: str) -> torch.Tensor:  # noqa: ARG001
    lengths = _spatial(value, new)
    if lengths is not None:
        if where == "align_corners":
            return F.interpolate(value, size=lengths, mode=LINEAR[value.dim()], align_corners=True)
        # torch places a single output pixel in the middle, ONNX's pytorch_half_pixel at the start.
        middle = where in ("half_pixel", "half_pixel_symmetric") or all(length > 1 for length, _ in new.values())
        if where != "asymmetric" and middle and _whole(value, new):
            return F.interpolate(value, size=lengths, mode=LINEAR[value.dim()], align_corners=False)
    for axis, (length, scale) in new.items():
        value = _along(value, axis, coordinates(where, value.shape[axis], length, scale))
    return value


def _cubic(value: torch.Tensor, new: New, where: str, rule: str) -> torch.Tensor:  # noqa: ARG001
    lengths = _spatial(value, new)
    if lengths is None or value.dim() != 4 or not (where == "align_corners" or _whole(value, new)):
        raise Unsupported("`mode` cubic of other than the two axes of an image, or to other than a whole number of pixels")
    return F.interpolate(value, size=lengths, mode="bicubic", align_corners=where == "align_corners")


def _along(value: torch.Tensor, axis: int, where: np.ndarray) -> torch.Tensor:
    """Linear interpolation on one axis, between the pixels around each place."""
    last = value.shape[axis] - 1
    where = where.clip(0, last)
    first = np.floor(where).astype(np.int64)
    shape = [1] * value.dim()
    shape[axis] = len(where)
    share = torch.tensor((where - first).tolist(), dtype=value.dtype, device=value.device).reshape(shape)
    low, high = (
        value.index_select(axis, torch.tensor(places.tolist(), device=value.device))
        for places in (first, np.minimum(first + 1, last))
    )
    return low + (high - low) * share


RESIZE: dict[str, Builder] = {"Resize": _resize}
