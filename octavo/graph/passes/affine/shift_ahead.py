"""Constant shifts of channels go on to the layers that read them, behind pools that keep the largest value."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.graph.nodes import only_reader
from octavo.graph.passes.affine.frozen_norm import BENDS
from octavo.graph.passes.arithmetic import is_op
from octavo.graph.passes.folding import affine_of, bypass, foldable, into
from octavo.graph.passes.node_pass import GraphPass
from octavo.graph.passes.qdq import constant_of, forget, new_constant

__all__ = ["ShiftAheadPass"]

_IMAGES = 4
# What gives the largest of values, and so of values that are all shifted alike.
_POOLS = frozenset({"GlobalMaxPool", "MaxPool"})
# What may make vectors [n, values] of images.
_FLATTENS = frozenset({"Flatten", "Reshape", "Squeeze"})


class ShiftAheadPass(GraphPass):
    """Rewrite `Conv(MaxPool(x + b), w)` as `Conv(MaxPool(x), w)` with another bias, b a number for each channel.

    A norm behind a ReLU (layer, ReLU, norm, pool, as many networks of Keras have it) is factors, which the layer before the ReLU
    takes in (`FoldScalePass`), and shifts, which it cannot: they were a float sum of the largest maps there are, between integer
    layers, and made the pool behind them float, too.

    1. `Add` or `Sub` of a finite float32 constant, one number a channel, and images [n, channels, height, width], or vectors, that
       an activation or a pool makes (what prepares the graph's own image stays). Or a BatchNormalization behind a Relu
       that alone reads a layer (`folding.foldable`): that one takes its factors, all above 0, and its shift goes on, where rule 3
       finds who takes it.
    2. It goes behind MaxPool (without indices) and GlobalMaxPool, whatever these pad, and behind Transpose and what makes vectors
       [n, values] of images of known size, where each alone reads what is before it.
    3. All that reads the result are layers with constant weights and bias that pad nothing, or multiply such vectors: their biases
       take it. Others, that pad zeros which are not shifted, leave it behind the last pool, where maps are smaller.

    Tensors that hold other values than before have names of their own; all others keep theirs. Exact up to float rounding.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite in place; `modified` says whether a shift moved."""
        found = [self._moved(model, node) for node in list(model.graph) if node.domain in ("", "ai.onnx")]
        return ir.passes.PassResult(model, any(found))

    def _moved(self, model: ir.Model, node: ir.Node) -> bool:
        if node.op_type == "BatchNormalization":
            return _parted(model, node)
        for place, value in enumerate(node.inputs) if node.op_type in ("Add", "Sub") else ():
            shift = _shift_of(node, place)
            if shift is not None:
                return _moved(model, node, value, shift)
        return False


def _shift_of(node: ir.Node, place: int) -> np.ndarray | None:
    """What a node adds to each channel of one of its inputs, float64 [channels]; None where it does another thing."""
    value = node.inputs[place]
    if value is None or value.producer() is None or value.producer().op_type not in BENDS:
        return None
    if value.shape is None or len(value.shape) not in (2, _IMAGES) or not isinstance(value.shape[1], int):
        return None
    found = affine_of(node, place, value.shape[1], len(value.shape))
    return None if found is None or (found[0] != 1).any() else found[1]


def _parted(model: ir.Model, norm: ir.Node) -> bool:
    """Of a norm behind a Relu: its factors to the layer before, its shift to the layers behind."""
    cut = norm.inputs[0].producer()
    if not is_op(cut, "Relu") or only_reader(cut.outputs[0]) is not norm or not foldable(model, cut.inputs[0]):
        return False
    numbers = [constant_of(value) for value in norm.inputs[1:5]]
    used = [value for value in norm.outputs if value.is_graph_output() or list(value.uses())]
    if any(one is None or one.dtype != np.float32 for one in numbers) or used != [norm.outputs[0]] or norm.outputs[0].shape is None:
        return False
    gain, shift, mean, variance = (one.astype(np.float64) for one in numbers)
    scale = gain / np.sqrt(variance + norm.attributes.get_float("epsilon", 1e-5))
    way = _way(norm.outputs[0], shift - mean * scale)
    if norm.attributes.get_int("training_mode", 0) or not way.takers or not (np.isfinite(scale) & (scale > 0)).all():
        return False
    made = cut.inputs[0]
    into(model, made.producer(), scale, np.zeros(len(scale)))
    # Both have other values now than calibration saw of them.
    made.name, cut.outputs[0].name = f"{made.name}.scaled", f"{cut.outputs[0].name}.scaled"
    _take(model, norm, cut.outputs[0], way)
    return True


def _moved(model: ir.Model, node: ir.Node, value: ir.Value, shift: np.ndarray) -> bool:
    way = _way(node.outputs[0], shift)
    if way.takers:
        _take(model, node, value, way)
        return True
    pools = [place for place, one in enumerate(way.path, 1) if one.op_type in _POOLS and way.images[place - 1]]
    if not pools:
        return False
    _behind(model, node, value, way.path[: pools[-1]], shift)
    return True


@dataclass(frozen=True)
class _Way:
    """Where a shift goes.

    Attributes:
        path: the nodes that it goes behind.
        images: of each, whether what it puts out has the axes of an image.
        added: what comes to the last of their outputs, float64 with as many axes.
        takers: the layers that take it there; none where one of the readers takes nothing.
    """

    path: list[ir.Node]
    images: list[bool]
    added: np.ndarray
    takers: list[ir.Node]


def _way(value: ir.Value, shift: np.ndarray) -> _Way:
    path, images, turned = [], [], False
    added = shift.reshape(1, -1, *[1] * (len(value.shape) - 2))
    while (node := only_reader(value)) is not None and (behind := _behind_one(node, added, turned)) is not None:
        added, turned = behind, turned or node.op_type not in _POOLS
        path.append(node)
        images.append(not turned)
        value = node.outputs[0]
    readers = list(dict.fromkeys(use.node for use in value.uses()))
    takes = not value.is_graph_output() and all(_takes_in(node, value, added, turned) for node in readers)
    return _Way(path, images, added, readers if takes else [])


def _behind_one(node: ir.Node, added: np.ndarray, turned: bool) -> np.ndarray | None:
    """What is added to all that a node puts out where that much is added to what it reads; None where no one can say."""
    if node.domain not in ("", "ai.onnx") or len(node.outputs) != 1:
        return None
    if node.op_type in _POOLS:
        return None if turned else added
    if node.op_type == "Transpose" and added.ndim == _IMAGES:
        perm = node.attributes.get_ints("perm", ())
        return added.transpose(perm) if perm else None
    before, behind = node.inputs[0].shape, node.outputs[0].shape
    if node.op_type not in _FLATTENS or added.ndim != _IMAGES or before is None or behind is None or len(behind) != 2:
        return None
    sizes = list(before[1:])
    if not all(isinstance(size, int) for size in sizes) or behind[1] != math.prod(sizes):
        return None
    return np.broadcast_to(added, [1, *sizes]).reshape(1, -1)


def _takes_in(node: ir.Node, value: ir.Value, added: np.ndarray, turned: bool) -> bool:
    """Whether a layer's bias can hold what a shift of all that it reads does to its output."""
    if node.domain not in ("", "ai.onnx") or node.inputs[0] is not value or node.op_type not in ("Conv", "Gemm", "MatMul"):
        return False
    if any(one is not None and (constant_of(one) is None or constant_of(one).dtype != np.float32) for one in node.inputs[1:]):
        return False
    settings = node.attributes
    if node.op_type == "Conv":
        unpadded = not any(settings.get_ints("pads", ())) and settings.get_string("auto_pad", "NOTSET") in ("NOTSET", "VALID")
        return unpadded and not turned and added.ndim == _IMAGES
    plain = settings.get_float("alpha", 1.0) == settings.get_float("beta", 1.0) == 1.0 and not settings.get_int("transA", 0)
    bias = constant_of(node.inputs[2]) if len(node.inputs) > 2 else None
    rows = bias is not None and any(size != 1 for size in bias.shape[:-1])
    return plain and not rows and added.ndim == constant_of(node.inputs[1]).ndim == 2


def _take(model: ir.Model, node: ir.Node, value: ir.Value, way: _Way) -> None:
    """Give a shift to the layers that take it; what is between has the values that it had before them."""
    for layer in way.takers:
        moved = _through(layer, way.added.reshape(-1))
        into(model, layer, np.ones(len(moved)), moved)
    _unshift(way.path)
    name = value.name
    bypass(model, node, value)
    value.name = name


def _behind(model: ir.Model, node: ir.Node, value: ir.Value, path: list[ir.Node], shift: np.ndarray) -> None:
    """Add a shift behind the last of these nodes."""
    last, name = path[-1].outputs[0], path[-1].outputs[0].name
    _unshift(path)
    constant = new_constant(model, f"{node.name}.shift", shift.astype(np.float32).reshape(1, -1, 1, 1))
    # What is decided for it is told by its name.
    added = ir.node("Add", [last, constant], name=node.name)
    new = added.outputs[0]
    new.dtype, new.shape = last.dtype, last.shape
    ir.convenience.replace_all_uses_with(last, new, replace_graph_outputs=True)
    added.replace_input_with(0, last)
    new.name = name
    model.graph.insert_after(path[-1], added)
    before = list(node.inputs)
    ir.convenience.replace_all_uses_with(node.outputs[0], value)
    model.graph.remove(node, safe=True)
    for one in before:
        forget(model, one)


def _unshift(path: list[ir.Node]) -> None:
    for one in path:
        one.outputs[0].name = f"{one.outputs[0].name}.unshifted"


def _through(layer: ir.Node, shift: np.ndarray) -> np.ndarray:
    """What a shift of a layer's input does to each of its output channels, float64."""
    weights = constant_of(layer.inputs[1]).astype(np.float64)
    if layer.op_type == "Conv":
        groups = layer.attributes.get_int("group", 1)
        each = weights.sum(axis=(2, 3)).reshape(groups, -1, weights.shape[1])
        return np.einsum("goi,gi->go", each, shift.reshape(groups, -1)).reshape(-1)
    return (weights if layer.attributes.get_int("transB", 0) else weights.T) @ shift
