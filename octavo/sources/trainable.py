"""A model as a torch module that can be trained, whatever its source."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from torch import nn

from octavo.errors import SourceError
from octavo.graph.io import load
from octavo.graph.prepared import prepared
from octavo.graph.selection import selects, unpools
from octavo.params.grammar import Source
from octavo.runtime.session import Session
from octavo.sources.checks import compare_with_graph
from octavo.sources.torch_export import reference

__all__ = ["trainable"]

# Modules of this package with a `module_of(source)`.
_OF_TORCH = {"torch": "torch_module", "transformers": "transformers_model", "ultralytics": "ultralytics_model"}


def trainable(source: Source, graph: str | Path, image_input: str, images: np.ndarray) -> nn.Module:
    """The FP32 network in torch, on the CPU, in eval mode.

    Args:
        source: the model's `source:` block.
        graph: its FP32 file, as `export` made it; what an ONNX source is rebuilt from.
        image_input: the graph input that takes the image.
        images: two preprocessed images, on which a graph's module is held against the graph.

    Returns:
        From [N, ...] to what the file puts out, in its order.

    Raises:
        SourceError: the module cannot be built; or the graph holds operators that torch has no counterpart for, takes one image
            at a time, or computes something else in torch.
    """
    if source.kind in _OF_TORCH:
        try:
            module = import_module(f"octavo.sources.{_OF_TORCH[source.kind]}")
        except ModuleNotFoundError as error:
            raise SourceError(f"source kind {source.kind!r} needs {error.name!r}, which is not installed", "install it") from error
        return module.module_of(source)
    from octavo.sources.onnx_module import refuse_fixed_batch
    from octavo.sources.onnx_to_torch import module_of_graph

    # In the form that PTQ works on: its layers and tensors are found again, and nothing is left float that a Conv can take in.
    model = prepared(load(graph))
    module = module_of_graph(model, image_input)
    refuse_fixed_batch(module, torch.from_numpy(images))
    singles = [images[place : place + 1] for place in range(len(images))]
    session = Session(graph)
    outputs = [session.run({image_input: single}) for single in singles]
    compare_with_graph(reference(module), singles, outputs, selecting=selects(model) or unpools(model))
    return module
