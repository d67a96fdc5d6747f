"""TensorFlow's nearest-neighbour coordinates, which ONNX took back at opset 13, in the words that it kept."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of

__all__ = ["HalfPixelNearestPass"]


class HalfPixelNearestPass(NodePass):
    """Rewrite a nearest Resize of `tf_half_pixel_for_nn` that rounds down as `half_pixel` that rounds half up.

    tf2onnx writes the former for Keras' UpSampling2D, at any opset. ONNX Runtime still computes it, with a warning each time a
    session opens; other runtimes, and the passes here, do not know it.

    1. `floor((i + .5) / scale)` is `floor(((i + .5) / scale - .5) + .5)`, and in float32 too where scales are whole numbers or
       powers of two. Others, where the graph tells them, are left alone: by .3 ONNX Runtime takes another pixel where a quotient
       is whole but for rounding. Scales that follow from sizes are taken for whole ones, as Keras' are.
    2. Another `nearest_mode` means other pixels, and another `mode` other values: left alone.
    """

    op_type = "Resize"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:  # noqa: ARG002
        text = node.attributes.get_string
        if text("coordinate_transformation_mode") != "tf_half_pixel_for_nn":
            return False
        if text("mode", "nearest") != "nearest" or text("nearest_mode") != "floor":
            return False
        scales = constant_of(node.inputs[2]) if len(node.inputs) > 2 else None
        if scales is not None and any(scale != np.rint(scale) and np.frexp(scale)[0] != 0.5 for scale in scales):
            return False
        node.attributes.add(ir.AttrString("coordinate_transformation_mode", "half_pixel"))
        node.attributes.add(ir.AttrString("nearest_mode", "round_prefer_ceil"))
        return True
