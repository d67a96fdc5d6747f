"""FP32's choices among values (`octavo.graph.selection`) as feeds, so that layers behind them can be compared."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from octavo.runtime.lanes import in_lanes
from octavo.runtime.tensors import open_groups

__all__ = ["Feeds", "with_choices"]

Feeds = Mapping[str, np.ndarray]


def with_choices(
    model: ir.Model, names: Sequence[str], samples: Sequence[Feeds], *, chosen_by: ir.Model | None = None
) -> list[Feeds]:
    """Feeds for `held(model, names)`: those given, and what the choosing nodes put out on them.

    Args:
        model: FP32.
        names: of its nodes that choose.
        samples: feeds.
        chosen_by: the graph that tensors of these names are read from; the model itself where None.

    Raises:
        ModelRunError: the graph does not run.
    """
    # One session for all: with the tensors apart, fusions would differ, and with them what is chosen where two are close.
    chosen: list[dict[str, np.ndarray]] = [{} for _ in samples]
    wanted = [value.name for node in model.graph if node.name in names for value in node.outputs if value.name]
    if wanted and samples:
        for group in open_groups(chosen_by or model, [wanted], optimization="basic", threads=1, what="FP32"):
            for own, found in zip(chosen, in_lanes(group.read, samples), strict=True):
                own |= found
    # Images stay where they are, which may be a file.
    return [ChainMap(own, feeds) for own, feeds in zip(chosen, samples, strict=True)]
