"""Weights as PTQ rounds them, put into the graph that is trained.

PTQ fits roundings to what layers really read and corrects biases for it. Fake quantization rounds to nearest: given weights that
lie on PTQ's grid already, with PTQ's scales, it changes nothing until training moves them by half a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import fx

from octavo.qat.batch_norm import add_to_bias, folded_weight, set_folded_weight
from octavo.qat.fake_quantize import WeightFakeQuantize
from octavo.qat.quantizer import LAYERS
from octavo.quantization.int8.solution import RoundedLayer

__all__ = ["take_roundings"]

# Relative difference of a layer's weights in both graphs, below which it is the same layer.
_SAME = 1e-4


@torch.no_grad()
def take_roundings(prepared: fx.GraphModule, layers: Sequence[RoundedLayer]) -> set[str]:
    """Give quantized layers PTQ's weights, scales and bias corrections.

    Args:
        prepared: the graph to train, batch norms by their running statistics.
        layers: PTQ's; a layer is found by its FP32 weights, batch norm folded, whatever it is called.

    Returns:
        Names of the nodes that got theirs.
    """
    taken, used = set(), set()
    modules = dict(prepared.named_modules())
    for node in prepared.graph.nodes:
        if node.target not in LAYERS or node.args[1].op != "call_module":
            continue
        rounding = modules.get(node.args[1].target)
        weight = folded_weight(prepared, node)
        if not isinstance(rounding, WeightFakeQuantize) or weight is None:
            continue
        for place, layer in enumerate(layers):
            given = _as_in_torch(layer, tuple(weight.shape)) if place not in used else None
            if given is None or not _alike(weight.numpy(force=True), given[0]):
                continue
            value = torch.from_numpy(given[1]).to(weight)
            if layer.scale.size in (1, len(value)) and add_to_bias(prepared, node, torch.from_numpy(layer.bias_shift).to(weight)):
                set_folded_weight(prepared, node, value)
                rounding.give(torch.from_numpy(layer.scale).to(weight))
                taken.add(node.name)
                used.add(place)
            break
    return taken


def _as_in_torch(layer: RoundedLayer, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
    """(FP32's weights, rounded ones) with output channels first; None where they are of another shape."""
    pair = layer.weight, layer.rounded
    if layer.axis == 1 and layer.weight.ndim == 2:
        pair = tuple(np.ascontiguousarray(value.T) for value in pair)
    return pair if pair[0].shape == shape else None


def _alike(mine: np.ndarray, theirs: np.ndarray) -> bool:
    return float(np.linalg.norm(mine - theirs)) <= _SAME * max(float(np.linalg.norm(theirs)), 1e-12)
