"""A torch module and its state dict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from octavo.errors import SourceError
from octavo.graph.clean import clean
from octavo.graph.inspect import check_float, check_supported
from octavo.graph.io import save
from octavo.graph.passes.cleaning.batch import BATCH
from octavo.params.grammar import ExportedSource, Input, TorchSource
from octavo.sources.fetched import Fetched
from octavo.sources.torch_build import build, drop_auxiliary
from octavo.sources.torch_export import HEIGHT, INPUT, WIDTH, export, named_outputs, reason, reference, trace
from octavo.sources.torch_weights import load_state, read_state

__all__ = ["fetch", "from_module", "module_of"]


def module_of(source: TorchSource) -> nn.Module:
    """The module with its weights, float32, on the CPU, in eval mode and without gradients.

    Raises:
        SourceError: it cannot be built, or the weights cannot be read or do not fit.
    """
    state = read_state(source.file)
    module = build(source.entry, source.args, state)
    load_state(module, state, source.file)
    drop_auxiliary(module, source.entry, source.args)
    return module.float().cpu().eval().requires_grad_(False)


def fetch(source: TorchSource, input_spec: Input, out_dir: Path, samples: Sequence[np.ndarray]) -> Fetched:  # noqa: ARG001
    """Build, load, export, clean and save; see `octavo.sources.fetch`.

    Raises:
        SourceError: the module cannot be built or run on the samples, or an exporter fails.
    """
    return from_module(module_of(source), source, out_dir, samples)


def from_module(module: nn.Module, source: ExportedSource, out_dir: Path, samples: Sequence[np.ndarray]) -> Fetched:
    """Export a module, clean and save the graph.

    The graph's input is `input`; its outputs are named as `named_outputs` says. With `source.trace`, `out_dir/model.pt` too.

    Args:
        module: as `module_of` gives it, of any kind of source.
        source: what it came from.
        out_dir: an existing folder.
        samples: preprocessed real images, each [1, ...].

    Raises:
        SourceError: the module cannot be run on the samples, or an exporter fails.
    """
    _refuse_what_cannot_be(module, source)
    example = _example(samples, source.dynamic_batch)
    try:
        with torch.no_grad():
            returned = module(example)
    except Exception as error:
        raise SourceError(
            f"the module does not run on an input {list(example.shape)}: {reason(error)}",
            "check `input:` in params.yaml (size, colour, layout) against what the module takes",
        ) from error
    names = list(named_outputs(returned))
    model, notes = export(
        module,
        example,
        names,
        exporter=source.exporter,
        opset=source.opset,
        dynamic=_dynamic(source),
        scratch=out_dir,
    )
    check_supported(model)
    check_float(model)
    notes += clean(model, source.opset)
    save(model, out_dir / "model.onnx")
    if source.trace:
        trace(module, example, out_dir / "model.pt")
    return Fetched(model=model, input_name=INPUT, output_names=tuple(names), reference=reference(module), notes=notes)


def _dynamic(source: ExportedSource) -> dict[int, str]:
    """Dimensions of the input that the graph leaves open, with their names."""
    return ({0: BATCH} if source.dynamic_batch else {}) | ({2: HEIGHT, 3: WIDTH} if source.dynamic_size else {})


def _refuse_what_cannot_be(module: nn.Module, source: ExportedSource) -> None:
    """Torchvision's detectors take images one by one and branch on the number of boxes."""
    if not type(module).__module__.startswith("torchvision.models.detection"):
        return
    wanted = {"exporter": "torchscript", "dynamic_batch": False}
    wrong = {key: value for key, value in wanted.items() if getattr(source, key) != value}
    if wrong:
        raise SourceError(
            f"{type(module).__name__} of torchvision can be exported by the torchscript exporter and for one image at a time only",
            "set " + " and ".join(f"`source.{key}: {str(value).lower()}`" for key, value in wrong.items()),
        )


def _example(samples: Sequence[np.ndarray], dynamic: bool) -> torch.Tensor:
    if not samples:
        raise SourceError("a torch module is traced on a real image, and there is none", "check `data.calibration` in params.yaml")
    # A batch of one would be taken for a constant.
    chosen = [samples[0], samples[min(1, len(samples) - 1)]] if dynamic else [samples[0]]
    return torch.from_numpy(np.concatenate(chosen))
