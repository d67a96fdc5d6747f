"""What `octavo inspect` tells of a file. Nothing is written, and nothing is said of INT8 that `quantize_int8` would not do."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import onnx_ir as ir

from octavo.errors import OctavoError, ParamsError, SourceError
from octavo.graph.custom_ops.running import all_nodes
from octavo.graph.inspect import custom_ops, image_input
from octavo.graph.io import copied, load, weight_bytes
from octavo.graph.macs import parameters
from octavo.graph.passes.cleaning.batch import DynamicBatchPass
from octavo.graph.passes.cleaning.batch_axis import BatchAxisPass
from octavo.graph.precision import forms_of, type_name
from octavo.graph.readable import readable
from octavo.intake.foreseen import foreseen
from octavo.intake.inputs import ImageInput, Sides, sides_of
from octavo.intake.layers import by_precision, layers_at, op_name, recorded, with_kernels
from octavo.intake.runs import CUT, Runnable
from octavo.layout import MODEL
from octavo.manifest import own_manifest
from octavo.params.grammar import Int8
from octavo.tasks.detection import FAMILIES

__all__ = ["described"]


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
        (null where no layer's is known), `macs_unknown`, `layers`, `precisions`, `runs` (what ONNX Runtime makes of it
        here), `made_for` (the `int8.target` of the manifest beside it; null without), `expected`, `int8`, `custom_ops`, `decoder`,
        `notes`.

    Raises:
        SourceError: the file is missing, damaged or no ONNX, or has no such input, or one that takes no image.
        ParamsError: `size` is not what the graph is fixed to, or no input is known to take an image.
    """
    path = Path(path)
    model = load(path)
    notes: list[str] = []
    alone = _for_one_image(model, input_name, notes)
    plain = readable(alone)
    image, sides = _image(plain, size, input_name, notes)
    runnable = Runnable(path, alone, changed=alone is not model)
    notes += runnable.notes
    layers = layers_at(plain, image, sides, runnable, notes)
    records = [recorded(layer) for layer in layers]
    refused, runs = with_kernels(plain, layers, records, runnable)
    known = [layer.macs for layer in layers if layer.macs is not None]
    return {
        "file": str(path),
        "bytes": _file_bytes(path, model),
        "ir_version": model.ir_version,
        "opset": {domain or "ai.onnx": version for domain, version in sorted(model.opset_imports.items())},
        "inputs": [_value(value) for value in model.graph.inputs if value.name not in model.graph.initializers],
        "outputs": [_value(value) for value in model.graph.outputs],
        "image_input": None if image is None else {"name": image.name, "layout": image.layout, "dtype": image.dtype},
        "ops": dict(sorted(Counter(op_name(node) for node in all_nodes(model)).items(), key=lambda one: (-one[1], one[0]))),
        "parameters": parameters(plain),
        "constants_bytes": weight_bytes(plain),
        "quantized": forms_of(plain),
        "size": None if sides is None else list(sides.size),
        "size_by": None if sides is None else sides.by,
        "macs": sum(known) if known or not layers else None,
        "macs_unknown": [layer.node.name for layer in layers if layer.macs is None],
        "layers": records,
        "precisions": by_precision(layers, records),
        "runs": runs,
        "made_for": _made_for(path),
        **foreseen(path, plain, recipe, input_name, notes),
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
    return image, sides_of(image, size, model.graph.outputs, model.metadata_props)


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
        outputs = runnable.own(runnable.outputs(image, sides.size))
    except OctavoError as error:
        return {**nothing, "why": error.problem}
    if outputs is None:
        return {**nothing, "why": CUT}
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


def _made_for(path: Path) -> str | None:
    manifest = own_manifest(path.parent) if path.name == MODEL else None
    return None if manifest is None else manifest.get("target")


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
