"""A float graph with a rounded copy of what lies between its layers, whose difference is what rounding shifts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from octavo.graph.protos import branchless, leading_to
from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.structure.units import Unit
from octavo.runtime.mapped import MappedConstants

__all__ = ["RoundedCopy", "Roundings", "channels_of"]

# The opset in which ReduceMean takes its axes as an input.
_AXES_AS_INPUT = 18
_ROUNDED = "octavo.rounded"
# What these read and write has the rank of their weights, and its channels on axis 1.
_LAYERS = frozenset({"Conv", "ConvTranspose", "Gemm"})

# A set of roundings: tensor, and its scale and zero point as bytes.
Roundings = frozenset[tuple[str, bytes, bytes]]


class RoundedCopy:
    """The float graph, and beside it a rounded copy of everything between weighted layers.

    Args:
        model: FP32, as prepared for INT8.
        units: all its units; none where tensors are added by hand (`add_rounded`).
        scales: of the tensors that are quantized.

    Attributes:
        mapped: what gives sessions of the graph its weights.
        rounded: tensor to its rounded form.
        roundings: tensor to what is rounded in its rounded form.
        read: the tensors that are compared with their rounded forms, by name.
    """

    def __init__(self, model: ir.Model, units: Sequence[Unit], scales: Mapping[str, QParams]) -> None:
        self.mapped = MappedConstants()
        self.proto, self.scales, self.opset = self.mapped.proto(model), scales, model.opset_imports[""]
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.rounded: dict[str, str] = {}
        self.roundings: dict[str, Roundings] = {}
        self.read: dict[str, ir.Value] = {}
        protos = {node.name: node for node in self.proto.graph.node}
        for value in model.graph.inputs if units else ():
            self.add_rounded(value, value.name)
        for unit in units:
            if unit.kind == "linear":
                told = [value for value in unit.inputs if value.name in self.rounded and channels_of(value) is not None]
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
            rank, channels = channels_of(value)
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


def channels_of(value: ir.Value) -> tuple[int, int] | None:
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
