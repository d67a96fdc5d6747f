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

__all__ = ["alike", "output_first", "take_roundings"]

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
            theirs = output_first(layer.weight, layer.axis)
            if place in used or theirs.shape != tuple(weight.shape) or not alike(weight.numpy(force=True), theirs):
                continue
            value = torch.from_numpy(output_first(layer.rounded, layer.axis)).to(weight)
            if layer.scale.size in (1, len(value)) and add_to_bias(prepared, node, torch.from_numpy(layer.bias_shift).to(weight)):
                set_folded_weight(prepared, node, value)
                rounding.give(torch.from_numpy(layer.scale).to(weight))
                taken.add(node.name)
                used.add(place)
            break
    return taken


def output_first(weight: np.ndarray, axis: int) -> np.ndarray:
    """An ONNX layer's weights with output channels first, as torch has them."""
    return np.ascontiguousarray(weight.T) if axis == 1 and weight.ndim == 2 else weight


def alike(mine: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether two weights of one shape are those of one layer."""
    return float(np.linalg.norm(mine - theirs)) <= _SAME * max(float(np.linalg.norm(theirs)), 1e-12)
