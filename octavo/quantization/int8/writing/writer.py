"""Lay Q and DQ around INT8 units so that ONNX Runtime's fusions find each of them, and nothing else.

Tensors and their codes are in `coded_graph`, forms of what has no integer kernel in `coded_forms`, what stays float in
`kept_float`. Last come passes over the Q/DQ graph (`octavo.graph.passes.kernels.kernel_forms`): other forms of integer ops, with
the same codes and faster kernels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from octavo.graph.passes.kernels.bias_apart import BiasApartPass
from octavo.graph.passes.kernels.kernel_forms import write_kernel_forms
from octavo.graph.passes.kernels.protect_float import ProtectFloatPass
from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.numbers.weights import Codes
from octavo.quantization.int8.structure.rows import joined, row_activations
from octavo.quantization.int8.structure.units import Unit
from octavo.quantization.int8.writing.coded_forms import curve, cut, extreme, padded, pixels, prelu, sloped, tanh
from octavo.quantization.int8.writing.coded_graph import CodedGraph
from octavo.quantization.int8.writing.kept_float import stay_float
from octavo.quantization.int8.writing.saturation import UNBOUNDED, bounds_of, folded

__all__ = ["write_qdq"]

# Kinds of units that are written in another form where their codes are 8 bits wide.
_FORMS = {
    "Clip": cut,
    "Relu": cut,
    "Max": extreme,
    "Min": extreme,
    "Pad": padded,
    "Tanh": tanh,
    "prelu": prelu,
    "affine": sloped,
    "curve": curve,
    "hard_sigmoid": sloped,
    "hard_swish": sloped,
}


def write_qdq(
    model: ir.Model,
    units: Sequence[Unit],
    int8: set[Unit],
    scales: Mapping[str, QParams],
    codes: Mapping[str, Codes],
    *,
    kept: Collection[str] = (),
) -> ir.Model:
    """The QDQ form of a float model.

    Args:
        model: FP32; it is not changed.
        units: all its units, in topological order.
        int8: which of them become INT8.
        scales: of each tensor to quantize, by name.
        codes: of each weighted INT8 unit, by its node's name.
        kept: names of nodes that `keep_float` asks for.
    """
    graph = CodedGraph(model, int8, scales, codes)
    for value in graph.proto.graph.input:
        if value.name in scales:
            graph.quantize(value.name, value.name)
    on_rows = {layer: unit for unit, layer in row_activations(units).items() if layer in int8 and unit not in int8}
    done = set(on_rows.values())
    for unit in units:
        if unit in on_rows:
            pixels(graph, joined(unit, on_rows[unit]))
        elif unit not in done:
            _write(graph, unit, kept)
    result = _shaped(graph.closed(), units, {graph.code(name): name for name in scales}, scales)
    for op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        ProtectFloatPass(op_type)(result)
    # Tuned to the kernels for uint8; int8 activations are for other machines, where a bias makes a float Gemm all the same.
    if any(chosen.zero_point.dtype == np.int8 for chosen in scales.values()):
        BiasApartPass()(result)
    else:
        write_kernel_forms(result)
    return result


def _write(graph: CodedGraph, unit: Unit, kept: Collection[str]) -> None:
    """One unit, in the form that its kind and its placement ask for."""
    if unit not in graph.int8:
        stay_float(graph, unit, kept)
    elif unit.kind in _FORMS and all(graph.eight_bits(value.name) for value in (unit.inputs[0], unit.outputs[0])):
        _FORMS[unit.kind](graph, unit)
    elif unit.writes_float:
        pixels(graph, unit)
    else:
        _integer(graph, unit)


def _integer(graph: CodedGraph, unit: Unit) -> None:
    (end, nodes), bounds = folded(unit), UNBOUNDED
    # No integer kernel writes 16 bits, nor do ONNX Runtime's Max and Min read them: there the node stays, as it does where floats
    # are put out.
    if end is not None and end.outputs[0].name in graph.scales and graph.eight_bits(end.outputs[0].name):
        bounds = bounds_of(end)
    else:
        nodes = list(unit.nodes)
    for node in nodes:
        last = node is nodes[-1]
        names = [value.name for value in (unit.outputs if last else node.outputs)]
        copy = graph.copy(node, unit, [graph.raw(name) for name in names])
        if node is unit.main and unit.kind == "linear":
            graph.weights(unit, copy)
        graph.nodes.append(copy)
        for name in names:
            if name in graph.scales:
                graph.quantize(name, graph.raw(name), bounds if last else UNBOUNDED)


def _shaped(model: ir.Model, units: Sequence[Unit], coded: Mapping[str, str], scales: Mapping[str, QParams]) -> ir.Model:
    """Codes have the shape of what they stand for; `coded` has the tensor of each, by name."""
    known = {value.name: value.shape for unit in units for value in (*unit.inputs, *unit.outputs, *unit.inner)}
    for value in (value for node in model.graph for value in node.outputs):
        name = coded.get(value.name or "", "")
        if known.get(name) is not None:
            value.shape = ir.Shape(list(known[name]))
            value.dtype = ir.DataType.from_numpy(scales[name].zero_point.dtype)
    return model
