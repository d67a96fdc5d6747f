"""Detectors of transformers (RT-DETR, RT-DETRv2, D-FINE, and what else AutoModelForObjectDetection reads)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForObjectDetection

from octavo.errors import SourceError
from octavo.files import read_json
from octavo.params.grammar import Input, TransformersSource
from octavo.sources.fetched import Fetched
from octavo.sources.torch_export import quiet, reason
from octavo.sources.torch_module import from_module

__all__ = ["Detector", "fetch", "module_of"]

CONFIG, WEIGHTS = "config.json", "model.safetensors"


class Detector(nn.Module):
    """A detector as a function of the image alone.

    Its outputs are `logits`, [batch, queries, classes], and `pred_boxes`, [batch, queries, 4]: centre and size in shares of the
    image. What else the model returns serves training.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        """Run on [batch, 3, rows, columns] float32."""
        found = self.model(pixel_values=image)
        return {"logits": found.logits, "pred_boxes": found.pred_boxes}


def module_of(source: TransformersSource) -> Detector:
    """The model in a folder, float32, on the CPU, in eval mode and without gradients; nothing is downloaded, no pickle is read.

    Raises:
        SourceError: the folder lacks a file, holds no detector, or weights do not fit its config.
    """
    folder = Path(source.file)
    missing = [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]
    if missing:
        raise SourceError(
            f"{folder}: has no {' and no '.join(missing)}",
            "`source.file` is a folder as `model.save_pretrained(folder)` writes it, with safetensors",
        )
    kernels = [value for value in _implementations(folder / CONFIG) if "/" in value]
    if kernels:
        raise SourceError(
            f"{folder / CONFIG} names the kernels {kernels[0]!r}, code that transformers would download and run",
            "take the key out of it: torch's own are used then",
        )
    try:
        with quiet():
            model, found = AutoModelForObjectDetection.from_pretrained(
                folder,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                dtype=torch.float32,
                output_loading_info=True,
                # Told below, by name; by itself it prints a table and says no more than that there is one.
                ignore_mismatched_sizes=True,
            )
    except Exception as error:
        raise SourceError(
            f"{folder}: transformers cannot read it: {reason(error)}",
            "its config.json must be that of a detector (RT-DETR, RT-DETRv2, D-FINE, ...) that the installed transformers knows",
        ) from error
    # transformers fills weights that a file lacks with random ones and goes on.
    for what in ("missing_keys", "mismatched_keys"):
        names = sorted(map(str, found[what]))
        if names:
            raise SourceError(
                f"{folder}: {len(names)} weights of the config are {'not' if what == 'missing_keys' else 'of another shape'} in "
                f"{WEIGHTS} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})",
                "config.json and the weights must be of one model: save both with `save_pretrained`",
            )
    # The wrapper too: exporters set the whole module back to the mode that its outermost one was in.
    return Detector(model).cpu().eval().requires_grad_(False)


def _implementations(config: Path) -> Iterator[str]:
    """Values of `attn_implementation` and its like; one with a slash is a repository of compiled code on a model hub."""
    try:
        waiting = [read_json(config)]
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{config} is not readable JSON: {error}", "save the model again") from error
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        if isinstance(value, dict):
            waiting += value.values()
            named = [text for key, text in value.items() if str(key).endswith("_implementation")]
            for text in named:
                yield from (map(str, text.values()) if isinstance(text, dict) else [str(text)])


def fetch(source: TransformersSource, input_spec: Input, out_dir: Path, samples: Sequence[np.ndarray]) -> Fetched:  # noqa: ARG001
    """Load, export, clean and save; see `octavo.sources.fetch`.

    Raises:
        SourceError: see `module_of`; or the module does not run on the samples, or the exporter fails.
    """
    return from_module(module_of(source), source, out_dir, samples)
