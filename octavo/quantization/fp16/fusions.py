"""Attention and norms in forms that those of ONNX Runtime's fusions leave alone that fail in float16."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.graph.nodes import only_reader
from octavo.graph.operators import MOVES
from octavo.graph.passes.arithmetic import is_op, replace_last
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import constant_of, forget, new_constant, number_of

__all__ = ["ScaleOfQueriesPass", "SquareOfNormPass", "TurnedBatchPass"]


class ScaleOfQueriesPass(NodePass):
    """Rewrite the float16 scalar in `MatMul(q * scale, ...)` as a constant of the rank of q, `[1, 1, 1, 1]`.

    ONNX Runtime 1.31 fuses the attention of FastViT and MobileCLIP (`TryFuseMobileClipMHA` of its attention_fusion.cc) and reads
    the scale as a float32 scalar, whatever its type: a float16 one ends the loading of the file ("Tensor type mismatch"). It asks
    for a scalar first, and what has more axes than one is none.

    1. q is a part of one product with constant weights, which a Transpose stands before (tokens that were a map of channels), as
       the fusion asks; only moves lie between, and one of them turns the five axes of queries, keys and values.
    2. The scaled q is read by one MatMul alone.

    Exact: the same products.
    """

    op_type = "Mul"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        reader = only_reader(node.outputs[0])
        if not is_op(reader, "MatMul"):
            return False
        for place in (0, 1):
            given, scale = node.inputs[place], constant_of(node.inputs[place])
            if scale is None or scale.dtype != np.float16 or scale.shape not in ((), (1,)):
                continue
            rank = _rank_of_part(node.inputs[1 - place])
            if rank is not None:
                node.replace_input_with(place, new_constant(model, f"{node.name}.scale", scale.reshape([1] * rank)))
                forget(model, given)
                return True
        return False


class SquareOfNormPass(NodePass):
    """Rewrite the square `Pow(x - mean, 2)` of a norm as `Mul(d, d)` of the difference d, where the norm is partly float32.

    Squares of large activations are beyond float16, so that parts of a norm that exporters before opset 17 spell out stay float32
    between float16 nodes. ONNX Runtime 1.31 makes one LayerNormalization of all, across the Casts, with an input of one type and
    weights of the other, and does not load it. Its fusion asks for Pow.

    1. The exponent is the constant 2; the base is a Sub, or a Cast of one.
    2. The base is float32, or the Sub reads what a Cast makes.

    Exact: ONNX Runtime's Pow multiplies, too, where the exponent is 2.
    """

    op_type = "Pow"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        base, exponent = node.inputs
        difference = base.producer()
        if is_op(difference, "Cast"):
            difference = difference.inputs[0].producer()
        if number_of(exponent) != 2 or not is_op(difference, "Sub"):
            return False
        if base.dtype != ir.DataType.FLOAT and not any(is_op(value.producer(), "Cast") for value in difference.inputs):
            return False
        replace_last(model, node, ir.node("Mul", [base, base], name=node.name))
        forget(model, exponent)
        return True


def _rank_of_part(value: ir.Value) -> int | None:
    """The rank of queries that are taken from a product of tokens with constant weights; None for anything else."""
    rank, node = None, value.producer()
    while node is not None and node.op_type in MOVES:
        axes = node.attributes.get_ints("perm", ()) if node.op_type == "Transpose" else ()
        rank = 4 if len(axes) == 5 else rank
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    if not is_op(node, "MatMul") or constant_of(node.inputs[1]) is None:
        return None
    return rank if is_op(node.inputs[0].producer(), "Transpose") else None


class TurnedBatchPass(NodePass):
    """Give the constant weights `[k, n]` of `MatMul(Transpose(x), weights)` as many axes as x has: `[1, k, n]`.

    Where the Transpose brings the first axis between the others (`[1, 0, 2]`, as torch's MultiheadAttention does), ONNX Runtime
    1.31 makes one FusedMatMul with `transBatchA` of both (its matmul_transpose_fusion.cc), and its CPU then dies as it loads the
    file, where one of both is of float16: no error, a segmentation fault. Weights with as many axes as x are not fused.

    1. The Transpose puts the axes `1 .. r-3` first and in order, and the first one among the last two.
    2. Nothing but Casts and Identity, or a Reshape that ONNX Runtime may find to be one, lies between.

    Exact: the same products.
    """

    op_type = "MatMul"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        for place in (0, 1):
            given, weights = node.inputs[place], constant_of(node.inputs[place])
            rank = _rank_of_turned(node.inputs[1 - place])
            if weights is None or rank is None or weights.ndim >= rank:
                continue
            laid = weights.reshape([1] * (rank - weights.ndim) + list(weights.shape))
            node.replace_input_with(place, new_constant(model, f"{node.name}.weights", laid))
            forget(model, given)
            return True
        return False


def _rank_of_turned(value: ir.Value | None) -> int | None:
    """The rank of what a Transpose puts out that brings the first axis between the others; None for any other tensor."""
    node, shapes = value.producer() if value is not None else None, []
    while any(is_op(node, op_type) for op_type in ("Cast", "Identity", "Reshape")):
        shapes += [node.outputs[0].shape] if node.op_type == "Reshape" else []
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    if not is_op(node, "Transpose"):
        return None
    axes = list(node.attributes.get_ints("perm", ()))
    rank = len(axes)
    same = all(shape is not None and len(shape) == rank for shape in shapes)
    turned = rank > 2 and axes[:-2] == list(range(1, rank - 1)) and sorted(axes[-2:]) == [0, rank - 1]
    return rank if same and turned else None
