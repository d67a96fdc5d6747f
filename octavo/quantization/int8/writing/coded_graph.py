"""A graph of which some tensors are codes: each tensor's Q, its DQs, and the nodes that read and make them.

- One QuantizeLinear a tensor, one DequantizeLinear a reading unit. A tensor that a float unit makes stays float for float readers.
- Where the codes of a Relu's or Clip's output reach beyond its bounds (a scale shared in a Concat, symmetric activations), Max and
  Min of the codes take its place: they are what rounding behind it gives.
- A head, the output of a last Conv that only float units read, has a scale and a zero point for each channel, for free: they go
  into the Conv's weights and bias, its Q has scale 1 and zero point 0, and the DQ behind it is per channel. One uint8 scale for
  box offsets and class logits would cost boxes most of their codes.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np
import onnx
import onnx_ir as ir

from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.numbers.weights import Codes
from octavo.quantization.int8.structure.units import Unit
from octavo.quantization.int8.writing.qdq_graph import QdqGraph
from octavo.quantization.int8.writing.saturation import UNBOUNDED

__all__ = ["CodedGraph"]


class CodedGraph(QdqGraph):
    """Nodes of the graph that is written, and which of its tensors are codes.

    Args:
        model: FP32; it is not changed.
        int8: the units that compute on codes.
        scales: of each tensor to quantize, by name.
        codes: of each weighted INT8 unit, by its node's name.

    Attributes:
        from_int8: names of the tensors that INT8 units make.
        integer: the nodes of INT8 units.
    """

    def __init__(self, model: ir.Model, int8: Set[Unit], scales: Mapping[str, QParams], codes: Mapping[str, Codes]) -> None:
        super().__init__(model)
        self.int8, self.scales, self.codes = int8, scales, codes
        self.from_int8 = {value.name for unit in int8 for value in (*unit.outputs, *unit.inner)}
        self.integer = {node for unit in int8 for node in unit.nodes}
        self._read_back: dict[tuple[str, Unit], str] = {}
        self._raw: dict[str, str] = {}

    @property
    def symmetric(self) -> bool:
        """Whether zero is the middle code of every tensor, as `int8.symmetric` asks for."""
        return all(chosen.symmetric for chosen in self.scales.values())

    def quantize(self, name: str, raw: str, bounds: tuple[float, float] = UNBOUNDED) -> None:
        """Q of a tensor, the bounds of the Clip that it takes in, and its DQ where it is an output of the graph."""
        pair = self.pair(name)
        if self.scales[name].by_channel:
            # The layer puts out codes already.
            pair = [
                self.constant("octavo.head.scale", np.asarray(np.float32(1))),
                self.constant("octavo.head.zero", np.zeros((), self.scales[name].zero_point.dtype)),
            ]
            limits = []
        else:
            limits = self.limits(name, bounds)
        stages = [self.fresh(f"{name}.{stage}") for stage in ["unbounded", "half_bounded"][: len(limits)]] + [self.code(name)]
        self.add("QuantizeLinear", [raw, *pair], stages[0], f"{name}.Q")
        for (op, code), source, target in zip(limits, stages, stages[1:], strict=False):
            self.add(op, [source, self.constant(f"{name}.{op}", code)], target, f"{name}.{op}")
        if name in self.outputs and raw != name:
            self.dequantize(name, name, f"{name}.DQ")

    def limits(self, name: str, bounds: tuple[float, float]) -> list[tuple[str, np.ndarray]]:
        """Max, Min or both, each with the code of the bound that it keeps: those that saturation does not keep."""
        chosen = self.scales[name]
        kind, zero = chosen.zero_point.dtype, float(chosen.zero_point)
        least, most = np.iinfo(kind).min, np.iinfo(kind).max
        low, high = (np.clip(np.rint(bound / np.float64(chosen.scale)) + zero, least, most) for bound in bounds)
        found = [("Max", low, low > least), ("Min", high, high < most)]
        return [(op, np.asarray(code, kind)) for op, code, wanted in found if wanted]

    def dequantize(self, name: str, output: str, node: str) -> str:
        """DQ of a tensor's codes; the name of what it puts out."""
        axis = {"axis": 1} if self.scales[name].by_channel else {}
        return self.add("DequantizeLinear", [self.code(name), *self.pair(name)], output, node, **axis)

    def eight_bits(self, name: str) -> bool:
        """Whether a tensor's codes are 8 bits wide."""
        return self.scales[name].zero_point.dtype.itemsize == 1

    def pair(self, name: str) -> list[str]:
        """Names of a tensor's scale and zero point."""
        chosen = self.scales[name]
        return [
            self.constant(f"{name}.scale", np.asarray(chosen.scale)),
            self.constant(f"{name}.zero", np.asarray(chosen.zero_point)),
        ]

    def operand(self, name: str, unit: Unit) -> str:
        """What a unit reads where it reads tensor `name`: the tensor itself, or a DQ of its own."""
        if name not in self.scales or (unit not in self.int8 and name not in self.from_int8):
            return name
        if (name, unit) not in self._read_back:
            restored = self.fresh(f"{name}.for.{unit.name}")
            self._read_back[name, unit] = self.dequantize(name, restored, f"{restored}.DQ")
        return self._read_back[name, unit]

    def raw(self, name: str) -> str:
        """What the node that makes a tensor writes: the tensor, or what its Q reads."""
        if name not in self.scales or name not in self.from_int8:
            return name
        if name not in self._raw:
            self._raw[name] = self.fresh(f"{name}.raw")
        return self._raw[name]

    def copy(self, node: ir.Node, unit: Unit, outputs: list[str]) -> onnx.NodeProto:
        """A unit's node as it was, but for what it reads (`operand`) and puts out; it is not in the graph yet."""
        inside = {value.name for member in unit.nodes for value in member.outputs}
        reads = []
        for name in self.protos[node.name].input:
            if name in inside:
                # Inside a unit, a tensor with a scale of its own is read back from its codes.
                reads.append(self.operand(name, unit) if name in self.scales else name)
            else:
                reads.append(self.operand(name, unit) if name else name)
        return self.renamed(node, reads, outputs)

    def renamed(self, node: ir.Node, reads: list[str], outputs: list[str]) -> onnx.NodeProto:
        """A node as it was, but for these names; it is not in the graph yet."""
        copy = onnx.NodeProto()
        copy.CopyFrom(self.protos[node.name])
        copy.input[:], copy.output[:] = reads, outputs
        return copy

    def weights(self, unit: Unit, copy: onnx.NodeProto) -> None:
        """Let a copy of a layer read int8 weights and int32 biases."""
        input_scale = np.float32(self.scales[unit.inputs[0].name].scale)
        codes = self.codes[unit.main.name]
        output = self.scales.get(unit.outputs[0].name)
        if output is not None and output.by_channel:
            codes = codes.into_codes_of(output)
        codes = codes.with_room_for_bias(input_scale)
        matrix = codes.codes.reshape(codes.codes.shape[:2]) if copy.op_type != unit.main.op_type else codes.codes
        self.restored(copy, 1, f"{copy.name}.weight_codes", matrix, codes.scale, axis=codes.axis)
        if codes.bias is None:
            return
        while len(copy.input) < 3:
            copy.input.append("")
        steps = np.maximum(codes.scale * input_scale, np.finfo(np.float32).tiny).astype(np.float32)
        steps = np.broadcast_to(steps, codes.bias.shape).copy() if steps.size == 1 and codes.bias.size > 1 else steps
        whole = np.rint(codes.bias.astype(np.float64) / steps)
        self.restored(copy, 2, f"{copy.name}.bias_codes", whole.astype(np.int32), steps, axis=0)
