"""Weights and biases of all INT8 layers fitted again to what their inputs really are (`rounding`), from one pass over images.

Every layer sees FP32's input, rounded as its own Q rounds it, and is fitted to FP32's output. The bias takes the mean of what is
left: (Wq - W) E[x]. Layers with the same weights are fitted as one, each with a bias of its own. Noise that comes from
layers before is left alone on purpose. Two ways of fitting it in as well were measured:

- A bias that makes up for observed means, layer after layer with the quantized prefix. MobileNetV2 with its ranges cut: 23.2 dB
  becomes 20.4, because rare large values rule the mean and all others pay for them; EfficientNet-Lite0: nothing.
- Weights fitted to the changed input. EfficientNet-Lite0: -1 dB; few images, and noise upstream is no function of an input.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from octavo.quantization.int8.draft import Feeds
from octavo.quantization.int8.fitting.moments import Moments, as_rows, as_weights, moment_bytes, rows_of, rows_read
from octavo.quantization.int8.fitting.rounding import rounded_codes, scales_for
from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.numbers.sums16 import least_scales
from octavo.quantization.int8.numbers.weights import Codes, bias_of, weights_of
from octavo.quantization.int8.plan import Plan
from octavo.quantization.int8.structure.alike import alike
from octavo.quantization.int8.structure.units import Unit
from octavo.runtime.blas import one_blas_thread
from octavo.runtime.host import cores
from octavo.runtime.lanes import LANES
from octavo.runtime.memory import return_freed
from octavo.runtime.tensors import Group, group_names, open_groups

__all__ = ["refined_codes"]

# The largest code of a weight.
_LIMIT = 127
# Bound on the moments that are held at once, or so many times the bytes of all layers' weights where that is more (each part of
# the layers asks for another run of FP32); and on one image's tensors.
_BYTES, _TIMES_WEIGHTS = 160 << 20, 2
# Rows that a layer's moments are taken from: so many in all, or for each column where that is more; a group of a depthwise layer
# has few columns.
_ROWS, _ROWS_A_COLUMN, _ROWS_OF_GROUPS = 12288, 4, 4096
# A kernel with more columns than this keeps rounding to nearest: its moments alone take 8 bytes each, squared.
_COLUMNS = 5120
# Layers with more columns are fitted one by one.
_WIDE = 2048


@dataclass(frozen=True)
class _Form:
    """What layers' codes are like: a scale a channel or one in all, whether biases take the mean, and the inputs' largest codes."""

    per_channel: bool
    correct: bool
    peaks: Mapping[str, np.ndarray]


def refined_codes(
    model: ir.Model,
    plan: Plan,
    samples: Sequence[Feeds],
    *,
    per_channel: bool,
    correct: bool = True,
    peaks: Mapping[str, np.ndarray] | None = None,
) -> dict[str, Codes]:
    """Codes, scales and biases of the layers that a plan has in INT8.

    Args:
        model: FP32, as prepared for INT8.
        plan: which units are INT8, and the scales of their inputs.
        samples: feeds of calibration images, batch dimension 1.
        per_channel: whether each output channel has a scale of its own.
        correct: whether biases take the mean of what is left; else codes have to err little about zero, not about the mean.
        peaks: of layers whose products saturate, the largest codes of their inputs (`Draft.peaks`).

    Returns:
        By the layer's node name; a layer that is too wide to be fitted is left out.
    """
    with one_blas_thread():
        return dict(_refined(model, plan, samples, _Form(per_channel, correct, peaks or {})))


def _refined(model: ir.Model, plan: Plan, samples: Sequence[Feeds], form: _Form) -> Iterator[tuple[str, Codes]]:
    layers = [unit for unit in plan.int8 if unit.kind == "linear" and _columns(unit)[1] <= _COLUMNS]
    place = {unit.inputs[0].name: at for at, unit in reversed(list(enumerate(layers)))}
    for part in _parts(_by_rows(alike(layers))):
        # What was tried before lies between what lives on, and what a part fitted in its place.
        return_freed()
        # Layers that are fitted as one see as many rows as one does.
        read = [
            [_Read(unit, Moments(*_columns(unit)), _most(unit, len(samples) * len(those[0]))) for unit in those[0]]
            for those in part
        ]
        names = sorted({one.name for own in read for one in own}, key=place.__getitem__)
        with ThreadPoolExecutor(min(LANES, cores())) as pool:
            for group in open_groups(model, group_names(model, names, _BYTES), threads=1):
                held = set(group.names)
                reading = _Reading(group, [one for own in read for one in own if one.name in held], plan)
                list(pool.map(reading.take, range(len(samples)), samples))
        # The widest one by one: each takes eight times the bytes of its moments while it is fitted.
        wide = [_columns(those[0][0])[1] > _WIDE for those in part]
        for is_wide, lanes in ((True, 1), (False, min(LANES, cores()))):
            chosen = [at for at, own in enumerate(wide) if own == is_wide]
            moments = [[one.moments for one in read[at]] for at in chosen]
            for at in chosen:
                read[at] = []
            with ThreadPoolExecutor(lanes) as pool:
                for fitted in pool.map(partial(_fitted, plan=plan, form=form), [part[at] for at in chosen], moments):
                    yield from fitted


@dataclass(frozen=True)
class _Read:
    """What layers read, as one of them reads it."""

    unit: Unit
    moments: Moments
    most: int

    @property
    def name(self) -> str:
        """The tensor's."""
        return self.unit.inputs[0].name or ""


@dataclass(frozen=True)
class _Reading:
    """What is read of a group's tensors, image by image; several threads may."""

    group: Group
    read: Sequence[_Read]
    plan: Plan

    def take(self, turn: int, feeds: Feeds) -> None:
        """Take in an image. Sums of whole numbers are exact: which image comes first shows in nothing."""
        tensors = self.group.read(feeds)
        for one in self.read:
            rows = rows_of(one.unit.main, tensors[one.name], one.most, turn)
            one.moments.add(_codes(rows, self.plan.scales[one.name]))


def _fitted(those: Sequence[Sequence[Unit]], moments: Sequence[Moments], *, plan: Plan, form: _Form) -> list[tuple[str, Codes]]:
    """Codes of layers, those of one list with the same weights, all of which read the same: by node."""
    # [1, 1], or [groups, 1]: only what depthwise Convs read has a scale for each channel.
    steps = [plan.scales[unit.inputs[0].name].scale.astype(np.float64).reshape(-1, 1) for unit in those[0]]
    # A MatMul has no bias to take the mean.
    takes_mean = form.correct and those[0][0].main.op_type != "MatMul"
    noticed = _noticed(moments, steps, about_mean=takes_mean)
    layers = [as_rows(units[0].main, weights_of(units[0].main)).astype(np.float64) for units in those]
    scales = [_scale(units[0].main, weights, noticed, plan, form) for units, weights in zip(those, layers, strict=True)]
    codes = rounded_codes(list(zip(layers, scales, strict=True)), noticed, _LIMIT)
    found: list[tuple[str, Codes]] = []
    for units, weights, scale, own_codes in zip(those, layers, scales, codes, strict=True):
        node, before = units[0].main, plan.codes[units[0].main.name]
        whole = as_weights(node, own_codes).astype(np.int8)
        made = Codes(whole, scale.reshape(-1) if form.per_channel else before.scale, before.axis, None)
        error = as_rows(node, made.restored.astype(np.float64)) - weights
        found += [
            (unit.main.name, replace(made, bias=_bias(unit, error, own.mean * step if takes_mean else None)))
            for unit, own, step in zip(units, moments, steps, strict=True)
        ]
    return found


def _scale(node: ir.Node, weights: np.ndarray, noticed: np.ndarray, plan: Plan, form: _Form) -> np.ndarray:
    """A layer's scales, [groups, rows] float32."""
    if not form.per_channel:
        return np.full(weights.shape[:2], plan.codes[node.name].scale.reshape(-1)[0], np.float32)
    scale = scales_for(weights, noticed, _LIMIT)
    if node.name in form.peaks:
        scale = np.maximum(scale, least_scales(node, form.peaks[node.name]).reshape(scale.shape))
    return scale


def _bias(unit: Unit, error: np.ndarray, mean: np.ndarray | None) -> np.ndarray | None:
    """A layer's bias, less what its rounded weights put out too much on average."""
    bias = bias_of(unit.main)
    if mean is None:
        return bias
    shift = (error @ mean[:, :, None]).reshape(-1)
    return ((0.0 if bias is None else bias.astype(np.float64)) - shift).astype(np.float32)


def _noticed(moments: Sequence[Moments], steps: Sequence[np.ndarray], *, about_mean: bool) -> np.ndarray:
    """What errors of weights cost, of layers with the same weights together: each by how many rows it has, and by its step."""
    count = sum(own.count for own in moments)
    if len(moments) == 1:
        return _trusted(moments[0].taken(about_mean=about_mean), count)
    largest = np.max(steps, axis=0)
    found = None
    # One after the other: of a head on five levels each takes as much memory as their sum.
    for own, step in zip(moments, steps, strict=True):
        taken = own.taken(about_mean=about_mean)
        taken *= np.square(step / largest)[..., None] * (own.count / max(1, count))
        found = taken if found is None else np.add(found, taken, out=found)
    return _trusted(found, count)


def _trusted(own: np.ndarray, count: int) -> np.ndarray:
    """Moments, drawn in place towards their diagonal as far as few rows say little about so many columns."""
    size = own.shape[1]
    place = np.arange(size)
    diagonal = own[:, place, place]
    own *= 1 - size / (size + 2 * count)
    own[:, place, place] = diagonal
    return own


def _codes(rows: np.ndarray, chosen: QParams) -> np.ndarray:
    """Codes minus their zero point, [groups, rows, columns] float32: whole numbers, whose moments are exact."""
    # A scale for each channel is one for each group of a depthwise Conv; `rounded` has channels second.
    return chosen.steps(rows.swapaxes(0, 1)).swapaxes(0, 1)


def _columns(unit: Unit) -> tuple[int, int]:
    """(groups, columns) of a layer."""
    shape = as_rows(unit.main, weights_of(unit.main)).shape
    return shape[0], shape[2]


def _most(unit: Unit, samples: int) -> int:
    groups, columns = _columns(unit)
    rows = _ROWS_OF_GROUPS if groups > 1 else max(_ROWS, _ROWS_A_COLUMN * columns)
    return max(1, -(-rows // samples))


def _by_rows(layers: Sequence[list[Unit]]) -> list[list[list[Unit]]]:
    """Layers with the same weights each, with the others that read the same rows of the same tensors: one set of moments is theirs.

    Two heads on one map, the branches of a block, what attention makes its queries, keys and values with.
    """
    found: dict[Hashable, list[list[Unit]]] = {}
    for units in layers:
        found.setdefault(tuple((unit.inputs[0].name, rows_read(unit.main)) for unit in units), []).append(units)
    return list(found.values())


def _parts(layers: Sequence[list[list[Unit]]]) -> Iterator[list[list[list[Unit]]]]:
    """Layers whose moments are held at once; those with the same weights or moments stay together."""
    bound = max(_BYTES, _TIMES_WEIGHTS * sum(weights_of(units[0].main).nbytes for those in layers for units in those))
    part: list[list[list[Unit]]] = []
    total = 0
    for those in layers:
        size = moment_bytes(*_columns(those[0][0])) * len(those[0])
        if part and total + size > bound:
            yield part
            part, total = [], 0
        part.append(those)
        total += size
    if part:
        yield part
