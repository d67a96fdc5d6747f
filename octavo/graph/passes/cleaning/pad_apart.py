"""Zeros beside a tensor that a pool reads, as ONNX Runtime leaves them alone."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, forget, new_constant

__all__ = ["PadApartPass"]


class PadApartPass(NodePass):
    """Write a pool behind a Pad of zeros so that ONNX Runtime leaves both as they are: with `auto_pad: VALID` where the pool has no
    padding of its own, else with zeros of the other sign. The values are the same.

    ONNX Runtime (its PadFusion, 1.31) makes any Pad of zeros padding of the pool behind it. For a MaxPool that is minus infinity:
    where all values of a window at the border are negative it gives the largest of them, and not 0 (YOLOv3-tiny pads so behind a
    LeakyRelu). Where there are as many zeros as the kernel is long the graph does not load, and with `ceil_mode` windows that begin
    in the zeros are gone. It leaves a pool with `auto_pad` alone, and a Pad of -0.

    1. The Pad is one that `FoldPadPass` left: run it before.
    2. An AveragePool without `ceil_mode` behind fewer zeros stays: what ONNX Runtime makes of it is the same, and faster.
    """

    op_type = "MaxPool"

    def _is_offered(self, node: ir.Node) -> bool:
        return node.op_type in ("AveragePool", "MaxPool") and node.domain in ("", "ai.onnx")

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        maker = node.inputs[0].producer() if node.inputs[0] is not None else None
        settings = {name: attribute.value for name, attribute in node.attributes.items()}
        if maker is None or maker.op_type != "Pad" or maker.domain not in ("", "ai.onnx"):
            return False
        if settings.get("auto_pad", "NOTSET") != "NOTSET":
            return False
        own = settings.get("pads") or ()
        if node.op_type == "AveragePool" and not settings.get("ceil_mode", 0):
            zeros = constant_of(maker.inputs[1]) if len(maker.inputs) > 1 else None
            if zeros is not None and zeros.max() + max(own, default=0) < min(settings["kernel_shape"]):
                return False
        if any(own):
            return _turned(model, maker)
        node.attributes.pop("pads", None)
        node.attributes.add(ir.AttrString("auto_pad", "VALID"))
        return True


def _turned(model: ir.Model, pad: ir.Node) -> bool:
    """Whether a Pad of zeros was made one of -0."""
    before = pad.inputs[2] if len(pad.inputs) > 2 else None
    value = constant_of(before) if before is not None else np.zeros((), np.float32)
    if value is None or value.dtype != np.float32 or value.size != 1 or value.item() != 0 or np.signbit(value).all():
        return False
    pad.resize_inputs(max(3, len(pad.inputs)))
    pad.replace_input_with(2, new_constant(model, f"{pad.name}.zero", np.asarray(np.float32(-0.0))))
    if before is not None:
        forget(model, before)
    return True
