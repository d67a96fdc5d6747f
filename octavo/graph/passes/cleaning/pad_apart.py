"""Zeros beside a tensor of which a MaxPool takes the largest values, as ONNX Runtime leaves them alone."""

from __future__ import annotations

import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass

__all__ = ["PadApartPass"]


class PadApartPass(NodePass):
    """Write a MaxPool without padding of its own, behind a Pad, with `auto_pad: VALID`, which is the same.

    ONNX Runtime (its PadFusion, 1.31) makes any Pad of zeros padding of the MaxPool behind it, and that is minus infinity: where
    all values of a window at the border are negative the MaxPool gives the largest of them, and not 0 (YOLOv3-tiny pads so behind
    a LeakyRelu); where there are as many zeros as the kernel is long the graph does not load. It leaves a pool with `auto_pad`
    alone.

    1. The Pad is one that `FoldPadPass` left: run it before.
    2. With `ceil_mode`, for which ONNX and ONNX Runtime count windows of VALID in two ways, the pool stays as it is.
    """

    op_type = "MaxPool"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:  # noqa: ARG002
        maker = node.inputs[0].producer() if node.inputs[0] is not None else None
        settings = {name: attribute.value for name, attribute in node.attributes.items()}
        if maker is None or maker.op_type != "Pad" or maker.domain not in ("", "ai.onnx"):
            return False
        if settings.get("auto_pad", "NOTSET") != "NOTSET" or any(settings.get("pads") or ()) or settings.get("ceil_mode", 0):
            return False
        node.attributes.pop("pads", None)
        node.attributes.add(ir.AttrString("auto_pad", "VALID"))
        return True
