"""Weights and biases of all INT8 layers fitted again to what their inputs really are (`rounding`), from one pass over images.

Every layer sees FP32's input, rounded as its own Q rounds it, and is fitted to FP32's output. The bias takes the mean of what is
left: (Wq - W) E[x]. Noise that comes from layers before is left alone on purpose. Two ways of fitting it in as well were measured:

- A bias that makes up for observed means, layer after layer with the quantized prefix. MobileNetV2 with its ranges cut: 23.2 dB
  becomes 20.4, because rare large values rule the mean and all others pay for them; EfficientNet-Lite0: nothing.
- Weights fitted to the changed input. EfficientNet-Lite0: -1 dB; few images, and noise upstream is no function of an input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from octavo.quantization.int8.draft import Feeds, Plan
from octavo.quantization.int8.fitting.moments import Moments, as_rows, as_weights, rows_of
from octavo.quantization.int8.fitting.rounding import rounded_codes, scales_for
from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.numbers.weights import Codes, bias_of, weights_of
from octavo.quantization.int8.structure.units import Unit
from octavo.runtime.blas import one_blas_thread
from octavo.runtime.host import cores
from octavo.runtime.tensors import Group, group_names, open_groups

__all__ = ["refined_codes"]

# Bound on the moments that are held at once, or so many times the bytes of all layers' weights where that is more (each part of
# the layers asks for another run of FP32); and on one image's tensors.
_BYTES, _TIMES_WEIGHTS = 160 << 20, 4
# Images at once.
_LANES = 4
# Rows that a layer's moments are taken from: so many in all, or for each column where that is more; a group of a depthwise layer
# has few columns.
_ROWS, _ROWS_A_COLUMN, _ROWS_OF_GROUPS = 12288, 4, 4096
# A kernel with more columns than this keeps rounding to nearest: its moments alone take 8 bytes each, squared.
_COLUMNS = 5120
# Layers with more columns are fitted one by one.
_WIDE = 2048


@dataclass(frozen=True)
class _Form:
    """What a layer's codes are like: the largest one, a scale a channel or one in all, and whether its bias takes the mean."""

    limit: int
    per_channel: bool
    correct: bool


def refined_codes(
    model: ir.Model, plan: Plan, samples: Sequence[Feeds], *, bits: int, per_channel: bool, correct: bool = True
) -> dict[str, Codes]:
    """Codes, scales and biases of the layers that a plan has in INT8.

    Args:
        model: FP32, as prepared for INT8.
        plan: which units are INT8, and the scales of their inputs.
        samples: feeds of calibration images, batch dimension 1.
        bits: of the weights, 8 or 7.
        per_channel: whether each output channel has a scale of its own.
        correct: whether biases take the mean of what is left; else codes have to err little about zero, not about the mean.

    Returns:
        By the layer's node name; a layer that is too wide to be fitted is left out.
    """
    with one_blas_thread():
        return dict(_refined(model, plan, samples, _Form(127 if bits == 8 else 64, per_channel, correct)))


def _refined(model: ir.Model, plan: Plan, samples: Sequence[Feeds], form: _Form) -> Iterator[tuple[str, Codes]]:
    layers = [unit for unit in plan.int8 if unit.kind == "linear" and _columns(unit)[1] <= _COLUMNS]
    for part in _parts(layers):
        moments = {unit.name: Moments(*_columns(unit)) for unit in part}
        names = list(dict.fromkeys(unit.inputs[0].name for unit in part))
        with ThreadPoolExecutor(min(_LANES, cores())) as pool:
            for group in open_groups(model, group_names(model, names, _BYTES), threads=1):
                held = set(group.names)
                readers = [unit for unit in part if unit.inputs[0].name in held]
                reading = _Reading(group, readers, plan, moments, len(samples))
                list(pool.map(reading.take, range(len(samples)), samples))
        # The widest one by one: each takes eight times the bytes of its moments while it is fitted.
        wide = [unit for unit in part if _columns(unit)[1] > _WIDE]
        for units, lanes in ((wide, 1), ([unit for unit in part if unit not in wide], min(_LANES, cores()))):
            with ThreadPoolExecutor(lanes) as pool:
                fitted = pool.map(partial(_fitted, plan=plan, form=form), units, [moments.pop(unit.name) for unit in units])
                yield from zip((unit.main.name for unit in units), fitted, strict=True)


@dataclass(frozen=True)
class _Reading:
    """What is read of a group's tensors, image by image; several threads may."""

    group: Group
    units: Sequence[Unit]
    plan: Plan
    moments: Mapping[str, Moments]
    samples: int

    def take(self, turn: int, feeds: Feeds) -> None:
        """Take in an image. Sums of whole numbers are exact: which image comes first shows in nothing."""
        tensors = self.group.read(feeds)
        for unit in self.units:
            name = unit.inputs[0].name
            rows = rows_of(unit.main, tensors[name], _most(unit, self.samples), turn)
            self.moments[unit.name].add(_codes(rows, self.plan.scales[name]))


def _fitted(unit: Unit, moments: Moments, *, plan: Plan, form: _Form) -> Codes:
    node, before = unit.main, plan.codes[unit.main.name]
    # [1, 1], or [groups, 1]: only what depthwise Convs read has a scale for each channel.
    step = plan.scales[unit.inputs[0].name].scale.astype(np.float64).reshape(-1, 1)
    weights = as_rows(node, weights_of(node)).astype(np.float64)
    # A MatMul has no bias to take the mean.
    takes_mean = form.correct and node.op_type != "MatMul"
    noticed = _trusted(moments.covariance if takes_mean else moments.second, moments.count)
    if form.per_channel:
        scale = scales_for(weights, noticed, form.limit)
    else:
        scale = np.full(weights.shape[:2], before.scale.reshape(-1)[0], np.float32)
    codes = as_weights(node, rounded_codes(weights, scale, noticed, form.limit)).astype(np.int8)
    found = Codes(codes, scale.reshape(-1) if form.per_channel else before.scale, before.axis, bias_of(node))
    if not takes_mean:
        return found
    error = as_rows(node, found.restored.astype(np.float64)) - weights
    shift = (error @ (moments.mean * step)[:, :, None]).reshape(-1)
    found.bias = ((0.0 if found.bias is None else found.bias.astype(np.float64)) - shift).astype(np.float32)
    return found


def _trusted(own: np.ndarray, count: int) -> np.ndarray:
    """Moments, drawn towards their diagonal as far as few rows say little about so many columns."""
    size = own.shape[1]
    place = np.arange(size)
    diagonal = own[:, place, place]
    drawn = own * (1 - size / (size + 2 * count))
    drawn[:, place, place] = diagonal
    return drawn


def _codes(rows: np.ndarray, chosen: QParams) -> np.ndarray:
    """Codes minus their zero point, [groups, rows, columns] float64: whole numbers, whose moments are exact."""
    # A scale for each channel is one for each group of a depthwise Conv; `rounded` has channels second.
    turned = rows.swapaxes(0, 1)
    return np.rint(chosen.rounded(turned) / chosen.scale.reshape(1, -1, 1)).astype(np.float64).swapaxes(0, 1)


def _columns(unit: Unit) -> tuple[int, int]:
    """(groups, columns) of a layer."""
    shape = as_rows(unit.main, weights_of(unit.main)).shape
    return shape[0], shape[2]


def _most(unit: Unit, samples: int) -> int:
    groups, columns = _columns(unit)
    rows = _ROWS_OF_GROUPS if groups > 1 else max(_ROWS, _ROWS_A_COLUMN * columns)
    return max(1, -(-rows // samples))


def _parts(layers: Sequence[Unit]) -> Iterator[list[Unit]]:
    """Layers whose moments are held at once."""
    bound = max(_BYTES, _TIMES_WEIGHTS * sum(weights_of(unit.main).nbytes for unit in layers))
    part: list[Unit] = []
    total = 0
    for unit in layers:
        groups, columns = _columns(unit)
        size = 8 * groups * columns**2
        if part and total + size > bound:
            yield part
            part, total = [], 0
        part.append(unit)
        total += size
    if part:
        yield part
