"""What `octavo inspect` foresees of a file: its sizes in FP16 and INT8, and what INT8 would leave in float, with the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from octavo.errors import OctavoError, SourceError
from octavo.graph.custom_ops import as_in_file
from octavo.graph.inspect import quantized_nodes
from octavo.graph.io import weight_bytes
from octavo.params.grammar import Int8, OnnxSource
from octavo.quantization.decisions import Decision, as_records, left_out
from octavo.quantization.fp16 import convert
from octavo.quantization.int8.forecast import forecast
from octavo.quantization.report import alike
from octavo.sources.onnx_file import cleaned

__all__ = ["foreseen"]


def foreseen(path: Path, plain: ir.Model, recipe: Int8, input_name: str | None, notes: list[str]) -> dict[str, Any]:
    """`expected` bytes and `int8`, for the file as `export` would write it."""
    expected: dict[str, Any] = {"fp32": None, "fp16": None, "int8": None}
    int8: dict[str, Any] = {"target": recipe.target, "refused": None, "layers": 0, "nodes": [], "float": [], "later": []}
    if quantized_nodes(plain):
        int8["refused"] = "the file is quantized already: everything starts from the FP32 model that it was made from"
        return {"expected": expected, "int8": int8}
    try:
        found = cleaned(OnnxSource(kind="onnx", file=str(path)), input_name)
    except SourceError as error:
        int8["refused"] = error.problem
        return {"expected": expected, "int8": int8}
    notes += [f"export: {note}" for note in found.notes if note not in notes]
    ir.external_data.load_to_model(found.model)  # passes that copy a graph as a protobuf lose the weights' folder
    part = found.custom_ops.part(found.model)
    whole = weight_bytes(found.model)
    beside = whole - weight_bytes(part)
    expected["fp32"] = whole
    try:
        expected["fp16"] = weight_bytes(convert(part).model) + beside
    except OctavoError as error:
        notes.append(f"fp16: {error.problem}")
    try:
        seen = forecast(part, recipe)
    except OctavoError as error:
        int8["refused"] = error.problem
        return {"expected": expected, "int8": int8}
    decisions = [*seen.decisions, *left_out(found.custom_ops.untouched(found.model))]
    expected["int8"] = seen.weight_bytes + beside
    int8 |= {"layers": seen.layers, "nodes": as_records(decisions), "float": _floats(decisions), "later": seen.later}
    return {"expected": expected, "int8": as_in_file(int8)}


def _floats(decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    """What stays float by its reason, the commonest first."""
    groups: dict[str, list[Decision]] = {}
    for decision in decisions:
        if decision.precision != "int8":
            groups.setdefault(alike(decision.reason), []).append(decision)
    return [
        {
            "reason": reason,
            "ops": dict(sorted(Counter(one.op_type for one in members).items())),
            "nodes": [one.node for one in members],
        }
        for reason, members in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    ]
