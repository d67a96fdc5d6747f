"""FP32's choices among values (`octavo.graph.selection`) as feeds, so that layers behind them can be compared."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from octavo.runtime.tensors import read_tensors

__all__ = ["with_choices"]

# One session for all: with the tensors apart, fusions would differ, and with them what is chosen where two are close.
_ALL = 1 << 62

Feeds = Mapping[str, np.ndarray]


def with_choices(model: ir.Model, names: Sequence[str], samples: Sequence[Feeds]) -> list[Feeds]:
    """Feeds for `held(model, names)`: those given, and what the choosing nodes put out on them.

    Args:
        model: FP32.
        names: of its nodes that choose.
        samples: feeds.

    Raises:
        ModelRunError: the graph does not run.
    """
    chosen: list[dict[str, np.ndarray]] = [{} for _ in samples]
    wanted = [value.name for node in model.graph if node.name in names for value in node.outputs if value.name]
    if wanted and samples:

        def places() -> Iterator[tuple[str, dict[str, np.ndarray]]]:
            return ((str(place), dict(feeds)) for place, feeds in enumerate(samples))

        for place, found in read_tensors(model, wanted, places, group_bytes=_ALL, optimization="basic", what="FP32"):
            chosen[int(place)] |= found
    # Images stay where they are, which may be a file.
    return [ChainMap(found, feeds) for found, feeds in zip(chosen, samples, strict=True)]
