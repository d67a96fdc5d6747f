"""The layers of a file that `octavo inspect` lists: their work, their precision, and the kernels that run them here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from octavo.errors import OctavoError
from octavo.graph.macs import Layer, layers_of
from octavo.graph.precision import precision_of
from octavo.graph.readable import shapes_at
from octavo.intake.inputs import ImageInput, Sides
from octavo.intake.runs import Runnable
from octavo.quantization.decisions import Decision
from octavo.quantization.executed import executed
from octavo.runtime.kernels import optimized_nodes

__all__ = ["by_precision", "layers_at", "op_name", "recorded", "with_kernels"]

_PRECISIONS = {"int8": "int8", "int8 dynamic": "int8", "float16": "fp16"}


def layers_at(model: ir.Model, image: ImageInput | None, sides: Sides | None, runnable: Runnable, notes: list[str]) -> list[Layer]:
    """Layers with their work at this size of the image; shapes that inference cannot tell are read off a run, which `notes` say."""
    inputs = {}
    for value in model.graph.inputs:
        sizes = list(value.shape or ())
        # Of inputs beside the image the batch alone may be open.
        sizes[:1] = [size if isinstance(size, int) else 1 for size in sizes[:1]]
        if sizes and all(isinstance(size, int) for size in sizes):
            inputs[value.name] = sizes
    if image is not None:
        inputs[image.name] = image.at(sides.size)
    shapes = shapes_at(model, inputs)
    layers = layers_of(model, shapes)
    unknown = [layer.node for layer in layers if layer.macs is None and layer.node.graph is model.graph]
    if unknown and image is not None:
        tensors = [value.name for node in unknown for value in (*node.inputs, *node.outputs) if value is not None and value.name]
        seen = runnable.shapes(tensors, image, sides.size)
        if seen:
            layers = layers_of(model, shapes | seen)
            notes.append(f"shapes around {len(unknown)} layers were read off a run on a grey image, as nothing else tells them")
    return [_with_shape(layer, shapes) for layer in layers]


def _with_shape(layer: Layer, shapes: Mapping[str, Any]) -> Layer:
    value = layer.node.outputs[0]
    if value.name in shapes and all(isinstance(size, int) for size in shapes[value.name]):
        value.shape = ir.Shape(list(shapes[value.name]))
    return layer


def recorded(layer: Layer) -> dict[str, Any]:
    """A layer's JSON record; what runs it is not known yet (`with_kernels`)."""
    found = precision_of(layer.node)
    shape = layer.node.outputs[0].shape
    return {
        "name": layer.node.name,
        "op_type": op_name(layer.node),
        "output": None if shape is None else [size if isinstance(size, int) else size.value for size in shape],
        "macs": layer.macs,
        "parameters": layer.parameters,
        "precision": found.name,
        "data": found.data,
        "weights": found.weights or None,
        "note": found.note,
        # Filled where ONNX Runtime's optimized graph has it: a kind of `octavo.runtime.kernels.KINDS`, and the kernel's op type.
        "runs": None,
        "kernel": None,
    }


def by_precision(layers: Sequence[Layer], records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Layers, MACs and parameters by precision; parameters that several layers of one precision share count once."""
    found: dict[str, dict[str, int]] = {}
    constants: dict[str, dict[ir.Value, int]] = {}
    for layer, record in zip(layers, records, strict=True):
        entry = found.setdefault(record["precision"], {"layers": 0, "macs": 0, "parameters": 0})
        entry["layers"] += 1
        entry["macs"] += record["macs"] or 0
        counted = constants.setdefault(record["precision"], {})
        counted |= layer.constants
        entry["parameters"] = sum(counted.values())
    return found


def with_kernels(
    model: ir.Model, layers: Sequence[Layer], records: list[dict[str, Any]], runnable: Runnable
) -> tuple[str, dict[str, Any]]:
    """What ONNX Runtime's optimized graph has: (why it cannot be loaded, the record); the layers' records get their kernels."""
    empty: dict[str, Any] = {"kernels": {}, "int8_layers": 0, "int8_layers_integer": 0, "unexpected": [], "unresolved": []}
    decisions = [
        Decision(record["name"], layer.node.op_type, _PRECISIONS.get(record["precision"], "float"), "", _arithmetic(record))
        for layer, record in zip(layers, records, strict=True)
    ]
    try:
        found = executed(model, decisions, optimized_nodes(runnable.source))
    except OctavoError as error:
        return error.problem, {"refused": error.problem, **empty}
    for record, node in zip(records, found.nodes, strict=True):
        record["runs"], record["kernel"] = node.get("runs"), node.get("kernel")
    return "", {"refused": None, **found.record()}


def _arithmetic(record: Mapping[str, Any]) -> str:
    return "float" if "no Q behind it" in record["note"] else ""


def op_name(node: ir.Node) -> str:
    """The op type, behind its domain where that is not ONNX' own."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
