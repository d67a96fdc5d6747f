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

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from octavo.graph.protos import branchless, leading_to
from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.structure.units import ACTIVATIONS, Unit, readers
from octavo.runtime.lanes import in_lanes
from octavo.runtime.mapped import MappedConstants

__all__ = ["Attended", "Known", "OwnShift", "before_heads", "own_shifts", "rounding_shifts"]

# The opset in which ReduceMean takes its axes as an input.
_AXES_AS_INPUT = 18
_ROUNDED = "octavo.rounded"
# What these read and write has the rank of their weights, and its channels on axis 1.
_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm"})
# Sums of scores from which on the places of objects say what shifts there.
_SEEN = 10.0

# Of a tensor's places how much each counts, float32 of the tensor's shape with one channel, on each of some images.
Attended = Mapping[str, Sequence[np.ndarray]]
# A set of roundings: tensor, and its scale and zero point as bytes.
_Roundings = frozenset[tuple[str, bytes, bytes]]
# What was measured before: (tensor, all roundings since the weighted layers before it) to its shift.
Known = dict[tuple[str, _Roundings], np.ndarray]


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
    graph = _Beside(model, units, scales)
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
    graph = _Beside(model, [], scales)
    protos = {node.name: node for node in graph.proto.graph.node}
    behind: dict[str, str] = {}
    activation = _activations(units)
    for value in (*model.graph.inputs, *(value for unit in units for value in (*unit.inner, *unit.outputs))):
        unit = activation.get(value)
        last = value if unit is None else unit.outputs[0]
        if value.name not in scales or _channels(last) is None:
            continue
        graph.add_rounded(value, value.name)
        if unit is not None:
            graph.rounded[value.name] = graph.through(unit, value.name, protos)
        graph.read[value.name] = last
        behind[value.name] = last.name
    found = {}
    for name, shift in _means(graph, samples, attended or {}).items():
        rank, axis = _channels(graph.read[name])
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


def _channels(value: ir.Value) -> tuple[int, int] | None:
    """The rank of a tensor, and which of its axes its channels are on; None for a vector, and where nothing tells.

    Layers tell it even where inference says nothing (a Loop's output, a Reshape to a shape that is computed), and of three axes,
    which are those of signals beside a Conv and of queries elsewhere.
    """
    nodes = [value.producer(), *(use.node for use in value.uses() if use.idx == 0)]
    for node in nodes:
        if node is not None and node.op_type in _LAYERS and node.inputs[1].shape is not None:
            return len(node.inputs[1].shape), 1
    if value.shape is None or len(value.shape) < 2:
        return None
    rank = len(value.shape)
    return rank, 1 if rank > 3 else rank - 1


def _means(graph: _Beside, samples: Iterable[Mapping[str, np.ndarray]], attended: Attended) -> dict[str, np.ndarray]:
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


class _Beside:
    """The float graph, and beside it a rounded copy of everything between weighted layers."""

    def __init__(self, model: ir.Model, units: Sequence[Unit], scales: Mapping[str, QParams]) -> None:
        self.mapped = MappedConstants()
        self.proto, self.scales, self.opset = self.mapped.proto(model), scales, model.opset_imports[""]
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.rounded: dict[str, str] = {}
        # Tensor to what is rounded in its rounded form.
        self.roundings: dict[str, _Roundings] = {}
        self.read: dict[str, ir.Value] = {}
        protos = {node.name: node for node in self.proto.graph.node}
        for value in model.graph.inputs if units else ():
            self.add_rounded(value, value.name)
        for unit in units:
            if unit.kind == "linear":
                told = [value for value in unit.inputs if value.name in self.rounded and _channels(value) is not None]
                self.read |= {value.name: value for value in told}
                self.add_rounded(unit.outputs[0], unit.outputs[0].name)
            elif any(value.name in self.rounded for value in unit.inputs) or any(value.name in scales for value in unit.outputs):
                self._copy(unit, protos)

    def shifted(self) -> dict[str, str]:
        """Tensor name to the output that holds its shift."""
        return {name: f"{_ROUNDED}.octavo.shift.{place}" for place, name in enumerate(self.read)}

    def written(self, weighted: Collection[str]) -> bytes:
        """The graph that puts shifts out; of those `weighted` the sums, each place times an input's."""
        graph, shifted = self.proto.graph, dict(reversed(self.shifted().items()))
        # From the last tensor on: ONNX Runtime goes back from the outputs and takes what was added last first, so that each
        # tensor is compared, and let go, where it is made. YOLOv5n (640x640) takes 63 MB so, and 244 in the graph's order.
        for name, target in shifted.items():
            value = self.read[name]
            rank, channels = _channels(value)
            axes = [axis for axis in range(rank) if axis != channels]
            self.nodes.append(helper.make_node("Sub", [self.rounded[name], value.name], [f"{target}.each"]))
            if name in weighted:
                graph.input.append(helper.make_tensor_value_info(f"{target}.weights", TensorProto.FLOAT, [None] * rank))
                self.nodes.append(helper.make_node("Mul", [f"{target}.each", f"{target}.weights"], [f"{target}.weighed"]))
                self.constants.append(numpy_helper.from_array(np.array(axes, np.int64), f"{target}.axes"))
                self.nodes.append(helper.make_node("ReduceSum", [f"{target}.weighed", f"{target}.axes"], [target], keepdims=0))
                continue
            reads, settings = [f"{target}.each"], {"axes": axes}
            if self.opset >= _AXES_AS_INPUT:
                self.constants.append(numpy_helper.from_array(np.array(axes, np.int64), f"{target}.axes"))
                reads, settings = [*reads, f"{target}.axes"], {}
            self.nodes.append(helper.make_node("ReduceMean", reads, [target], keepdims=0, **settings))
        nodes = leading_to([*graph.node, *self.nodes], shifted.values())
        nodes = list(branchless(nodes, {tensor.name: tensor for tensor in graph.initializer}))
        del graph.node[:]
        graph.node.extend(nodes)
        graph.initializer.extend(self.constants)
        del graph.value_info[:], graph.output[:]
        graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in shifted.values())
        self.proto.ir_version = max(self.proto.ir_version, 10)
        return self.proto.SerializeToString()

    def _copy(self, unit: Unit, protos: Mapping[str, onnx.NodeProto]) -> None:
        inside: dict[str, str] = {}
        for node in unit.nodes:
            copy = onnx.NodeProto()
            copy.CopyFrom(protos[node.name])
            copy.name = f"{_ROUNDED}.{copy.name}"
            copy.input[:] = [inside.get(name) or self.rounded.get(name, name) for name in copy.input]
            copy.output[:] = [f"{_ROUNDED}.{name}.octavo.of" if name else "" for name in copy.output]
            self.nodes.append(copy)
            before = [self.roundings.get(value.name or "", frozenset()) for value in node.inputs if value is not None]
            for value in node.outputs:
                self.roundings[value.name] = frozenset().union(*before)
                inside[value.name] = self.add_rounded(value, f"{_ROUNDED}.{value.name}.octavo.of")
        self.rounded |= {value.name: inside[value.name] for value in unit.outputs}

    def through(self, unit: Unit, name: str, protos: Mapping[str, onnx.NodeProto]) -> str:
        """What a unit makes of the rounded form of one of its tensors, all else as it is."""
        inside = {name: self.rounded[name]}
        for node in unit.nodes:
            if not any(value is not None and value.name in inside for value in node.inputs):
                continue
            copy = onnx.NodeProto()
            copy.CopyFrom(protos[node.name])
            copy.name = f"{_ROUNDED}.{name}.{copy.name}"
            copy.input[:] = [inside.get(read, read) for read in copy.input]
            inside |= {made: f"{_ROUNDED}.{name}.octavo.{made}" for made in copy.output}
            copy.output[:] = [inside[made] for made in copy.output]
            self.nodes.append(copy)
        return inside[unit.outputs[0].name]

    def add_rounded(self, value: ir.Value, source: str) -> str:
        """The rounded form of what is computed as `source`; `source` itself where the tensor is not quantized."""
        chosen = self.scales.get(value.name)
        if chosen is None:
            return source
        own = (value.name, np.asarray(chosen.scale).tobytes(), np.asarray(chosen.zero_point).tobytes())
        self.roundings[value.name] = self.roundings.get(value.name, frozenset()) | {own}
        pair = [f"{_ROUNDED}.{value.name}.octavo.{what}" for what in ("scale", "zero")]
        self.constants += [
            numpy_helper.from_array(np.asarray(array), name)
            for name, array in zip(pair, (chosen.scale, chosen.zero_point), strict=True)
        ]
        codes, target = f"{_ROUNDED}.{value.name}.octavo.codes", f"{_ROUNDED}.{value.name}"
        self.nodes.append(helper.make_node("QuantizeLinear", [source, *pair], [codes], axis=1))
        self.nodes.append(helper.make_node("DequantizeLinear", [codes, *pair], [target], axis=1))
        self.rounded[value.name] = target
        return target
