"""What a placement costs, estimated from shapes: good for comparing placements of one graph, not for telling milliseconds.

The unit is about a nanosecond on two cores with VNNI. The rates were read off ONNX Runtime's profile of YOLOv5n, YOLOX, CGNet and
EfficientNet-Lite0: a depthwise Conv gains nothing in int8, SiLU costs the same in either, a border costs a pass over the tensor.
A layer that stays float also keeps its weights at four bytes: that has its price too, or the largest layers would go first.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from octavo.quantization.int8.units import Unit
from octavo.quantization.int8.weights import weights_of

__all__ = ["latency_of"]

# Nanoseconds a multiply-add, (float, int8).
_DENSE, _DEPTHWISE = (0.020, 0.009), (0.015, 0.020)
# Nanoseconds an element written by units without weights, (float, int8), and by a Q or a DQ.
_PASS, _SILU, _BORDER = (0.10, 0.08), (0.27, 0.29), 0.15
# Nanoseconds that a weight kept in float32 is held to be worth.
_WEIGHT = 4.0


def latency_of(units: list[Unit]) -> Callable[[set[Unit]], float]:
    """A function from the INT8 units to the latency of the whole graph."""
    prices = {unit: _prices(unit) for unit in units}
    makers = {value: unit for unit in units for value in unit.outputs}
    borders = [(makers[value], unit, _size(value) * _BORDER) for unit in units for value in unit.inputs if value in makers]

    def latency(int8: set[Unit]) -> float:
        own = sum(pair[unit in int8] for unit, pair in prices.items())
        return own + sum(size for maker, reader, size in borders if (maker in int8) != (reader in int8))

    return latency


def _size(value: ir.Value) -> float:
    if value.shape is None:
        return 0.0
    return float(np.prod([dim if isinstance(dim, int) else 1 for dim in value.shape], dtype=np.float64))


def _prices(unit: Unit) -> tuple[float, float]:
    written = sum(_size(value) for value in unit.outputs)
    if unit.kind == "linear":
        weights = weights_of(unit.main)
        depthwise = unit.main.op_type == "Conv" and weights.shape[1] == 1
        work = written * (weights[0].size if unit.main.op_type == "Conv" else min(weights.shape))
        rates = _DEPTHWISE if depthwise else _DENSE
        return work * rates[0] + weights.size * _WEIGHT, work * rates[1]
    rates = _SILU if unit.kind == "silu" else _PASS
    return written * rates[0], written * rates[1]
