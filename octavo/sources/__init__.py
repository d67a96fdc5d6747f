"""Where FP32 models come from. A new kind is one file with a `fetch`, one line in KINDS, and its block in `octavo.params`.

All kinds but onnx need torch or more, and import it when they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path

import numpy as np

from octavo.errors import ParamsError, SourceError
from octavo.params.grammar import Input, Source
from octavo.sources import onnx_file
from octavo.sources.fetched import Fetched, Reference

__all__ = ["KINDS", "Fetched", "Reference", "fetch"]


def _optional(module: str, extra: str) -> Callable[..., Fetched]:
    """`fetch` of a module that needs more than our dependencies; `extra` is the command's end that brings it."""

    def fetched(source: Source, input_spec: Input, out_dir: Path, samples: Sequence[np.ndarray]) -> Fetched:
        try:
            read = import_module(f"octavo.sources.{module}")
        except ModuleNotFoundError as error:
            raise SourceError(
                f"source kind {source.kind!r} needs {error.name!r}, which is not installed", f"install {extra}"
            ) from error
        return read.fetch(source, input_spec, out_dir, samples)

    return fetched


# `source.kind` in params.yaml -> what reads it.
KINDS: dict[str, Callable[..., Fetched]] = {
    "onnx": onnx_file.fetch,
    "torch": _optional("torch_module", "octavo[torch]"),
    "transformers": _optional("transformers_model", "octavo[torch,transformers]"),
    "ultralytics": _optional("ultralytics_model", "octavo[torch], and ultralytics by yourself: its licence is AGPL-3.0, or bought"),
}


def fetch(source: Source, input_spec: Input, out_dir: str | Path, samples: Sequence[np.ndarray]) -> Fetched:
    """Make `out_dir/model.onnx` (and `model.data` beside it above 1.9 GB) from a source.

    Args:
        source: the model's `source:` block.
        input_spec: its `input:` block; `name` picks the graph input.
        out_dir: an existing folder, which the caller swaps in whole.
        samples: preprocessed real images, each [1, ...] and of `input_spec.dtype`; torch modules are traced on them.

    Raises:
        SourceError: the model cannot be read, built or exported, or holds operators that cannot be run here.
        ParamsError: no module reads this kind.
    """
    if source.kind not in KINDS:
        raise ParamsError(f"source kind {source.kind!r} is unknown", f"use one of: {', '.join(KINDS)}")
    return KINDS[source.kind](source, input_spec, Path(out_dir), samples)
