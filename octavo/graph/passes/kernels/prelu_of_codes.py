"""PRelu of uint8 codes, in integers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import Quantized, between, constant_of, forget, new_constant, shape_of_codes

__all__ = ["PReluOfCodesPass", "slope_codes"]


def slope_codes(slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slopes as int8 weights of a depthwise 1x1 Conv: code 127 or -127 of a scale of its own each, and so exact.

    `per_channel: false` is not for them: one scale for all would round them. An output is one product, 255 times 127 at most; what
    saturates on x86 without VNNI is the int16 sum of two.

    Args:
        slopes: float32 [channels].

    Returns:
        Codes [channels, 1, 1, 1] and scales [channels].
    """
    scale = np.where(slopes == 0, np.float32(1), np.abs(slopes) / np.float32(127)).astype(np.float32)
    return (np.sign(slopes) * 127).astype(np.int8).reshape(-1, 1, 1, 1), scale


class PReluOfCodesPass(NodePass):
    """Rewrite `Q(PRelu(DQ(x), s))` as Max(codes of x, codes of s x), the product by a depthwise 1x1 Conv.

    ONNX Runtime has no integer PRelu, and its float one costs 2.7 ns an element, a uint8 Max 0.03.

    1. Q and DQ have the same uint8 scale and zero point.
    2. s is constant and has one value a channel, or one in all, none above 1: then s x is the larger one where x is negative.
    3. x is 4-D with known channels.

    The same codes, but where s x lies halfway between two.
    """

    op_type = "PRelu"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        found, slopes = between(node), constant_of(node.inputs[1])
        if found is None or not found[0].is_alike(found[1]) or slopes is None or slopes.dtype != np.float32 or slopes.max() > 1:
            return False
        before, after = found
        shape = shape_of_codes(before.codes)
        if shape is None or len(shape) != 4 or not isinstance(shape[1], int):
            return False
        if slopes.size != 1 and not (slopes.size == shape[1] and slopes.ndim >= 3 and slopes.shape[-3] == shape[1]):
            return False
        made = _made(model, node, before, after, np.broadcast_to(slopes.reshape(-1), shape[1]))
        constant = node.inputs[1]
        take_place(model, [after, node], made, after.outputs[0], made[-1].outputs[0])
        forget(model, constant)
        return True


def _made(model: ir.Model, node: ir.Node, before: Quantized, after: ir.Node, slopes: np.ndarray) -> list[ir.Node]:
    codes, scale = slope_codes(slopes)
    name = f"{node.name}.slope_codes"
    constants = [
        new_constant(model, f"{name}{what}", array)
        for what, array in (("", codes), (".scale", scale), (".zero", np.zeros(len(scale), np.int8)))
    ]
    weights = ir.node("DequantizeLinear", constants, {"axis": 0}, name=f"{name}.DQ")
    read = ir.node("DequantizeLinear", before.node.inputs, name=f"{node.name}.read")
    settings = {"group": len(slopes), "kernel_shape": [1, 1]}
    conv = ir.node("Conv", [read.outputs[0], weights.outputs[0]], settings, name=node.name)
    sloped = ir.node("QuantizeLinear", [conv.outputs[0], *after.inputs[1:]], name=f"{node.name}.sloped")
    largest = ir.node("Max", [before.codes, sloped.outputs[0]], name=f"{node.name}.Max")
    made = [read, weights, conv, sloped]
    for each in made:
        each.outputs[0].name = f"{each.name}.out"
    return [*made, largest]
