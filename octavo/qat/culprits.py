"""Before the first step: tensors that one scale cannot serve, and whose rounding alone ruins the network, stay float.

A Concat of an image in 0..255 and features of a few units, boxes beside scores, the first SiLUs of YOLOX-nano: no small rate
brings back what such a rounding takes. They are few; they are found by halves, with no more than some rounded at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import fx

from octavo.qat.capture import replaced
from octavo.qat.losses import relative_error
from octavo.qat.start import activations, as_float

__all__ = ["keep_culprits_float"]

# SQNR in dB at the outputs that a single rounding must leave; 8 bits of a tensor that has one scale leave 30 and more.
_BOUND = 15.0

Run = Callable[[torch.Tensor], Mapping[str, torch.Tensor]]


@torch.no_grad()
def keep_culprits_float(prepared: fx.GraphModule, teacher: Run, student: Run, images: torch.Tensor) -> list[str]:
    """Take the rounding of ruinous tensors out of the graph, for good.

    Args:
        prepared: the graph to train, its ranges begun; observers do not run.
        teacher, student: FP32, and `prepared`: from images to outputs by name.
        images: a few, in one batch.

    Returns:
        Names of the nodes whose results are not rounded any more.
    """
    modules = activations(prepared)
    truth = teacher(images)
    with as_float(prepared):

        def db(names: Sequence[str]) -> float:
            for name in names:
                modules[name].rounding = True
            noise = float(relative_error(student(images), truth))
            for name in names:
                modules[name].rounding = False
            return -10 * math.log10(max(noise, 1e-20)) if math.isfinite(noise) else -math.inf

        culprits = _found(list(modules), db)
    nodes = [node for node in prepared.graph.nodes if node.op == "call_module" and node.target in culprits]
    kept = []
    for node in nodes:
        kept.append(node.args[0].name)
        replaced(node, node.args[0])
    prepared.graph.eliminate_dead_code()
    prepared.delete_all_unused_submodules()
    prepared.recompile()
    return kept


def _found(names: list[str], db: Callable[[Sequence[str]], float]) -> set[str]:
    """Those of some tensors that are too much alone; what is too much only together is for training to bring back."""
    if not names or db(names) >= _BOUND:
        return set()
    if len(names) == 1:
        return set(names)
    middle = len(names) // 2
    return _found(names[:middle], db) | _found(names[middle:], db)
