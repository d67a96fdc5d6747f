"""What `octavo inspect` tells of a file. Nothing is written, and nothing is said of INT8 that `quantize_int8` would not do."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from octavo.errors import OctavoError, ParamsError, SourceError
from octavo.graph.custom_ops import as_in_file
from octavo.graph.custom_ops.running import all_nodes
from octavo.graph.inspect import custom_ops, image_input, quantized_nodes
from octavo.graph.io import copied, load, weight_bytes
from octavo.graph.macs import Layer, layers_of, parameters
from octavo.graph.passes.cleaning.batch import DynamicBatchPass
from octavo.graph.passes.cleaning.batch_axis import BatchAxisPass
from octavo.graph.precision import forms_of, precision_of, type_name
from octavo.graph.readable import readable, shapes_at
from octavo.intake.inputs import ImageInput, Sides, sides_of
from octavo.intake.runs import Runnable
from octavo.params.grammar import Int8, OnnxSource
from octavo.quantization.decisions import Decision, as_records, left_out
from octavo.quantization.executed import executed
from octavo.quantization.fp16 import convert
from octavo.quantization.int8.forecast import forecast
from octavo.quantization.report import alike
from octavo.runtime.kernels import optimized_nodes
from octavo.sources.onnx_file import cleaned
from octavo.tasks.detection import FAMILIES

__all__ = ["described"]

_PRECISIONS = {"int8": "int8", "int8 dynamic": "int8", "float16": "fp16"}


def described(
    path: str | Path,
    size: tuple[int, int] | None = None,
    recipe: Int8 = Int8(),  # noqa: B008 - frozen
    input_name: str | None = None,
) -> dict[str, Any]:
    """Everything that can be told of an ONNX file; JSON values, the same keys for every file.

    Args:
        path: FP32, FP16, INT8 (Q/DQ, QOperator, dynamic); external data beside it.
        size: (height, width) of the input, where the graph leaves them open.
        recipe: the `int8:` block that INT8 is foreseen for.
        input_name: the graph input that takes the image; None: the only one that can.

    Returns:
        `file`, `bytes` (external data included), `ir_version`, `opset`, `inputs`, `outputs`, `image_input` (null where no input
        takes an image), `ops`, `parameters`, `constants_bytes`, `quantized` (how; empty for float), `size` with `size_by`, `macs`
        (null where no layer's is known), `macs_unknown`, `layers`, `precisions`, `runs` (what ONNX Runtime makes of it here),
        `expected`, `int8`, `custom_ops`, `decoder`, `notes`.

    Raises:
        SourceError: the file is missing, damaged or no ONNX, or has no such input, or one that takes no image.
        ParamsError: `size` is not what the graph is fixed to, or no input is known to take an image.
    """
    path = Path(path)
    if not path.exists():
        raise SourceError(f"{path}: does not exist", "check the path; `dvc pull` fetches a file that DVC tracks")
    model = load(path)
    notes: list[str] = []
    alone = _for_one_image(model, input_name, notes)
    plain = readable(alone)
    image, sides = _image(plain, size, input_name, notes)
    runnable = Runnable(path, alone, changed=alone is not model)
    notes += runnable.notes
    layers = _layers(plain, image, sides, runnable, notes)
    records = [_layer(layer) for layer in layers]
    refused, runs = _runs(plain, layers, records, runnable)
    known = [layer.macs for layer in layers if layer.macs is not None]
    return {
        "file": str(path),
        "bytes": _file_bytes(path, model),
        "ir_version": model.ir_version,
        "opset": {domain or "ai.onnx": version for domain, version in sorted(model.opset_imports.items())},
        "inputs": [_value(value) for value in model.graph.inputs if value.name not in model.graph.initializers],
        "outputs": [_value(value) for value in model.graph.outputs],
        "image_input": None if image is None else {"name": image.name, "layout": image.layout, "dtype": image.dtype},
        "ops": dict(sorted(Counter(_op(node) for node in all_nodes(model)).items(), key=lambda one: (-one[1], one[0]))),
        "parameters": parameters(plain),
        "constants_bytes": weight_bytes(plain),
        "quantized": forms_of(plain),
        "size": None if sides is None else list(sides.size),
        "size_by": None if sides is None else sides.by,
        "macs": sum(known) if known or not layers else None,
        "macs_unknown": [layer.node.name for layer in layers if layer.macs is None],
        "layers": records,
        "precisions": _precisions(layers, records),
        "runs": runs,
        **_foreseen(path, plain, recipe, input_name, notes),
        "custom_ops": _custom(model, runnable),
        "decoder": _decoder(runnable, image, sides, refused),
        "notes": notes,
    }


def _for_one_image(model: ir.Model, name: str | None, notes: list[str]) -> ir.Model:
    """The model with an open batch where the file is for several images at a time, and with one where it has none, as the stages
    run it; else itself.
    """
    with_axis = copied(model)
    if BatchAxisPass(name)(with_axis).modified:
        notes.append("the image has no batch dimension in the file; what is said is of the graph with one of a single image")
        return with_axis
    try:
        together = next(iter(image_input(model, name).shape or ()), None)
        if not isinstance(together, int) or together <= 1:
            return model
        alone = copied(model)
        DynamicBatchPass(image_input(alone, name))(alone)
    except SourceError:
        return model
    notes.append(f"the file is for {together} images at a time (`source.dynamic_batch` opens that); what is said is of one")
    return alone


def _image(
    model: ir.Model, size: tuple[int, int] | None, name: str | None, notes: list[str]
) -> tuple[ImageInput | None, Sides | None]:
    try:
        image = ImageInput.of(image_input(model, name))
    except SourceError as error:
        if name is not None:
            raise
        if size is not None:
            raise ParamsError(
                f"--size is of the input that takes the image, and none is known: {error.problem}",
                "name it by `--input NAME`, or leave `--size` out",
            ) from error
        notes.append(f"no image input: {error.problem}; {error.mend}")
        return None, None
    return image, sides_of(image, size, model.graph.outputs)


def _layers(model: ir.Model, image: ImageInput | None, sides: Sides | None, runnable: Runnable, notes: list[str]) -> list[Layer]:
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


def _layer(layer: Layer) -> dict[str, Any]:
    found = precision_of(layer.node)
    shape = layer.node.outputs[0].shape
    return {
        "name": layer.node.name,
        "op_type": _op(layer.node),
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


def _precisions(layers: Sequence[Layer], records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
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


def _runs(
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


def _foreseen(path: Path, plain: ir.Model, recipe: Int8, input_name: str | None, notes: list[str]) -> dict[str, Any]:
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


def _custom(model: ir.Model, runnable: Runnable) -> list[dict[str, Any]]:
    """Operators that ONNX Runtime lacks, and what runs in their place."""
    counts = Counter((domain, op_type) for domain, op_type, _ in custom_ops(model))
    stand_in = runnable.custom.bodies
    return [
        {
            "op_type": op_type,
            "domain": domain or "ai.onnx",
            "nodes": count,
            "body": None if stand_in.get(op_type) is None else stand_in[op_type].origin,
        }
        for (domain, op_type), count in sorted(counts.items())
    ]


def _decoder(runnable: Runnable, image: ImageInput | None, sides: Sides | None, refused: str) -> dict[str, Any]:
    """The first family of detectors whose layout the outputs have, and others that fit."""
    nothing = {"family": None, "networks": None, "layout": None, "classes": None, "others": []}
    if image is None or refused:
        return {**nothing, "why": refused or "no image input"}
    try:
        outputs = runnable.outputs(image, sides.size)
    except OctavoError as error:
        return {**nothing, "why": error.problem}
    fitting = [family for family in FAMILIES.values() if family.fits(outputs, sides.size)]
    if not fitting:
        return {**nothing, "why": "the outputs are in no known layout of detectors"}
    first, *others = fitting
    return {
        "family": first.name,
        "networks": first.networks,
        "layout": first.layout,
        "classes": None if first.classes is None else first.classes(outputs, sides.size),
        "others": [family.name for family in others],
        "why": "the outputs of a grey image have this layout",
    }


def _file_bytes(path: Path, model: ir.Model) -> int:
    external = {
        os.fspath(value.const_value.location)
        for graph in model.graphs()
        for value in graph.initializers.values()
        if isinstance(value.const_value, ir.ExternalTensor)
    }
    return path.stat().st_size + sum((path.parent / name).stat().st_size for name in external)


def _value(value: ir.Value) -> dict[str, Any]:
    shape = None if value.shape is None else [size if isinstance(size, int) else size.value for size in value.shape]
    return {"name": value.name, "dtype": None if value.dtype is None else type_name(value.dtype), "shape": shape}


def _op(node: ir.Node) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
