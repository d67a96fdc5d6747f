"""Convert a model up to a target opset."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

from octavo.errors import SourceError
from octavo.graph.logs import captured_logs
from octavo.graph.passes.cleaning.node_names import NodeNamesPass
from octavo.graph.passes.shapes import InferShapesPass
from octavo.graph.valid import check_valid

__all__ = ["OpsetUpPass", "ir_version_for"]

# The opset at which Resize got its coordinate modes; before it there was one meaning.
RESIZE_MODES = 11
# The opset at which the value that Pad writes became an input.
_VALUE_IS_INPUT = 11
# The opset from which on shape inference knows that a slice is shorter (onnx 1.23).
_SLICE_IS_MEASURED = 11
# The converters' words for a node or a model that they left as it was.
GAVE_UP = ("Skipping version conversion", "Failed to convert")


class OpsetUpPass(ir.passes.InPlacePass):
    """Convert a model below the target opset up to it; the weights never pass through a protobuf, so size does not matter.

    1. A model at or above the target, or without operators of the ONNX domain, is left alone.
    2. onnxscript's converter works from opset 18 up, ONNX's own below; both take the large weights out of the way first.
       Model-local functions are inlined, because neither looks into them.
    3. Upsample and Resize from before opset 11 mean asymmetric coordinates and, for nearest, rounding down. ONNX's converter
       leaves both to the later default, half-pixel, which moves linear upsampling by a fraction of a pixel: they are set here.
    4. A Pad from before opset 11 that copies or mirrors pixels may name the value that it never writes; ONNX's converter leaves
       that attribute where it is an error. It goes before.
    5. A converter that gives up, in part or in whole, is an error and not a warning: a graph that claims an opset whose
       operators it does not hold computes something else.
    6. Of a Slice from before opset 11 ONNX's shape inference says that a side without a number stays as long as it was, and ONNX
       Runtime fails where it gives tensors of such sizes one memory: what was inferred at that opset is inferred once more.
    7. Afterwards the graph is as one that was written at that opset: the constants that the converters insert are initializers,
       a node that makes the tensor of an earlier one has its name, and no two nodes share one.

    Raises:
        SourceError: the conversion failed, or its result does not pass the ONNX checker.
    """

    def __init__(self, opset: int) -> None:
        super().__init__()
        self.opset = opset

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Edit the model."""
        before = model.opset_imports.get("")
        if before is None or before >= self.opset:
            return ir.passes.PassResult(model, False)
        # 28 MB and .2 s: few graphs are below.
        from onnxscript.version_converter import ConvertVersionPass

        names = {node.outputs[0].name: node.name for node in model.graph if node.name and node.outputs and node.outputs[0].name}
        if before < _VALUE_IS_INPUT:
            for node in ir.traversal.RecursiveGraphIterator(model.graph):
                if node.op_type == "Pad" and node.domain == "" and node.attributes.get_string("mode", "constant") != "constant":
                    node.attributes.pop("value", None)
        stated = {value.name for node in model.graph for value in node.outputs if value.shape is not None}
        InferShapesPass()(model)  # some adapters (GroupNormalization) need to know the shapes
        with captured_logs() as lines:
            try:
                ConvertVersionPass(self.opset, fallback=True)(model)
            except Exception as error:
                # The converter's own exception, an assertion or a RuntimeError of the C++ side: no common base.
                raise self._failed(before, str(error)) from error
        gave_up = next((line for line in lines if line.startswith(GAVE_UP)), None)
        if gave_up or model.opset_imports.get("") != self.opset:
            raise self._failed(before, gave_up or "the converter left the model as it was")
        if before < RESIZE_MODES:
            for node in ir.traversal.RecursiveGraphIterator(model.graph):
                if node.op_type == "Resize" and node.domain == "":
                    _as_before_opset_11(node)
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        for node in model.graph:
            node.name = names.get(node.outputs[0].name) if node.outputs else None
        NodeNamesPass()(model)
        if before < _SLICE_IS_MEASURED:
            for value in (value for node in model.graph for value in node.outputs):
                if value.name not in stated and not value.is_graph_output():
                    value.shape = None
            InferShapesPass()(model)
        try:
            check_valid(model)
        except Exception as error:
            raise self._failed(before, f"the result is not valid: {error}") from error
        return ir.passes.PassResult(model, True)

    def _failed(self, before: int, reason: str) -> SourceError:
        lines = [line for line in reason.splitlines() if line.strip()] or ["no reason given"]
        return SourceError(
            f"the model cannot be converted from opset {before} to {self.opset}: {lines[0].strip()}",
            f"export it at opset {self.opset} or above",
        )


def ir_version_for(model: ir.Model, opset: int) -> int:
    """The lowest IR version that has a model's opset, or `opset` where that is higher."""
    target = max(opset, model.opset_imports.get("", 1))
    return onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", target)])


def _as_before_opset_11(node: ir.Node) -> None:
    if "coordinate_transformation_mode" not in node.attributes:
        node.attributes.add(ir.AttrString("coordinate_transformation_mode", "asymmetric"))
        node.attributes.add(ir.AttrString("nearest_mode", "floor"))
