"""Float16 or float32, node by node, with the reason.

Converted unless a rule speaks against it. Sums, Exp and Pow have no rule, nor has a Softmax whose results are computed with: where
they lose accuracy in a given network `verify` measures it, and most lose nothing because kernels accumulate in float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from octavo.graph.operators import WEIGHTED
from octavo.quantization.decisions import Decision
from octavo.quantization.fp16.chains import decoded, guarded, index_chains, moved_apart, plain_moves, scores
from octavo.quantization.fp16.prepare import ONNX
from octavo.quantization.fp16.schema import NO_FLOATS, is_float, slots
from octavo.quantization.fp16.weights import SMALLEST, is_dead_weight, weight_fault

__all__ = ["NOTHING_TO_CONVERT", "Faults", "NodePlan", "decide", "make_plan"]

CONVERTED = "its types admit float16"
_AS_IT_COMES = "takes its input as it comes"
# The reasons of nodes that compute nothing in float32, either.
NOTHING_TO_CONVERT = frozenset({NO_FLOATS, _AS_IT_COMES})
# Inputs that are added to something float16 whose last place is at least 2^-24: a smaller addend is lost in that sum anyway, so
# only its reach counts. A lone number is left out: there it is an epsilon that keeps a divisor from zero.
ADDENDS = {
    "Add": (0, 1),
    "BatchNormalization": (2, 3),
    "Conv": (2,),
    "ConvTranspose": (2,),
    "Gemm": (2,),
    "InstanceNormalization": (2,),
    "LayerNormalization": (2,),
    "Sub": (0, 1),
}
# They take a value as it comes: a cast before them costs time or digits and gains nothing.
READS_SHAPE = ("Shape", "Size")


@dataclass(frozen=True)
class NodePlan:
    """One node's precision.

    Attributes:
        inputs, outputs: one flag a slot, true where it becomes float16.
        as_it_comes: float inputs take the precision that their producer gives (Cast, Shape, Size).
        reason: for `Decision`.
    """

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]
    reason: str
    as_it_comes: bool = False

    @property
    def half(self) -> bool:
        """Whether any slot is float16."""
        return any(self.inputs) or any(self.outputs)


# Of constants by name, op type of a reader, and whether they are added there: why float16 cannot hold them (`weight_fault`).
Faults = dict[tuple[str, str, bool], str]


def make_plan(model: ir.Model, kept: Mapping[str, str], *, keep_io: bool, faults: Faults | None = None) -> dict[ir.Node, NodePlan]:
    """Plan every node of the main graph, in its order.

    Args:
        model: prepared.
        kept: node name to the reason why it stays float32.
        keep_io: whether graph inputs and outputs stay float32.
        faults: as far as other plans of the same model have asked; what this one finds is added.

    Raises:
        QuantizationError: the model is already quantized, or a weight is NaN or infinite.
    """
    plan = {}
    faults = {} if faults is None else faults
    for node in model.graph:
        found = slots(node, model.graph.opset_imports)
        reason = found.refusal or _named(node, kept) or _own_fault(node) or _constants_fault(node, found.inputs, faults)
        plan[node] = _float(node, reason) if reason else NodePlan(found.inputs, found.outputs, _converted(node))
        if node.domain in ONNX and (node.op_type in READS_SHAPE or _leaves_float(node)):
            plan[node] = replace(_float(node, reason or _AS_IT_COMES), as_it_comes=node.name not in kept)
    guards = [node for node in plan if not plan[node].half and _is_guard(node, faults)]
    for node, guard in guarded(model.graph, guards).items():
        if plan[node].half:
            plan[node] = _float(node, f"divides by what {guard.name} keeps from zero with a constant that is too small for float16")
    for node in index_chains(model.graph, keep_io=keep_io):
        if plan[node].half:
            plan[node] = _float(node, "computes a size or an index: float16 holds integers up to 2048 only")
    for node in scores(model.graph, keep_io=keep_io):
        if plan[node].half:
            plan[node] = _float(node, "scores: float16 has steps of 0.0005 near 1, and makes equal what is ranked by them")
    for node in decoded(model.graph, keep_io=keep_io):
        if plan[node].half:
            plan[node] = _float(node, "brings boxes to their places: float16's digits tell the place, and few are left for the box")
    for node in moved_apart(model.graph):
        if plan[node].half:
            plan[node] = _float(node, "boxes moved apart by class: float16's digits tell the class, and few are left for the box")
    for node in plain_moves(model.graph, plan, keep_io=keep_io):
        plan[node] = _float(node, "only moves values between float32 nodes")
    return plan


def _float(node: ir.Node, reason: str) -> NodePlan:
    return NodePlan((False,) * len(node.inputs), (False,) * len(node.outputs), reason)


def decide(node: ir.Node, planned: NodePlan) -> Decision:
    """The record of what became of a node, read after conversion."""
    half = planned.half
    if planned.as_it_comes and node.op_type == "Cast":
        half = node.inputs[0] is not None and node.inputs[0].dtype == ir.DataType.FLOAT16
    return Decision(node.name or "", node.op_type, "fp16" if half else "float", planned.reason)


def _is_guard(node: ir.Node, faults: Faults) -> bool:
    if node.op_type not in ("Add", "Clip", "Max"):
        return False
    lone = [value for value in node.inputs if value is not None and value.const_value is not None and value.const_value.size == 1]
    return any(faults.get((value.name or "", node.op_type, False)) for value in lone)


def _converted(node: ir.Node) -> str:
    weight = _weight(node)
    if weight is not None and is_dead_weight(weight.const_value):
        return f"{CONVERTED}; {weight.name} is too small to give anything but zero with any float16 input"
    return CONVERTED


def _weight(node: ir.Node) -> ir.Value | None:
    weight = node.inputs[1] if node.op_type in WEIGHTED and node.domain in ONNX and len(node.inputs) > 1 else None
    return weight if weight is not None and weight.const_value is not None and weight.dtype == ir.DataType.FLOAT else None


def _named(node: ir.Node, kept: Mapping[str, str]) -> str:
    return kept.get(node.name or "", "")


def _leaves_float(node: ir.Node) -> bool:
    # Cast from float32 to an integer, a boolean, or a wider or narrower float.
    return node.op_type == "Cast" and is_float(node.inputs[0]) and not is_float(node.outputs[0])


def _own_fault(node: ir.Node) -> str:
    if node.op_type == "MeanVarianceNormalization":
        return "its epsilon is 1e-9, zero in float16"
    epsilon = node.attributes.get("epsilon")
    if epsilon is not None and 0 < float(epsilon.value) < SMALLEST and not _has_float32_statistics(node):
        return f"its epsilon is {float(epsilon.value):.3g}, zero in float16"
    if node.op_type not in ("Constant", "ConstantOfShape") and any(map(_is_float_tensor, node.attributes.values())):
        return "it has a float32 tensor as an attribute"
    value = node.attributes.get("value")
    if node.op_type == "ConstantOfShape" and value is not None and value.value.dtype == ir.DataType.FLOAT:
        return weight_fault(f"{node.name}.value", value.value, node.op_type)
    if node.op_type == "Constant":
        return "a constant that is a graph output"
    return ""


def _has_float32_statistics(node: ir.Node) -> bool:
    """Whether a norm's variance, and with it the epsilon, is of float32 whatever its input is (`stash_type`)."""
    stash = node.attributes.get("stash_type")
    return node.op_type == "LayerNormalization" and (stash is None or int(stash.value) == ir.DataType.FLOAT)


def _is_float_tensor(attribute: ir.Attr) -> bool:
    return attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype == ir.DataType.FLOAT


def _constants_fault(node: ir.Node, flags: tuple[bool, ...], faults: Faults) -> str:
    for place, (flag, value) in enumerate(zip(flags, node.inputs, strict=True)):
        if not flag or value is None or value.const_value is None or not value.is_initializer():
            continue
        addend = place in ADDENDS.get(node.op_type, ()) and value.const_value.size > 1
        key = (value.name or "", node.op_type, addend)
        if key not in faults:
            faults[key] = weight_fault(value.name or "", value.const_value, node.op_type, addend=addend)
        if faults[key] and not (value is _weight(node) and is_dead_weight(value.const_value)):
            return faults[key]
    return ""
