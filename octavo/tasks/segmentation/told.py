"""How class maps are read, told by FP32's graph and one of its answers: once, for all variants and whatever reads them."""

from __future__ import annotations

import onnx_ir as ir

from octavo.graph.outputs import in_unit
from octavo.params.grammar import Segmentation
from octavo.tasks.outputs import Outputs
from octavo.tasks.segmentation.decode import maps_of

__all__ = ["as_told"]


def as_told(task: Segmentation, model: ir.Model, outputs: Outputs, size: tuple[int, int]) -> Segmentation:
    """The task with `layout` and `threshold` of every head filled in, where params.yaml leaves them open.

    Args:
        task: the model's `task:` block.
        model: FP32.
        outputs: its answer to one image.
        size: (rows, columns) of that image's tensor.

    Returns:
        `layout` of maps of scores and `threshold` of a single one; both stay open of whole numbers.

    Raises:
        DataError: an output is missing, no map of classes, or fits two layouts.
    """
    produced, told = {value.name: value for value in model.graph.outputs}, {}
    for name, head in task.each.items():
        maps, layout = maps_of(outputs, head, size)
        if layout is None:
            continue
        told[name] = {"layout": layout}
        if len(maps) == 1:
            output = head.output or next(iter(outputs))
            # Of a graph that is cut before an operator without a body, outputs are inner tensors.
            told[name]["threshold"] = 0.5 if output in produced and in_unit(produced[output]) else 0.0
    return task.filled(told)
