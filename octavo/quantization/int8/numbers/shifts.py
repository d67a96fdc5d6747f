"""What rounding activations shifts on average, for the next layer's bias to take back.

Rounding to nearest is only unbiased where values spread evenly over a step. Behind SiLU most values lie between -0.28 and 0, and
with one step of 0.45 for a tensor that reaches 116 (YOLOv5n's second layer) all of them become 0: each channel moves by a tenth,
the next layer adds these up over its inputs, and what comes out is no noise but another image. The shift of each channel between
one weighted layer and the next is measured on FP32's values, so that no shift is counted twice: what a layer takes back, the next
one does not see (Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", 2019, have the same for
weights; NNCF's fast bias correction is its measured form).

Before a detector's heads the mean is that of background, which is nearly all of an image and of which nothing is read: what all
places shift on average is not what happens where an object is, and taken back there it is a shift (a tenth of a logit of YOLOv5n's
large objects, by one tensor). There places count by the scores of the objects that are found at them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.numbers.rounded_copy import RoundedCopy, Roundings, channels_of
from octavo.quantization.int8.structure.units import ACTIVATIONS, Unit, readers
from octavo.runtime.lanes import in_lanes

__all__ = ["Attended", "Known", "OwnShift", "before_heads", "own_shifts", "rounding_shifts"]

# Sums of scores from which on the places of objects say what shifts there.
_SEEN = 10.0

# Of a tensor's places how much each counts, float32 of the tensor's shape with one channel, on each of some images.
Attended = Mapping[str, Sequence[np.ndarray]]
# What was measured before: (tensor, all roundings since the weighted layers before it) to its shift.
Known = dict[tuple[str, Roundings], np.ndarray]


def rounding_shifts(
    model: ir.Model,
    units: Sequence[Unit],
    scales: Mapping[str, QParams],
    samples: Iterable[Mapping[str, np.ndarray]],
    *,
    known: Known | None = None,
    attended: Attended | None = None,
) -> dict[str, np.ndarray]:
    """E[rounded x - x] per channel of what each weighted layer reads.

    `rounded x` is x with all roundings since the weighted layers before it: their outputs, and what lies between.

    Args:
        model: FP32, as prepared for INT8.
        units: all its units.
        scales: of the tensors that are quantized.
        samples: feeds of some images.
        known: shifts of the same model and samples, which are not measured again; what is measured is added.
        attended: of some tensors how much each place counts on each sample; elsewhere all count alike.

    Returns:
        Tensor name to float64, one a channel (axis 1 of images and of what a Conv reads or writes, the last axis of anything else);
        tensors that are not rounded are left out, and so are those of which nothing tells where their channels are.
    """
    graph = RoundedCopy(model, units, scales)
    known = {} if known is None else known
    keys = {name: (name, graph.roundings[name]) for name in graph.read}
    graph.read = {name: value for name, value in graph.read.items() if keys[name] not in known}
    known |= {keys[name]: shift for name, shift in _means(graph, samples, attended or {}).items()}
    return {name: known[key] for name, key in keys.items() if key in known}


@dataclass(frozen=True)
class OwnShift:
    """What one rounding shifts, and where that is taken back.

    Attributes:
        behind: the tensor that it is measured on: the rounded one, or the output of the activation that alone reads it. A rounded
            value's mean says nothing of what SiLU makes of it.
        shift: float64, one a channel, with axes of size 1 behind them: it broadcasts with the tensor.
    """

    behind: str
    shift: np.ndarray


def own_shifts(
    model: ir.Model,
    units: Sequence[Unit],
    scales: Mapping[str, QParams],
    samples: Iterable[Mapping[str, np.ndarray]],
    attended: Attended | None = None,
) -> dict[str, OwnShift]:
    """The same of each quantized tensor, of its own rounding alone; behind the activation, where one alone reads the tensor."""
    graph = RoundedCopy(model, [], scales)
    protos = {node.name: node for node in graph.proto.graph.node}
    behind: dict[str, str] = {}
    activation = _activations(units)
    for value in (*model.graph.inputs, *(value for unit in units for value in (*unit.inner, *unit.outputs))):
        unit = activation.get(value)
        last = value if unit is None else unit.outputs[0]
        if value.name not in scales or channels_of(last) is None:
            continue
        graph.add_rounded(value, value.name)
        if unit is not None:
            graph.rounded[value.name] = graph.through(unit, value.name, protos)
        graph.read[value.name] = last
        behind[value.name] = last.name
    found = {}
    for name, shift in _means(graph, samples, attended or {}).items():
        rank, axis = channels_of(graph.read[name])
        found[name] = OwnShift(behind[name], shift.reshape(-1, *[1] * (rank - 1 - axis)))
    return found


def before_heads(units: Sequence[Unit], attended: Attended) -> Attended:
    """From how much each place of heads counts to the same of the tensors that they, and nothing else, read.

    Args:
        units: all units of a graph.
        attended: by head, the outputs of layers; those whose input is of another size are left out, and so is what too little is
            found on.
    """
    found: dict[str, list[np.ndarray]] = {}
    makers = {unit.outputs[0].name: unit for unit in units if unit.kind == "linear"}
    by_node = {node: unit for unit in units for node in unit.nodes}
    for head, weights in attended.items():
        unit = makers.get(head)
        if unit is None or sum(float(each.sum()) for each in weights) < _SEEN:
            continue
        value = unit.inputs[0]
        alone = all(by_node[reader].outputs[0].name in attended for reader in readers(value) if reader in by_node)
        same = value.shape is not None and list(value.shape)[2:] == list(weights[0].shape)[2:]
        if alone and same and not value.is_graph_output():
            before = found.get(value.name or "")
            found[value.name or ""] = weights if before is None else [a + b for a, b in zip(before, weights, strict=True)]
    return found


def _activations(units: Sequence[Unit]) -> dict[ir.Value, Unit]:
    """Tensors that one activation alone reads, and those between its nodes, to its unit."""
    by_node = {node: unit for unit in units for node in unit.nodes}
    found = {}
    for unit in units:
        if unit.kind not in ACTIVATIONS or len(unit.outputs) != 1:
            continue
        for value in (*unit.inputs, *unit.inner):
            if all(by_node.get(reader) is unit for reader in readers(value)):
                found[value] = unit
    return found


def _means(graph: RoundedCopy, samples: Iterable[Mapping[str, np.ndarray]], attended: Attended) -> dict[str, np.ndarray]:
    wanted = graph.shifted()
    if not wanted:
        return {}
    samples = list(samples)
    known = {name: attended[value.name][: len(samples)] for name, value in graph.read.items() if value.name in attended}
    # Objects may all be on images that are not looked at here: all places count alike then, as where there are none.
    weights = {name: of_images for name, of_images in known.items() if any(each.any() for each in of_images)}
    session = graph.mapped.session(graph.written(set(weights)), optimization="basic", threads=1, memory_pattern=False)
    sums, counts = dict.fromkeys(wanted, 0.0), dict.fromkeys(wanted, 0.0)

    def of_image(place: int) -> dict[str, np.ndarray]:
        own = {f"{wanted[name]}.weights": of_images[place] for name, of_images in weights.items()}
        return session.run({**samples[place], **own}, list(wanted.values()))

    for place, found in enumerate(in_lanes(of_image, range(len(samples)))):
        own = {name: of_images[place] for name, of_images in weights.items()}
        sums = {name: total + found[wanted[name]].astype(np.float64) for name, total in sums.items()}
        counts = {name: count + (own[name].sum(dtype=np.float64) if name in own else 1) for name, count in counts.items()}
    return {name: total / counts[name] for name, total in sums.items() if counts[name]}
