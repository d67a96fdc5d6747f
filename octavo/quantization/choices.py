"""FP32's choices among values (`octavo.graph.selection`) as feeds, so that layers behind them can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from octavo.runtime.tensors import read_tensors

__all__ = ["with_choices"]

# One session for all: with the tensors apart, fusions would differ, and with them what is chosen where two are close.
_ALL = 1 << 62

Feeds = Mapping[str, np.ndarray]


def with_choices(model: ir.Model, names: Sequence[str], samples: Sequence[Feeds]) -> list[dict[str, np.ndarray]]:
    """Feeds for `held(model, names)`: those given, and what the choosing nodes put out on them.

    Args:
        model: FP32.
        names: of its nodes that choose.
        samples: feeds.

    Raises:
        ModelRunError: the graph does not run.
    """
    fed = [dict(feeds) for feeds in samples]
    wanted = [value.name for node in model.graph if node.name in names for value in node.outputs if value.name]
    if wanted and fed:
        places = [(str(place), feeds) for place, feeds in enumerate(map(dict, samples))]
        for place, found in read_tensors(model, wanted, lambda: places, group_bytes=_ALL, optimization="basic", what="FP32"):
            fed[int(place)] |= found
    return fed
