"""A copy of the graph in the one form that conversion reads: named nodes, weights as initializers, every type known."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from octavo.graph.in_file import taken_out
from octavo.graph.passes.cleaning.node_names import NodeNamesPass
from octavo.graph.passes.cleaning.opset_up import OpsetUpPass, ir_version_for

__all__ = ["ONNX", "prepare"]

ONNX = ("", "ai.onnx")
# From this opset on a float16 graph can be measured: Squeeze and Unsqueeze, which stand between its nodes then, read their axes.
LOWEST_OPSET = 13


def prepare(model: ir.Model) -> ir.Model:
    """Copy a model and bring it into form; a model that has it already comes back equal.

    1. Constant nodes of the main graph become initializers, except one that is a graph output: half of an exporter's weights
       may sit in them.
    2. Initializers are no longer listed as graph inputs (files of IR version 3 list them all): a weight that a caller may
       replace cannot be stored in another type.
    3. A graph below opset 13 is converted up to it.
    4. Every node has a name of its own (`NodeNamesPass`): decisions refer to names.
    5. Types and shapes are inferred where they are missing.

    Args:
        model: not changed; the copy shares its tensors.

    Raises:
        SourceError: the conversion of the opset fails.
    """
    copy = model.clone()
    common.RemoveInitializersFromInputsPass()(copy)
    copy.ir_version = max(copy.ir_version, ir_version_for(copy, LOWEST_OPSET))
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(copy)
    OpsetUpPass(LOWEST_OPSET)(copy)
    NodeNamesPass()(copy)
    if any(value.type is None for node in copy.graph for value in node.outputs if value.name):
        _infer_types(copy)
    return copy


def _infer_types(model: ir.Model) -> None:
    # Not onnx_ir's ShapeInferencePass: it takes a sequence of tensors for a tensor (1.1).
    light = model.clone()
    # Inference needs a weight's shape only, and a message with all weights may pass protobuf's 2 GiB.
    taken_out(light, of_protobufs=True)
    inferred = ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(light)))
    known = {value.name: value for node in inferred.graph for value in node.outputs}
    for node in model.graph:
        for value in node.outputs:
            if value.type is None and value.name in known:
                value.type, value.shape = known[value.name].type, value.shape or known[value.name].shape
