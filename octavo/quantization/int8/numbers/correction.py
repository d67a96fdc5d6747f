"""One-pass bias correction: what rounding the weights shifts on average, the bias takes back.

A layer with rounded weights Wq puts out E[(Wq - W) x] too much. With the per-channel means of its FP32 input that shift is known
without running anything, and b -= (Wq - W) E[x] removes it (Nagel et al., "Data-Free Quantization Through Weight Equalization and
Bias Correction", 2019, with measured means). It costs nothing at run time. The means are those of FP32, not of the quantized
network: correcting all layers from observed INT8 means at once counts every upstream shift twice and diverges.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.calibration.statistics import Statistics
from octavo.graph.passes.qdq import forget, new_constant

__all__ = ["correct_bias", "mean_output", "mean_shift", "weight_codes"]

# The largest code.
_LIMIT = 127
# Shares of the largest weight that `mse` tries as the end of the codes, the largest share first.
_CLIPS = np.linspace(1.0, 0.4, 61, dtype=np.float32)
# The scale of weights that are all zero: any would do for them, but biases are rounded to steps of input scale times it.
_OF_ZEROS = np.float32(2.0**-13)


def weight_codes(
    weights: np.ndarray, axis: int, *, per_channel: bool, method: str = "minmax", least: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Symmetric integer codes of weights, -127..127.

    Args:
        weights: float32.
        axis: the output channel axis.
        per_channel: one scale a channel, else one for all.
        method: `minmax`: the largest weight has the largest code. `mse`: of a grid of clipped ends, the one whose squared error
            over the channel is least; never worse than `minmax` in that.
        least: where given, the least scale that each output channel may have, float32; one for all has the largest of them.

    Returns:
        (codes, scale): whole numbers as float32 of the weights' shape, and float32 that broadcasts with them.
    """
    others = tuple(place for place in range(weights.ndim) if place != axis) if per_channel else None
    scale = (np.abs(weights).max(axis=others, keepdims=True) / np.float32(_LIMIT)).astype(np.float32)
    # Dead channels hold zeros, or weight decay's leftovers near 1e-41, whose scale would be 0: they become exact zeros.
    scale = np.where(scale < np.finfo(np.float32).tiny, _OF_ZEROS, scale)
    if method == "mse":
        scale = _least_error(weights, scale, others)
    if least is not None:
        shape = [1] * weights.ndim
        shape[axis] = -1
        scale = np.maximum(scale, least.reshape(shape) if per_channel else least.max())
    return np.clip(np.rint(weights / scale), -_LIMIT, _LIMIT), scale


def _least_error(weights: np.ndarray, scale: np.ndarray, others: tuple[int, ...] | None) -> np.ndarray:
    """Of clipped scales, the one with the least squared error in each channel; a tie keeps the larger scale."""
    best, least = scale, np.full(scale.shape, np.inf)
    for clip in _CLIPS:
        tried = np.maximum(scale * clip, np.finfo(np.float32).tiny)
        codes = np.clip(np.rint(weights / tried), -_LIMIT, _LIMIT)
        error = np.square(codes * tried - weights, dtype=np.float64).sum(axis=others, keepdims=True)
        best, least = np.where(error < least, tried, best), np.minimum(error, least)
    return best


def correct_bias(model: ir.Model, statistics: Statistics, node: ir.Node, restored: np.ndarray) -> bool:
    """Correct the bias of a Conv or Gemm in place; a missing bias is added.

    Args:
        model: the graph.
        statistics: with the per-channel means of the node's input.
        node: the layer, with its weights of FP32.
        restored: these as their codes give them back; float32 of their shape.

    Returns:
        Whether it was corrected: a layer of another form, or without means, is left as it is.
    """
    tensor = statistics.tensors.get(node.inputs[0].name or "")
    means = tensor.means() if tensor else None
    shift = mean_shift(node, restored, means) if means is not None else None
    if shift is None:
        return False
    return _subtract(model, node, shift.astype(np.float32))


def mean_shift(node: ir.Node, restored: np.ndarray, means: np.ndarray) -> np.ndarray | None:
    """E[(Wq - W) x] per output channel of a Conv or Gemm.

    Args:
        node: the layer, with constant weights.
        restored: Wq, the weights as their codes give them back; float32 of the weights' shape.
        means: E[x] per channel of the layer's input, float64.

    Returns:
        float64, one an output channel; None where the layer's form is not covered.
    """
    weights = ir.convenience.get_const_tensor(node.inputs[1]).numpy()
    return mean_output(node, restored.astype(np.float64) - weights, means)


def mean_output(node: ir.Node, weights: np.ndarray, means: np.ndarray) -> np.ndarray | None:
    """E[W x] per output channel of a Conv or Gemm, its bias left out.

    Args:
        node: the layer.
        weights: W, in place of its own; of their shape.
        means: E[x] per channel of the layer's input, float64.

    Returns:
        float64, one an output channel; None where the layer's form is not covered.
    """
    weights = weights.astype(np.float64)
    if node.op_type == "Gemm":
        attributes = {name: node.attributes[name].value for name in node.attributes}
        if attributes.get("transA", 0) or attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0:
            return None
        rows = weights if attributes.get("transB", 0) else weights.T
        return rows @ means if rows.shape[1] == means.shape[0] else None
    if node.op_type != "Conv":
        return None
    groups = node.attributes["group"].value if "group" in node.attributes else 1
    outputs, per_group = weights.shape[:2]
    if per_group * groups != means.shape[0] or outputs % groups:
        return None
    # Padding is left out: at the border some of the kernel meets zeros, which lowers the shift there a little.
    kernel_sums = weights.reshape(outputs, per_group, -1).sum(axis=2)
    mean_of = means.reshape(groups, per_group)[np.arange(outputs) // (outputs // groups)]
    return (kernel_sums * mean_of).sum(axis=1)


def _subtract(model: ir.Model, node: ir.Node, shift: np.ndarray) -> bool:
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    old = ir.convenience.get_const_tensor(bias) if bias is not None else None
    if bias is not None and old is None:
        return False
    values = (np.zeros_like(shift) if old is None else old.numpy()) - shift
    # A fresh initializer: the old one may be shared with another node.
    node.resize_inputs(3)
    node.replace_input_with(2, new_constant(model, f"{node.name}.corrected_bias", values))
    forget(model, bias)
    return True
