"""Why a unit cannot be INT8, wherever Q and DQ stand; what depends on the layout is in `placement` and `input_layout`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from octavo.graph.nodes import origin
from octavo.graph.passes.cleaning.resize_all_axes import crops
from octavo.quantization.int8.structure.units import CARRIERS, EXTREMES, Unit, constant, decodes_boxes

__all__ = ["TAIL", "cuts_out", "interpolates", "no_kernel", "out_of_reach", "unfit"]

TAIL = "no weights follow: decoding, scores and other tails stay float"


def out_of_reach(unit: Unit, leads: Collection[Unit], named: Mapping[str, str]) -> str:
    """Why a unit stays float whatever it computes; "" where nothing says so.

    Args:
        unit: any unit of the graph.
        leads: the units that have weights or lead to some.
        named: node name to the reason why it stays float.
    """
    for node in unit.nodes:
        if node.name in named:
            return named[node.name]
        if node.domain not in ("", "ai.onnx"):
            return f"no INT8 rule for {node.domain}.{node.op_type}"
    return "" if unit in leads else TAIL


def no_kernel(node: ir.Node) -> str:
    """Why a node that is no carrier, no combiner and not weighted has no integer kernel."""
    if node.op_type in ("Conv", "Gemm", "MatMul"):
        weights = node.inputs[1]
        if not constant(weights):
            return "its weights are not constant"
        if decodes_boxes(node):
            return "it decodes boxes: the mean of a distribution, or corners of centres and sizes"
        return "its weights are not a float32 matrix, or its attributes have no integer kernel"
    return f"no INT8 rule for {node.op_type}"


def unfit(unit: Unit) -> str:
    """Why a carrier or combiner cannot take codes; "" where it can."""
    node = unit.main
    data = [value for value in node.inputs if value is not None]
    if unit.kind in ("Add", "Mul", "Concat"):
        odd = next((value for value in data if constant(value) or value.dtype != ir.DataType.FLOAT), None)
        if odd is not None:
            return f"{odd.name} is a constant" if constant(odd) else f"{odd.name} is {odd.dtype}, not float32"
    if unit.kind == "affine":
        return ""
    if unit.kind in EXTREMES and (any(map(constant, data)) or len({origin(value, CARRIERS) for value in data}) > 1):
        return "what it compares are not parts of one tensor, and have no one scale"
    if not unit.inputs or data[0] is not unit.inputs[0]:
        return "its input is not a float32 activation"
    if unit.kind == "Clip" and not all(bound is None or constant(bound) for bound in node.inputs[1:]):
        return "its bounds are computed"
    if unit.kind == "MaxPool" and len(node.outputs) > 1:
        return "MaxPool with indices has no integer kernel"
    if unit.kind == "Pad" and len(node.inputs) > 3 and node.inputs[3] is not None:
        return "the axes that it pads are computed"
    if unit.kind == "Pad" and not _pads_zeros(node):
        return "what it pads with is not known to be 0 or of the tensor"
    return ""


def _pads_zeros(node: ir.Node) -> bool:
    """Whether a Pad puts zeros, or values of the tensor itself, around it: both have codes."""
    mode = node.attributes["mode"].as_string() if "mode" in node.attributes else "constant"
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if mode != "constant" or value is None:
        return True
    tensor = ir.convenience.get_const_tensor(value)
    return tensor is not None and not np.any(tensor.numpy())


def cuts_out(unit: Unit) -> bool:
    """Whether a unit is a Resize that cuts a region out, and puts a number of its own where that reaches beyond the tensor."""
    return unit.kind == "Resize" and crops(unit.main)


def interpolates(unit: Unit) -> bool:
    """Whether a unit is a Resize that makes values between those of its input."""
    attributes = unit.main.attributes
    return unit.kind == "Resize" and "mode" in attributes and attributes["mode"].as_string() != "nearest"
