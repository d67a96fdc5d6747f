"""How outputs are read before a loss looks at them: class scores as logits with the classes along axis 1."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir
import torch

from octavo.errors import SourceError
from octavo.graph.outputs import is_chosen, shares_of
from octavo.params.grammar import ModelSpec, Segmentation
from octavo.qat.losses import LABELLED

__all__ = ["Reading", "reading"]

# Shares are kept this far from 0 and 1, where their logits would be infinite: float32 has nothing between 1 and one less this.
_LEAST = 2.0**-24


@dataclass(frozen=True)
class Reading:
    """What the outputs of one graph are.

    Attributes:
        names: outputs that a gradient leads back from.
        heads: by head, as `Batch.labels` has them, the output that its labels are of; empty where labels are not trained on.
        shares: outputs with class scores in 0..1, by name: whether a Softmax makes them, else it is a Sigmoid or the like.
        last: outputs that have their classes along the last axis.
        flat: outputs with one score a class and dimensions of 1 around.
    """

    names: Collection[str]
    heads: Mapping[str, str] = field(default_factory=dict)
    shares: Mapping[str, bool] = field(default_factory=dict)
    last: Collection[str] = ()
    flat: Collection[str] = ()

    def __call__(self, outputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Outputs by name as losses take them: class scores as logits, [N, classes, ...], others as they are."""
        return {name: self._read(name, outputs[name]) for name in self.names}

    def _read(self, name: str, value: torch.Tensor) -> torch.Tensor:
        if name in self.last:
            value = value.movedim(-1, 1)
        elif name in self.flat:
            value = value.flatten(1)
        if name not in self.shares:
            return value
        if self.shares[name] and value.ndim > 1 and value.shape[1] > 1:
            # A softmax of their logarithms gives the shares again.
            return value.clamp(min=torch.finfo(value.dtype).tiny).log()
        return value.logit(_LEAST)


def reading(spec: ModelSpec, model: ir.Model) -> Reading:
    """How the outputs of a network are read.

    Args:
        spec: the model's block, with what `export` told of class maps.
        model: FP32.

    Raises:
        SourceError: no output has a gradient, or not the one whose labels are to be trained on.
    """
    outputs = {value.name or "": value for value in model.graph.outputs}
    names = [name for name, value in outputs.items() if not is_chosen(value)]
    if not names:
        raise _untrainable(next(iter(outputs)), "and the graph has no other output", "remove `qat:`")
    if spec.task.name not in LABELLED:
        return Reading(names)
    each = spec.task.each if isinstance(spec.task, Segmentation) else {"": spec.task}
    heads = {name: head.output or names[0] for name, head in each.items()}
    hard = next((name for name in heads.values() if name not in names), None)
    if hard is not None and spec.qat.distillation != 1:
        raise _untrainable(hard, "and labels are to teach it", "train towards FP32's other outputs alone: `qat.distillation: 1`")
    shares = {name: shares_of(outputs[name]) for name in names}
    last = [heads[name] for name, head in each.items() if isinstance(spec.task, Segmentation) and head.layout == "nhwc"]
    flat = () if isinstance(spec.task, Segmentation) else tuple(heads.values())
    return Reading(names, heads, {name: "Softmax" in kinds for name, kinds in shares.items() if kinds is not None}, last, flat)


def _untrainable(name: str, why: str, otherwise: str) -> SourceError:
    return SourceError(
        f"output {name!r} holds choices, as an ArgMax or a comparison makes them, {why}: no gradient leads back from it",
        f"export the network with the scores that it chooses by as an output, or {otherwise}",
    )
