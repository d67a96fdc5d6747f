"""Average pooling of uint8 codes by a depthwise convolution."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import between, new_constant, shape_of_codes

__all__ = ["PoolByDepthwisePass"]


class PoolByDepthwisePass(NodePass):
    """Rewrite `Q(AveragePool(DQ(x)))` as a depthwise Conv whose weights are all 1 / (height * width) of the kernel.

    ONNX Runtime's QLinearAveragePool takes 10 to 20 ns an output element, its depthwise QLinearConv about 1 (5x5 of stride 1 on 32
    channels of 60x60: 2.6 ms and 0.27).

    1. The mean is over the whole kernel everywhere: `count_include_pad`, or no padding at all.
    2. x is a uint8 tensor of one scale, 4-D with known channels; only a QuantizeLinear of uint8 reads the pool.
    3. No `ceil_mode` and no `auto_pad`, which can make kernels that are not whole.

    Each weight is code 1, on which no kernel saturates, and its scale is exact up to rounding: codes differ only where the mean
    lies halfway between two.
    """

    op_type = "AveragePool"

    def _rewrite(self, model: ir.Model, pool: ir.Node) -> bool:
        settings = {name: attribute.value for name, attribute in pool.attributes.items()}
        found = between(pool)
        shape = shape_of_codes(found[0].codes) if found is not None else None
        if shape is None or len(shape) != 4 or not isinstance(shape[1], int):
            return False
        if settings.get("ceil_mode", 0) or settings.get("auto_pad", "NOTSET") != "NOTSET":
            return False
        if any(settings.get("pads") or [0]) and not settings.get("count_include_pad", 0):
            return False
        height, width = settings["kernel_shape"]
        channels, share = shape[1], np.float32(1 / (height * width))
        codes = new_constant(model, f"{pool.name}.share_codes", np.ones((channels, 1, height, width), np.int8))
        pair = [
            new_constant(model, f"{pool.name}.share_codes.{what}", array)
            for what, array in (("scale", share), ("zero", np.int8(0)))
        ]
        weights = ir.node("DequantizeLinear", [codes, *pair], name=f"{pool.name}.share_codes.DQ")
        weights.outputs[0].name = f"{pool.name}.share_codes.restored"
        attributes = {name: pool.attributes[name] for name in ("kernel_shape", "pads", "strides", "dilations") if name in settings}
        conv = ir.node("Conv", [pool.inputs[0], weights.outputs[0]], attributes | {"group": channels}, name=pool.name)
        take_place(model, [pool], [weights, conv], pool.outputs[0], conv.outputs[0])
        return True
