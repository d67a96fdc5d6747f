"""What a placement costs in time: of each unit in float and in INT8, and of each border between the two.

Prices are measured (`placement: measured`, or a saved table), or estimated from shapes: good for comparing placements of one graph,
not for telling milliseconds. The estimate's rates were read off ONNX Runtime's profile of YOLOv5n, YOLOX, CGNet and
EfficientNet-Lite0: a depthwise Conv gains nothing in int8, SiLU costs the same in either, a border costs a pass over the tensor.
OpenVINO's were read off its own profile of YOLOv5n, NanoDet-m and MobileNetV2 (host 7ca432ccf350, OpenVINO 2026.4): its integer
kernels gain more where products decide, little where elements do (SiLU and the next Q are in the kernel, whatever it computes in).

A layer that stays float may keep its weights at two bytes: that has its price too, or the largest layers would go first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from octavo.quantization.int8.numbers.weights import weights_of
from octavo.quantization.int8.pricing.costs import CostTable, is_static
from octavo.quantization.int8.structure.rows import joined, placed_by_time, row_activations
from octavo.quantization.int8.structure.units import Unit, readers
from octavo.runtime.shapes import shape_of

__all__ = ["Prices", "estimated", "measured"]

# Nanoseconds an element that a layer takes longer where it writes rows of floats.
_ROWS = 0.08
# Nanoseconds that a weight of a float layer is held to be worth: it is float16 in the file, one byte more than a code.
_WEIGHT = 1.3
# How much faster float must measure to be taken for its speed alone: it keeps noise of the timer from deciding.
_MARGIN = 1.1


@dataclass(frozen=True)
class _Rates:
    """What prices are estimated by: nanoseconds in (float, INT8).

    Attributes:
        dense, depthwise: of a multiply-add.
        elements: of an element that a unit without weights writes.
        silu: of one that SiLU writes.
        border: of an element that a Q or a DQ writes.
    """

    dense: tuple[float, float] = (0.020, 0.009)
    depthwise: tuple[float, float] = (0.015, 0.020)
    elements: tuple[float, float] = (0.10, 0.08)
    silu: tuple[float, float] = (0.27, 0.29)
    border: float = 0.15


_OPENVINO = _Rates(dense=(0.018, 0.0055), depthwise=(0.085, 0.065), elements=(0.30, 0.07), border=0.10)
_RATES = {"openvino": _OPENVINO, "openvino-no-vnni": _OPENVINO}


@dataclass(frozen=True)
class Prices:
    """Milliseconds at batch 1.

    Attributes:
        units: (float, INT8) of each unit, borders left out.
        quantize: of bringing a tensor from float to INT8, by tensor; once, however many units read it.
        dequantize: of bringing it back, for each node that reads it in float.
        is_measured: whether they are times of a machine.
        needs: units whose price in INT8 holds only where other units are INT8 too; otherwise they are much dearer (`_pools`).
        on_rows: float activations that can compute on the rows of an INT8 layer, each with it (`structure.rows`). The price of
            bringing the layer's output back is then what both take together beyond INT8 and float alone.
        moving: of what these put out, which lies as its layer left it: bringing it into the layout of INT8 where the layer is
            float, and back where it is INT8; `quantize` and `dequantize` are without that.
    """

    units: Mapping[Unit, tuple[float, float]]
    quantize: Mapping[ir.Value, float]
    dequantize: Mapping[ir.Value, float]
    is_measured: bool = False
    needs: Mapping[Unit, Sequence[Unit]] = field(default_factory=dict)
    on_rows: Mapping[Unit, Unit] = field(default_factory=dict)
    moving: Mapping[ir.Value, tuple[float, float]] = field(default_factory=dict)

    def with_stored(self, units: Iterable[Unit]) -> Prices:
        """The same where these units keep int8 weights in the file, whatever they compute in."""
        free = {unit: (self.units[unit][0] - _weights_price(unit), self.units[unit][1]) for unit in units}
        return replace(self, units={**self.units, **free})

    def of(self, int8: Iterable[Unit]) -> float:
        """Of a whole placement: the units that are INT8."""
        int8 = set(int8)
        total = sum(pair[unit in int8] for unit, pair in self.units.items())
        made = {value: unit for unit in self.units for value in unit.outputs}
        quantized: set[ir.Value] = set()
        moved: set[ir.Value] = set()
        for unit in self.units:
            for value in unit.inputs:
                maker = made.get(value)
                if maker in int8 and unit not in int8:
                    total += self.dequantize[value] * reads(unit, value)
                elif unit in int8 and maker not in int8:
                    quantized.add(value)
                if value in self.moving and (self.on_rows[maker] in int8) != (unit in int8):
                    total += 0.0 if unit in int8 else self.moving[value][1]
                    moved |= {value} if unit in int8 else set()
        return total + sum(self.quantize[value] for value in quantized) + sum(self.moving[value][0] for value in moved)


def reads(unit: Unit, value: ir.Value) -> int:
    """How many of a unit's nodes read a tensor: ONNX Runtime gives each a DequantizeLinear of its own."""
    return sum(value in node.inputs for node in unit.nodes)


def estimated(units: Sequence[Unit], target: str = "cpu") -> Prices:
    """Prices from shapes, by what is known of the runtime that `int8.target` names; sizes that are not known count as 1."""
    rates = _RATES.get(target, _Rates())
    values = _inputs(units)
    border = {value: _size(value) * rates.border / 1e6 for value in values}
    on_rows = row_activations(units)
    back = _borders_out(units, border) | _behind_layers({unit: _size(unit.inputs[0]) * _ROWS / 1e6 for unit in on_rows})
    moving = {value: (border[value], border[value]) for unit in on_rows for value in unit.outputs if value in border}
    prices = {unit: _with_weights(unit, _estimate(unit, rates)) for unit in units}
    return Prices(prices, border, back, needs=_pools(units), on_rows=on_rows, moving=moving)


def measured(units: Sequence[Unit], table: CostTable, candidates: Iterable[Unit]) -> Prices:
    """Prices from a table.

    Args:
        units: all of a graph's.
        table: with an entry for each of `candidates` whose sizes are static, and for those of them that `joined` makes one of.
        candidates: the units that can be INT8; the time of others is the same in every placement and left out.

    Raises:
        QuantizationError: the table was measured on another network and lacks a unit.
    """
    candidates = set(candidates)
    prices: dict[Unit, tuple[float, float]] = {}
    for unit in units:
        if unit not in candidates:
            prices[unit] = (0.0, 0.0)
        elif is_static(unit):
            cost = table.cost(unit)
            prices[unit] = _with_weights(unit, (cost.float_ms * _MARGIN, cost.int8_ms))
        else:
            prices[unit] = _with_weights(unit, _estimate(unit, _Rates()))
    values = [value for value in _inputs(units) if shape_of(value) is not None]
    rest = {value: _size(value) * _Rates.border / 1e6 for value in _inputs(units) if shape_of(value) is None}
    quantize = rest | {value: table.border_ms(value, to_int8=True) for value in values}
    dequantize = _borders_out(units, rest | {value: table.border_ms(value, to_int8=False) for value in values})
    able = placed_by_time(units, candidates)
    on_rows = {unit: layer for unit, layer in able.items() if is_static(joined(layer, unit))}
    extra = {}
    for unit, layer in on_rows.items():
        both, alone = table.cost(joined(layer, unit)), table.cost(layer)
        # What an activation takes that is float wherever it stands is in no other price.
        extra[unit] = both.int8_ms - alone.int8_ms - (prices[unit][0] if unit in candidates else both.float_ms - alone.float_ms)
    dequantize |= _behind_layers(extra)
    behind = [value for unit in on_rows for value in unit.outputs if value in quantize]
    quantize |= {value: table.rounding_ms(value, to_int8=True) for value in behind}
    dequantize |= {value: table.rounding_ms(value, to_int8=False) for value in behind}
    moving = {value: (table.moving_ms(value, to_int8=True), table.moving_ms(value, to_int8=False)) for value in behind}
    return Prices(prices, quantize, dequantize, is_measured=True, needs=_pools(units), on_rows=on_rows, moving=moving)


def _behind_layers(extra: Mapping[Unit, float]) -> dict[ir.Value, float]:
    """What activations on rows cost more than what they are held to, as prices of bringing back what they read."""
    return {unit.inputs[0]: max(0.0, more) / reads(unit, unit.inputs[0]) for unit, more in extra.items()}


def _borders_out(units: Iterable[Unit], prices: Mapping[ir.Value, float]) -> dict[ir.Value, float]:
    """Prices of bringing tensors back: nothing where the kernel writes float. A product's does so for a reader in float that has no
    other beside it.
    """
    units = list(units)
    by_reader = Counter(value for unit in units for value in unit.inputs)
    free = [unit for unit in units if unit.writes_float or (unit.is_product and by_reader[unit.outputs[0]] == 1)]
    return dict(prices) | {value: 0.0 for unit in free for value in unit.outputs}


def _pools(units: Sequence[Unit]) -> dict[Unit, list[Unit]]:
    """MaxPools, and the units up to the next weights that have to be INT8 with them.

    ONNX Runtime's integer MaxPool is fast on NHWC, and without any vector instruction on NCHW (30 times as slow: 7 ms instead of .2
    for YOLOX-nano's three pools over 13x13 images). It runs in NHWC right behind an integer convolution, and elsewhere where one
    comes next, so that the image stays in its layout for all that lies between the two.
    """
    by_node = {node: unit for unit in units for node in unit.nodes}
    makers = {value: unit for unit in units for value in unit.outputs}
    found: dict[Unit, list[Unit]] = {}
    for unit in units:
        if unit.kind != "MaxPool":
            continue
        maker = makers.get(unit.inputs[0]) if unit.inputs else None
        if maker is not None and maker.kind == "linear":
            continue
        ahead, between = [unit], {}
        while ahead:
            for value in ahead.pop().outputs:
                behind = [by_node[node] for node in readers(value) if node in by_node and by_node[node] not in between]
                between |= dict.fromkeys(behind)
                ahead += [reader for reader in behind if reader.kind != "linear"]
        found[unit] = list(between)
    return found


def _inputs(units: Sequence[Unit]) -> list[ir.Value]:
    return list(dict.fromkeys(value for unit in units for value in unit.inputs))


def _size(value: ir.Value) -> float:
    sizes = shape_of(value)
    if sizes is None:
        sizes = [0] if value.shape is None else [dim if isinstance(dim, int) else 1 for dim in value.shape]
    return float(np.prod(sizes, dtype=np.float64))


def _with_weights(unit: Unit, pair: tuple[float, float]) -> tuple[float, float]:
    if unit.kind != "linear":
        return pair
    return pair[0] + _weights_price(unit), pair[1]


def _weights_price(unit: Unit) -> float:
    return weights_of(unit.main).size * _WEIGHT / 1e6


def _estimate(unit: Unit, rates: _Rates) -> tuple[float, float]:
    written = sum(_size(value) for value in unit.outputs) / 1e6
    if unit.kind == "linear":
        weights = weights_of(unit.main)
        depthwise = unit.main.op_type == "Conv" and weights.shape[1] == 1
        work = written * (weights[0].size if unit.main.op_type == "Conv" else min(weights.shape))
        in_float, in_int8 = rates.depthwise if depthwise else rates.dense
        return work * in_float, work * in_int8
    in_float, in_int8 = rates.silu if unit.kind == "silu" else rates.elements
    return written * in_float, written * in_int8
