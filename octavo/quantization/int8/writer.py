"""Lay Q and DQ around INT8 units so that ONNX Runtime's fusions find each of them, and nothing else.

- One QuantizeLinear a tensor, one DequantizeLinear a reading unit. A tensor that a float unit makes stays float for float readers.
- A Relu or Clip behind an INT8 kernel goes: the Q's saturation does its work. Where the codes reach beyond its bounds (a scale
  shared in a Concat, symmetric activations), Max and Min of the codes take its place: they are what rounding behind it gives.
- A float Conv or Gemm between DQ and Q would be quantized behind the user's back (ONNX Runtime's WeightBiasQuantization rounds its
  weights per tensor: 24 dB -> 7 dB measured). A LeakyRelu of slope 1 (nothing) or 0 (Relu) behind it keeps it out of that
  optimizer, and fuses into the float kernel.
- A head, the output of a last Conv that only float units read, has a scale and a zero point for each channel, for free: they go
  into the Conv's weights and bias, its Q has scale 1 and zero point 0, and the DQ behind it is per channel. One uint8 scale for
  box offsets and class logits would cost boxes most of their codes.
- Last come passes over the Q/DQ graph (`_FORMS`): other forms of integer ops, with the same codes and faster kernels.
- PRelu has no integer kernel. With every slope <= 1 it is Max(x, slope x): a depthwise 1x1 QLinearConv and a uint8 Max. With other
  slopes x's two sides go apart, Max(x, z) + (depthwise(Min(x, z)) - z), exact because one of the two is always z.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from octavo.graph.passes.conv_on_blocks import ConvOnBlocksPass
from octavo.graph.passes.pad_depthwise import PadDepthwisePass
from octavo.graph.passes.pool_by_depthwise import PoolByDepthwisePass
from octavo.graph.passes.prelu_by_conv import PReluByConvPass
from octavo.graph.passes.upsample_by_tile import UpsampleByTilePass
from octavo.quantization.int8.qparams import QParams
from octavo.quantization.int8.units import Unit
from octavo.quantization.int8.weights import Codes

__all__ = ["write_qdq"]

# What ONNX Runtime runs faster than the graph as it stands, with the same codes and the same float values.
_FORMS = (ConvOnBlocksPass, PadDepthwisePass, PoolByDepthwisePass, UpsampleByTilePass, PReluByConvPass)


def write_qdq(
    model: ir.Model, units: Sequence[Unit], int8: set[Unit], scales: Mapping[str, QParams], codes: Mapping[str, Codes]
) -> ir.Model:
    """The QDQ form of a float model.

    Args:
        model: FP32; it is not changed.
        units: all its units, in topological order.
        int8: which of them become INT8.
        scales: of each tensor to quantize, by name.
        codes: of each weighted INT8 unit, by its node's name.
    """
    result = _Writer(model, units, int8, scales, codes).written()
    for form in _FORMS:
        form()(result)
    return result


class _Writer:
    def __init__(
        self,
        model: ir.Model,
        units: Sequence[Unit],
        int8: set[Unit],
        scales: Mapping[str, QParams],
        codes: Mapping[str, Codes],
    ) -> None:
        self.proto = ir.to_proto(model)
        self.units, self.int8, self.scales, self.codes = units, int8, scales, codes
        self.protos = {node.name: node for node in self.proto.graph.node}
        self.nodes: list[onnx.NodeProto] = []
        self.constants = {tensor.name: tensor for tensor in self.proto.graph.initializer}
        self.from_int8 = {value.name for unit in int8 for value in (*unit.outputs, *unit.inner)}
        # What must be there as float under its own name: the graph's outputs, and what a subgraph reads from outside.
        self.outputs = {value.name for value in model.graph.outputs} | {
            value.name
            for node in model.graph
            for value in node.outputs
            if any(use.node.graph is not model.graph for use in value.uses())
        }
        self.restored: set[str] = set()

    def written(self) -> ir.Model:
        for value in self.proto.graph.input:
            if value.name in self.scales:
                self._quantize(value.name, value.name)
        for unit in self.units:
            if unit not in self.int8:
                self._float(unit)
            elif unit.kind == "prelu":
                self._prelu(unit)
            else:
                self._integer(unit)
        graph = self.proto.graph
        del graph.node[:], graph.initializer[:]
        graph.node.extend(self.nodes)
        used = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
        graph.initializer.extend(tensor for name, tensor in self.constants.items() if name in used)
        made = {name for node in graph.node for name in node.output}
        for index in reversed(range(len(graph.value_info))):
            if graph.value_info[index].name not in made:
                del graph.value_info[index]
        return self._shaped(ir.from_proto(self.proto))

    def _shaped(self, model: ir.Model) -> ir.Model:
        """Codes have the shape of what they stand for."""
        known = {value.name: value.shape for unit in self.units for value in (*unit.inputs, *unit.outputs, *unit.inner)}
        for value in (value for node in model.graph for value in node.outputs):
            name = (value.name or "").removesuffix(".code")
            if name != value.name and name in self.scales and known.get(name) is not None:
                value.shape = ir.Shape(list(known[name]))
                value.dtype = ir.DataType.from_numpy(self.scales[name].zero_point.dtype)
        return model

    # Tensors

    def _quantize(self, name: str, raw: str, bounds: tuple[float, float] = (-np.inf, np.inf)) -> None:
        """Q of a tensor, the bounds of the Clip that it takes in, and its DQ where it is an output of the graph."""
        pair = self._pair(name)
        if self.scales[name].by_channel:
            # The layer puts out codes already.
            pair = [
                self._constant("octavo.head.scale", np.asarray(np.float32(1))),
                self._constant("octavo.head.zero", np.asarray(np.uint8(0))),
            ]
            limits = []
        else:
            limits = [(op, code) for op, code in self._limits(name, bounds) if code is not None]
        stages = [f"{name}.{stage}" for stage in ["unbounded", "half_bounded"][: len(limits)]] + [f"{name}.code"]
        self._add("QuantizeLinear", [raw, *pair], stages[0], f"{name}.Q")
        for (op, code), source, target in zip(limits, stages, stages[1:], strict=False):
            self._add(op, [source, self._constant(f"{name}.{op}", code)], target, f"{name}.{op}")
        if name in self.outputs and raw != name:
            self._dequantize(name, name, f"{name}.DQ")

    def _dequantize(self, name: str, output: str, node: str) -> str:
        axis = {"axis": 1} if self.scales[name].by_channel else {}
        return self._add("DequantizeLinear", [f"{name}.code", *self._pair(name)], output, node, **axis)

    def _limits(self, name: str, bounds: tuple[float, float]) -> list[tuple[str, np.ndarray | None]]:
        """The codes of bounds that saturation does not keep: None where it does."""
        chosen = self.scales[name]
        top, zero = np.iinfo(chosen.zero_point.dtype).max, float(chosen.zero_point)
        low, high = (np.clip(np.rint(bound / np.float64(chosen.scale)) + zero, 0, top) for bound in bounds)
        kind = chosen.zero_point.dtype
        return [("Max", np.asarray(low, kind) if low > 0 else None), ("Min", np.asarray(high, kind) if high < top else None)]

    def _bounds(self, node: ir.Node) -> tuple[float, float]:
        """What a folded Relu or Clip keeps its values between."""
        if node.op_type == "Relu":
            return 0.0, np.inf
        found = [-np.inf, np.inf]
        for place, value in enumerate(node.inputs[1:3]):
            if value is not None:
                found[place] = float(ir.convenience.get_const_tensor(value).numpy())
        return found[0], found[1]

    def _pair(self, name: str) -> list[str]:
        chosen = self.scales[name]
        return [
            self._constant(f"{name}.scale", np.asarray(chosen.scale)),
            self._constant(f"{name}.zero", np.asarray(chosen.zero_point)),
        ]

    def _operand(self, name: str, unit: Unit) -> str:
        """What a unit reads where it reads tensor `name`: the tensor itself, or a DQ of its own."""
        if name not in self.scales or (unit not in self.int8 and name not in self.from_int8):
            return name
        restored = f"{name}.for.{unit.name}"
        if restored not in self.restored:
            self.restored.add(restored)
            self._dequantize(name, restored, f"{restored}.DQ")
        return restored

    def _raw(self, name: str) -> str:
        """What the node that makes a tensor writes: the tensor, or what its Q reads."""
        return f"{name}.raw" if name in self.scales and name in self.from_int8 else name

    def _constant(self, name: str, array: np.ndarray) -> str:
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        return name

    def _add(self, op_type: str, inputs: list[str], output: str, name: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [output], name=name, **attributes))
        return output

    # Units

    def _copy(self, node: ir.Node, unit: Unit, outputs: list[str]) -> onnx.NodeProto:
        copy = onnx.NodeProto()
        copy.CopyFrom(self.protos[node.name])
        inside = {value.name for member in unit.nodes for value in member.outputs}
        for index, name in enumerate(copy.input):
            if name in inside:
                # Inside a unit, a tensor with a scale of its own is read back from its codes.
                copy.input[index] = self._operand(name, unit) if name in self.scales else name
            elif name:
                copy.input[index] = self._operand(name, unit)
        del copy.output[:]
        copy.output.extend(outputs)
        return copy

    def _float(self, unit: Unit) -> None:
        for node in unit.nodes:
            self.nodes.append(self._copy(node, unit, [value.name for value in node.outputs]))
        quantized = [value.name for value in unit.outputs if value.name in self.scales]
        if quantized:
            self._protect(unit.nodes[-1])
        for name in quantized:
            self._quantize(name, name)

    def _protect(self, last: ir.Node) -> None:
        """Keep the float Conv that is `last`, or that the Relu or Clip `last` reads, out of ONNX Runtime's hands."""
        source = last.inputs[0].producer() if last.op_type in ("Relu", "Clip") else last
        if source is None or source.op_type not in ("Conv", "ConvTranspose", "Gemm"):
            return
        if any(source in unit.nodes for unit in self.int8):
            return
        node = self.nodes[-1]
        if node.op_type == "Relu":
            node.CopyFrom(helper.make_node("LeakyRelu", list(node.input), list(node.output), name=node.name, alpha=0.0))
            return
        open_end = f"{node.name}.open"
        if node.op_type == "Clip":
            slope = 0.0 if self._clips_at_zero(node) else 1.0
            guard = helper.make_node("LeakyRelu", [node.input[0]], [open_end], name=f"{node.name}.guard", alpha=slope)
            node.input[0] = open_end
            self.nodes.insert(-1, guard)
        else:
            guard = helper.make_node("LeakyRelu", [open_end], [node.output[0]], name=f"{node.name}.guard", alpha=1.0)
            node.output[0] = open_end
            self.nodes.append(guard)

    def _clips_at_zero(self, clip: onnx.NodeProto) -> bool:
        low = self.constants.get(clip.input[1]) if len(clip.input) > 1 else None
        return low is not None and float(numpy_helper.to_array(low)) == 0.0

    def _integer(self, unit: Unit) -> None:
        folded = unit.nodes[-1] if len(unit.nodes) > 1 and unit.nodes[-1].op_type in ("Relu", "Clip") else None
        nodes, bounds = list(unit.nodes), (-np.inf, np.inf)
        # No integer kernel writes 16 bits, nor do ONNX Runtime's Max and Min read them: there the node stays.
        if folded is not None and self.scales[folded.outputs[0].name].zero_point.dtype == np.uint8:
            nodes, bounds = nodes[:-1], self._bounds(folded)
        for node in nodes:
            last = node is nodes[-1]
            names = [value.name for value in (unit.outputs if last else node.outputs)]
            copy = self._copy(node, unit, [self._raw(name) for name in names])
            if node is unit.main and unit.kind == "linear":
                self._weights(unit, copy)
            self.nodes.append(copy)
            for name in names:
                if name in self.scales:
                    self._quantize(name, self._raw(name), bounds if last else (-np.inf, np.inf))

    def _weights(self, unit: Unit, copy: onnx.NodeProto) -> None:
        input_scale = np.float32(self.scales[unit.inputs[0].name].scale)
        codes = self.codes[unit.main.name]
        output = self.scales.get(unit.outputs[0].name)
        if output is not None and output.by_channel:
            codes = codes.into_codes_of(output)
        codes = codes.with_room_for_bias(input_scale)
        self._restored(copy, 1, f"{copy.name}.weight_codes", codes.codes, codes.scale, axis=codes.axis)
        if codes.bias is None:
            return
        while len(copy.input) < 3:
            copy.input.append("")
        steps = np.maximum(codes.scale * input_scale, np.finfo(np.float32).tiny).astype(np.float32)
        steps = np.broadcast_to(steps, codes.bias.shape).copy() if steps.size == 1 and codes.bias.size > 1 else steps
        whole = np.rint(codes.bias.astype(np.float64) / steps)
        self._restored(copy, 2, f"{copy.name}.bias_codes", whole.astype(np.int32), steps, axis=0)

    def _restored(self, copy: onnx.NodeProto, place: int, name: str, codes: np.ndarray, scale: np.ndarray, *, axis: int) -> None:
        per_axis = scale.size > 1
        zero = np.zeros(scale.shape if per_axis else (), codes.dtype)
        inputs = [
            self._constant(name, codes),
            self._constant(f"{name}.scale", scale if per_axis else scale.reshape(())),
            self._constant(f"{name}.zero", zero),
        ]
        copy.input[place] = self._add(
            "DequantizeLinear", inputs, f"{name}.restored", f"{name}.DQ", **({"axis": axis} if per_axis else {})
        )

    def _prelu(self, unit: Unit) -> None:
        node = unit.main
        source, target = unit.inputs[0].name, unit.outputs[0].name
        slopes = numpy_helper.to_array(self.constants[node.inputs[1].name]).reshape(-1).astype(np.float32)
        channels = unit.inputs[0].shape[1]
        slopes = np.broadcast_to(slopes, (channels,))
        # Each channel's slope is exact: code +-127 with a scale of its own.
        scale = np.where(slopes == 0, np.float32(1), np.abs(slopes) / np.float32(127)).astype(np.float32)
        codes = (np.sign(slopes) * 127).astype(np.int8).reshape(-1, 1, 1, 1)
        pair, zero = self._pair(source), self._pair(source)[1]
        bent, code = slopes.max() > 1, f"{source}.code"
        if bent:
            code = self._add("Min", [f"{source}.code", zero], f"{target}.below", f"{node.name}.below")
        read = self._add("DequantizeLinear", [code, *pair], f"{target}.read", f"{node.name}.read")
        conv = helper.make_node("Conv", [read, ""], [f"{target}.bent"], name=node.name, group=int(channels), kernel_shape=[1, 1])
        self._restored(conv, 1, f"{node.name}.slope_codes", codes, scale, axis=0)
        self.nodes.append(conv)
        sloped = self._add("QuantizeLinear", [f"{target}.bent", *pair], f"{target}.sloped", f"{node.name}.sloped")
        if bent:
            above = self._add("Max", [f"{source}.code", zero], f"{target}.above", f"{node.name}.above")
            shifted = self._add("Sub", [sloped, zero], f"{target}.shifted", f"{node.name}.shifted")
            self._add("Add", [above, shifted], f"{target}.code", f"{node.name}.sides")
        else:
            self._add("Max", [f"{source}.code", sloped], f"{target}.code", f"{node.name}.Max")
        if target in self.outputs:
            self._dequantize(target, target, f"{target}.DQ")
