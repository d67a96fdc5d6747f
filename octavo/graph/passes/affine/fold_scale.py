"""Constant factors and shifts of channels disappear into the layer before them."""

from __future__ import annotations

import onnx_ir as ir

from octavo.graph.passes.arithmetic import is_op
from octavo.graph.passes.folding import AFFINE, affine_of, bypass, channels_of, foldable, into, is_private
from octavo.graph.passes.node_pass import GraphPass

__all__ = ["FoldScalePass"]


class FoldScalePass(GraphPass):
    """Fold `Mul`, `Div`, `Add` and `Sub` of what a layer puts out and a constant of one value, or one a channel.

    Frozen batch norms are exported so (RT-DETR, D-FINE, torchvision's detectors): left alone, each stands between an integer
    convolution and its activation as float work of its own. So are linear layers, as MatMul and Add: ONNX Runtime makes a Gemm of
    the two while loading, before it looks for Q/DQ, and one with a float bias has no integer kernel. As a Gemm from the start it
    gets an int32 bias, which also takes back what rounding shifts.

    1. The layer is a Conv, a ConvTranspose, or a Gemm or MatMul of vectors (tensors of more dimensions: `BiasApartPass`) with
       constant weights, and nobody else reads its output. A MatMul becomes a Gemm.
    2. The constant is float32 and either operand, but not what is divided by the layer's output.
    3. The constant is finite, and has one value or [channels, 1, ...], with ones before: one for each position is left alone.
    4. A Relu that alone stands between does not matter where a factor is above 0 (`s Relu(x)` is `Relu(s x)`): HGNetV2's learnable
       affine blocks (D-FINE) begin so, behind every layer, and were an integer Add each.

    The result keeps the name of the node's output. Exact up to float rounding.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite in place; `modified` says whether a node went."""
        found = [_fold(model, node) for node in list(model.graph) if node.op_type in AFFINE and node.domain in ("", "ai.onnx")]
        return ir.passes.PassResult(model, any(found))


def _fold(model: ir.Model, node: ir.Node) -> bool:
    for place, value in enumerate(node.inputs):
        cut = value.producer() if value is not None and is_private(model, value) and is_op(value.producer(), "Relu") else None
        made = value if cut is None else cut.inputs[0]
        if not foldable(model, made):
            continue
        conv = made.producer()
        affine = affine_of(node, place, channels_of(conv), len(conv.inputs[1].shape))
        if affine is None or (cut is not None and not (node.op_type in ("Div", "Mul") and (affine[0] > 0).all())):
            continue
        into(model, conv, *affine)
        if cut is not None:
            # It has other values now than calibration saw of it.
            made.name = f"{made.name}.scaled"
        bypass(model, node, value)
        return True
    return False
