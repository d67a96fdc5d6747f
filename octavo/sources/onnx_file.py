"""An ONNX file as its own exporter wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from octavo.errors import SourceError
from octavo.graph.clean import clean
from octavo.graph.inspect import check_supported, image_input, is_quantized
from octavo.graph.io import load, save
from octavo.graph.passes.batch import DynamicBatchPass
from octavo.params.grammar import Input, OnnxSource
from octavo.sources.fetched import Fetched

__all__ = ["fetch"]


def fetch(source: OnnxSource, input_spec: Input, out_dir: Path, samples: Sequence[np.ndarray]) -> Fetched:  # noqa: ARG001
    """Read, clean and save the file; see `octavo.sources.fetch`.

    With `source.dynamic_batch` a fixed batch dimension becomes symbolic. Whether the graph then computes each image of a
    batch as it computes it alone can only be seen by running it, which the caller does.

    Raises:
        SourceError: the file cannot be read, is quantized already, holds unknown operators, or has no image input.
    """
    model = load(source.file)
    try:
        check_supported(model)
        if is_quantized(model):
            raise SourceError("the graph is quantized already; everything here starts from FP32", "give the FP32 export")
        notes = clean(model, source.opset)
        image = image_input(model, input_spec.name)
        if source.dynamic_batch and DynamicBatchPass(image)(model).modified:
            notes.append("the fixed batch dimension was made dynamic")
    except SourceError as error:
        raise SourceError(f"{source.file}: {error.problem}", error.mend) from error
    save(model, out_dir / "model.onnx")
    outputs = tuple(value.name for value in model.graph.outputs)
    return Fetched(model=model, input_name=image.name, output_names=outputs, notes=notes)
