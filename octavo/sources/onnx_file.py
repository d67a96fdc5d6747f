"""An ONNX file as its own exporter wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from octavo.errors import SourceError
from octavo.graph.clean import clean
from octavo.graph.custom_ops import LAYERS, resolve
from octavo.graph.inspect import check_float, image_input
from octavo.graph.io import load, save
from octavo.graph.passes.batch import DynamicBatchPass
from octavo.graph.passes.shapes import InferShapesPass
from octavo.params.grammar import Input, OnnxSource
from octavo.sources.fetched import Fetched

__all__ = ["fetch"]


def fetch(source: OnnxSource, input_spec: Input, out_dir: Path, samples: Sequence[np.ndarray]) -> Fetched:  # noqa: ARG001
    """Read, clean and save the file; see `octavo.sources.fetch`.

    With `source.dynamic_batch` a fixed batch dimension becomes symbolic. Whether the graph then computes each image of a
    batch as it computes it alone can only be seen by running it, which the caller does. Custom operators stay in the file; what
    runs in their place (`octavo.graph.custom_ops`) is put beside it.

    Raises:
        SourceError: the file cannot be read, is quantized already, has no image input, or `source.custom_ops` does not fit it.
    """
    model = load(source.file)
    try:
        custom, about = resolve(model, source.custom_ops, source.opset)
        check_float(model)
        model = custom.isolated(model)
        notes = about + clean(model, source.opset)
        image = image_input(model, input_spec.name)
        if source.dynamic_batch and DynamicBatchPass(image)(model).modified:
            notes.append("the fixed batch dimension was made dynamic")
        if custom.bodies:
            model = custom.attached(model)
            InferShapesPass()(model)  # through the bodies: what the operators give has a type and a shape then
            model = custom.detached(model)
            custom.part(model)  # is refused where nothing remains
            layers = [op_type for _, op_type, _ in custom.untouched(model) if op_type in LAYERS]
            if layers:
                notes.append(f"{len(layers)} layers lie behind a custom operator without a body and will not be quantized")
    except SourceError as error:
        raise SourceError(f"{source.file}: {error.problem}", error.mend) from error
    save(model, out_dir / "model.onnx")
    custom.write(out_dir)
    outputs = tuple(value.name for value in model.graph.outputs)
    return Fetched(model=model, input_name=image.name, output_names=outputs, notes=notes, custom_ops=custom)
