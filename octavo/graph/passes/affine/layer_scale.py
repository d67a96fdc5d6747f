"""LayerScale disappears into the linear layer of tokens before it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.nodes import only_reader
from octavo.graph.passes.arithmetic import is_op
from octavo.graph.passes.folding import bypass, is_private
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, forget, new_constant

__all__ = ["LayerScalePass"]


class LayerScalePass(NodePass):
    """Fold `(x W + b) * s` of tokens into W and b, with one s a channel (LayerScale, arXiv 2103.17239; BEiT, DINOv2, ConvNeXt).

    `FoldScalePass` does so for images and vectors, whose layers have a bias of their own. The factor would be float, and stand
    between what ONNX Runtime fuses: the bias, the residual sum and the LayerNormalization behind it.

    1. The layer is a MatMul with a constant float32 matrix; b is added behind it or missing. Nobody else reads what lies between.
    2. s and b are finite float32 constants of one value, or one for each place of the last axis.
    3. Where s is one value and the result is multiplied with another tensor (attention: torch's exporters scale queries and keys
       apart), Reshapes and Transposes may lie between, of which each alone reads what is before it: in INT8 each factor was an Add
       and a rounding.

    What holds other values than before gets a new name; the result keeps the name of the product's output. Exact up to float
    rounding.
    """

    op_type = "Mul"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        for place in (0, 1):
            value, scale = node.inputs[place], constant_of(node.inputs[1 - place])
            if scale is None or not is_private(model, value):
                continue
            moved = _moves(model, value) if scale.size == 1 and _is_multiplied(node.outputs[0]) else []
            if self._folded(model, moved[-1].inputs[0] if moved else value, scale):
                for one in moved:
                    one.inputs[0].name = f"{one.inputs[0].name}.scaled"
                bypass(model, node, value)
                return True
        return False

    def _folded(self, model: ir.Model, value: ir.Value, scale: np.ndarray) -> bool:
        sum_, product = (value.producer(), None) if is_op(value.producer(), "Add") else (None, value.producer())
        for place in (0, 1) if sum_ is not None else ():
            if constant_of(sum_.inputs[1 - place]) is not None and is_private(model, sum_.inputs[place]):
                product, bias = sum_.inputs[place].producer(), (1 - place, constant_of(sum_.inputs[1 - place]))
        if not is_op(product, "MatMul") or value.shape is None or len(value.shape) < 3:
            return False
        weights = constant_of(product.inputs[1])
        if weights is None or weights.ndim != 2 or weights.dtype != np.float32:
            return False
        constants = [scale] if sum_ is None else [scale, bias[1]]
        if not all(_is_of(array, weights.shape[1], len(value.shape)) for array in constants):
            return False
        wide = scale.astype(np.float64).reshape(-1)
        _replaced(model, product, 1, (weights * wide).astype(np.float32))
        if sum_ is not None:
            _replaced(model, sum_, bias[0], (bias[1].reshape(-1) * wide).astype(np.float32))
            product.outputs[0].name = f"{product.outputs[0].name}.scaled"
        return True


def _moves(model: ir.Model, value: ir.Value) -> list[ir.Node]:
    """The nodes that alone move the values of a layer about, the last one first."""
    found = []
    while (node := value.producer()) is not None and node.op_type in ("Reshape", "Transpose") and is_private(model, node.inputs[0]):
        found.append(node)
        value = node.inputs[0]
    return found


def _is_multiplied(value: ir.Value) -> bool:
    """Whether a MatMul of two computed tensors alone reads a value, moved about or not."""
    while is_op(node := only_reader(value), "Reshape") or is_op(node, "Transpose"):
        value = node.outputs[0]
    return is_op(node, "MatMul") and all(constant_of(one) is None for one in node.inputs)


def _is_of(array: np.ndarray, channels: int, rank: int) -> bool:
    """Whether a constant has one finite value, or one for each place of the last axis, and adds no axes."""
    shaped = array.size == 1 or (array.size == channels and array.shape[-1:] == (channels,))
    return shaped and array.ndim <= rank and array.dtype == np.float32 and bool(np.isfinite(array).all())


def _replaced(model: ir.Model, node: ir.Node, place: int, array: np.ndarray) -> None:
    old = node.inputs[place]
    node.replace_input_with(place, new_constant(model, f"{old.name}.scaled", array))
    forget(model, old)
