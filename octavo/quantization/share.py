"""How much of a network's work is done in integers, by multiplications: a count of layers takes the smallest for the largest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from octavo.graph.macs import layers_of
from octavo.graph.readable import readable, shapes_at
from octavo.runtime.shapes import SEEN
from octavo.runtime.sizes import observe_sizes

__all__ = ["integer_share"]


def integer_share(
    model: ir.Model,
    nodes: Sequence[Mapping[str, Any]],
    feeds: Mapping[str, np.ndarray],
    *,
    here: bool = True,
    behind: Collection[str] = (),
    running: ir.Model | None = None,
) -> float | None:
    """Share of the multiply-accumulates (`octavo.graph.macs`) that are done in 8-bit integers.

    Args:
        model: the graph that the nodes are of.
        nodes: as `octavo.quantization.executed.Executed` has them.
        feeds: of an image; layers whose sizes data decide (the regions of Faster R-CNN) count with those that they have on it.
        here: whether what ONNX Runtime runs counts; else what was decided does, as where no kernel was found.
        behind: names of the nodes behind custom operators without a body: what these put out the file alone may tell.
        running: the part of the graph that ONNX Runtime runs, where that is not all of it (`CustomOps.part`).

    Returns:
        0 to 1; None where no layer's sizes are known, or there is none, or of those behind a custom operator one's are not.
    """
    plain = readable(model)
    ran = {each["node"]: (each.get("runs") if here else None) or each.get("arithmetic", each["precision"]) for each in nodes}
    shapes = shapes_at(plain, {name: value.shape for name, value in feeds.items()})
    layers = layers_of(plain, shapes)
    unknown = [layer.node for layer in layers if layer.macs is None and layer.node.name not in behind]
    if any(node.graph is plain.graph for node in unknown):
        runs = plain if running is None else readable(running)
        observe_sizes(runs, feeds)
        made = (value for node in runs.graph for value in node.outputs if SEEN in value.meta)
        layers = layers_of(plain, shapes | {value.name: value.meta[SEEN] for value in made})
    if any(layer.macs is None and layer.node.name in behind for layer in layers):
        return None
    macs = {layer.node.name: layer.macs for layer in layers if layer.macs}
    total = sum(macs.values())
    return round(sum(count for name, count in macs.items() if ran.get(name) == "int8") / total, 4) if total else None
