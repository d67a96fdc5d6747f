"""Compute once what a graph computes from constants alone, and from sizes that are known."""

from __future__ import annotations

import math

import onnx_ir as ir
from onnxscript.optimizer import fold_constants

from octavo.graph.logs import captured_logs

__all__ = ["FoldConstantsPass"]

# Elements that a folded node may put out whatever it reads: grids and anchors of detectors have some hundred thousand.
_SMALL = 1 << 20
_NEVER = frozenset({"DequantizeLinear", "DynamicQuantizeLinear", "QuantizeLinear"})


class FoldConstantsPass(ir.passes.InPlacePass):
    """Constant folding as onnxscript's optimizer does it, with limits that suit weights.

    1. Folded is what has constant inputs only and puts out no more than it reads, or at most a million elements: weights that the
       file computes (weight normalization, a Cast from float16) become weights, and no small constant is blown up to a large one.
    2. Sizes of tensors of static shape count as constants (`Shape`, `Gather` and arithmetic on them); so do Reshapes and Expands
       that change nothing. Dropout and Identity go.
    3. Q, DQ and operators of other domains stay. What ONNX's reference implementation cannot compute stays.

    Attributes:
        problem: why folding stopped early, in one line; empty when it did not. What was folded until then holds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.problem = ""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Edit the model."""
        self.problem = ""
        nodes = len(model.graph)
        try:
            with captured_logs():
                found = fold_constants(
                    model,
                    onnx_shape_inference=True,
                    input_size_limit=_SMALL,
                    output_size_limit=1 << 40,
                    should_fold=_pays,
                )
        except RuntimeError as error:  # a node that the reference implementation rejects
            self.problem = str(error).splitlines()[0]
            return ir.passes.PassResult(model, True)
        return ir.passes.PassResult(model, found.modified or len(model.graph) != nodes)


def _pays(node: ir.Node) -> bool | None:
    if node.op_type in _NEVER or node.domain not in ("", "ai.onnx"):
        return False
    read = sum(value.const_value.size for value in node.inputs if value is not None and value.const_value is not None)
    sizes = [size for value in node.outputs if value.shape is not None for size in [_size(value.shape)] if size is not None]
    if len(sizes) < len(node.outputs):
        # Nobody knows how much comes out: sizes and indices are short, whatever is made of them by filling is not.
        return read <= 64 and node.op_type not in ("ConstantOfShape", "Expand", "Range", "Tile")
    return sum(sizes) <= max(read, _SMALL)


def _size(shape: ir.Shape) -> int | None:
    return math.prod(shape) if all(isinstance(length, int) for length in shape) else None
