"""The demo's own networks as they are committed."""

from __future__ import annotations

import torch

from octavo.params.grammar import ModelSpec
from octavo.sources.torch_build import build
from octavo.sources.torch_weights import load_state, read_state

__all__ = ["own_network"]


def own_network(spec: ModelSpec) -> torch.nn.Module:
    """In eval mode; paths of `spec` are looked for below the working folder."""
    state = read_state(spec.source.file)
    module = build(spec.source.entry, spec.source.args, state)
    load_state(module, state, spec.source.file)
    return module.eval()
