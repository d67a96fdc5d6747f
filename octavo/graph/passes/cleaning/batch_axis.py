"""Give an image input without a batch dimension one of a single image."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.inspect import IMAGE_TYPES
from octavo.graph.passes.node_pass import GraphPass
from octavo.graph.passes.qdq import new_constant

__all__ = ["BatchAxisPass"]

# Of a named input, and of one that has to be told from features of other kinds.
_CHANNELS, _COLOURS = frozenset({1, 3, 4}), frozenset({3})
# Squeeze takes its axes as an input from this opset on.
_AXES_INPUT = 13


class BatchAxisPass(GraphPass):
    """Put `Squeeze` behind an image input [channels, height, width], which becomes [1, channels, height, width].

    torchvision's detectors take a list of images, of each of which `torch.onnx.export` makes such an input, and files of ONNX'
    model zoo have them, too.

    1. The input is float or uint8 and has three dimensions.
    2. It is the only such one whose first or last dimension is 3, and none of these types has four dimensions; or it is the named
       one, of which that dimension may be 1 or 4, too.
    3. Outputs are left as they are: whether they have a batch dimension is the network's own matter.

    Args:
        name: the input that takes the image, where that is said.
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self.name = name

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Edit the model."""
        inputs = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
        typed = [value for value in inputs if value.dtype in IMAGE_TYPES and value.shape is not None]
        channels = _CHANNELS if self.name is not None else _COLOURS
        if self.name is not None:
            typed = [value for value in typed if value.name == self.name]
        elif any(len(value.shape) == 4 for value in typed):
            return ir.passes.PassResult(model, False)
        alone = [value for value in typed if len(value.shape) == 3 and {value.shape[0], value.shape[2]} & channels]
        if len(alone) != 1:
            return ir.passes.PassResult(model, False)
        self._add(model, alone[0])
        return ir.passes.PassResult(model, True)

    @staticmethod
    def _add(model: ir.Model, image: ir.Value) -> None:
        inner = ir.Value(name=f"{image.name}/alone", shape=image.shape, type=image.type)
        ir.convenience.replace_all_uses_with(image, inner, replace_graph_outputs=True)
        if model.opset_imports.get("", 0) < _AXES_INPUT:
            axes, attributes = [], [ir.AttrInt64s("axes", [0])]
        else:
            axes, attributes = [new_constant(model, f"{image.name}/axes", np.array([0], np.int64))], []
        node = ir.Node("", "Squeeze", [image, *axes], attributes, outputs=[inner], name=f"{image.name}/alone")
        model.graph.insert_before(model.graph[0], node)
        image.shape = ir.Shape([1, *image.shape])
