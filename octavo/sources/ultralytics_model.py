"""Detectors of ultralytics (YOLOv5u, v8, v9, v10, 11, RT-DETR): its YAML and a state dict.

ultralytics is AGPL-3.0: it is neither a dependency nor installed by anything here. Who installs it accepts that licence, or buys
another, for what is built with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import nn
from ultralytics.nn.tasks import DetectionModel, RTDETRDetectionModel, yaml_model_load

from octavo.errors import SourceError
from octavo.params.grammar import Input, UltralyticsSource
from octavo.sources.fetched import Fetched
from octavo.sources.torch_export import quiet, reason
from octavo.sources.torch_module import from_module
from octavo.sources.torch_weights import load_state, read_state

__all__ = ["fetch", "module_of"]

# The last module of a YAML's head -> what is built from it. `v10Detect` puts out whole boxes, 1 x 300 x 6.
_BUILT = {"Detect": DetectionModel, "v10Detect": DetectionModel, "RTDETRDecoder": RTDETRDetectionModel}
# What a YAML may name: a class of torch.nn with plain arguments.
_ACTIVATION = re.compile(r"(torch\.)?nn\.[A-Z]\w*\((\w+=)?[\w.]*\)")
_SAVED = "python -c \"import torch, ultralytics; torch.save(ultralytics.YOLO('x.pt').model.float().state_dict(), 'x.pth')\""


def module_of(source: UltralyticsSource) -> nn.Module:
    """The module with its weights, float32, on the CPU, in eval mode, without gradients, returning one tensor.

    Raises:
        SourceError: there is no such YAML, it is of another task, or the weights cannot be read or do not fit.
    """
    if Path(source.file).suffix == ".pt":
        # Said before torch says it: the file exists, is ultralytics' own, and yet is refused.
        raise SourceError(f"{source.file}: an ultralytics .pt is a pickle of a whole module, which may run code", f"save: {_SAVED}")
    if "://" in source.entry:
        raise SourceError(f"`source.entry` {source.entry!r} is a URL, which ultralytics would download", "name a file")
    state = read_state(source.file)
    try:
        with quiet():
            found = yaml_model_load(source.entry)
    except Exception as error:
        raise SourceError(
            f"ultralytics has no {source.entry!r}: {reason(error)}", "name a YAML of the package (yolov8n.yaml), or the path of one"
        ) from error
    # ultralytics hands this text to `eval`.
    activation = found.get("activation", found.get("act"))
    if activation is not None and not _ACTIVATION.fullmatch(str(activation)):
        raise SourceError(
            f"{source.entry}: `activation` {str(activation)!r} is no activation of torch", "as in the package's own: nn.SiLU(), say"
        )
    last = found["head"][-1][-2]
    if last not in _BUILT:
        raise SourceError(f"{source.entry!r} ends in {last!r}, which is no detector", f"detectors end in {' or '.join(_BUILT)}")
    try:
        with quiet():
            module = _BUILT[last](found, verbose=False, **source.args)
    except Exception as error:
        raise SourceError(f"ultralytics cannot build {source.entry!r}: {reason(error)}", "check `source.args` (nc, ch)") from error
    load_state(module, state, source.file)
    head = module.model[-1]
    # One tensor, as its own exporter has it; without it training's intermediate maps come out too.
    head.export, head.format = True, "onnx"
    if getattr(head, "one2one_cv2", None) is not None:
        head.end2end = True  # YOLOv10 and 26 were trained to do without suppression: whole boxes come out
    return module.float().cpu().eval().requires_grad_(False)


def fetch(source: UltralyticsSource, input_spec: Input, out_dir: Path, samples: Sequence[np.ndarray]) -> Fetched:  # noqa: ARG001
    """Build, load, export, clean and save; see `octavo.sources.fetch`.

    Raises:
        SourceError: see `module_of`; or the module does not run on the samples, or the exporter fails.
    """
    return from_module(module_of(source), source, out_dir, samples)
