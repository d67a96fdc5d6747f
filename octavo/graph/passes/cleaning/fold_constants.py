"""Compute once what a graph computes from constants alone, and from sizes that are known."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir

from octavo.graph.logs import captured_logs
from octavo.graph.passes.node_pass import GraphPass
from octavo.graph.passes.qdq import forget

__all__ = ["FoldConstantsPass"]

# Elements that a folded node may put out whatever it reads: grids and anchors of detectors have some hundred thousand.
_SMALL = 1 << 20
_NEVER = frozenset({"DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear"})
# What ONNX's reference implementation computes otherwise than ONNX Runtime; a Dropout outside training is none of these by then.
_UNLIKE = frozenset({"Bernoulli", "Dropout", "MaxUnpool", "Upsample"})
# Operators that may have several outputs, which the optimizer leaves: attention's projections are split, standardized weights
# (NFNet, BiT) are normalised as a batch in training, and what queries learn of each other before they see an image (the first
# self-attention of DETR's and Mask2Former's decoders) ends in a norm.
_SEVERAL = frozenset({"BatchNormalization", "LayerNormalization", "Split"})


class FoldConstantsPass(GraphPass):
    """Constant folding as onnxscript's optimizer does it, with limits that suit weights.

    1. Folded is what has constant inputs only and puts out no more than it reads, or at most a million elements: weights that the
       file computes (weight normalization and standardization, Split, a Cast from float16) become weights, and no small constant
       is blown up to a large one.
    2. Sizes of tensors of static shape count as constants (`Shape`, `Gather` and arithmetic on them); so do Reshapes and Expands
       that change nothing. Dropout and Identity go.
    3. Q, DQ and operators of other domains stay. What ONNX's reference implementation cannot compute stays, and so does what it
       computes otherwise than ONNX Runtime: random numbers, MaxUnpool, and a Resize but to `sizes` in float32.

    Attributes:
        problem: why folding stopped early, in one line; empty when it did not. What was folded until then holds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.problem = ""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Edit the model."""
        # 25 MB and .2 s, and ONNX's evaluator below 11 MB: calibration of images of one size folds nothing.
        from onnxscript.optimizer import fold_constants

        self.problem = ""
        nodes = len(model.graph)
        modified = False
        try:
            with captured_logs():
                # What is made of several outputs may be constant in its turn.
                while True:
                    found = fold_constants(
                        model,
                        onnx_shape_inference=True,
                        input_size_limit=_SMALL,
                        output_size_limit=1 << 40,
                        should_fold=_pays,
                    )
                    modified |= found.modified
                    if not _fold_several(model):
                        break
        except RuntimeError as error:  # a node that the reference implementation rejects
            self.problem = str(error).splitlines()[0]
            return ir.passes.PassResult(model, True)
        return ir.passes.PassResult(model, modified or len(model.graph) != nodes)


def _fold_several(model: ir.Model) -> bool:
    """Compute operators of `_SEVERAL` whose inputs are constants; whether there were any."""
    from onnx.reference import ReferenceEvaluator

    found = [node for node in model.graph if node.op_type in _SEVERAL and _is_constant(node) and _pays(node)]
    for node in found:
        inputs = {value.name: value.const_value.numpy() for value in node.inputs if value is not None}
        version = model.opset_imports[node.domain]
        results = ReferenceEvaluator(_alone(node, inputs, version)).run(None, inputs)
        for value, array in zip([value for value in node.outputs if value.name], results, strict=True):
            name, value.name = value.name, f"{value.name}.old"
            tensor = ir.tensor(np.ascontiguousarray(array), name=name)
            constant = ir.Value(name=name, const_value=tensor, shape=tensor.shape, type=ir.TensorType(tensor.dtype))
            ir.convenience.replace_all_uses_with(value, constant)
            if list(constant.uses()):
                model.graph.register_initializer(constant)
        old = list(node.inputs)
        model.graph.remove(node, safe=True)
        for value in old:
            forget(model, value)
    return bool(found)


def _is_constant(node: ir.Node) -> bool:
    return all(
        value is None or (value.const_value is not None and not value.is_graph_input()) for value in node.inputs
    ) and not any(value.is_graph_output() for value in node.outputs)


def _alone(node: ir.Node, inputs: dict[str, np.ndarray], version: int) -> onnx.ModelProto:
    """A model of one node."""
    ends = [
        [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in inputs.items()
        ],
        [onnx.helper.make_empty_tensor_value_info(value.name) for value in node.outputs if value.name],
    ]
    graph = onnx.helper.make_graph([ir.to_proto(node)], node.name or node.op_type, *ends)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid(node.domain, version)])


def _pays(node: ir.Node) -> bool | None:
    if node.op_type in _NEVER | _UNLIKE or node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "Resize" and not _is_resized_alike(node):
        return False
    read = sum(value.const_value.size for value in node.inputs if value is not None and value.const_value is not None)
    made = [value for value in node.outputs if value.name]
    sizes = [size for value in made if value.shape is not None for size in [_size(value.shape)] if size is not None]
    if len(sizes) < len(made):
        # Nobody knows how much comes out: sizes and indices are short, whatever is made of them by filling is not.
        return read <= 64 and node.op_type not in ("ConstantOfShape", "Expand", "Range", "Tile")
    return sum(sizes) <= max(read, _SMALL)


def _is_resized_alike(node: ir.Node) -> bool:
    """Whether both implementations give one result: by `scales` they round sizes and places differently, in other types values."""
    given = [value is not None and bool(value.name) for value in node.inputs]
    return given[3:] == [True] and node.inputs[0].dtype == ir.DataType.FLOAT


def _size(shape: ir.Shape) -> int | None:
    return math.prod(shape) if all(isinstance(length, int) for length in shape) else None
