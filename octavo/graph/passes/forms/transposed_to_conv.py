"""A ConvTranspose becomes a Conv of the pixels that are given and a DepthToSpace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from octavo.graph.nodes import cut_behind, leads_to
from octavo.graph.operators import WEIGHTED
from octavo.graph.passes.node_pass import NodePass, SparingPass
from octavo.graph.passes.qdq import constant_of, forget, new_constant

__all__ = ["TransposedToConvPass"]

# How many products of the Conv one of the ConvTranspose may become: those with zeros that fill up its kernel are computed, too.
_WASTE = 1.8
_END = np.iinfo(np.int64).max


class TransposedToConvPass(SparingPass, NodePass):
    """Rewrite a ConvTranspose as Conv and DepthToSpace, and a Relu or Clip behind it as one behind the Conv.

    ONNX Runtime has no integer ConvTranspose. In a U-Net each stands between integer layers, in float, with a Q and a DQ.
    Each pixel that is given becomes a block of as many pixels as the stride has, a Conv's channels: pixels of one place in their
    blocks see the same part of the kernel (Shi et al., "Is the deconvolution layer the same as a convolutional layer?", 2016,
    arXiv 1609.07009). Where blocks that begin at a pixel put out need more of the pixels given than those of the kernel without
    pads, these are made, and a Slice cuts off what is too much: a kernel of 4 with stride 2 is one of 2 then, not 3.

    1. Strides are one number for height and width; no dilations. Groups are of one channel that makes one channel: the Conv has as
       many copies of x as a block has places then, each with its own part of the kernel.
    2. Weights and bias are constant, and x is 4-D; where the output's size is given, or follows from x (`auto_pad`), it is known.
    3. The Conv has at most 1.8 times the products: a kernel of 3 with stride 2 has 16 for 9, those of 2 and 4 as many.
    4. Where windows overlap or are cut, a layer comes behind: the last one of a network is float, and faster as it is.

    The Conv keeps the node's name, the last node puts out the tensor of the node's name. Exact up to the order of sums.

    Args:
        kept: names of nodes that are left alone.
    """

    op_type = "ConvTranspose"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        weights, bias = constant_of(node.inputs[1]), constant_of(node.inputs[2]) if len(node.inputs) > 2 else None
        value, made = node.inputs[0], node.outputs[0]
        axes = _axes(node, weights)
        if node.name in self.kept or axes is None or value.shape is None or (bias is None and len(node.inputs) > 2):
            return False
        if any(axis.kernel > 1 or any(axis.crop) for axis in axes) and not leads_to(node, WEIGHTED):
            return False
        side, groups = len(axes[0].taps), node.attributes.get_int("group", 1)
        blocks = _of_blocks(weights, axes, groups)
        batch, sizes = value.shape[0], [axis.size(given) for axis, given in zip(axes, value.shape[2:], strict=True)]
        nodes: list[ir.Node] = []

        def step(op_type: str, inputs: list[ir.Value], kind: str, shape: list, name: str = "", **settings: object) -> ir.Value:
            nodes.append(ir.node(op_type, inputs, settings, name=name or f"{node.name}.{kind}"))
            value = nodes[-1].outputs[0]
            value.name, value.dtype, value.shape = f"{made.name}.{kind}", made.dtype, ir.Shape(shape)
            return value

        def constant(kind: str, array: np.ndarray) -> ir.Value:
            return new_constant(model, f"{node.name}.{kind}", array)

        settings = {"kernel_shape": [axis.kernel for axis in axes], "pads": [axis.pads[end] for end in (0, 1) for axis in axes]}
        if groups > 1:
            value = step("Concat", [value] * side**2, "copies", [batch, len(blocks), *value.shape[2:]], axis=1)
            settings["group"] = len(blocks)
        biases = [constant("bias_of_blocks", np.tile(bias, side * side))] if bias is not None else []
        shape = [batch, len(blocks), *sizes]
        deep = step("Conv", [value, constant("of_blocks", blocks), *biases], "blocks", shape, node.name, **settings)
        end, cut = node, cut_behind(node)
        if cut is not None and cut.name not in self.kept:
            end = cut
            deep = step(cut.op_type, [deep, *cut.inputs[1:]], "cut_blocks", shape, cut.name, **cut.attributes)
        # ONNX Runtime takes a size of the same name for the same size.
        tall = [side * size if isinstance(size, int) else size if side == 1 else ir.SymbolicDim(None) for size in sizes]
        if side > 1:
            deep = step("DepthToSpace", [deep], "space", [batch, len(blocks) // side**2, *tall], blocksize=side, mode="DCR")
        if any(any(axis.crop) for axis in axes):
            ends = {"starts": [axis.crop[0] for axis in axes], "ends": [-axis.crop[1] or _END for axis in axes], "axes": [2, 3]}
            step(
                "Slice",
                [deep, *(constant(kind, np.array(at, np.int64)) for kind, at in ends.items())],
                "part",
                list(made.shape or []),
            )
        old, new, before = end.outputs[0], nodes[-1].outputs[0], list(node.inputs[1:])
        new.dtype, new.shape, name = old.dtype, old.shape, old.name
        ir.convenience.replace_nodes_and_values(model.graph, end, [end] + [node] * (end is not node), nodes, [old], [new])
        new.name = name
        for one in before:
            forget(model, one)
        return True


@dataclass(frozen=True)
class _Axis:
    """One axis of the Conv.

    Attributes:
        taps: of each place in a block, (place in the ConvTranspose's kernel, place in the Conv's).
        kernel: places of the Conv's.
        pads: of the Conv, at both ends.
        more: how many blocks there are more than places given.
        crop: what is cut off blocks, at both ends.
    """

    taps: tuple[tuple[tuple[int, int], ...], ...]
    kernel: int
    pads: tuple[int, int]
    more: int
    crop: tuple[int, int]

    def size(self, given: int | ir.SymbolicDim) -> int | ir.SymbolicDim:
        """How many blocks there are."""
        if isinstance(given, int):
            return given + self.more
        return given if self.more == 0 else ir.SymbolicDim(None)


def _axis(kernel: int, stride: int, pads: tuple[int, int], added: int, crop: int) -> _Axis:
    """An axis whose blocks begin `crop` places ahead of what is put out."""
    ahead = pads[0] - crop
    # Place u of block r is place `stride r + u + ahead` of what the whole kernel puts out of the whole input.
    phases = [(place + ahead) % stride for place in range(stride)]
    seen = [[(tap, (place + ahead - tap) // stride) for tap in range(first, kernel, stride)] for place, first in enumerate(phases)]
    offsets = [offset for taps in seen for _, offset in taps]
    first, last = min(offsets), max(offsets)
    beyond = kernel + added - ahead - pads[1] - stride
    more = -(-beyond // stride)
    taps = tuple(tuple((tap, offset - first) for tap, offset in taps) for taps in seen)
    return _Axis(taps, last - first + 1, (-first, more + last), more, (crop, stride * more - beyond))


def _axes(node: ir.Node, weights: np.ndarray | None) -> tuple[_Axis, _Axis] | None:
    """The Conv's two axes; None where a ConvTranspose is not to be one."""
    if weights is None or weights.dtype != np.float32 or weights.ndim != 4 or len(node.inputs[0].shape or ()) != 4:
        return None
    settings = {name: attribute.value for name, attribute in node.attributes.items()}
    strides, added = settings.get("strides") or [1, 1], settings.get("output_padding") or [0, 0]
    pads = _pads(node, settings, weights.shape[2:], strides, added)
    group = settings.get("group", 1)
    depthwise = group == weights.shape[0] and weights.shape[1] == 1
    if len(set(strides)) > 1 or pads is None or (group > 1 and not depthwise) or set(settings.get("dilations") or [1]) != {1}:
        return None
    stride = strides[0]
    found = []
    for at, kernel in enumerate(weights.shape[2:]):
        if kernel < stride:
            return None
        forms = [_axis(kernel, stride, pads[at], added[at], crop) for crop in dict.fromkeys((0, pads[at][0] % stride))]
        found.append(min(forms, key=lambda form: form.kernel))
    products = np.prod([axis.kernel * stride for axis in found]) / np.prod(weights.shape[2:])
    # A Conv takes no pads below zero.
    fits = products <= _WASTE and min(end for axis in found for end in axis.pads) >= 0
    return (found[0], found[1]) if fits else None


def _pads(
    node: ir.Node, settings: Mapping[str, Any], kernel: Sequence[int], strides: Sequence[int], added: Sequence[int]
) -> list[tuple[int, int]] | None:
    """What is cut off at both ends of height and width, as ONNX defines it; None where that depends on unknown sizes."""
    auto, size = settings.get("auto_pad", "NOTSET"), settings.get("output_shape")
    if auto in ("NOTSET", "VALID") and not size:
        given = (settings.get("pads") if auto == "NOTSET" else None) or [0] * 4
        return [(given[at], given[at + 2]) for at in (0, 1)]
    known = list(node.inputs[0].shape)[2:]
    if not all(isinstance(one, int) for one in known):
        return None
    size = size[-2:] if size else [one * stride for one, stride in zip(known, strides, strict=True)]
    totals = [strides[at] * (known[at] - 1) + added[at] + kernel[at] - size[at] for at in (0, 1)]
    if min(totals) < 0:
        return None
    halves = [(total // 2, total - total // 2) for total in totals]
    return halves if auto == "SAME_UPPER" else [(more, less) for less, more in halves]


def _of_blocks(weights: np.ndarray, axes: tuple[_Axis, _Axis], groups: int) -> np.ndarray:
    """The Conv's weights of `[n, m, kernel, kernel]`: `[s s m, n, h, w]`, of groups `[s s n, 1, h, w]`; a row is one of the block's
    places, row by row, and a channel in it.
    """
    rows, columns = axes
    each = weights.swapaxes(0, 1) if groups == 1 else weights
    made = np.zeros((len(rows.taps), len(columns.taps), *each.shape[:2], rows.kernel, columns.kernel), np.float32)
    for row, of_row in enumerate(rows.taps):
        for column, of_column in enumerate(columns.taps):
            for tap, place in of_row:
                for other, across in of_column:
                    made[row, column, :, :, place, across] = each[:, :, tap, other]
    return made.reshape(-1, *made.shape[3:])
