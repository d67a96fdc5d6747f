"""Zeros beside a tensor that a pool reads, as ONNX Runtime leaves them alone."""

from __future__ import annotations

import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of

__all__ = ["PadApartPass"]


class PadApartPass(NodePass):
    """Write a pool without padding of its own, behind a Pad, with `auto_pad: VALID`, which is the same.

    ONNX Runtime (its PadFusion, 1.31) makes any Pad of zeros padding of the pool behind it. For a MaxPool that is minus infinity:
    where all values of a window at the border are negative it gives the largest of them, and not 0 (YOLOv3-tiny pads so behind a
    LeakyRelu). Where there are as many zeros as the kernel is long the graph does not load, and with `ceil_mode` windows that begin
    in the zeros are gone. It leaves a pool with `auto_pad` alone.

    1. The Pad is one that `FoldPadPass` left: run it before.
    2. An AveragePool without `ceil_mode` behind fewer zeros stays: what ONNX Runtime makes of it is the same, and faster.
    """

    op_type = "MaxPool"

    def _is_offered(self, node: ir.Node) -> bool:
        return node.op_type in ("AveragePool", "MaxPool") and node.domain in ("", "ai.onnx")

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:  # noqa: ARG002
        maker = node.inputs[0].producer() if node.inputs[0] is not None else None
        settings = {name: attribute.value for name, attribute in node.attributes.items()}
        if maker is None or maker.op_type != "Pad" or maker.domain not in ("", "ai.onnx"):
            return False
        if settings.get("auto_pad", "NOTSET") != "NOTSET" or any(settings.get("pads") or ()):
            return False
        if node.op_type == "AveragePool" and not settings.get("ceil_mode", 0):
            zeros = constant_of(maker.inputs[1]) if len(maker.inputs) > 1 else None
            if zeros is not None and zeros.max() < min(settings["kernel_shape"]):
                return False
        node.attributes.pop("pads", None)
        node.attributes.add(ir.AttrString("auto_pad", "VALID"))
        return True
