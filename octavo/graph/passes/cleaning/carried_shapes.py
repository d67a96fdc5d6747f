"""Shapes of what a loop carries from one turn to the next."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["CarriedShapesPass"]


class CarriedShapesPass(ir.passes.InPlacePass):
    """Forget what a file states of sizes inside the bodies of Loop, as far as it may hold in the first turn alone.

    torch's exporters give a carried input of the body the shape of its initial value. Where the body grows it (masks are pasted one
    by one behind an empty tensor), that is false from the second turn on, and whatever trusts it computes something else: constant
    folding leaves an operand of size 0 out of a Concat.

    1. Sizes of carried inputs are open; how many axes they have is kept where the body's output has as many.
    2. Shapes of what nodes of the body put out are forgotten, also in bodies inside it: inference tells those that hold.
    3. Iteration number and condition are scalars, and stay. So do Scans: their states have one shape in every turn.

    Run it before anything infers shapes: inference builds on what is stated, and gives carried inputs no sizes of its own.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Edit the model."""
        modified = False
        for loop in ir.traversal.RecursiveGraphIterator(model.graph):
            if loop.op_type != "Loop" or loop.domain not in ("", "ai.onnx"):
                continue
            body = loop.attributes["body"].as_graph()
            modified |= len(body.inputs) > 2
            # Iteration number and condition come in first; the condition goes out first, what was carried behind it.
            for before, after in zip(body.inputs[2:], body.outputs[1:], strict=False):
                before.shape = _open(before.shape, after.shape)
            for node in ir.traversal.RecursiveGraphIterator(body) if len(body.inputs) > 2 else ():
                for value in node.outputs:
                    value.shape = None
        return ir.passes.PassResult(model, modified)


def _open(before: ir.Shape | None, after: ir.Shape | None) -> ir.Shape | None:
    return ir.Shape([None] * len(before)) if before is not None and after is not None and len(before) == len(after) else None
