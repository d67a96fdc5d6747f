"""Integer codes of a layer's weights, and its bias, as the file stores them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.kernels.bias_codes import MOST
from octavo.graph.passes.qdq import constant_of
from octavo.quantization.int8.numbers.correction import weight_codes
from octavo.quantization.int8.numbers.qparams import QParams

__all__ = ["Codes", "bias_of", "channel_axis", "codes_of", "weights_of"]


@dataclass
class Codes:
    """What replaces a layer's float weights.

    Attributes:
        codes: int8, of the weights' shape.
        scale: float32, one a channel of `axis` (or one in all).
        axis: the output channel axis.
        bias: float32, one a channel, corrected; None where the layer has none and needs none.
    """

    codes: np.ndarray
    scale: np.ndarray
    axis: int
    bias: np.ndarray | None

    @property
    def restored(self) -> np.ndarray:
        """The weights that the codes stand for, float32."""
        return self.codes.astype(np.float32) * self.laid(self.scale)

    def laid(self, scale: np.ndarray) -> np.ndarray:
        """A scale for each channel of the axis (or one for all), so that it broadcasts with the codes."""
        shape = [1] * self.codes.ndim
        if scale.size > 1:
            shape[self.axis] = -1
        return scale.reshape(shape)

    def into_codes_of(self, output: QParams) -> Codes:
        """The same layer putting out the codes of a per-channel output: scale and zero point go into weights and bias."""
        steps = output.scale.astype(np.float32)
        bias = (0.0 if self.bias is None else self.bias) / steps + output.zero_point.astype(np.float32)
        return Codes(self.codes, (self.scale / steps).astype(np.float32), self.axis, bias.astype(np.float32))

    def with_room_for_bias(self, input_scale: float) -> Codes:
        """The same layer with scales so large that the bias fits int32 in steps of input scale times weight scale.

        Channels whose weights are nearly zero next to their bias need it: their scale would make the bias overflow.
        """
        if self.bias is None:
            return self
        least = np.abs(self.bias.astype(np.float64)) / (float(input_scale) * MOST)
        if self.scale.size == 1:
            least = least.max(keepdims=True)
        if (self.scale >= least).all():
            return self
        scale = np.maximum(self.scale, least).astype(np.float32)
        codes = np.clip(np.rint(self.restored / self.laid(scale)), -127, 127).astype(np.int8)
        return Codes(codes, scale, self.axis, self.bias)


def channel_axis(node: ir.Node) -> int:
    """The axis of a weighted node's constant input that counts output channels."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "ConvTranspose":
        # Weights are (in, out, ...), and of depthwise ones (out, 1, ...).
        return 1 if node.inputs[1].shape[1] > 1 else 0
    transposed = node.op_type == "Gemm" and "transB" in node.attributes and node.attributes["transB"].as_int()
    return 0 if transposed else 1


def weights_of(node: ir.Node) -> np.ndarray:
    """A weighted node's weights, float32."""
    return ir.convenience.get_const_tensor(node.inputs[1]).numpy()


def bias_of(node: ir.Node) -> np.ndarray | None:
    """A weighted node's constant bias as a vector, or None."""
    bias = constant_of(node.inputs[2]) if len(node.inputs) > 2 else None
    return None if bias is None else bias.reshape(-1)


def codes_of(node: ir.Node, *, per_channel: bool, method: str = "minmax", least: np.ndarray | None = None) -> Codes:
    """Rounded to nearest, bias untouched; arguments as in `weight_codes`."""
    weights, axis = weights_of(node), channel_axis(node)
    codes, scale = weight_codes(weights, axis, per_channel=per_channel, method=method, least=least)
    return Codes(codes.astype(np.int8), scale.reshape(-1), axis, bias_of(node))
