"""A last look at the ranges once the weights are trained; taken where the network measures better with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import fx

from octavo.qat.judge import Verdict
from octavo.qat.start import activations

__all__ = ["recalibrated"]


@torch.no_grad()
def recalibrated(
    prepared: fx.GraphModule, images: Iterable[torch.Tensor], trained: Verdict, judge: Callable[[], Verdict]
) -> tuple[Verdict, dict[str, object]]:
    """Let ranges follow calibration images once more, with all rounding on; weights stand still.

    Ranges that were trained with fit the weights that were trained with them, unless these moved since they were frozen (or are an
    average): which of the two is better is measured.

    Args:
        prepared: trained, at rest; it has the better ranges afterwards.
        images: calibration images in batches.
        trained: the verdict with the ranges as trained.
        judge: judges `prepared` as it is.

    Returns:
        The verdict of what was taken, and for the record: `recalibrated` (images looked at, whether it was taken, its figures).
    """
    modules = activations(prepared)
    before = {name: {key: value.clone() for key, value in module.state_dict().items()} for name, module in modules.items()}
    count = 0
    for module in modules.values():
        module.enable_observer(True)
    for batch in images:
        prepared(batch)
        count += len(batch)
    for module in modules.values():
        module.enable_observer(False)
    verdict = judge()
    taken = verdict.beats(trained)
    if not taken:
        for name, module in modules.items():
            module.load_state_dict(before[name])
    figures = {"images": count, "taken": taken, "distance": round(verdict.loss, 6)}
    if verdict.metric is not None:
        figures["metric"] = round(verdict.metric, 6)
    return (verdict if taken else trained), {"recalibrated": figures}
