"""Layers with weights: convolutions, matrix products, normalizations, PRelu. They become torch's own modules wherever these fit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import onnx_ir as ir
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from octavo.sources.onnx_operators.node import Builder, Call, Node, Unsupported, constant_of, tensor_of
from octavo.sources.onnx_operators.windows import pads_of

__all__ = ["LAYERS"]

# One, two or three spatial axes.
CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
CONV_TRANSPOSE = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
INSTANCE_NORM = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
ZERO_PAD = (nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d)
BATCH_NORM = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
# A module made here gets its weights from the graph; no others are made before.
NOWHERE = {"device": "meta"}


class Cropped(nn.Module):
    """A module whose output loses some of its border.

    Args:
        module: gives [N, C, ...].
        begin: elements to take off at the start of each spatial axis.
        end: and at its end.
    """

    def __init__(self, module: nn.Module, begin: Sequence[int], end: Sequence[int]) -> None:
        super().__init__()
        self.module = module
        self.borders = list(zip(begin, end, strict=True))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """[N, C, ...] to [N, C', ...]."""
        image = self.module(image)
        cut = [slice(first, image.shape[axis] - last) for axis, (first, last) in enumerate(self.borders, 2)]
        return image[(slice(None), slice(None), *cut)]


class Transposed(nn.Module):
    """A module that reads the transpose of its matrix."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, matrix: torch.Tensor) -> torch.Tensor:
        """[K, N] to what the module makes of [N, K]."""
        return self.module(matrix.t())


def _one_of(modules: Sequence[type[nn.Module]], spatial: int) -> type[nn.Module]:
    if not 1 <= spatial <= len(modules):
        raise Unsupported(f"it has {spatial} spatial axes")
    return modules[spatial - 1]


def _with_weights(module: nn.Module, node: Node, bias: int | None) -> nn.Module:
    module.weight = node.parameter(1)
    if bias is not None:
        node.weight(bias, "bias")
        module.bias = node.parameter(bias)
    return module


def conv(node: Node) -> Call:
    """Conv: padded by itself where both ends of each axis get the same, else by a module before it."""
    shape = node.weight(1).shape
    spatial = len(shape) - 2
    ones = [1] * spatial
    strides, dilations, groups = node.ints("strides", ones), node.ints("dilations", ones), node.int("group", 1)
    begin, end = pads_of(node, shape[2:], strides, dilations)
    module = _one_of(CONV, spatial)(
        shape[1] * groups,
        shape[0],
        tuple(shape[2:]),
        stride=tuple(strides),
        padding=tuple(begin) if begin == end else 0,
        dilation=tuple(dilations),
        groups=groups,
        bias=node.has(2),
        **NOWHERE,
    )
    _with_weights(module, node, 2 if node.has(2) else None)
    if begin != end:
        module = nn.Sequential(ZERO_PAD[spatial - 1](_last_axis_first(begin, end)), module)
    return Call(module, (0,))


def _last_axis_first(begin: Sequence[int], end: Sequence[int]) -> tuple[int, ...]:
    return tuple(length for pair in reversed(list(zip(begin, end, strict=True))) for length in pair)


def conv_transpose(node: Node) -> Call:
    """ConvTranspose: what lies outside the output is computed and cut off where its two ends differ."""
    shape = node.weight(1).shape
    spatial = len(shape) - 2
    ones = [1] * spatial
    strides, dilations, groups = node.ints("strides", ones), node.ints("dilations", ones), node.int("group", 1)
    extra = node.ints("output_padding", [0] * spatial)
    begin, end = _transposed_pads(node, [(k - 1) * d + 1 for k, d in zip(shape[2:], dilations, strict=True)], strides, extra)
    # torch makes no padding behind that is wider than a stride; it is zero (and the bias), as here.
    module = _one_of(CONV_TRANSPOSE, spatial)(
        shape[0],
        shape[1] * groups,
        tuple(shape[2:]),
        stride=tuple(strides),
        padding=tuple(begin) if begin == end else 0,
        output_padding=tuple(extra),
        groups=groups,
        bias=node.has(2),
        dilation=tuple(dilations),
        **NOWHERE,
    )
    _with_weights(module, node, 2 if node.has(2) else None)
    return Call(module if begin == end else Cropped(module, begin, end), (0,))


def _transposed_pads(
    node: Node, extents: Sequence[int], strides: Sequence[int], extra: Sequence[int]
) -> tuple[list[int], list[int]]:
    """What is cut off at both ends, after ONNX's rule for `output_shape` and for `auto_pad`."""
    spatial, auto = len(extents), node.string("auto_pad", "NOTSET")
    wanted = node.ints("output_shape")
    if wanted is None and auto in ("NOTSET", "VALID"):
        pads = node.ints("pads", [0] * 2 * spatial) if auto == "NOTSET" else [0] * 2 * spatial
        return pads[:spatial], pads[spatial:]
    known = (node.shape(0) or [None] * (spatial + 2))[2:]
    if wanted is None:
        # SAME: stride times as large as the input, whose own size cancels out.
        totals = [extent - stride + more for extent, stride, more in zip(extents, strides, extra, strict=True)]
    elif None in known:
        raise Unsupported("`output_shape` with an image of unknown size")
    else:
        totals = [
            stride * (length - 1) + more + extent - target
            for length, extent, stride, more, target in zip(known, extents, strides, extra, wanted[-spatial:], strict=True)
        ]
    if min(totals) < 0:
        raise Unsupported("an output larger than what its kernel reaches")
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return (small, large) if auto == "SAME_UPPER" else (large, small)


def gemm(node: Node) -> Call:
    """Gemm: a Linear where the second matrix and the bias are constants, as they are in a classifier."""
    alpha, beta = node.float("alpha", 1.0), node.float("beta", 1.0)
    turned, turned_b = bool(node.int("transA", 0)), bool(node.int("transB", 0))
    b, c = node.constant(1), node.constant(2)
    biases = [] if b is None else [(), (1,), (1, 1), _outputs(b, turned_b), (1, *_outputs(b, turned_b))]
    if b is None or (node.has(2) and (c is None or c.shape not in biases)):

        def run(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None) -> torch.Tensor:
            product = torch.matmul(a.t() if turned else a, b.t() if turned_b else b) * alpha
            return product if c is None else product + c * beta

        return Call(run, (0, 1, 2), trained=(1, 2))
    out = _outputs(b, turned_b)[0]
    module: nn.Module = nn.Linear(b.size // out, out, bias=node.has(2), **NOWHERE)
    module.weight = node.parameter(1, scale=alpha, transposed=not turned_b)
    if node.has(2):
        module.bias = node.parameter(2, scale=beta, shape=(out,))
    return Call(Transposed(module) if turned else module, (0,))


def _outputs(matrix: np.ndarray, turned: bool) -> tuple[int]:
    return (matrix.shape[0 if turned else 1],)


def matmul(node: Node) -> Call:
    """MatMul: a Linear where the second operand is a matrix of weights, with the Add behind it as its bias."""
    b = node.constant(1)
    if b is None or b.ndim != 2:
        return Call(torch.matmul, trained=(0, 1))
    add, bias = _bias_behind(node, b.shape[1])
    module = nn.Linear(b.shape[0], b.shape[1], bias=bias is not None, **NOWHERE)
    module.weight = node.parameter(1, transposed=True)
    if bias is not None:
        module.bias = node.beside(add).parameter(bias, shape=(b.shape[1],))
    return Call(module, (0,), absorbs=add)


def _bias_behind(node: Node, length: int) -> tuple[ir.Node | None, int | None]:
    """The Add of a constant vector that alone reads the product, and the constant's position."""
    product = node.node.outputs[0]
    uses = list(product.uses())
    if len(uses) != 1 or product.is_graph_output():
        return None, None
    add = uses[0].node
    if add.op_type != "Add" or add.domain != "" or add.graph is not node.node.graph:
        return None, None
    place = 1 - uses[0].idx
    bias = constant_of(add.inputs[place])
    return (add, place) if bias is not None and bias.shape == (length,) else (None, None)


def batch_norm(node: Node) -> Call:
    """BatchNormalization with the statistics of training, which a constant network computes with."""
    if node.int("training_mode", 0):
        raise Unsupported("it stands in training mode")
    scale, _, mean, variance = (node.weight(place, "scale, bias or statistics") for place in range(1, 5))
    shape = node.shape(0)
    module_type = BATCH_NORM.get(4 if shape is None else len(shape))
    if module_type is None:
        raise Unsupported(f"its input has {len(shape or ())} dimensions")
    module = module_type(len(scale), eps=node.float("epsilon", 1e-5), momentum=1 - node.float("momentum", 0.9), **NOWHERE)
    module.weight, module.bias = node.parameter(1), node.parameter(2)
    module.running_mean, module.running_var = tensor_of(mean), tensor_of(variance)
    module.num_batches_tracked = torch.tensor(0)
    return Call(module, (0,))


def instance_norm(node: Node) -> Call:
    """InstanceNormalization."""
    channels = len(node.weight(1, "scale"))
    module = _one_of(INSTANCE_NORM, node.rank() - 2)(channels, eps=node.float("epsilon", 1e-5), affine=True, **NOWHERE)
    return Call(_with_weights(module, node, 2), (0,))


def group_norm(node: Node) -> Call:
    """GroupNormalization: a scale for each channel (opset 21), or for each group before."""
    groups, shape = node.int("num_groups", 1), node.shape(0)
    if shape is None or shape[1] is None:
        raise Unsupported("the number of its channels is unknown")
    form = {"shape": (shape[1],)}
    scales = [node.weight(place, "scale or bias") for place in (1, 2)]
    module = nn.GroupNorm(groups, shape[1], eps=node.float("epsilon", 1e-5), **NOWHERE)
    if len(scales[0]) == shape[1]:
        module.weight, module.bias = node.parameter(1, **form), node.parameter(2, **form)
    else:
        each = shape[1] // groups
        module.weight, module.bias = (nn.Parameter(tensor_of(np.repeat(scale, each))) for scale in scales)
    return Call(module, (0,))


def layer_norm(node: Node) -> Call:
    """LayerNormalization over the last axes."""
    if node.wants(1) or node.wants(2):
        raise Unsupported("its mean or deviation is read")
    rank = node.rank()
    axis, epsilon = node.int("axis", -1) % rank, node.float("epsilon", 1e-5)
    scale = node.constant(1)
    bias = node.constant(2) if node.has(2) else scale
    if scale is None or bias is None or scale.ndim != rank - axis or bias.shape != scale.shape:
        return Call(partial(_layer_norm, axis, epsilon), (0, 1, 2), trained=(1, 2))
    module = nn.LayerNorm(scale.shape, eps=epsilon, bias=node.has(2), **NOWHERE)
    return Call(_with_weights(module, node, 2 if node.has(2) else None), (0,))


def _layer_norm(
    axis: int, epsilon: float, value: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    normal = F.layer_norm(value, value.shape[axis:], eps=epsilon) * scale
    return normal if bias is None else normal + bias


def prelu(node: Node) -> Call:
    """PRelu: torch's own where there is one slope, or one a channel; any other shape is broadcast."""
    slope = node.weight(1, "slope")
    if slope.size == 1:
        channels = 1
    else:
        # Aligned with the data at the last axis: channels are its axis 1.
        aligned = (1,) * (node.rank() - slope.ndim) + slope.shape
        channels = aligned[1] if len(aligned) > 1 and aligned[1] == slope.size else 0
    if not channels:
        return Call(_prelu, trained=(1,))
    module = nn.PReLU(channels, **NOWHERE)
    module.weight = node.parameter(1, shape=(channels,))
    return Call(module, (0,))


def _prelu(value: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    return torch.where(value < 0, value * slope, value)


LAYERS: dict[str, Builder] = {
    "BatchNormalization": batch_norm,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "Gemm": gemm,
    "GroupNormalization": group_norm,
    "InstanceNormalization": instance_norm,
    "LayerNormalization": layer_norm,
    "MatMul": matmul,
    "PRelu": prelu,
}
