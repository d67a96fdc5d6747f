"""Units on their own, in float and in INT8, side by side in two graphs that ONNX Runtime can profile.

Each unit is a branch with inputs of its own. It stands between neighbours, because kernels are chosen by them: images flow from
convolution to convolution in a layout of their own (NCHWc in float, NHWC in INT8), in which some ops run faster, some slower, and
some not at all, so that the image is brought back and forth for them. The neighbours are 1x1 depthwise convolutions in INT8 and 1x1
MaxPools in float, which take that layout and fuse with nothing; where a Conv stands before an Add or an activation and nobody else
reads it, it is a Conv in float too, because ONNX Runtime fuses the two.

One element of each output is kept, so that memory stays bounded whatever the number of branches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.numbers.weights import codes_of
from octavo.quantization.int8.structure.units import BOUNDED, Unit
from octavo.quantization.int8.writing.writer import write_qdq
from octavo.runtime.profiling import Variant
from octavo.runtime.shapes import shape_of

__all__ = ["Branch", "is_led", "source_of", "variants_of"]

_IR_VERSION = 10
_RUN = 16
_INSIDE_CONV = frozenset({"Add", "LeakyRelu", "Sigmoid", "hard_sigmoid", "hard_swish"})

_CODES = QParams.spanning(-4.0, 4.0)
# The float graph is to run as it stands, whatever its Dequantize nodes remind the optimizer of.
_AS_FLOAT = {"session.disable_quant_qdq": "1"}


def source_of(unit: Unit, value: ir.Value) -> str:
    """What matters of where a unit's input comes from.

    Returns:
        `input`: the graph's own input, which has no layout but its own; `Conv`: a Conv in whose kernel the unit may run in float;
        "" for anything else.
    """
    maker = value.producer()
    if maker is None:
        return "input"
    fuses = unit.kind in _INSIDE_CONV and maker.op_type == "Conv" and len(value.uses()) == 1 and not value.is_graph_output()
    return "Conv" if fuses else ""


def is_led(unit: Unit, value: ir.Value) -> bool:
    """Whether a neighbour stands before one of a unit's inputs: an image that is not the graph's own input."""
    return len(shape_of(value)) == 4 and source_of(unit, value) != "input"


@dataclass(frozen=True)
class Branch:
    """A copy of a unit with neighbours on all sides that know images, that shares nothing with its graph but the constants' bytes.

    Attributes:
        name: the prefix of its nodes' names: `<name>.before<place>`, `<name>.unit<step>`, `<name>.after<place>`.
        units: in topological order.
        inputs, outputs: of all of them.
    """

    name: str
    units: tuple[Unit, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]

    @classmethod
    def around(cls, name: str, unit: Unit, *, int8: bool) -> Branch:
        """Copy a unit all of whose sizes are known.

        Args:
            int8: choose the neighbours of the INT8 form, else of the float form.
        """
        copies: dict[ir.Value, ir.Value] = {}
        units, inputs, outputs, nodes = [], [], [], []
        for place, value in enumerate(unit.inputs):
            inputs.append(_value(f"{name}.x{place}", value))
            copies[value] = inputs[-1]
            if is_led(unit, value):
                pool = not int8 and source_of(unit, value) != "Conv"
                units.append(_neighbour(f"{name}.before{place}", inputs[-1], pool=pool))
                copies[value] = units[-1].outputs[0]
        for step, node in enumerate(unit.nodes):
            for place, value in enumerate(node.inputs):
                if value is not None and value not in copies:
                    copies[value] = _constant(f"{name}.unit{step}.c{place}", ir.convenience.get_const_tensor(value))
            for place, value in enumerate(node.outputs):
                copies[value] = _value(f"{name}.unit{step}.y{place}", value)
            operands = [None if value is None else copies[value] for value in node.inputs]
            results = [copies[value] for value in node.outputs]
            settings = list(node.attributes.values())
            nodes.append(ir.Node(node.domain, node.op_type, operands, settings, outputs=results, name=f"{name}.unit{step}"))
        copied = (tuple(copies[value] for value in values) for values in (unit.inputs, unit.outputs, unit.inner))
        units.append(Unit(f"{name}.unit", unit.kind, tuple(nodes), *copied, unit.writes_float))
        for place, value in enumerate(units[-1].outputs):
            outputs.append(value)
            # A head is read as it stands, outside of all kernels' layouts.
            if len(value.shape) == 4 and not unit.writes_float:
                units.append(_neighbour(f"{name}.after{place}", value, pool=not int8))
                outputs[-1] = units[-1].outputs[0]
        return cls(name, tuple(units), tuple(inputs), tuple(outputs))


def variants_of(units: Mapping[str, Unit], opsets: Mapping[str, int]) -> tuple[Variant, Variant]:
    """The float graph and the INT8 graph of some units, with inputs from [-4, 4] of fixed seed.

    Args:
        units: branch name to unit; every size must be known (`shape_of`).
        opsets: of the model that the units come from.
    """
    plain = [Branch.around(name, unit, int8=False) for name, unit in units.items()]
    members = [unit for branch in plain for unit in branch.units]
    float_graph = ir.to_proto(write_qdq(_model(plain, opsets), members, set(), {}, {})).graph
    _feed_codes(float_graph)
    integer = [Branch.around(name, unit, int8=True) for name, unit in units.items()]
    members = [unit for branch in integer for unit in branch.units]
    written = {value for unit in members if unit.writes_float for value in unit.outputs}
    rounded = (value for unit in members for value in (*unit.inputs, *unit.inner, *unit.outputs) if value not in written)
    scales = {value.name: _CODES for value in rounded}
    for unit in members:
        if unit.kind in BOUNDED:
            scales[(unit.inner or unit.outputs)[0].name] = QParams.spanning(*BOUNDED[unit.kind])
    codes = {unit.main.name: codes_of(unit.main, per_channel=True) for unit in members if unit.kind == "linear"}
    int8_graph = ir.to_proto(write_qdq(_model(integer, opsets), members, set(members), scales, codes)).graph
    _drop_last_dequantize(int8_graph)
    ranks = [0 if branch.units[-1].writes_float else len(value.shape) for branch in plain for value in branch.outputs]
    found = []
    for graph, entries in ((float_graph, _AS_FLOAT), (int8_graph, {})):
        _sink(graph, ranks)
        del graph.value_info[:]
        imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        proto = helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)
        found.append(Variant(proto.SerializeToString(), _feeds(graph), entries))
    return found[0], found[1]


def _model(branches: Sequence[Branch], opsets: Mapping[str, int]) -> ir.Model:
    nodes = [node for branch in branches for unit in branch.units for node in unit.nodes]
    constants = dict.fromkeys(
        value for node in nodes for value in node.inputs if value is not None and value.const_value is not None
    )
    graph = ir.Graph(
        [value for branch in branches for value in branch.inputs],
        [value for branch in branches for value in branch.outputs],
        nodes=nodes,
        initializers=list(constants),
        opset_imports=dict(opsets),
        name="specimens",
    )
    return ir.Model(graph, ir_version=_IR_VERSION)


def _neighbour(name: str, source: ir.Value, *, pool: bool) -> Unit:
    """A 1x1 MaxPool or a 1x1 depthwise Conv."""
    target = _value(f"{name}.y", source)
    if pool:
        node = ir.Node("", "MaxPool", [source], [ir.AttrInt64s("kernel_shape", [1, 1])], outputs=[target], name=name)
        return Unit(name, "MaxPool", (node,), (source,), (target,))
    channels = target.shape[1]
    weights = _constant(f"{name}.w", ir.tensor(np.ones((channels, 1, 1, 1), np.float32)))
    node = ir.Node("", "Conv", [source, weights], [ir.AttrInt64("group", channels)], outputs=[target], name=name)
    return Unit(name, "linear", (node,), (source,), (target,))


def _constant(name: str, tensor: ir.TensorProtocol) -> ir.Value:
    return ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)


def _value(name: str, like: ir.Value) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(shape_of(like)), type=ir.TensorType(like.dtype))


def _feed_codes(graph: onnx.GraphProto) -> None:
    """Let a DequantizeLinear make each float input."""
    graph.initializer.append(numpy_helper.from_array(np.asarray(_CODES.scale), "feed.scale"))
    graph.initializer.append(numpy_helper.from_array(np.asarray(_CODES.zero_point), "feed.zero"))
    for value in graph.input:
        name = value.name
        value.name = f"{name}.fed"
        value.type.tensor_type.elem_type = onnx.TensorProto.UINT8
        graph.node.insert(0, helper.make_node("DequantizeLinear", [value.name, "feed.scale", "feed.zero"], [name], name=value.name))


def _drop_last_dequantize(graph: onnx.GraphProto) -> None:
    """Make the graph put out codes where it puts out what a DequantizeLinear reads from them."""
    makers = {name: node for node in graph.node for name in node.output}
    for value in graph.output:
        maker = makers[value.name]
        if maker.op_type == "DequantizeLinear":
            graph.node.remove(maker)
            value.name = maker.input[0]


def _sink(graph: onnx.GraphProto, ranks: Sequence[int]) -> None:
    """Keep one element of each output."""
    for what, array in (("0", [0]), ("1", [1]), ("0000", [0] * 4), ("1111", [1] * 4), ("0123", range(4)), ("all", [-1])):
        graph.initializer.append(numpy_helper.from_array(np.array(array, np.int64), f"sink.{what}"))
    for value, rank in zip(graph.output, ranks, strict=True):
        source, bounds = value.name, ("sink.0000", "sink.1111", "sink.0123")
        if rank != 4:
            # Flat first: a Transpose at the unit's end would move behind the Slice, where it costs nothing.
            flat = helper.make_node("Reshape", [source, "sink.all"], [f"{source}.flat"], name=f"{source}.flat.sink")
            graph.node.append(flat)
            source, bounds = flat.output[0], ("sink.0", "sink.1", "sink.0")
        target = f"{value.name}.sink"
        graph.node.append(helper.make_node("Slice", [source, *bounds], [target], name=target))
        value.CopyFrom(helper.make_empty_tensor_value_info(target))


def _feeds(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    """Inputs that change their sign every few elements, as images' features do: kernels that branch (PRelu) take several times as
    long on noise. Those of one shape are one array, so that they cost memory once.
    """
    generator = np.random.default_rng(0)
    drawn: dict[tuple[int, ...], np.ndarray] = {}
    feeds = {}
    for value in graph.input:
        shape = tuple(size.dim_value for size in value.type.tensor_type.shape.dim)
        if shape not in drawn:
            count = int(np.prod(shape))
            codes = np.repeat(generator.integers(0, 256, -(-count // _RUN), np.uint8), _RUN)[:count].reshape(shape)
            is_float = value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
            drawn[shape] = codes * np.float32(8 / 255) - np.float32(4) if is_float else codes
        feeds[value.name] = drawn[shape]
    return feeds
