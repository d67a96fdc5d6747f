"""Lay Q and DQ around INT8 units so that ONNX Runtime's fusions find each of them, and nothing else.

- One QuantizeLinear a tensor, one DequantizeLinear a reading unit. A tensor that a float unit makes stays float for float readers.
- A Relu or Clip behind an INT8 kernel goes: the Q's saturation does its work. Where the codes reach beyond its bounds (a scale
  shared in a Concat, symmetric activations), Max and Min of the codes take its place: they are what rounding behind it gives.
- A float Conv or Gemm between DQ and Q would be quantized behind the user's back: a LeakyRelu behind it prevents that
  (`octavo.graph.passes.protect_float`). So it does behind any other float node that ONNX Runtime has an integer kernel for; with a
  DQ per channel in front such a kernel would not even load.
- A head, the output of a last Conv that only float units read, has a scale and a zero point for each channel, for free: they go
  into the Conv's weights and bias, its Q has scale 1 and zero point 0, and the DQ behind it is per channel. One uint8 scale for
  box offsets and class logits would cost boxes most of their codes.
- A 1x1 head of a map that writes float (`placement.pixel_heads`) is a Gemm over pixels, because integer convolutions write codes.
- Last come passes over the Q/DQ graph (`octavo.graph.passes.kernel_forms`): other forms of integer ops, with the same codes and
  faster kernels.
- HardSwish, HardSigmoid, factors and shifts of all values: alpha x + beta is an Add of a constant and the codes of x,
  read with alpha times their scale. HardSigmoid's is cut to 0 and 1 by saturation; HardSwish is a Mul of that and x. Both together
  take 4 % of the time of the 1x1 Conv before them (96 channels, 56x56).
- PRelu has no integer kernel. With every slope <= 1 it is Max(x, slope x): a depthwise 1x1 QLinearConv and a uint8 Max. With other
  slopes x's two sides go apart, Max(x, z) + (depthwise(Min(x, z)) - z), exact because one of the two is always z.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from octavo.graph.passes.hard_swish import SWISH, hard_sigmoid_of
from octavo.graph.passes.kernel_forms import write_kernel_forms
from octavo.graph.passes.prelu_of_codes import slope_codes
from octavo.graph.passes.protect_float import ProtectFloatPass
from octavo.quantization.int8.qdq_graph import QdqGraph
from octavo.quantization.int8.qparams import QParams
from octavo.quantization.int8.units import CARRIERS, Unit, affine_of
from octavo.quantization.int8.weights import Codes

__all__ = ["write_qdq"]

# What ONNX Runtime makes an integer kernel of where it stands between DQ and Q, besides what has weights.
_FUSED = frozenset({"Add", "AveragePool", "Concat", "GlobalAveragePool", "LeakyRelu", "Mul", "Sigmoid", "Softmax", "Where"})


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
    for op_type in ("Conv", "ConvTranspose", "Gemm"):
        ProtectFloatPass(op_type)(result)
    # Tuned to the kernels for uint8; codes of other types are for other machines.
    if all(chosen.zero_point.dtype == np.uint8 for chosen in scales.values()):
        write_kernel_forms(result)
    return result


class _Writer(QdqGraph):
    def __init__(
        self,
        model: ir.Model,
        units: Sequence[Unit],
        int8: set[Unit],
        scales: Mapping[str, QParams],
        codes: Mapping[str, Codes],
    ) -> None:
        super().__init__(model)
        self.units, self.int8, self.scales, self.codes = units, int8, scales, codes
        self.from_int8 = {value.name for unit in int8 for value in (*unit.outputs, *unit.inner)}
        self.read_back: set[str] = set()

    def written(self) -> ir.Model:
        for value in self.proto.graph.input:
            if value.name in self.scales:
                self._quantize(value.name, value.name)
        for unit in self.units:
            if unit not in self.int8:
                self._float(unit)
            elif unit.kind == "prelu" and self._on_codes(unit):
                self._prelu(unit)
            elif unit.kind in ("affine", "hard_sigmoid", "hard_swish") and self._on_codes(unit):
                self._sloped(unit)
            elif unit.writes_float:
                self._pixels(unit)
            else:
                self._integer(unit)
        return self._shaped(self.closed())

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
                self.constant("octavo.head.scale", np.asarray(np.float32(1))),
                self.constant("octavo.head.zero", np.zeros((), self.scales[name].zero_point.dtype)),
            ]
            limits = []
        else:
            limits = [(op, code) for op, code in self._limits(name, bounds) if code is not None]
        stages = [f"{name}.{stage}" for stage in ["unbounded", "half_bounded"][: len(limits)]] + [f"{name}.code"]
        self.add("QuantizeLinear", [raw, *pair], stages[0], f"{name}.Q")
        for (op, code), source, target in zip(limits, stages, stages[1:], strict=False):
            self.add(op, [source, self.constant(f"{name}.{op}", code)], target, f"{name}.{op}")
        if name in self.outputs and raw != name:
            self._dequantize(name, name, f"{name}.DQ")

    def _dequantize(self, name: str, output: str, node: str) -> str:
        axis = {"axis": 1} if self.scales[name].by_channel else {}
        return self.add("DequantizeLinear", [f"{name}.code", *self._pair(name)], output, node, **axis)

    def _limits(self, name: str, bounds: tuple[float, float]) -> list[tuple[str, np.ndarray | None]]:
        """The codes of bounds that saturation does not keep: None where it does."""
        chosen = self.scales[name]
        kind, zero = chosen.zero_point.dtype, float(chosen.zero_point)
        least, most = np.iinfo(kind).min, np.iinfo(kind).max
        low, high = (np.clip(np.rint(bound / np.float64(chosen.scale)) + zero, least, most) for bound in bounds)
        return [("Max", np.asarray(low, kind) if low > least else None), ("Min", np.asarray(high, kind) if high < most else None)]

    def _folded(self, unit: Unit) -> tuple[ir.Node | None, list[ir.Node]]:
        """The Relu or Clip at the end of a unit that is more than that, and the nodes before it."""
        *before, last = unit.nodes
        return (last, before) if before and last.op_type in ("Relu", "Clip") else (None, list(unit.nodes))

    def _bounds(self, node: ir.Node | None) -> tuple[float, float]:
        """What a folded Relu or Clip keeps its values between."""
        if node is None:
            return -np.inf, np.inf
        if node.op_type == "Relu":
            return 0.0, np.inf
        found = [-np.inf, np.inf]
        for place, value in enumerate(node.inputs[1:3]):
            if value is not None:
                found[place] = float(ir.convenience.get_const_tensor(value).numpy())
        return found[0], found[1]

    def _eight_bits(self, name: str) -> bool:
        return self.scales[name].zero_point.dtype.itemsize == 1

    def _on_codes(self, unit: Unit) -> bool:
        return self._eight_bits(unit.inputs[0].name) and self._eight_bits(unit.outputs[0].name)

    def _pair(self, name: str) -> list[str]:
        chosen = self.scales[name]
        return [
            self.constant(f"{name}.scale", np.asarray(chosen.scale)),
            self.constant(f"{name}.zero", np.asarray(chosen.zero_point)),
        ]

    def _operand(self, name: str, unit: Unit) -> str:
        """What a unit reads where it reads tensor `name`: the tensor itself, or a DQ of its own."""
        if name not in self.scales or (unit not in self.int8 and name not in self.from_int8):
            return name
        restored = f"{name}.for.{unit.name}"
        if restored not in self.read_back:
            self.read_back.add(restored)
            self._dequantize(name, restored, f"{restored}.DQ")
        return restored

    def _raw(self, name: str) -> str:
        """What the node that makes a tensor writes: the tensor, or what its Q reads."""
        return f"{name}.raw" if name in self.scales and name in self.from_int8 else name

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
            copy = self._copy(node, unit, [value.name for value in node.outputs])
            if node.op_type == "MaxPool" and copy.input[0] != node.inputs[0].name and not self._follows_kernel(node):
                copy.input[0] = self._kept_apart(copy.input[0])
            if node.op_type == "HardSwish":
                # ONNX Runtime takes it apart where no Conv takes it in, into nodes without names, which nobody finds again.
                self._parted(copy)
            else:
                self.nodes.append(copy)
        quantized = [value for value in unit.outputs if value.name in self.scales]
        for value in quantized:
            self.add("QuantizeLinear", [self._guarded(value), *self._pair(value.name)], f"{value.name}.code", f"{value.name}.Q")

    def _parted(self, node: onnx.NodeProto) -> None:
        alpha, beta = SWISH
        gate = self.add("HardSigmoid", [node.input[0]], f"{node.output[0]}.gate", f"{node.name}.gate", alpha=alpha, beta=beta)
        self.add("Mul", [node.input[0], gate], node.output[0], node.name)

    def _follows_kernel(self, node: ir.Node) -> bool:
        """Whether what a node reads comes right out of an integer convolution, where an integer MaxPool is fast."""
        return any(unit.kind == "linear" and node.inputs[0] in unit.outputs for unit in self.int8)

    def _guarded(self, value: ir.Value) -> str:
        """What the Q of a float tensor reads: a guard, where ONNX Runtime would make an integer kernel of what lies before it."""
        node = value.producer()
        # ONNX Runtime moves a Q backward through what only moves values, and a DQ forward.
        while node is not None and node.op_type in (*CARRIERS, "Relu", "Clip"):
            if node.op_type == "MaxPool" and not self._follows_kernel(node):
                # Moved before it, the Q would make it an integer MaxPool on NCHW, 18 times as slow as this one (NanoDet-m).
                return self._kept_apart(value.name)
            node = node.inputs[0].producer()
        if node is None or node.op_type not in _FUSED or any(node in unit.nodes for unit in self.int8):
            return value.name
        if not all(self._from_codes(read) for read in node.inputs if read is not None and read.dtype == ir.DataType.FLOAT):
            return value.name
        return self._kept_apart(value.name)

    def _kept_apart(self, name: str) -> str:
        """A copy of a float tensor that no Q or DQ is moved across: a LeakyRelu of slope 1."""
        return self.add("LeakyRelu", [name], f"{name}.guarded", f"{name}.guard", alpha=1.0)

    def _from_codes(self, value: ir.Value) -> bool:
        """Whether a float reader gets a tensor out of a DequantizeLinear, moved about or not."""
        while value.name not in self.scales or value.name not in self.from_int8:
            node = value.producer()
            if node is None or node.op_type not in CARRIERS:
                return False
            value = node.inputs[0]
        return True

    def _integer(self, unit: Unit) -> None:
        (folded, nodes), bounds = self._folded(unit), (-np.inf, np.inf)
        # No integer kernel writes 16 bits, nor do ONNX Runtime's Max and Min read them: there the node stays.
        if folded is not None and self._eight_bits(folded.outputs[0].name):
            bounds = self._bounds(folded)
        else:
            nodes = list(unit.nodes)
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
        matrix = codes.codes.reshape(codes.codes.shape[:2]) if unit.writes_float else codes.codes
        self.restored(copy, 1, f"{copy.name}.weight_codes", matrix, codes.scale, axis=codes.axis)
        if codes.bias is None:
            return
        while len(copy.input) < 3:
            copy.input.append("")
        steps = np.maximum(codes.scale * input_scale, np.finfo(np.float32).tiny).astype(np.float32)
        steps = np.broadcast_to(steps, codes.bias.shape).copy() if steps.size == 1 and codes.bias.size > 1 else steps
        whole = np.rint(codes.bias.astype(np.float64) / steps)
        self.restored(copy, 2, f"{copy.name}.bias_codes", whole.astype(np.int32), steps, axis=0)

    def _pixels(self, unit: Unit) -> None:
        """A 1x1 Conv as a Gemm of rows, one for each pixel, whose output no Q reads."""
        node, source, target = unit.main, unit.inputs[0], unit.outputs[0].name
        channels, depth = node.inputs[1].shape[:2]

        def shape(*sizes: int) -> str:
            return self.constant(f"{node.name}.{'x'.join(map(str, sizes))}", np.array(sizes, np.int64))

        last = self.add("Transpose", [f"{source.name}.code"], f"{node.name}.last.code", f"{node.name}.last", perm=[0, 2, 3, 1])
        rows = self.add("Reshape", [last, shape(-1, depth)], f"{node.name}.rows.code", f"{node.name}.rows")
        read = self.add("DequantizeLinear", [rows, *self._pair(source.name)], f"{node.name}.read", f"{node.name}.read")
        gemm = helper.make_node("Gemm", [read, ""], [f"{node.name}.made"], name=node.name, transB=1)
        self._weights(unit, gemm)
        self.nodes.append(gemm)
        if all(isinstance(size, int) for size in source.shape[2:]):
            sizes = shape(-1, *source.shape[2:], channels)
        else:
            ahead = self.add("Shape", [last], f"{node.name}.ahead", f"{node.name}.ahead", start=0, end=3)
            sizes = self.add("Concat", [ahead, shape(channels)], f"{node.name}.sizes", f"{node.name}.sizes", axis=0)
        image = self.add("Reshape", [gemm.output[0], sizes], f"{node.name}.pixels", f"{node.name}.image")
        self.add("Transpose", [image], target, f"{node.name}.first", perm=[0, 3, 1, 2])

    def _sloped(self, unit: Unit) -> None:
        """`alpha x + beta` as an Add of codes; of HardSigmoid its Q keeps what lies in 0 to 1, HardSwish multiplies x with that."""
        folded, steps = self._folded(unit)
        node, last = unit.main, steps[-1].name
        source, target = unit.inputs[0].name, unit.outputs[0].name
        alpha, beta = affine_of(unit) if unit.kind == "affine" else hard_sigmoid_of(node)
        scale, zero = self.scales[source].scale, self.scales[source].zero_point
        sloped = self._codes(f"{source}.code", np.float32(scale * alpha), zero, f"{target}.sloped", f"{node.name}.sloped")
        # A shift below zero is a code below its zero point.
        kind = zero.dtype.type
        one, none = self.constant(f"{last}.one", np.asarray(kind(beta > 0))), kind(beta < 0)
        shift = self._codes(one, np.float32(abs(beta) or 1), none, f"{target}.shift", f"{last}.shift")
        if unit.kind != "hard_swish":
            self.add("Add", [sloped, shift], self._raw(target), last)
            self._quantize(target, self._raw(target), (0.0, 1.0) if unit.kind == "hard_sigmoid" else self._bounds(folded))
            return
        raw = self.add("Add", [sloped, shift], f"{target}.gate.raw", f"{last}.gate")
        share = QParams.spanning(0.0, 1.0, signed=kind is np.int8)
        pair = [self.constant(f"{last}.gate.{what}", np.asarray(value)) for what, value in vars(share).items()]
        code = self.add("QuantizeLinear", [raw, *pair], f"{target}.gate.code", f"{last}.gate.Q")
        gate = self.add("DequantizeLinear", [code, *pair], f"{target}.gate", f"{last}.gate.DQ")
        self.add("Mul", [self._operand(source, unit), gate], self._raw(target), last)
        self._quantize(target, self._raw(target))

    def _codes(self, codes: str, scale: np.float32, zero: np.generic, output: str, node: str) -> str:
        """Codes read with another scale than their tensor's."""
        pair = [self.constant(f"{node}.scale", np.asarray(scale)), self.constant(f"{node}.zero", np.asarray(zero))]
        return self.add("DequantizeLinear", [codes, *pair], output, node)

    def _prelu(self, unit: Unit) -> None:
        node = unit.main
        source, target = unit.inputs[0].name, unit.outputs[0].name
        slopes = numpy_helper.to_array(self.constants[node.inputs[1].name]).reshape(-1).astype(np.float32)
        channels = unit.inputs[0].shape[1]
        slopes = np.broadcast_to(slopes, (channels,))
        codes, scale = slope_codes(slopes)
        pair, zero = self._pair(source), self._pair(source)[1]
        bent, code = slopes.max() > 1, f"{source}.code"
        if bent:
            code = self.add("Min", [f"{source}.code", zero], f"{target}.below", f"{node.name}.below")
        read = self.add("DequantizeLinear", [code, *pair], f"{target}.read", f"{node.name}.read")
        conv = helper.make_node("Conv", [read, ""], [f"{target}.bent"], name=node.name, group=int(channels), kernel_shape=[1, 1])
        self.restored(conv, 1, f"{node.name}.slope_codes", codes, scale, axis=0)
        self.nodes.append(conv)
        sloped = self.add("QuantizeLinear", [f"{target}.bent", *pair], f"{target}.sloped", f"{node.name}.sloped")
        if bent:
            above = self.add("Max", [f"{source}.code", zero], f"{target}.above", f"{node.name}.above")
            shifted = self.add("Sub", [sloped, zero], f"{target}.shifted", f"{node.name}.shifted")
            self.add("Add", [above, shifted], f"{target}.code", f"{node.name}.sides")
        else:
            self.add("Max", [f"{source}.code", sloped], f"{target}.code", f"{node.name}.Max")
        if target in self.outputs:
            self._dequantize(target, target, f"{target}.DQ")
