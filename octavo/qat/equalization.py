"""Channels that PTQ equalized, equalized in the graph that is trained: training starts where PTQ's best network is.

Ranges of activations and grids of weights hold for that network only. What training learns does not depend on how channels are
scaled, but what one scale for a tensor rounds away does: MobileNetV2's roundings alone make 2 dB less noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import fx

from octavo.qat.batch_norm import folded_weight, grow
from octavo.qat.ptq import alike, output_first
from octavo.qat.quantizer import LAYERS
from octavo.quantization.int8.solution import GrownLayer

__all__ = ["take_equalization"]

# Outputs may differ by this share of their spread: growth is exact but for float32, and for what a ReLU6 cuts off on this image.
_SAME = 1e-2


@torch.no_grad()
def take_equalization(captured: fx.GraphModule, layers: Sequence[GrownLayer], images: torch.Tensor) -> bool:
    """Scale the channels of a captured graph as PTQ did, all of them or none.

    Args:
        captured: FP32, batch norms fused and by their running statistics; parameters are changed in place.
        layers: PTQ's; a layer is found by its FP32 weights, batch norm folded, whatever it is called.
        images: on which the graph must put out what it did.

    Returns:
        Whether it was done.
    """
    found: dict[fx.Node, GrownLayer] = {}
    left = list(layers)
    for node in captured.graph.nodes:
        weight = folded_weight(captured, node) if node.target in LAYERS else None
        for layer in left if weight is not None else ():
            theirs = output_first(layer.weight, layer.axis)
            if theirs.shape == tuple(weight.shape) and alike(weight.numpy(force=True), theirs):
                found[node] = layer
                left.remove(layer)
                break
    if left or not found:
        return False
    before = {name: value.clone() for name, value in captured.state_dict().items()}
    wanted = _outputs(captured, images)
    for node, layer in found.items():
        if not grow(captured, node, _factors(layer.made), _factors(layer.read)):
            captured.load_state_dict(before)
            return False
    same = all(
        float((one - other).norm()) <= _SAME * max(float(other.norm()), 1e-12)
        for one, other in zip(_outputs(captured, images), wanted, strict=True)
    )
    if not same:
        captured.load_state_dict(before)
    return same


def _factors(growth: np.ndarray | None) -> torch.Tensor | None:
    return None if growth is None else torch.from_numpy(np.ascontiguousarray(growth, np.float32))


def _outputs(captured: fx.GraphModule, images: torch.Tensor) -> list[torch.Tensor]:
    return [value for value in torch.utils._pytree.tree_leaves(captured(images)) if value.is_floating_point()]
