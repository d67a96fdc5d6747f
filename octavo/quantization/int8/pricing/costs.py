"""The cost table: what each unit takes in float and in INT8 on one machine, and what a border between the two takes.

Units are known by their work (`signature`), so that a table serves every network that does the same work, whatever its names and
weights. The same table gives the same placement, hence the same bytes, on any machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from octavo.errors import QuantizationError
from octavo.files import read_json, write_json
from octavo.graph.operators import MOVES
from octavo.quantization.int8.pricing.specimens import source_of
from octavo.quantization.int8.structure.units import Unit, constant, readers
from octavo.runtime.shapes import shape_of

__all__ = ["Borders", "Cost", "CostTable", "is_static", "signature"]

FORMAT = "octavo-costs-3"
# Float kernels of images that stand outside the blocked layout: nothing has to be brought into it for them, or out of it.
_PLAIN = MOVES | {"Gemm", "MatMul"}


@dataclass(frozen=True)
class Cost:
    """Kernel time of one unit at batch 1, in ms; borders are not in it, and what fuses into the kernel before it is 0."""

    float_ms: float
    int8_ms: float


@dataclass(frozen=True)
class Borders:
    """What lies between float and INT8, as a straight line over the number of elements.

    Attributes:
        quantize_ns, dequantize_ns: per element, of the kernel alone.
        transpose_ns: per element of an image: integer convolutions of ONNX Runtime read NHWC, everything else NCHW.
        reorder_ns: per element of an image: float convolutions, and what stands between them, work on blocks of channels (NCHWc).
        quantize_us, dequantize_us, transpose_us, reorder_us: per kernel, however small.
    """

    quantize_ns: float = 0.0
    dequantize_ns: float = 0.0
    transpose_ns: float = 0.0
    quantize_us: float = 0.0
    dequantize_us: float = 0.0
    transpose_us: float = 0.0
    reorder_ns: float = 0.0
    reorder_us: float = 0.0


@dataclass(frozen=True)
class CostTable:
    """Measured costs.

    Attributes:
        host: `octavo.runtime.host.fingerprint` of the machine, with `threads` and `session` (which kernels were timed).
        units: by `signature`.
        borders: the price of Q, DQ and the change of layout.
        speeds: of whole files how many times as fast as FP32 they ran, by placement (`int8.in_float.name_of`).
        source: the file it was read from.
    """

    host: Mapping[str, Any]
    units: Mapping[str, Cost]
    borders: Borders
    speeds: Mapping[str, float] = field(default_factory=dict)
    source: str | None = field(default=None, compare=False)

    @property
    def machine(self) -> str:
        """Whose times these are, for a manifest."""
        host = self.host
        threads = f"{host.get('threads')} thread{'s' * (host.get('threads') != 1)}"
        return f"host {host.get('id')} ({host.get('cpu')}), ONNX Runtime {host.get('onnxruntime')}, {threads}"

    def cost(self, unit: Unit) -> Cost:
        """What a unit takes.

        Raises:
            QuantizationError: the table has no entry for it.
        """
        key = signature(unit)
        try:
            return self.units[key]
        except KeyError:
            where = f"placement: table:{self.source}" if self.source else "the cost table"
            raise QuantizationError(
                f"{where} has no entry for {unit.name!r} ({key})",
                "the table was measured on another network, or with settings by which this one was no INT8 (`keep_float`, "
                "`float_heads`): set `placement: measured` once and use a copy of the table it saves",
            ) from None

    def border_ms(self, value: ir.Value, *, to_int8: bool) -> float:
        """What it takes to bring a tensor from float to INT8 or back, the changes of layout included (`moving_ms`).

        Raises:
            QuantizationError: the tensor's shape is not known.
        """
        return self.rounding_ms(value, to_int8=to_int8) + self.moving_ms(value, to_int8=to_int8)

    def rounding_ms(self, value: ir.Value, *, to_int8: bool) -> float:
        """What QuantizeLinear or DequantizeLinear takes; raises as `border_ms`."""
        prices = self.borders
        kernel = (prices.quantize_ns, prices.quantize_us) if to_int8 else (prices.dequantize_ns, prices.dequantize_us)
        return (kernel[0] * math.prod(_sizes(value)) + kernel[1] * 1e3) / 1e6

    def moving_ms(self, value: ir.Value, *, to_int8: bool) -> float:
        """What it takes to bring an image out of the layout that float has for it between convolutions, and into that of INT8, or
        the other way round; raises as `border_ms`.
        """
        shape, prices, total = _sizes(value), self.borders, 0.0
        size = math.prod(shape)
        if len(shape) == 4 and shape[1] > 1 and shape[2] * shape[3] > 1:
            total += prices.transpose_ns * size + prices.transpose_us * 1e3
            in_float = [value.producer()] if to_int8 else list(readers(value))
            if any(node is not None and node.op_type not in _PLAIN for node in in_float):
                total += prices.reorder_ns * size + prices.reorder_us * 1e3
        return total / 1e6

    def save(self, path: str | Path) -> None:
        """Write JSON, whole or not at all; equal tables give equal bytes."""
        units = {key: asdict(cost) for key, cost in self.units.items()}
        found = {"format": FORMAT, "host": dict(self.host), "units": units, "borders": asdict(self.borders)}
        write_json(path, found | {"speeds": dict(self.speeds)})

    @classmethod
    def load(cls, path: str | Path) -> CostTable:
        """Read a table.

        Raises:
            QuantizationError: there is no such file, it is damaged, or it is something else.
        """
        mend = "set `placement: measured` to make a new table, or name the right file in `placement: table:<file>`"
        try:
            found = read_json(path)
        except FileNotFoundError as error:
            raise QuantizationError(
                f"cost table {path}: no such file",
                f"DVC deletes outputs before it runs a stage: if this is one (`dvc checkout` restores it), name a copy; or {mend}",
            ) from error
        except (OSError, ValueError) as error:
            raise QuantizationError(f"cost table {path} cannot be read: {error}", mend) from error
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            kind = found.get("format") if isinstance(found, dict) else None
            raise QuantizationError(f"{path} is not a cost table of this version (format {kind!r}, not {FORMAT!r})", mend)
        try:
            units = {key: Cost(**_times(value)) for key, value in found["units"].items()}
            return cls(dict(found["host"]), units, Borders(**_times(found["borders"])), _times(found.get("speeds", {})), str(path))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise QuantizationError(f"cost table {path} is damaged: {error!r}", mend) from error


def _sizes(value: ir.Value) -> tuple[int, ...]:
    shape = shape_of(value)
    if shape is None:
        raise QuantizationError(f"tensor {value.name!r} has no static shape, so that its border has no price", "fix `input:` sizes")
    return tuple(shape)


def is_static(unit: Unit) -> bool:
    """Whether a unit can be measured on its own: every size known, everything it reads a constant or a float32 tensor."""
    for node in unit.nodes:
        if any(attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for attribute in node.attributes.values()):
            return False
        inside = {value for member in unit.nodes for value in member.outputs}
        if any(not (value is None or value in unit.inputs or value in inside or constant(value)) for value in node.inputs):
            return False
    outputs = [value for node in unit.nodes for value in node.outputs]
    shapes = [shape_of(value) for value in (*unit.inputs, *outputs)]
    return bool(unit.inputs) and all(shape is not None and math.prod(shape) > 0 for shape in shapes)


def signature(unit: Unit) -> str:
    """What a unit does, in words: equal for equal work, whatever its names and values.

    Returns:
        `linear: Conv(pads=1,1,1,1)[x0:1x16x32x32 c:8x16x3x3 c:8] Relu[-] -> 1x8x32x32`: op types with the attributes that
        differ from their defaults; what each node reads (`x`: a tensor from outside, with `~input` or `~Conv` as `source_of` has
        it, `c`: a constant, `-`: the unit's own) and the outputs' shapes, at batch 1, with `~float` where its kernel writes float.
    """
    places = {value: place for place, value in enumerate(unit.inputs)}
    inside = {value for node in unit.nodes for value in node.outputs}
    parts = []
    for node in unit.nodes:
        operands = []
        for value in node.inputs:
            if value is None:
                operands.append("none")
            elif value in inside:
                operands.append("-")
            elif value in places:
                source = source_of(unit, value)
                operands.append(f"x{places[value]}:{_shape_text(value)}{f'~{source}' if source else ''}")
            else:
                operands.append(_constant_text(node, value))
        settings = _attributes(node)
        domain = "" if node.domain in ("", "ai.onnx") else f"{node.domain}."
        parts.append(f"{domain}{node.op_type}{f'({settings})' if settings else ''}[{' '.join(operands)}]")
    made = " ".join(_shape_text(value) for value in unit.outputs)
    return f"{unit.kind}: {' '.join(parts)} -> {made}{'~float' if unit.writes_float else ''}"


def _constant_text(node: ir.Node, value: ir.Value) -> str:
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None:
        return f"?:{value.dtype}"
    text = f"c:{'x'.join(map(str, tensor.shape)) or 'scalar'}"
    # Where values decide the work: a Slice's steps, and slopes above 1, which cost PRelu more kernels.
    if node.op_type == "Slice":
        text += f"={','.join(map(str, tensor.numpy().reshape(-1).tolist()))}"
    elif node.op_type == "PRelu" and tensor.numpy().max(initial=0) > 1:
        text += ">1"
    return text


def _shape_text(value: ir.Value) -> str:
    shape = shape_of(value)
    return "?" if shape is None else "x".join(map(str, shape)) or "scalar"


def _attributes(node: ir.Node) -> str:
    version = node.version or onnx.defs.onnx_opset_version()
    known = onnx.defs.has(node.op_type, node.domain if node.domain != "ai.onnx" else "")
    schema = onnx.defs.get_schema(node.op_type, version, "") if known and node.domain in ("", "ai.onnx") else None
    parts = []
    for name, attribute in sorted(node.attributes.items()):
        value = attribute.value
        if schema is not None and name in schema.attributes:
            default = schema.attributes[name].default_value
            if default.type and onnx.helper.get_attribute_value(default) in (value, str(value).encode()):
                continue
        unit_sizes = {"pads": 0, "strides": 1, "dilations": 1}
        if (name in unit_sizes and set(value) == {unit_sizes[name]}) or (name == "kernel_shape" and node.op_type == "Conv"):
            continue
        if isinstance(value, (int, float, str)):
            parts.append(f"{name}={value}")
        elif isinstance(value, (list, tuple)):
            parts.append(f"{name}={','.join(map(str, value))}")
    return " ".join(parts)


def _times(value: Mapping[str, Any]) -> dict[str, float]:
    for name, time in value.items():
        if not isinstance(time, (int, float)) or isinstance(time, bool) or not 0 <= time < math.inf:
            raise ValueError(f"{name} is {time!r}, not a time")
    return dict(value)
