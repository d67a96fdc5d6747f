"""Roundings measured together where each alone is too dear, and what of their noise is each one's.

What follows a rounding treats noise of a layer's weights and of the tensor that the layer writes alike, and hardly otherwise that
of the next layer of a chain: what they make at the heads together, one run tells, and how large they are beside each other, their
own tensors do. It is the sum that placements are found by, over layers that go back to float together as often as not.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from octavo.calibration.histogram import bin_middles
from octavo.calibration.statistics import Statistics, TensorStatistics
from octavo.quantization.int8.noise.switches import LAYER, TENSOR, Key
from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.numbers.weights import Codes, weights_of
from octavo.quantization.int8.plan import Plan
from octavo.quantization.int8.structure.units import Unit, readers

__all__ = ["apart", "chained"]


def chained(plan: Plan, statistics: Statistics, keys: Sequence[Key], most: int) -> list[list[Key]]:
    """Roundings in groups of so many at most, each group along a chain whose tensors nothing beside reads.

    Args:
        plan: which units are INT8.
        statistics: of its draft; a tensor of which calibration counted nothing is alone.
        keys: the roundings, each in one of the groups.
        most: to a group; with 1 each is alone.
    """
    counted = {name for name, seen in statistics.tensors.items() if seen.counts.any()}
    wanted = {key for key in keys if key[0] == LAYER or key[1] in counted}
    groups: dict[Key, list[Key]] = {}
    for unit in plan.reasons:
        before = _before(unit)
        for key in _of(unit):
            if key not in wanted:
                continue
            group = groups.get(before) if before is not None else None
            if group is None or len(group) == most:
                group = []
            group.append(key)
            groups[key] = group
            before = key
    rest = [[key] for key in keys if key not in groups]
    return [*{id(group): group for group in groups.values()}.values(), *rest]


def apart(plan: Plan, statistics: Statistics, keys: Collection[Key], noise: float) -> dict[Key, float]:
    """The noise of some roundings together, parted by how much each moves its own tensor."""
    weighted = {unit.main.name: unit for unit in plan.int8 if unit.kind == "linear"}
    own = {
        key: _of_weights(plan.codes[key[1]], weights_of(weighted[key[1]].main))
        if key[0] == LAYER
        else _of_tensor(statistics.tensors[key[1]], plan.scales[key[1]])
        for key in keys
    }
    total = sum(own.values())
    return {key: noise * (one / total if total else 1 / len(own)) for key, one in own.items()}


def _before(unit: Unit) -> Key | None:
    """The rounding of what alone a unit reads, and nothing but the unit reads."""
    if len(unit.inputs) != 1 or unit.inputs[0].is_graph_output():
        return None
    return (TENSOR, unit.inputs[0].name or "") if all(node in unit.nodes for node in readers(unit.inputs[0])) else None


def _of(unit: Unit) -> list[Key]:
    """The roundings that a unit may have, in order."""
    weights: list[Key] = [(LAYER, unit.main.name or "")] if unit.kind == "linear" else []
    return [*weights, *((TENSOR, value.name or "") for value in unit.outputs)]


def _of_tensor(seen: TensorStatistics, chosen: QParams) -> float:
    """Noise-to-signal ratio of a tensor's rounding, as calibration counted its values."""
    bins = np.flatnonzero(seen.counts)
    values, counts = np.clip(bin_middles(bins), seen.low, seen.high).astype(np.float64), seen.counts[bins]
    step = float(np.mean(chosen.scale))
    ends = np.iinfo(chosen.zero_point.dtype)
    zero = float(np.mean(chosen.zero_point))
    error = (np.clip(np.rint(values / step), ends.min - zero, ends.max - zero) * step) - values
    mean = np.average(values, weights=counts)
    return float((counts @ np.square(error)) / max(counts @ np.square(values - mean), 1e-30))


def _of_weights(codes: Codes, weights: np.ndarray) -> float:
    """Mean over output channels of the noise-to-signal ratio of a layer's rounded weights."""
    axes = tuple(axis for axis in range(weights.ndim) if axis != codes.axis)
    error, whole = (np.square(array, dtype=np.float64).sum(axis=axes) for array in (codes.restored - weights, weights))
    return float(np.mean(error / np.maximum(whole, 1e-30)))
