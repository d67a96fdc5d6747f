"""What cannot be INT8 for the values that it gets: none at all, or infinite ones.

Integer kernels of ONNX Runtime crash on tensors without rows.

QLinearAdd and QLinearMul of two tensors of different shapes end the process with a segmentation fault where one of them is empty
(measured with 1.31: [0, 4] and [0, 1]; equal shapes, a constant of one value, and all other integer kernels cope). That is what
breaks Faster R-CNN as ONNX Runtime's own quantizer leaves it: each level's boxes are widths [n, 1] times offsets [n, 4], and for
many images a level has none. With basic optimizations nothing is fused and nothing crashes. No exception can be caught, so such an
Add or Mul must never be INT8; only values that the data decide the number of (NonZero, suppression) can be empty.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from octavo.calibration.statistics import Statistics
from octavo.graph.custom_ops.cut import reads
from octavo.quantization.int8.structure.units import Unit, constant

__all__ = ["REASON", "crashing_when_empty", "without_range"]

REASON = "it broadcasts, and may get no rows: ONNX Runtime's integer kernel crashes on none"
_INFINITE = "it reads or writes infinite values, which no code stands for"
_EMPTY = "no calibration image gives it a value, so that its range is not known"
# How many values come out depends on the values that go in; of TopK, where k is not constant.
_COUNTED = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique"})


def crashing_when_empty(units: Iterable[Unit]) -> dict[str, str]:
    """Nodes (Add, Mul) that must stay float for this, each with the reason.

    Args:
        units: of one graph, shapes inferred as far as that goes.
    """
    # With a constant they are float in any case, and say so.
    nodes = [unit for unit in units if unit.kind in ("Add", "Mul") and not any(map(constant, unit.main.inputs))]
    if not nodes:
        return {}
    counted = _counted(nodes[0].main.graph)
    return {
        unit.main.name or "": REASON
        for unit in nodes
        if any(value in counted for value in unit.main.outputs)
        and not _same_shape(unit.main)
        and not _has_rows(unit.main.outputs[0])
    }


def without_range(units: Iterable[Unit], statistics: Statistics) -> dict[str, str]:
    """Nodes of the units whose values no code stands for, each with the reason.

    These read or write infinite values (attention's masks), or are empty on all images: all that they put out is, or, for layers,
    what they read (the rows of objects where none was found).

    Args:
        units: of one graph.
        statistics: of its tensors.
    """
    infinite = {name for name, tensor in statistics.tensors.items() if tensor.infinite}
    empty = {name for name, tensor in statistics.tensors.items() if not tensor.values} - infinite
    found = {}
    for unit in units:
        if any(value.name in infinite for value in (*unit.inputs, *unit.inner, *unit.outputs)):
            found[unit.main.name or ""] = _INFINITE
        elif all(value.name in empty for value in (unit.inputs[:1] if unit.kind == "linear" else unit.outputs)):
            found[unit.main.name or ""] = _EMPTY
    return found


def _counted(graph: ir.Graph) -> set[ir.Value]:
    """Values whose sizes the data may decide.

    Inputs that take no image count: choices that are fed (`octavo.graph.selection`).
    """
    found = {value for value in graph.inputs if value.dtype != ir.DataType.FLOAT or value.shape is None or len(value.shape) != 4}
    for node in graph:
        own = node.op_type in _COUNTED or (node.op_type == "TopK" and not constant(node.inputs[1]))
        if own or any(value in found for value in reads(node)):
            found.update(node.outputs)
    return found


def _same_shape(node: ir.Node) -> bool:
    first, second = (value.shape for value in node.inputs)
    if first is None or second is None or len(first) != len(second):
        return False
    return all(one == other and (isinstance(one, int) or one.value is not None) for one, other in zip(first, second, strict=True))


def _has_rows(value: ir.Value) -> bool:
    return value.shape is not None and all(isinstance(size, int) and size > 0 for size in value.shape)
