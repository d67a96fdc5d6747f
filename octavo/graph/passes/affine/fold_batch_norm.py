"""BatchNormalization disappears into the layers before it, through a Concat too, or becomes a depthwise convolution."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.names import take_place
from octavo.graph.nodes import only_reader
from octavo.graph.passes.folding import bypass, foldable, into, is_private
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import forget, new_constant

__all__ = ["FoldBatchNormPass"]


class FoldBatchNormPass(NodePass):
    """Fold inference-mode `BatchNormalization(x)` = a x + b, with a and b per channel.

    1. All four parameters are constant float32, training_mode is 0 and only the first output is used; anything else is left alone.
    2. `x` comes from a layer with constant weights that nobody else reads (`folding.foldable`): they take a in, its bias b. A face
       embedding's last layer is a Gemm with a norm, which scales what the embedding is judged by.
    3. `x` comes from a Concat along axis 1 that nobody else reads: each part takes its slice of a and b, by rule 2 or rule 4. That
       also brings parts of very different range (an image beside features) to one range before INT8 gives them one scale. What
       rule 2 changes gets a new name, because it holds other values than before. Not so where rule 2 holds for no part and a Relu
       or Clip follows, which one Conv for all parts takes in: behind a Concat it is float. Layers of a DenseNet each have a Concat
       of all before them (DenseNet-121: 116 depthwise Convs and 4 such Relus instead of 593 and 58).
    4. Otherwise, for 4-D `x`, the node becomes a 1x1 depthwise Conv, for which fast kernels exist in float and in int8.

    The result keeps the name of the BatchNormalization's output. Exact up to float rounding.

    Args:
        depthwise: without, rule 4 does not apply, and rule 3 only where every part folds: for runtimes that take such a node in
            with what stands around it (OpenVINO: an ESPNet's 26 depthwise Convs take 1.8 of 15 ms).
    """

    op_type = "BatchNormalization"

    def __init__(self, depthwise: bool = True) -> None:
        super().__init__()
        self.depthwise = depthwise

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        affine = _affine(node)
        return affine is not None and _fold(model, node, *affine, depthwise=self.depthwise)


def _affine(node: ir.Node) -> tuple[np.ndarray, np.ndarray] | None:
    training = node.attributes["training_mode"].as_int() if "training_mode" in node.attributes else 0
    if training or any(list(value.uses()) or value.is_graph_output() for value in node.outputs[1:]):
        return None
    constants = [ir.convenience.get_const_tensor(value) if value is not None else None for value in node.inputs[1:5]]
    if any(constant is None or constant.dtype != ir.DataType.FLOAT for constant in constants):
        return None
    gain, shift, mean, variance = (constant.numpy().astype(np.float64) for constant in constants)
    epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
    scale = gain / np.sqrt(variance + epsilon)
    return scale, shift - mean * scale


def _fold(model: ir.Model, node: ir.Node, scale: np.ndarray, shift: np.ndarray, *, depthwise: bool) -> bool:
    value = node.inputs[0]
    producer = value.producer()
    if foldable(model, value):
        into(model, producer, scale, shift)
        bypass(model, node, value)
        return True
    if value.shape is None or len(value.shape) != 4:
        return False
    if is_private(model, value) and producer is not None and producer.op_type == "Concat" and _axis(producer) == 1:
        widths = [part.shape[1] if part.shape is not None and len(part.shape) > 1 else None for part in producer.inputs]
        folding = [foldable(model, part) for part in producer.inputs]
        able = all(folding) or (depthwise and (any(folding) or not _is_cut(node)))
        if able and all(isinstance(width, int) for width in widths):
            start = 0
            for place, width in enumerate(widths):
                part, reach = producer.inputs[place], slice(start, start + width)
                if foldable(model, part):
                    into(model, part.producer(), scale[reach], shift[reach])
                    part.name = f"{part.name}.normalised"
                else:
                    conv = _depthwise(model, part, scale[reach], shift[reach], f"{node.name}.part{place}")
                    conv.outputs[0].name = f"{node.outputs[0].name}.part{place}"
                    model.graph.insert_before(producer, conv)
                    producer.replace_input_with(place, conv.outputs[0])
                start += width
            bypass(model, node, value)
            return True
    if not depthwise:
        return False
    conv = _depthwise(model, value, scale, shift, node.name)
    read = list(node.inputs)
    take_place(model, [node], [conv], node.outputs[0], conv.outputs[0])
    for one in read:
        forget(model, one)
    return True


def _is_cut(node: ir.Node) -> bool:
    """Whether a Relu or Clip alone reads what a node puts out."""
    behind = only_reader(node.outputs[0])
    return behind is not None and behind.op_type in ("Clip", "Relu")


def _depthwise(model: ir.Model, value: ir.Value, scale: np.ndarray, shift: np.ndarray, name: str) -> ir.Node:
    weights = new_constant(model, f"{name}.scale", scale.astype(np.float32).reshape(-1, 1, 1, 1))
    bias = new_constant(model, f"{name}.shift", shift.astype(np.float32))
    conv = ir.node("Conv", [value, weights, bias], {"group": len(scale), "kernel_shape": [1, 1]}, name=name)
    conv.outputs[0].dtype, conv.outputs[0].shape = value.dtype, value.shape
    return conv


def _axis(node: ir.Node) -> int:
    return node.attributes["axis"].as_int()
