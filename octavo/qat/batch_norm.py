"""Convolution and batch norm as one layer whose *folded* weights are quantized, as they will be in the file.

While batch norm follows its batches, a layer is conv(x, Q(w s)) / s with s = gamma / sqrt(running_var + eps), then normalised:
what is rounded is the weight that the file will hold (Krishnamoorthi 2018, https://arxiv.org/abs/1806.08342, section 3.2.2). With
running statistics that is conv(x, Q(w s)) + (b - mean) s + beta, and computed so: nothing of the size of an activation is touched
but by the convolution. w, b, gamma and beta are what is trained, in both forms. torchao's own rewrite of the pattern knows one eps
and one momentum; this one takes what the network has.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from octavo.qat.capture import aten, replaced

__all__ = ["add_to_bias", "fold", "folded_weight", "fuse", "grow", "norm_of", "normalise_batches", "set_folded_weight"]

# node.meta keys: of a layer's convolution; and with the layer's name, of its batch norm where that is there by itself, and of the
# nodes that make s and w s. Copies of a graph have copies of them.
_LAYER, _NORM, _SCALE, _SCALED = "octavo_layer", "octavo_norm_of", "octavo_scale_of", "octavo_scaled_of"
_CONV = (aten.conv2d.default, aten.conv1d.default, aten.conv3d.default, aten.conv2d.padding)
_BATCH_NORM = aten.batch_norm.default
# A channel that batch norm scales by less is dead; dividing by its scale would make NaN.
_DEAD = 1e-12


@dataclass(frozen=True)
class _Layer:
    """Names of the tensors of a fused layer, None for those that it has not, and batch norm's own figures."""

    name: str
    weight: str
    bias: str | None
    gamma: str | None
    beta: str | None
    mean: str
    variance: str
    momentum: float
    eps: float
    rank: int


def fuse(captured: fx.GraphModule) -> int:
    """Rewrite each convolution whose only reader is a batch norm; the graph computes what it did.

    Returns:
        How many there were.
    """
    graph, count = captured.graph, 0
    for norm in [node for node in graph.nodes if node.target is _BATCH_NORM]:
        conv = norm.args[0]
        if conv.target not in _CONV or len(conv.users) != 1 or conv.args[1].op != "get_attr":
            continue
        _, gamma, beta, mean, variance, _, momentum, eps, _ = norm.args
        bias = conv.args[2] if len(conv.args) > 2 else None
        names = [None if node is None else node.target for node in (bias, gamma, beta)]
        rank = _tensor(captured, conv.args[1].target).ndim
        with graph.inserting_before(conv):
            scale = _scale(graph, names[1], variance.target, eps)
            along = graph.call_function(aten.view.default, (scale, [-1, *([1] * (rank - 1))]))
            scaled = graph.call_function(aten.mul.Tensor, (graph.get_attr(conv.args[1].target), along))
        weight = conv.args[1].target
        conv.meta[_LAYER] = _Layer(conv.name, weight, *names, mean.target, variance.target, momentum, eps, rank)
        for key, node in ((_NORM, norm), (_SCALE, scale), (_SCALED, scaled)):
            node.meta[key] = conv.name
        conv.args = (conv.args[0], scaled, None, *conv.args[3:])
        _normalised(graph, conv, norm)
        count += 1
    normalise_batches(captured, False)
    return count


def norm_of(conv: fx.Node) -> fx.Node:
    """The last node of a layer: its batch norm where that is there by itself, else the convolution."""
    return _part(conv, _NORM) or conv


def normalise_batches(captured: fx.GraphModule, on: bool) -> None:
    """Let batch norms use and follow the statistics of each batch, or the running ones, which then stay as they are."""
    graph = captured.graph
    for conv in [node for node in graph.nodes if _LAYER in node.meta]:
        norm = _part(conv, _NORM)
        if on and norm is None:
            with graph.inserting_after(conv):
                norm = graph.call_function(_BATCH_NORM)
            norm.meta = {key: value for key, value in conv.meta.items() if key != _LAYER} | {_NORM: conv.meta[_LAYER].name}
            conv.replace_all_uses_with(norm)
            _normalised(graph, conv, norm)
        elif not on and norm is not None:
            with graph.inserting_before(conv):
                conv.args = (*conv.args[:2], _shift(conv), *conv.args[3:])
            replaced(norm, conv)
    for node in graph.nodes:
        # Batch norms that no convolution stands before.
        if node.target is _BATCH_NORM:
            node.args = (*node.args[:5], on, *node.args[6:])
    graph.eliminate_dead_code()
    captured.recompile()


@torch.no_grad()
def fold(captured: fx.GraphModule) -> None:
    """Undo `fuse` for good: each layer becomes one convolution with the folded weight and bias, by running statistics."""
    normalise_batches(captured, False)
    graph = captured.graph
    for conv in [node for node in graph.nodes if _LAYER in node.meta]:
        layer = conv.meta[_LAYER]
        variance = _tensor(captured, layer.variance)
        gamma = torch.ones_like(variance) if layer.gamma is None else _tensor(captured, layer.gamma)
        scale = gamma / torch.sqrt(variance + layer.eps)
        scale = torch.where(scale.abs() > _DEAD, scale, 0)
        weight = _tensor(captured, layer.weight)
        shift = -_tensor(captured, layer.mean)
        if layer.bias is not None:
            shift = shift + _tensor(captured, layer.bias)
        shift = shift * scale
        if layer.beta is not None:
            shift = shift + _tensor(captured, layer.beta)
        values = weight * scale.view(-1, *([1] * (layer.rank - 1))), shift
        for name, value in zip((f"{layer.name}_weight", f"{layer.name}_bias"), values, strict=True):
            parameter = torch.nn.Parameter(value.contiguous(), requires_grad=weight.requires_grad)
            captured.register_parameter(name, parameter)
        scaled = _part(conv, _SCALED)
        with graph.inserting_before(scaled):
            read = [graph.get_attr(f"{layer.name}_{part}") for part in ("weight", "bias")]
        for node, value in zip(read, values, strict=True):
            node.meta["val"] = value  # executorch's quantizer asks for shapes
        replaced(scaled, read[0])
        conv.args = (*conv.args[:2], read[1], *conv.args[3:])
        del conv.meta[_LAYER]
    graph.eliminate_dead_code()
    graph.lint()
    captured.recompile()


def folded_weight(captured: fx.GraphModule, layer: fx.Node) -> torch.Tensor | None:
    """A layer's weight with batch norm's factor in it, output channels first; None where no parameter is read."""
    if _LAYER in layer.meta:
        return (_tensor(captured, layer.meta[_LAYER].weight) * _along(captured, layer.meta[_LAYER])).detach()
    source = layer.args[1].args[0] if layer.args[1].op == "call_module" else layer.args[1]
    return _tensor(captured, source.target).detach() if source.op == "get_attr" else None


@torch.no_grad()
def set_folded_weight(captured: fx.GraphModule, layer: fx.Node, value: torch.Tensor) -> None:
    """Let `folded_weight` be this value; channels that batch norm kills stay as they are."""
    if _LAYER in layer.meta:
        along = _along(captured, layer.meta[_LAYER])
        parameter = _tensor(captured, layer.meta[_LAYER].weight)
        parameter.copy_(torch.where(along.abs() > _DEAD, value / torch.where(along == 0, 1, along), parameter))
        return
    source = layer.args[1].args[0] if layer.args[1].op == "call_module" else layer.args[1]
    _tensor(captured, source.target).copy_(value)


def _along(captured: fx.GraphModule, layer: _Layer) -> torch.Tensor:
    """S as a factor of the weight."""
    scale = torch.rsqrt(_tensor(captured, layer.variance) + layer.eps)
    if layer.gamma is not None:
        scale = scale * _tensor(captured, layer.gamma)
    return scale.detach().view(-1, *([1] * (layer.rank - 1)))


@torch.no_grad()
def add_to_bias(captured: fx.GraphModule, layer: fx.Node, shift: torch.Tensor) -> bool:
    """Move what a layer puts out.

    Args:
        captured: its graph.
        layer: the convolution or Linear.
        shift: for each output channel, behind batch norm.

    Returns:
        Whether it could be moved: it has a batch norm, or a bias of its own.
    """
    if _LAYER in layer.meta:
        names = layer.meta[_LAYER]
        mean, variance = _tensor(captured, names.mean), _tensor(captured, names.variance)
        scale = torch.rsqrt(variance + names.eps)
        if names.gamma is not None:
            scale = scale * _tensor(captured, names.gamma)
        mean.sub_(torch.where(scale.abs() > _DEAD, shift.to(mean.dtype) / scale, 0))
        return True
    bias = layer.args[2] if len(layer.args) > 2 else None
    if bias is None or bias.op != "get_attr":
        return False
    _tensor(captured, bias.target).add_(shift.to(torch.float32))
    return True


@torch.no_grad()
def grow(captured: fx.GraphModule, layer: fx.Node, made: torch.Tensor | None, read: torch.Tensor | None) -> bool:
    """Multiply what a layer puts out, and divide what it reads.

    Args:
        captured: its graph.
        layer: the convolution or Linear.
        made, read: factors of output and of input channels, positive; None changes nothing.

    Returns:
        Whether that can be done; else some of it may be done.
    """
    fused: _Layer | None = layer.meta.get(_LAYER)
    source = layer.args[1]
    if fused is None and source.op != "get_attr":
        return False
    weight = _tensor(captured, source.target if fused is None else fused.weight)
    tail = [1] * (weight.ndim - 2)
    if read is not None:
        # Of a grouped convolution's weights, each group's rows read channels of their own.
        groups = len(read) // weight.shape[1]
        weight.div_(read.to(weight).view(groups, 1, -1).expand(groups, len(weight) // groups, -1).reshape(len(weight), -1, *tail))
    if made is None:
        return True
    if fused is not None:
        if fused.gamma is None or fused.beta is None:
            return False
        scaled = [_tensor(captured, fused.gamma), _tensor(captured, fused.beta)]
    else:
        bias = layer.args[2] if len(layer.args) > 2 else None
        if bias is not None and bias.op != "get_attr":
            return False
        weight.mul_(made.to(weight).view(-1, 1, *tail))
        scaled = [] if bias is None else [_tensor(captured, bias.target)]
    for value in scaled:
        value.mul_(made.to(value))
    return True


def _scale(graph: fx.Graph, gamma: str | None, variance: str, eps: float) -> fx.Node:
    """s, and of dead channels a number so small that nothing passes."""
    deviation = graph.call_function(aten.sqrt.default, (graph.call_function(aten.add.Tensor, (graph.get_attr(variance), eps)),))
    if gamma is None:
        scale = graph.call_function(aten.reciprocal.default, (deviation,))
    else:
        scale = graph.call_function(aten.div.Tensor, (graph.get_attr(gamma), deviation))
    alive = graph.call_function(aten.gt.Scalar, (graph.call_function(aten.abs.default, (scale,)), _DEAD))
    return graph.call_function(aten.where.ScalarOther, (alive, scale, _DEAD))


def _part(conv: fx.Node, key: str) -> fx.Node | None:
    """The node of a layer that has this key."""
    if _LAYER not in conv.meta:
        return None
    return next((node for node in conv.graph.nodes if node.meta.get(key) == conv.meta[_LAYER].name), None)


def _shift(conv: fx.Node) -> fx.Node:
    """(b - mean) s + beta."""
    graph, layer = conv.graph, conv.meta[_LAYER]
    value = graph.call_function(aten.neg.default, (graph.get_attr(layer.mean),))
    if layer.bias is not None:
        value = graph.call_function(aten.add.Tensor, (value, graph.get_attr(layer.bias)))
    value = graph.call_function(aten.mul.Tensor, (value, _part(conv, _SCALE)))
    if layer.beta is not None:
        value = graph.call_function(aten.add.Tensor, (value, graph.get_attr(layer.beta)))
    return value


def _normalised(graph: fx.Graph, conv: fx.Node, norm: fx.Node) -> None:
    """Let a batch norm read conv(x, Q(w s)) / s + b."""
    layer: _Layer = conv.meta[_LAYER]
    conv.args = (*conv.args[:2], None, *conv.args[3:])
    with graph.inserting_before(norm):
        around = [1, -1, *([1] * (layer.rank - 2))]
        value = graph.call_function(aten.div.Tensor, (conv, graph.call_function(aten.view.default, (_part(conv, _SCALE), around))))
        if layer.bias is not None:
            bias = graph.call_function(aten.view.default, (graph.get_attr(layer.bias), around))
            value = graph.call_function(aten.add.Tensor, (value, bias))
        tensors = [None if name is None else graph.get_attr(name) for name in (layer.gamma, layer.beta, layer.mean, layer.variance)]
    norm.args = (value, *tensors, True, layer.momentum, layer.eps, False)


def _tensor(captured: fx.GraphModule, name: str) -> torch.Tensor:
    """What a get_attr node of this name reads."""
    owner, _, attribute = name.rpartition(".")
    return getattr(captured.get_submodule(owner), attribute)
