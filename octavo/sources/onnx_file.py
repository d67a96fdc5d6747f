"""An ONNX file as its own exporter wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from octavo.errors import SourceError
from octavo.graph.clean import clean
from octavo.graph.custom_ops import CustomOps, resolve
from octavo.graph.inspect import image_input, wide_pixels
from octavo.graph.io import load, save
from octavo.graph.operators import LAYERS
from octavo.graph.passes.cleaning.batch import DynamicBatchPass
from octavo.graph.passes.cleaning.batch_axis import BatchAxisPass
from octavo.graph.passes.shapes import InferShapesPass
from octavo.graph.precision import check_weights
from octavo.params.grammar import Input, OnnxSource
from octavo.sources.fetched import Fetched

__all__ = ["Cleaned", "cleaned", "fetch"]


@dataclass(frozen=True)
class Cleaned:
    """A file as every later stage gets it, before it is saved.

    Attributes:
        model: the graph; its weights may still be mapped from the file.
        image: the graph input that takes the image.
        custom_ops: the operators in it that ONNX Runtime lacks.
        notes: what was changed on the way, one plain line each.
    """

    model: ir.Model
    image: ir.Value
    custom_ops: CustomOps
    notes: list[str]


def fetch(source: OnnxSource, input_spec: Input, out_dir: Path, samples: Sequence[np.ndarray]) -> Fetched:  # noqa: ARG001
    """Read, clean and save the file; see `octavo.sources.fetch`.

    With `source.dynamic_batch` a fixed batch dimension becomes symbolic. Whether the graph then computes each image of a
    batch as it computes it alone can only be seen by running it, which the caller does. Custom operators stay in the file; what
    runs in their place (`octavo.graph.custom_ops`) is put beside it.

    Raises:
        SourceError: as `cleaned`.
    """
    found = cleaned(source, input_spec.name)
    save(found.model, out_dir / "model.onnx")
    found.custom_ops.write(out_dir)
    outputs = tuple(value.name for value in found.model.graph.outputs)
    return Fetched(
        model=found.model, input_name=found.image.name, output_names=outputs, notes=found.notes, custom_ops=found.custom_ops
    )


def cleaned(source: OnnxSource, image_name: str | None = None) -> Cleaned:
    """Read and clean the file, and write nothing.

    Args:
        source: the model's `source:` block.
        image_name: the graph input that takes the image, where there are several.

    Raises:
        SourceError: the file cannot be read, is quantized already, has no image input, or `source.custom_ops` does not fit it.
    """
    model = load(source.file)
    try:
        custom, about = resolve(model, source.custom_ops, source.opset)
        check_weights(model)
        model = custom.isolated(model)
        alone = BatchAxisPass(image_name)(model).modified
        notes = about + clean(model, source.opset)
        check_weights(model)
        image = image_input(model, image_name)
        wide = wide_pixels(image)
        if wide:
            notes.append(
                f"the image {image.name!r} is {image.dtype.name.lower()} in the file, which is only cast to float: "
                "pixels, and uint8 from here on"
            )
            for value in wide:
                value.dtype = ir.DataType.UINT8
        if alone:
            notes.append(f"the image {image.name!r} has no batch dimension in the file; one of a single image was put before it")
        elif source.dynamic_batch and DynamicBatchPass(image)(model).modified:
            notes.append("the fixed batch dimension was made dynamic")
        if custom.bodies:
            model = custom.attached(model)
            InferShapesPass()(model)  # through the bodies: what the operators give has a type and a shape then
            model = custom.detached(model)
            custom.part(model)  # is refused where nothing remains
            layers = [op_type for _, op_type, _ in custom.untouched(model) if op_type in LAYERS and op_type not in custom.bodies]
            if layers:
                notes.append(f"{len(layers)} layers lie behind a custom operator without a body and will not be quantized")
    except SourceError as error:
        raise SourceError(f"{source.file}: {error.problem}", error.mend) from error
    return Cleaned(model, image, custom, notes)
