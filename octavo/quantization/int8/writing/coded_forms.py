"""Integer forms of what ONNX Runtime has no integer kernel for, out of kernels that it has.

- HardSwish, HardSigmoid, factors and shifts of all values (`sloped`): alpha x + beta is an Add of a constant and the codes of x,
  read with alpha times their scale. HardSigmoid's is cut to 0 and 1 by saturation; HardSwish is a Mul of that and x. Both together
  take 4 % of the time of the 1x1 Conv before them (96 channels, 56x56).
- PRelu (`prelu`): with every slope <= 1 it is Max(x, slope x), a depthwise 1x1 QLinearConv and a uint8 Max. With other
  slopes x's two sides go apart, Max(x, z) + (depthwise(Min(x, z)) - z), exact because one of the two is always z.
- Tanh (`tanh`) is 2 Sigmoid(2 x) - 1, a table: the codes of Sigmoid, read as of twice the scale and another zero point.
- Activations that have no kernel on codes (`curve`: Mish, ELU, SELU, Softplus and so on) are looked up: GatherElements takes of a
  table of 256 codes those that codes point at, 1 ns an element, where ONNX Runtime's float Mish takes 10 to 20.
- A Relu or Clip that no layer takes in (`cut`) is Max and Min of codes, and so are those of parts of one tensor (`extreme`).
- Pad (`padded`) works on the codes, with the zero point for 0: ONNX Runtime pads in float what stands between DQ and Q.
- A 1x1 Conv that writes float (`pixels`): a Gemm over pixels, because integer convolutions write codes. Heads of maps are written
  so (`structure.heads.pixel_heads`), and layers whose activation is float (`structure.rows`), which computes on the rows.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto, helper

from octavo.graph.passes.kernels.prelu_of_codes import slope_codes
from octavo.graph.passes.spelled.hard_swish import hard_sigmoid_of
from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.structure.curves import curve_of
from octavo.quantization.int8.structure.units import Unit, affine_of, readers
from octavo.quantization.int8.writing.coded_graph import CodedGraph
from octavo.quantization.int8.writing.kept_float import add_float
from octavo.quantization.int8.writing.saturation import bounds_of, folded

__all__ = ["curve", "cut", "extreme", "padded", "pixels", "prelu", "sloped", "tanh"]

# Of Tanh between 0 and 1.
_STEPS = 127
# Of a table, at most: threads share them.
_ROWS = 16


def sloped(graph: CodedGraph, unit: Unit) -> None:
    """`alpha x + beta` as an Add of codes; of HardSigmoid its Q keeps what lies in 0 to 1, HardSwish multiplies x with that."""
    end, steps = folded(unit)
    node, last = unit.main, steps[-1].name
    source, target = unit.inputs[0].name, unit.outputs[0].name
    alpha, beta = affine_of(unit) if unit.kind == "affine" else hard_sigmoid_of(node)
    scale, zero = graph.scales[source].scale, graph.scales[source].zero_point
    sloped = _read_scaled(
        graph,
        graph.code(source),
        np.float32(scale * alpha),
        zero,
        output=graph.fresh(f"{target}.sloped"),
        node=f"{node.name}.sloped",
    )
    # A shift below zero is a code below its zero point.
    kind = zero.dtype.type
    none = zero if graph.symmetric else kind(beta < 0)
    one = graph.constant(f"{last}.one", np.asarray(kind(none + np.sign(beta))))
    shift = _read_scaled(graph, one, np.float32(abs(beta) or 1), none, output=graph.fresh(f"{target}.shift"), node=f"{last}.shift")
    if unit.kind != "hard_swish":
        graph.add("Add", [sloped, shift], graph.raw(target), last, instead=True)
        graph.quantize(target, graph.raw(target), (0.0, 1.0) if unit.kind == "hard_sigmoid" else bounds_of(end))
        return
    raw = graph.add("Add", [sloped, shift], graph.fresh(f"{target}.gate.raw"), f"{last}.gate")
    # Around a middle code, 127 steps to 1 exactly.
    share = QParams(np.float32(1 / 127), zero) if graph.symmetric else QParams.spanning(0.0, 1.0, signed=kind is np.int8)
    pair = [graph.constant(f"{last}.gate.{what}", np.asarray(value)) for what, value in vars(share).items()]
    code = graph.add("QuantizeLinear", [raw, *pair], graph.fresh(f"{target}.gate.code"), f"{last}.gate.Q")
    if graph.symmetric:
        # Saturation does not cut what lies below zero then.
        code = graph.add("Max", [code, pair[1]], graph.fresh(f"{target}.gate.cut"), f"{last}.gate.Max")
    gate = graph.add("DequantizeLinear", [code, *pair], graph.fresh(f"{target}.gate"), f"{last}.gate.DQ")
    graph.add("Mul", [graph.operand(source, unit), gate], graph.raw(target), last, instead=True)
    graph.quantize(target, graph.raw(target))


def curve(graph: CodedGraph, unit: Unit) -> None:
    """An activation as a table of codes, which rounds once, as Q behind DQ and the activation would."""
    source, target, name = unit.inputs[0], unit.outputs[0].name, unit.nodes[-1].name
    before, behind = graph.scales[source.name], graph.scales[target]
    kind = before.zero_point.dtype
    # By place: codes below zero point at places counted from the end.
    codes = np.arange(256, dtype=np.uint8).view(kind)
    values = (codes.astype(np.float32) - np.float32(before.zero_point)) * before.scale
    found = behind.steps(curve_of(unit.main)(values).astype(np.float32)) + np.float32(behind.zero_point)
    # Rows go to threads. Channels divide what there is to look up, whatever the sizes are.
    sizes = list(source.shape) if source.shape is not None else []
    channels = sizes[1] if len(sizes) > 1 and isinstance(sizes[1], int) else 1
    rows = math.gcd(channels, _ROWS)
    table = np.tile(found.astype(behind.zero_point.dtype), (rows, 1))
    image = len(sizes) == 4
    code = graph.code(source.name)
    if image:
        # As integer convolutions put them out.
        code = graph.add("Transpose", [code], graph.fresh(f"{target}.last"), f"{name}.last", perm=[0, 2, 3, 1])
    places = graph.add("Cast", [code], graph.fresh(f"{target}.places"), f"{name}.places", to=TensorProto.INT32)
    flat = graph.constant(f"{name}.flat", np.array([rows, -1], np.int64))
    places = graph.add("Reshape", [places, flat], graph.fresh(f"{target}.rows"), f"{name}.rows")
    table = graph.constant(f"{name}.table", table)
    looked = graph.add("GatherElements", [table, places], graph.fresh(f"{target}.looked"), name, instead=True, axis=1)
    sizes = [sizes[axis] for axis in (0, 2, 3, 1)] if image else sizes
    if sizes and sum(not isinstance(size, int) for size in sizes) < 2:
        shape = graph.constant(f"{name}.sizes", np.array([size if isinstance(size, int) else -1 for size in sizes], np.int64))
    else:
        shape = graph.add("Shape", [code], graph.fresh(f"{target}.sizes"), f"{name}.sizes")
    made = graph.fresh(f"{target}.image") if image else graph.code(target)
    graph.add("Reshape", [looked, shape], made, f"{name}.image")
    if image:
        graph.add("Transpose", [made], graph.code(target), f"{name}.first", perm=[0, 3, 1, 2])
    if target in graph.outputs:
        graph.dequantize(target, target, f"{target}.DQ")


def cut(graph: CodedGraph, unit: Unit) -> None:
    """Relu or Clip of codes; where these reach no further, they are the same."""
    source, target, name = unit.inputs[0].name, unit.outputs[0].name, unit.main.name
    code, limits = graph.code(source), graph.limits(target, bounds_of(unit.main)) or [("Identity", None)]
    for place, (op, bound) in enumerate(limits, 1):
        reads = [code] if bound is None else [code, graph.constant(f"{target}.{op}", bound)]
        last = place == len(limits)
        made = graph.code(target) if last else graph.fresh(f"{target}.half_bounded")
        code = graph.add(op, reads, made, name if last else f"{name}.{op}", instead=last)
    if target in graph.outputs:
        graph.dequantize(target, target, f"{target}.DQ")


def tanh(graph: CodedGraph, unit: Unit) -> None:
    """Tanh as Sigmoid of the same codes, read with twice their scale; what that puts out are the codes of Tanh.

    Those have steps of 1/127 then. Where they share another scale (in a Concat) Tanh is float between DQ and Q.
    """
    source, target, name = unit.inputs[0].name, unit.outputs[0].name, unit.main.name
    chosen, zero = graph.scales[target], graph.scales[source].zero_point
    least = int(chosen.zero_point) - _STEPS
    if not np.isclose(chosen.scale, 1 / _STEPS, rtol=1e-6) or least < np.iinfo(chosen.zero_point.dtype).min:
        graph.add("Tanh", [graph.operand(source, unit)], graph.raw(target), name, instead=True)
        graph.quantize(target, graph.raw(target))
        return
    doubled = _read_scaled(
        graph,
        graph.code(source),
        2 * graph.scales[source].scale,
        zero,
        output=graph.fresh(f"{target}.doubled"),
        node=f"{name}.doubled",
    )
    share = graph.add("Sigmoid", [doubled], graph.fresh(f"{target}.share"), name, instead=True)
    pair = [
        graph.constant(f"{name}.share.scale", np.asarray(np.float32(chosen.scale / 2))),
        graph.constant(f"{name}.share.zero", np.asarray(least, chosen.zero_point.dtype)),
    ]
    graph.add("QuantizeLinear", [share, *pair], graph.code(target), f"{target}.Q")
    if target in graph.outputs:
        graph.dequantize(target, target, f"{target}.DQ")


def extreme(graph: CodedGraph, unit: Unit) -> None:
    """Max or Min of codes of one scale."""
    node, target = unit.main, unit.outputs[0].name
    graph.add(node.op_type, [graph.code(value.name) for value in node.inputs], graph.code(target), node.name, instead=True)
    if target in graph.outputs:
        graph.dequantize(target, target, f"{target}.DQ")


def padded(graph: CodedGraph, unit: Unit) -> None:
    """Pad of codes."""
    node = graph.protos[unit.main.name]
    source, target = unit.inputs[0].name, unit.outputs[0].name
    reads = [graph.code(source), node.input[1], graph.pair(source)[1]]
    graph.nodes.append(graph.renamed(unit.main, reads, [graph.code(target)]))
    if target in graph.outputs:
        graph.dequantize(target, target, f"{target}.DQ")


def prelu(graph: CodedGraph, unit: Unit) -> None:
    """PRelu on codes."""
    node = unit.main
    source, target = unit.inputs[0].name, unit.outputs[0].name
    slopes = graph.held(node.inputs[1].name).reshape(-1).astype(np.float32)
    channels = unit.inputs[0].shape[1]
    slopes = np.broadcast_to(slopes, (channels,))
    codes, scale = slope_codes(slopes)
    pair, zero = graph.pair(source), graph.pair(source)[1]
    bent, code = slopes.max() > 1, graph.code(source)
    if bent:
        code = graph.add("Min", [graph.code(source), zero], graph.fresh(f"{target}.below"), f"{node.name}.below")
    read = graph.add("DequantizeLinear", [code, *pair], graph.fresh(f"{target}.read"), f"{node.name}.read")
    conv = helper.make_node(
        "Conv", [read, ""], [graph.fresh(f"{target}.bent")], name=node.name, group=int(channels), kernel_shape=[1, 1]
    )
    graph.restored(conv, 1, f"{node.name}.slope_codes", codes, scale, axis=0)
    graph.nodes.append(conv)
    sloped = graph.add("QuantizeLinear", [conv.output[0], *pair], graph.fresh(f"{target}.sloped"), f"{node.name}.sloped")
    if bent:
        above = graph.add("Max", [graph.code(source), zero], graph.fresh(f"{target}.above"), f"{node.name}.above")
        shifted = graph.add("Sub", [sloped, zero], graph.fresh(f"{target}.shifted"), f"{node.name}.shifted")
        graph.add("Add", [above, shifted], graph.code(target), f"{node.name}.sides")
    else:
        graph.add("Max", [graph.code(source), sloped], graph.code(target), f"{node.name}.Max")
    if target in graph.outputs:
        graph.dequantize(target, target, f"{target}.DQ")


def pixels(graph: CodedGraph, unit: Unit) -> None:
    """A 1x1 Conv as a Gemm of rows, one for each pixel, whose output no Q reads, and the float nodes of its unit on these rows."""
    node, source, target = unit.main, unit.inputs[0], unit.outputs[0].name
    channels, depth = node.inputs[1].shape[:2]

    def shape(*sizes: int) -> str:
        return graph.constant(f"{node.name}.{'x'.join(map(str, sizes))}", np.array(sizes, np.int64))

    last = graph.add(
        "Transpose", [graph.code(source.name)], graph.fresh(f"{node.name}.last.code"), f"{node.name}.last", perm=[0, 2, 3, 1]
    )
    rows = graph.add("Reshape", [last, shape(-1, depth)], graph.fresh(f"{node.name}.rows.code"), f"{node.name}.rows")
    read = graph.add("DequantizeLinear", [rows, *graph.pair(source.name)], graph.fresh(f"{node.name}.read"), f"{node.name}.read")
    gemm = helper.make_node("Gemm", [read, ""], [graph.fresh(f"{node.name}.made")], name=node.name, transB=1)
    graph.weights(unit, gemm)
    graph.nodes.append(gemm)
    if all(isinstance(size, int) for size in source.shape[2:]):
        sizes = shape(-1, *source.shape[2:], channels)
    else:
        ahead = graph.add("Shape", [last], graph.fresh(f"{node.name}.ahead"), f"{node.name}.ahead", start=0, end=3)
        sizes = graph.add("Concat", [ahead, shape(channels)], graph.fresh(f"{node.name}.sizes"), f"{node.name}.sizes", axis=0)
    made = _on_rows(graph, unit, gemm.output[0])
    if target in graph.scales:
        # Rounded as rows: codes are a quarter of what would have to be moved.
        codes = graph.add("QuantizeLinear", [made, *graph.pair(target)], graph.fresh(f"{target}.rows.code"), f"{target}.Q")
        image = graph.add("Reshape", [codes, sizes], graph.fresh(f"{target}.pixels.code"), f"{node.name}.codes")
        graph.add("Transpose", [image], graph.code(target), f"{node.name}.back", perm=[0, 3, 1, 2])
    if target in graph.outputs or any(node not in graph.integer for node in readers(unit.outputs[0])):
        image = graph.add("Reshape", [made, sizes], graph.fresh(f"{node.name}.pixels"), f"{node.name}.image")
        graph.add("Transpose", [image], target, f"{node.name}.first", perm=[0, 3, 1, 2])


def _on_rows(graph: CodedGraph, unit: Unit, made: str) -> str:
    """The nodes behind the layer, in float; the name of what the last of them puts out."""
    names = {unit.main.outputs[0].name: made}
    for node in unit.nodes[1:]:
        reads = [names.get(value.name, value.name) for value in node.inputs]
        names[node.outputs[0].name] = graph.fresh(f"{node.name}.on_rows")
        add_float(graph, graph.renamed(node, reads, [names[node.outputs[0].name]]))
    return names[unit.outputs[0].name]


def _read_scaled(graph: CodedGraph, codes: str, scale: np.float32, zero: np.generic, *, output: str, node: str) -> str:
    """Codes read with another scale than their tensor's."""
    pair = [graph.constant(f"{node}.scale", np.asarray(scale)), graph.constant(f"{node}.zero", np.asarray(zero))]
    return graph.add("DequantizeLinear", [codes, *pair], output, node)
