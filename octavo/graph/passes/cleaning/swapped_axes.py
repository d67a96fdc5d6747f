"""The last two axes exchanged, while those before them are one for the time."""

from __future__ import annotations

import onnx_ir as ir

from octavo.graph.passes.arithmetic import is_op
from octavo.graph.passes.folding import is_private
from octavo.graph.passes.node_pass import NodePass
from octavo.graph.passes.qdq import pruned

__all__ = ["SwappedAxesPass"]


class SwappedAxesPass(NodePass):
    """Rewrite Reshape to `[-1, m, n]`, Transpose of the last two and Reshape to `[..., n, m]` as one Transpose.

    torch's exporter turns the keys of attention so, with the sizes for both Reshapes computed in the graph where the batch is open.
    ONNX Runtime takes a Transpose before a MatMul into it, and this one it does not see.

    1. Between the Reshapes there are three axes, of which the last two are exchanged and known.
    2. What goes in and what comes out have the same axes before the last two, open ones by name; where one of them is not known on
       both sides, the number of values tells that it is the same.
    3. Nothing else reads what lies between.

    The result is the same to the last bit; it keeps the last node's name and that of its output.
    """

    op_type = "Transpose"

    def _rewrite(self, model: ir.Model, node: ir.Node) -> bool:
        first = node.inputs[0].producer()
        if not is_op(first, "Reshape") or not is_private(model, node.inputs[0]) or not is_private(model, node.outputs[0]):
            return False
        last = next(iter(node.outputs[0].uses())).node
        perm = node.attributes.get_ints("perm", [2, 1, 0])
        if not is_op(last, "Reshape") or last.inputs[0] is not node.outputs[0] or list(perm) != [0, 2, 1]:
            return False
        source, made = first.inputs[0], last.outputs[0]
        if any(value.shape is None for value in (source, node.inputs[0], made)) or len(source.shape) != len(made.shape):
            return False
        *ahead, rows, columns = source.shape
        *behind, high, wide = made.shape
        if len(ahead) < 2 or [rows, columns] != [wide, high] or not all(isinstance(size, int) for size in (rows, columns)):
            return False
        if list(node.inputs[0].shape)[1:] != [rows, columns] or not _same(ahead, behind):
            return False
        sizes = [first.inputs[1], last.inputs[1]]
        axes = list(range(len(ahead)))
        last.resize_inputs(1)
        last.replace_input_with(0, source)
        last.op_type = "Transpose"
        last.attributes.clear()
        last.attributes.add(ir.AttrInt64s("perm", [*axes, len(axes) + 1, len(axes)]))
        pruned(model, [node, first, *(value.producer() for value in sizes if value.producer() is not None)])
        return True


def _same(ahead: list[int | ir.SymbolicDim], behind: list[int | ir.SymbolicDim]) -> bool:
    """Whether axes are the same one by one, and there is one at most of which that is not known."""
    told = [size == other and (isinstance(size, int) or size.value is not None) for size, other in zip(ahead, behind, strict=True)]
    unknown = [place for place, same in enumerate(told) if not same]
    return not unknown or (len(unknown) == 1 and not all(isinstance(axes[unknown[0]], int) for axes in (ahead, behind)))
