"""What the ONNX schema says about float16, input by input and output by output.

The schema of the node's own opset is asked, so no list of ops is kept here and a new op needs no line of code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from octavo.errors import QuantizationError
from octavo.quantization.fp16.prepare import ONNX

__all__ = ["NO_FLOATS", "Slots", "is_control_flow", "is_float", "slots", "subgraphs"]

HALF = "tensor(float16)"
NO_FLOATS = "no float32 tensor"
VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic
QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger")

# The schema admits float16; ONNX Runtime's CPU has no such kernel, and with no float input to cast it cannot help itself.
NO_KERNEL = frozenset({"EyeLike", "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli"})


@dataclass(frozen=True)
class Slots:
    """Which inputs and outputs of a node, float32 now, may be float16.

    Attributes:
        inputs, outputs: one flag a slot; false for other types, absent slots and those whose type is fixed to float32.
        refusal: why none may, else empty.
    """

    inputs: tuple[bool, ...]
    outputs: tuple[bool, ...]
    refusal: str = ""


def slots(node: ir.Node, opsets: dict[str, int]) -> Slots:
    """Ask the node's schema.

    A type variable that several slots share is one type, so all its float32 slots come back alike.

    Args:
        opsets: the model's opset imports.

    Raises:
        QuantizationError: the node belongs to an already quantized model.
    """
    if node.op_type in QUANTIZED or node.op_type.startswith("QLinear"):
        raise QuantizationError(
            f"the model is already quantized: node {node.name!r} is a {node.op_type}", "make FP16 from the FP32 model instead"
        )
    refusal = _refusal(node, opsets)
    if refusal:
        return _none(node, refusal)
    schema = onnx.defs.get_schema(node.op_type, opsets[_domain(node, opsets)], node.domain)
    allowed = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}
    inputs = _admitted(node.inputs, schema.inputs, allowed)
    outputs = _admitted(node.outputs, schema.outputs, allowed)
    if not any(inputs + outputs):
        return _none(node, "schema allows no float16" if _touches_float(node) else NO_FLOATS)
    return Slots(inputs, outputs)


def is_float(value: ir.Value | None) -> bool:
    """Whether a value is a float32 tensor."""
    return value is not None and value.dtype == ir.DataType.FLOAT and isinstance(value.type, ir.TensorType)


def is_control_flow(node: ir.Node) -> bool:
    """Whether a node holds subgraphs (If, Loop, Scan, SequenceMap)."""
    return any(attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for attribute in node.attributes.values())


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs inside a node, those inside them included."""
    for attribute in node.attributes.values():
        if attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            continue
        for graph in [attribute.value] if attribute.type == ir.AttributeType.GRAPH else attribute.value:
            yield graph
            for inner in graph:
                yield from subgraphs(inner)


def _refusal(node: ir.Node, opsets: dict[str, int]) -> str:
    if is_control_flow(node):
        return "control flow: what its subgraphs compute stays float32"
    operator = node.op_type if node.domain in ONNX else f"{node.domain}.{node.op_type}"
    domain = _domain(node, opsets)
    if domain not in opsets or not onnx.defs.has(node.op_type, opsets[domain], node.domain):
        return f"{operator} has no ONNX schema that says what types it takes"
    if node.domain in ONNX and (node.op_type in NO_KERNEL or _reducing_scatter(node)):
        return "ONNX Runtime has no float16 kernel for it on a CPU"
    if node.domain in ONNX and node.op_type == "BitCast":
        return "it reads the bits of float32"
    for value in (*node.inputs, *node.outputs):
        if value is None or not value.name:
            continue
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            return f"{value.name} is a sequence, an optional or a sparse tensor"
        if value.dtype is None:
            return f"the type of {value.name} is not known"
    return ""


def _reducing_scatter(node: ir.Node) -> bool:
    # It has a float16 kernel for the rest, which fails when it runs.
    reduction = node.attributes.get("reduction")
    return node.op_type in ("ScatterElements", "ScatterND") and reduction is not None and reduction.value != "none"


def _domain(node: ir.Node, opsets: dict[str, int]) -> str:
    return next((name for name in ONNX if name in opsets), "") if node.domain in ONNX else node.domain


def _none(node: ir.Node, refusal: str) -> Slots:
    return Slots((False,) * len(node.inputs), (False,) * len(node.outputs), refusal)


def _touches_float(node: ir.Node) -> bool:
    return any(is_float(value) for value in (*node.inputs, *node.outputs))


def _admitted(
    values: Sequence[ir.Value | None],
    formals: Sequence[onnx.defs.OpSchema.FormalParameter],
    allowed: dict[str, list[str]],
) -> tuple[bool, ...]:
    flags = []
    for place, value in enumerate(values):
        formal = formals[min(place, len(formals) - 1)]
        mixed = formal.option == VARIADIC and not formal.is_homogeneous
        flags.append(is_float(value) and not mixed and HALF in allowed.get(formal.type_str, [formal.type_str]))
    return tuple(flags)
