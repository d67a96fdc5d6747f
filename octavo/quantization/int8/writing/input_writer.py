"""Lay Q and DQ before the inputs of quantizable operators, as OpenVINO's and TensorRT's fusions want them.

- A tensor has one Q and one DQ, right behind what makes it, and all INT8 units read that DQ; float units read the tensor itself.
- What a carrier or a Concat of one scale puts out needs no Q: its values are codes already.
- Weights are int8 codes behind a DQ. Biases stay float: both runtimes add them to the accumulator themselves.
- Nothing is folded: a Relu, SiLU or PRelu stands as it stood, between a layer and the next Q, where the runtime fuses it.
- The Q and DQ behind a maximum or minimum stand before it too: rounding keeps order, so that not a bit of what is read changes.
  OpenVINO computes something else where the Q stands behind alone (onnxruntime-openvino 1.24.1: 5.7 dB of 27.3).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from octavo.quantization.int8.numbers.qparams import QParams
from octavo.quantization.int8.numbers.weights import Codes
from octavo.quantization.int8.structure.units import Unit
from octavo.quantization.int8.writing.input_layout import keeps_grid
from octavo.quantization.int8.writing.qdq_graph import QdqGraph

__all__ = ["write_inputs"]

_EXTREMES = frozenset({"GlobalMaxPool", "ReduceMax", "ReduceMin"})


def write_inputs(
    model: ir.Model,
    units: Sequence[Unit],
    int8: set[Unit],
    scales: Mapping[str, QParams],
    codes: Mapping[str, Codes],
    *,
    kept: Collection[str] = (),  # noqa: ARG001
) -> ir.Model:
    """The QDQ form of a float model; arguments as in `writer.write_qdq`. Float units read no codes here, whoever kept them."""
    graph = QdqGraph(model)
    read: dict[str, str] = {}

    def rounded(source: str, name: str, chosen: QParams) -> str:
        """A tensor through Q and DQ; `name` leads the names of what is written."""
        pair = [
            graph.constant(f"{name}.scale", np.asarray(chosen.scale)),
            graph.constant(f"{name}.zero", np.asarray(chosen.zero_point)),
        ]
        axis = {"axis": 1} if chosen.by_channel else {}
        code = graph.add("QuantizeLinear", [source, *pair], graph.fresh(f"{name}.code"), f"{name}.Q", **axis)
        return graph.add("DequantizeLinear", [code, *pair], graph.fresh(f"{name}.restored"), f"{name}.DQ", **axis)

    def quantize(name: str) -> None:
        read[name] = rounded(name, name, scales[name])

    for value in model.graph.inputs:
        if value.name in scales:
            quantize(value.name)
    for unit in units:
        for node in unit.nodes:
            copy = onnx.NodeProto()
            copy.CopyFrom(graph.protos[node.name])
            if unit in int8:
                for index, name in enumerate(copy.input):
                    copy.input[index] = read.get(name, name)
            if unit not in int8 and copy.op_type in _EXTREMES and _is_rounded(unit, scales, int8):
                output = copy.output[0]
                copy.input[0] = rounded(copy.input[0], f"{output}.ahead", scales[output])
            if unit in int8 and unit.kind == "linear" and node is unit.main:
                _weights(graph, copy, codes[node.name], biased=scales[unit.inputs[0].name].by_channel)
            graph.nodes.append(copy)
        on_grid = unit in int8 and keeps_grid(unit) and _one_scale([*unit.inputs, *unit.outputs], scales)
        for value in unit.outputs:
            if value.name in scales and not on_grid and _is_read(value, int8):
                quantize(value.name)
    return graph.closed()


def _is_rounded(unit: Unit, scales: Mapping[str, QParams], int8: set[Unit]) -> bool:
    """Whether a Q of one scale stands right behind the unit's only node."""
    (output,) = unit.outputs
    return len(unit.nodes) == 1 and output.name in scales and not scales[output.name].by_channel and _is_read(output, int8)


def _one_scale(values: Sequence[ir.Value], scales: Mapping[str, QParams]) -> bool:
    chosen = [scales[value.name] for value in values]
    first = chosen[0]
    return all(
        not other.by_channel
        and other.scale == first.scale
        and other.zero_point == first.zero_point
        and other.zero_point.dtype == first.zero_point.dtype
        for other in chosen
    )


def _is_read(value: ir.Value, int8: set[Unit]) -> bool:
    return any(value in unit.inputs for unit in int8)


def _weights(graph: QdqGraph, copy: onnx.NodeProto, codes: Codes, *, biased: bool) -> None:
    """Let a copy of a layer read int8 weights; it has a bias where it had one, and where it is to have one."""
    graph.restored(copy, 1, f"{copy.name}.weight_codes", codes.codes, codes.scale, axis=codes.axis)
    bias = codes.bias
    if bias is None and biased:
        # Without a bias ONNX Runtime makes one QLinearConv of a layer whose input has a scale a channel, which then does not run.
        bias = np.zeros(codes.codes.shape[codes.axis])
    if bias is None:
        return
    while len(copy.input) < 3:
        copy.input.append("")
    copy.input[2] = graph.constant(f"{copy.name}.bias", bias.astype(np.float32))
