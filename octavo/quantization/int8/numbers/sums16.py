"""Weights of which 16 bits hold two products: files that are right on x86 without VNNI.

There ONNX Runtime multiplies uint8 codes of activations by int8 codes of weights with `vpmaddubsw`, which adds each two
neighbouring products in int16 and cuts the sum off at 32767 and -32768, where two products may reach 64770 (onnxruntime #5849,
#6004, #14642). Weights of 7 bits (`reduce_range`) never get there, and err twice as much. Few pairs need that: here a scale is as
much larger as an output channel's worst pair asks for, by the largest codes that calibration saw in the two input channels.

Neighbours are columns 2k and 2k + 1 of what an output channel multiplies: of a Conv its taps row by row, of each tap the channels
of its group (ONNX Runtime lays integer convolutions channels last), of a Gemm or MatMul the weights as they come. Depthwise layers
of as many outputs as inputs have a kernel of their own, which is exact. That was found by filling two weights at a time, as
`tests/test_int8_sums16.py` does.

OpenVINO (2025.4 and 2026.4, AVX2) does the same and begins each tap anew, in groups of an odd number of channels not: of odd
numbers a pair may begin at either column here. Its depthwise kernels are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from octavo.calibration.statistics import Statistics
from octavo.calibration.tensor import TensorStatistics
from octavo.graph.passes.kernels.conv_on_columns import MOST_CHANNELS
from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.numbers.weights import channel_axis, weights_of
from octavo.quantization.int8.structure.alike import alike
from octavo.quantization.int8.structure.units import Unit, is_depthwise

__all__ = ["least_scales", "peaks_of", "peaks_of_layers", "within"]

_MOST, _LEAST = 32767, -32768
# How far beyond the largest value that calibration saw in a channel its codes may go, and the least code that they may go to: of a
# channel that was silent all the time other images may have something.
_ROOM, _FLOOR = 1.25, 64


def peaks_of(node: ir.Node, chosen: QParams, seen: TensorStatistics | None) -> np.ndarray | None:
    """The largest code of each input channel of a layer.

    Args:
        node: a Conv, or a Gemm or MatMul with constant weights.
        chosen: of its input.
        seen: the input's statistics; without them, or those of channels, codes may be the largest there are.

    Returns:
        float64, in 0..255; None where the layer is depthwise, or the codes are not uint8: these kernels are not asked then.
    """
    one_by_one = is_depthwise(node) and len(weights_of(node)) == _groups(node)
    if chosen.zero_point.dtype != np.uint8 or one_by_one:
        return None
    count = _rows(node, weights_of(node))[0].shape[2] * _groups(node)
    high = seen.channel_high if seen is not None else None
    # Of sequences a MatMul multiplies the last axis, and statistics are of the second.
    sequences = node.op_type != "Conv" and (node.inputs[0].shape is None or len(node.inputs[0].shape) > 2)
    if high is None or len(high) != count or sequences:
        return np.full(count, 255.0)
    # Padding is zero.
    reached = np.maximum(high.astype(np.float64) * _ROOM, 0)
    return np.clip(np.maximum(np.rint(reached / chosen.scale) + chosen.zero_point, _FLOOR), 0, 255)


def peaks_of_layers(int8: Iterable[Unit], scales: Mapping[str, QParams], statistics: Statistics) -> dict[str, np.ndarray]:
    """The largest code of each input channel (`peaks_of`) of all layers that have such, by node.

    Layers with the same weights have the same: their codes are in the file once.
    """
    found = {}
    for units in alike(unit for unit in int8 if unit.kind == "linear"):
        inputs = [(unit.main, unit.inputs[0].name or "") for unit in units]
        seen = [peaks_of(node, scales[name], statistics.tensors.get(name)) for node, name in inputs if name in scales]
        known = [peaks for peaks in seen if peaks is not None]
        if known:
            found |= {unit.main.name: np.max(known, axis=0) for unit in units}
    return found


def least_scales(node: ir.Node, peaks: np.ndarray) -> np.ndarray:
    """For each output channel the scale below which two products may not fit, weights rounded to nearest; float32."""
    rows, met = _met(node, weights_of(node).astype(np.float64), peaks)
    least = np.zeros(len(rows))
    for start in _starts(node):
        first, second, of_first, of_second = _pairs(rows, met, start)
        # Rounding adds half a code to each.
        held = _MOST - 0.5 * (of_first + of_second)
        for side in (1, -1):
            sums = np.maximum(side * first, 0) * of_first + np.maximum(side * second, 0) * of_second
            least = np.maximum(least, (sums / held).max(axis=1, initial=0))
    # What float32 cuts off must not bring the pair back.
    return np.nextafter(least.astype(np.float32), np.float32(np.inf))


def within(node: ir.Node, codes: np.ndarray, peaks: np.ndarray) -> np.ndarray:
    """Codes of which two products fit: of a pair that does not, the larger code is drawn towards zero as far as it takes.

    Args:
        node: the layer.
        codes: int8, of its weights' shape.
        peaks: as `peaks_of` gives them.

    Returns:
        `codes` itself where all fit.
    """
    rows, met = _met(node, codes.astype(np.float64), peaks)
    changed = False
    # Codes that shrink bring no other pair beyond.
    for start in _starts(node):
        first, second, of_first, of_second = _pairs(rows, met, start)
        sums = [of_first * np.maximum(side * first, 0) + of_second * np.maximum(side * second, 0) for side in (1, -1)]
        beyond = np.maximum(sums[0] - _MOST, sums[1] + _LEAST)
        if not (beyond > 0).any():
            continue
        changed = True
        for own, other, of_own, larger in ((first, second, of_first, np.greater_equal), (second, first, of_second, np.greater)):
            shift = np.where(larger(np.abs(own), np.abs(other)), np.ceil(np.maximum(beyond, 0) / np.maximum(of_own, 1)), 0)
            beyond = np.where(shift > 0, 0, beyond)
            own -= np.sign(own) * shift
    return _laid(node, rows, codes) if changed else codes


def _groups(node: ir.Node) -> int:
    return node.attributes["group"].as_int() if node.op_type == "Conv" and "group" in node.attributes else 1


def _rows(node: ir.Node, values: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
    """(output channels, taps, channels of a group) of a layer's weights, and their shape with channels last."""
    if node.op_type == "Conv":
        last = np.moveaxis(values, 1, -1)
        return last.reshape(len(values), -1, values.shape[1]), last.shape
    rows = values if channel_axis(node) == 0 else values.T
    return rows[:, None], rows.shape


def _met(node: ir.Node, values: np.ndarray, peaks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A layer's weights as its kernel has them, (output channels, columns), and the largest codes that they meet."""
    rows, _ = _rows(node, values)
    outputs, _, channels = rows.shape
    met = np.repeat(peaks.reshape(-1, 1, channels), outputs // _groups(node), axis=0)
    met = np.broadcast_to(met, rows.shape).reshape(outputs, -1)
    return np.array(rows.reshape(outputs, -1)), met


def _starts(node: ir.Node) -> range:
    """Columns at which pairs begin: where blocks of columns may stand in for the Conv, or a tap may begin with either of a pair
    (OpenVINO), a weight meets either neighbour.
    """
    if node.op_type != "Conv":
        return range(1)
    _, channels, *taps = weights_of(node).shape
    few = _groups(node) == 1 and channels <= MOST_CHANNELS
    odd = channels > 1 and channels % 2 == 1 and np.prod(taps) > 1
    return range(2 if few or odd else 1)


def _pairs(rows: np.ndarray, met: np.ndarray, start: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """First and second of each pair from a column on, (output channels, pairs), views, and the largest codes that they meet."""
    end = rows.shape[1] - (rows.shape[1] - start) % 2
    return rows[:, start:end:2], rows[:, start + 1 : end : 2], met[:, start:end:2], met[:, start + 1 : end : 2]


def _laid(node: ir.Node, rows: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Rows back in the weights' shape and type."""
    made = rows.astype(codes.dtype).reshape(_rows(node, codes)[1])
    if node.op_type == "Conv":
        return np.ascontiguousarray(np.moveaxis(made, -1, 1))
    return made if channel_axis(node) == 0 else np.ascontiguousarray(made.T)
