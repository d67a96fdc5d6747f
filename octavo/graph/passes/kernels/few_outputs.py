"""A float Conv that puts out few channels as one down the columns and one across the rows."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, forget, new_constant

__all__ = ["FewOutputsPass", "runs_by_columns"]

# More outputs fill blocks of channels well enough (8 of 8 channels took longer so); smaller maps are not worth another kernel.
_MOST, _LEAST = 4, 64
_KERNEL, _IMAGES = 2, 4


class FewOutputsPass(NodePass):
    """Rewrite a float Conv of a k x k kernel and m outputs as one of k x 1 and m k outputs, and a sum of their k columns.

    ONNX Runtime's float kernels put out 8 or 16 channels at a time, whether there are that many or not: the last layer of what
    answers with pictures, depth or masks has one to four. Each column of the kernel becomes outputs of its own, as many products as
    before, and a Conv whose weights are ones takes each column from its place beside the pixel.

    1. Weights are constant float32, with 1 to 4 outputs and 3 columns or more; one group, no strides, no dilations, explicit pads.
    2. The map has 64 pixels or more, or sizes that nobody knows.

    The node that has the weights keeps the name, the last one that of the output. Exact up to the order of sums.
    """

    op_type = "Conv"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        if not runs_by_columns(node):
            return False
        weights, made = constant_of(node.inputs[1]), node.outputs[0]
        outputs, channels, rows, columns = weights.shape
        pads = list(node.attributes.get_ints("pads", [0] * 2 * _KERNEL))
        down = weights.transpose(0, 3, 1, 2).reshape(outputs * columns, channels, rows, 1)
        across = np.zeros((outputs, columns, 1, columns), np.float32)
        across[:, np.arange(columns), 0, np.arange(columns)] = 1
        apart = ir.node(
            "Conv",
            [node.inputs[0], new_constant(model, f"{node.name}.down", np.ascontiguousarray(down))],
            {"kernel_shape": [rows, 1], "pads": [pads[0], 0, pads[2], 0]},
            name=node.name,
        )
        value = apart.outputs[0]
        value.name, value.dtype = f"{made.name}.columns", ir.DataType.FLOAT
        joined = ir.node(
            "Conv",
            [value, new_constant(model, f"{node.name}.across", across), *node.inputs[2:]],
            {"group": outputs, "kernel_shape": [1, columns], "pads": [0, pads[1], 0, pads[3]]},
            name=f"{node.name}.across",
        )
        old = node.inputs[1]
        take_place(model, [node], [apart, joined], made, joined.outputs[0])
        forget(model, old)
        return True


def runs_by_columns(node: ir.Node) -> bool:
    """Whether a Conv that computes in float is written so: none of its weights is where its name is then."""
    weights = constant_of(node.inputs[1])
    if node.op_type != FewOutputsPass.op_type or weights is None or weights.dtype != np.float32:
        return False
    settings = {name: attribute.value for name, attribute in node.attributes.items()}
    plain = settings.get("auto_pad", "NOTSET") == "NOTSET" and settings.get("group", 1) == 1
    if not plain or weights.ndim != _IMAGES or weights.shape[0] > _MOST or weights.shape[-1] <= _KERNEL:
        return False
    if any(size != 1 for name in ("strides", "dilations") for size in settings.get(name, ())):
        return False
    shape = list(node.outputs[0].shape or ())
    return not all(isinstance(size, int) for size in shape[2:]) or np.prod(shape[2:]) >= _LEAST
