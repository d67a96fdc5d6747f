"""Before the first step: each layer's bias takes back the mean shift that rounding its weights causes.

b += E[conv(x, W - Q(W))] by output channel, all layers from the float network's own activations, as `int8.correction: bias` does
it: most of what weight rounding costs is such a shift, and gradients of small learning rates would need many steps to find it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from torch import fx

from octavo.qat.batch_norm import add_to_bias
from octavo.qat.fake_quantize import WeightFakeQuantize
from octavo.qat.quantizer import LAYERS
from octavo.qat.start import as_float

__all__ = ["correct_biases"]


@torch.no_grad()
def correct_biases(prepared: fx.GraphModule, batches: Iterable[torch.Tensor], done: Collection[str] = ()) -> int:
    """Correct the biases of all quantized layers that have one, or a batch norm.

    Args:
        prepared: the graph to train, batch norms by their running statistics.
        batches: images.
        done: names of layers whose biases are corrected already.

    Returns:
        How many layers were corrected.
    """
    seen = _Shifts(prepared)
    with as_float(prepared):
        for batch in batches:
            seen.run(batch)
    return sum(add_to_bias(prepared, node, total / count) for node, (total, count) in seen.sums.items() if node.name not in done)


class _Shifts(fx.Interpreter):
    """Sums of what rounding takes away from each layer's output, by channel."""

    def __init__(self, prepared: fx.GraphModule) -> None:
        super().__init__(prepared)
        self.sums: dict[fx.Node, tuple[torch.Tensor, int]] = {}

    def run_node(self, n: fx.Node) -> object:
        value = super().run_node(n)
        if n.target in LAYERS and n.args[1].op == "call_module":
            rounding = self.fetch_attr(n.args[1].target)
            if isinstance(rounding, WeightFakeQuantize):
                self._add(n, rounding)
        return value

    def _add(self, node: fx.Node, rounding: WeightFakeQuantize) -> None:
        args, _ = self.fetch_args_kwargs_from_env(node)
        rounding.rounding = True
        lost = args[1] - rounding(args[1])
        rounding.rounding = False
        away = node.target(args[0], lost, None, *args[3:])
        # Channels are the last axis of a Linear and the second of a convolution.
        axis = away.ndim - 1 if LAYERS[node.target] == "linear" else 1
        over = tuple(other for other in range(away.ndim) if other != axis)
        total, count = self.sums.get(node, (0.0, 0))
        self.sums[node] = total + away.double().sum(over), count + away.numel() // away.shape[axis]
