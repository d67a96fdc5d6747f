"""Where fake quantization goes: a PT2E Quantizer for ONNX Runtime's integer kernels on x86.

1. Conv and Linear: uint8 input, int8 symmetric weight, uint8 output behind batch norm and ReLU, which fold into the layer; float
   output of a Linear that no layer is behind.
2. Add, Mul, Cat, average pools, Sigmoid and LeakyReLU have kernels between uint8 tensors (QLinearAdd, ...), and get them where a
   layer lies behind: what only leads to the outputs is decoding (boxes, scores), where 8 bits are too few.
3. MaxPool, nearest upsampling and moves (reshape, transpose, slice, split) pass codes on: one scale on both sides. So does PReLU,
   the larger of codes and slopes times codes.
4. All else stays float; the layer behind it rounds its own input. So does what takes the mean of a distribution: box edges are
   decoded so, and the layers before it are the last ones (`octavo.quantization.int8.structure.units.is_weighted`).
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import fx
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, QuantizationSpec, Quantizer, SharedQuantizationSpec

from octavo.errors import QuantizationError
from octavo.params.patterns import matches, near
from octavo.qat.batch_norm import norm_of
from octavo.qat.capture import aten
from octavo.qat.fake_quantize import ActivationFakeQuantize, PerChannelWeightFakeQuantize, WeightFakeQuantize

__all__ = ["FOLDED", "LAYERS", "OrtQuantizer", "bounds_of"]

# Operators with weights that have an integer kernel, to the name by which `keep_float` may call them.
LAYERS = {aten.conv2d.default: "conv2d", aten.conv2d.padding: "conv2d", aten.linear.default: "linear"}
# What a layer's Q takes in, where its range begins at zero or lies inside the bounds: (least, most) of its arguments.
_BOUNDS = {
    aten.relu.default: lambda _: (0.0, None),
    aten.relu6.default: lambda _: (0.0, 6.0),
    aten.hardtanh.default: lambda bounds: (*bounds, *(-1.0, 1.0)[len(bounds) :]),
    aten.clamp.default: lambda bounds: (*bounds, *(None, None)[len(bounds) :]),
    aten.clamp_min.default: lambda bounds: (bounds[0], None),
}
FOLDED = tuple(_BOUNDS)
_ADDS = (aten.add.Tensor, aten.mul.Tensor)
_OWN_SCALE = (
    aten.adaptive_avg_pool2d.default,
    aten.avg_pool2d.default,
    aten.leaky_relu.default,
    aten.mean.dim,
    aten.sigmoid.default,
)
_MOVES = (
    aten.flatten.using_ints,
    aten.max_pool2d.default,
    aten.permute.default,
    aten.prelu.default,
    aten.reshape.default,
    aten.slice.Tensor,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.transpose.int,
    aten.unsqueeze.default,
    aten.upsample_nearest2d.vec,
    aten.view.default,
)
_SPLITS = (aten.chunk.default, aten.split.Tensor, aten.split_with_sizes.default)
_KEY = "quantization_annotation"
# Between a softmax and what takes the mean of it.
_ARRANGES = frozenset(
    {aten.clone.default, aten.contiguous.default, operator.getitem, *_SPLITS, *_MOVES}
    - {aten.max_pool2d.default, aten.prelu.default}
)


@dataclass
class OrtQuantizer(Quantizer):
    """uint8 activations per tensor, int8 symmetric weights.

    Args:
        per_channel: a scale for each output channel of a weight; else one for all.
        symmetric: activations around zero point 128; costs half the range behind ReLU.
        keep_float: names of layers, operators (`conv2d`, `linear`) or shell patterns that stay float.
        names: of modules, where users know them by other names: those of an ONNX graph's nodes.
    """

    per_channel: bool = True
    symmetric: bool = False
    keep_float: Collection[str] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    # Names of the layers that were annotated, and of those kept float.
    quantized: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def annotate(self, model: fx.GraphModule) -> fx.GraphModule:
        """Say of every node what is rounded at its inputs and outputs.

        Raises:
            QuantizationError: a pattern of `keep_float` names no layer, or no layer is left to quantize.
        """
        layers = [node for node in model.graph.nodes if node.target in LAYERS and not _takes_mean(node)]
        kept = self._kept(layers)
        chosen = [node for node in layers if self._name(node) not in kept]
        if not chosen:
            raise QuantizationError(
                "no layer is left to quantize in training", "take patterns out of `qat.keep_float`, or set `qat.enabled: false`"
            )
        before = _before(chosen)
        for node in model.graph.nodes:
            if node in chosen:
                self._layer(node, last=node not in before)
            elif node in before:
                self._other(node)
        self.quantized, self.kept = [self._name(node) for node in chosen], sorted(kept)
        return model

    def validate(self, model: fx.GraphModule) -> None:
        """Nothing: `annotate` refuses what cannot be."""

    def _kept(self, layers: Iterable[fx.Node]) -> set[str]:
        names = {self._name(node): LAYERS[node.target] for node in layers}
        kept: set[str] = set()
        for pattern in self.keep_float:
            found = {name for name, kind in names.items() if kind == pattern} | set(matches(pattern, names))
            if not found:
                raise QuantizationError(
                    f"`qat.keep_float` names {pattern!r}, and no layer has this name, operator or pattern",
                    near(pattern, names) or f"its layers are named like {', '.join(list(names)[:4])}",
                )
            kept |= found
        return kept

    def _name(self, node: fx.Node) -> str:
        """The module that a layer is in (`features.0.0`), which is unique but for modules that are called twice."""
        stack = node.meta.get("nn_module_stack") or {}
        path = next((name for name, _ in reversed(stack.values()) if name), node.name)
        return self.names.get(path, path)

    def _activation(self, **settings: float) -> QuantizationSpec:
        scheme = torch.per_tensor_symmetric if self.symmetric else torch.per_tensor_affine
        made = ActivationFakeQuantize.with_args(**settings) if settings else ActivationFakeQuantize
        return QuantizationSpec(torch.uint8, made, 0, 255, scheme)

    def _weight(self) -> QuantizationSpec:
        if self.per_channel:
            return QuantizationSpec(torch.int8, PerChannelWeightFakeQuantize, -127, 127, torch.per_channel_symmetric, 0)
        return QuantizationSpec(torch.int8, WeightFakeQuantize, -127, 127, torch.per_tensor_symmetric)

    def _layer(self, node: fx.Node, *, last: bool) -> None:
        inputs = {node.args[0]: self._activation(), node.args[1]: self._weight()}
        if last and node.target is aten.linear.default:
            # An integer Gemm or MatMul has a float output where no Q is behind it, and no layer needs codes of this one.
            node.meta[_KEY] = QuantizationAnnotation(inputs, _annotated=True)
        else:
            self._rounded(node, norm_of(node), inputs)

    def _other(self, node: fx.Node) -> None:
        if node.target in _ADDS:
            sources = [value for value in node.args[:2] if isinstance(value, fx.Node) and _is_activation(value)]
            if len(sources) == 2:
                self._between(node, sources)
        elif node.target is aten.cat.default:
            self._between(node, list(node.args[0]))
        elif node.target in _OWN_SCALE:
            self._between(node, [node.args[0]])
        elif node.target in _MOVES:
            self._passed(node, [node])
        elif node.target in _SPLITS:
            self._passed(node, list(node.users))

    def _between(self, node: fx.Node, sources: list[fx.Node]) -> None:
        """Uint8 on both sides, each with a scale of its own."""
        self._rounded(node, node, {source: self._activation() for source in sources})

    def _rounded(self, node: fx.Node, whole: fx.Node, inputs: dict[fx.Node, QuantizationSpec]) -> None:
        """What a node reads, and what comes out of it.

        Args:
            node: the operator.
            whole: the node that it ends in: its batch norm.
            inputs: how each of its inputs is rounded.
        """
        last = _behind_relu(whole)
        node.meta[_KEY] = QuantizationAnnotation(inputs, _annotated=True)
        annotated = last.meta.setdefault(_KEY, QuantizationAnnotation(_annotated=True))
        low, high = bounds_of(last)
        bounded = not self.symmetric and low is not None and high is not None
        annotated.output_qspec = self._activation(widest=high - min(low, 0.0)) if bounded else self._activation()
        if self.symmetric and last is not whole:
            # Around zero point 128 no Q does a ReLU's work: there is one Q before it, too, of the same scale.
            before = whole.meta.setdefault(_KEY, QuantizationAnnotation(_annotated=True))
            before.output_qspec = self._activation(positive=True)
            annotated.output_qspec = SharedQuantizationSpec(whole)

    def _passed(self, node: fx.Node, results: list[fx.Node]) -> None:
        """The codes of the input come out, wherever they stand."""
        source = node.args[0]
        if not _is_activation(source):
            return
        shared = SharedQuantizationSpec((source, node))
        node.meta[_KEY] = QuantizationAnnotation({source: self._activation()}, _annotated=True)
        for result in results:
            annotation = result.meta.setdefault(_KEY, QuantizationAnnotation(_annotated=True))
            annotation.output_qspec = shared


def _takes_mean(node: fx.Node) -> bool:
    """Whether a layer makes one number of what a softmax gives."""
    source, made = node.args[0], node.meta.get("val")
    if made is None or made.shape[-1 if node.target is aten.linear.default else 1] != 1:
        return False
    while source.target in _ARRANGES:
        source = source.args[0]
    return source.target is aten.softmax.int


def _behind_relu(node: fx.Node) -> fx.Node:
    readers = list(node.users)
    return readers[0] if len(readers) == 1 and readers[0].target in FOLDED else node


def bounds_of(node: fx.Node) -> tuple[float | None, float | None]:
    """(least, most) of what an activation lets through; None where there is no bound."""
    return _BOUNDS[node.target](node.args[1:]) if node.target in _BOUNDS else (None, None)


def _before(layers: Iterable[fx.Node]) -> set[fx.Node]:
    """All nodes that one of these layers depends on by its input."""
    found: set[fx.Node] = set()
    waiting = [layer.args[0] for layer in layers]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def _is_activation(node: fx.Node) -> bool:
    """A float tensor that is no weight and depends on the input."""
    value = node.meta.get("val")
    return node.op != "get_attr" and isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim >= 2
