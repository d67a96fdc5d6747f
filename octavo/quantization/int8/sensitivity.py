"""What each INT8 unit costs in fidelity when it alone is INT8: one float graph with switches, run once a unit and image.

The graph computes in float32; behind every tensor to quantize stands an `If` that rounds it or does not, before every weighted
layer a `Where` that takes the rounded weights or the original ones. Building it once and throwing switches is what makes a
layer-wise analysis affordable: no session is created per layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from octavo.quantization.int8.draft import Plan
from octavo.quantization.int8.judge import Judge
from octavo.quantization.int8.qparams import QParams
from octavo.quantization.int8.weights import Codes
from octavo.runtime.session import Session

__all__ = ["unit_noise"]

_SWITCHES = "octavo.switches"


def unit_noise(
    model: ir.Model,
    plan: Plan,
    judge: Judge,
    samples: Sequence[Mapping[str, np.ndarray]],
) -> dict[str, float]:
    """Noise of each unit alone: its weights rounded, its inner and output tensors rounded, all else float.

    Args:
        model: FP32, as prepared for INT8.
        plan: which units are INT8, and what they would be written with.
        judge: measures the network's heads.
        samples: feeds of some images.

    Returns:
        Unit name to noise-to-signal ratio at the heads; a graph input that is quantized stands under its own name.
    """
    scales = plan.scales
    keys = [value.name for value in model.graph.inputs if value.name in scales] + [
        unit.name
        for unit, reason in plan.reasons.items()
        # A tensor that a float unit makes and an INT8 unit reads stands under its maker too.
        if not reason or any(value.name in scales for value in unit.outputs)
    ]
    place = {key: index for index, key in enumerate(keys)}
    of_tensor = {value.name: unit.name for unit in plan.reasons for value in (*unit.inner, *unit.outputs)}
    proto = _switched(model, plan, judge.heads, place, of_tensor)
    session = Session(proto.SerializeToString(), optimization="extended")
    noise = {}
    for key in keys:
        switches = np.zeros(len(keys), bool)
        switches[place[key]] = True
        noise[key] = judge.noise([session.run({**feeds, _SWITCHES: switches}, judge.heads) for feeds in samples])
    return noise


def _switched(
    model: ir.Model, plan: Plan, heads: Sequence[str], place: Mapping[str, int], of_tensor: Mapping[str, str]
) -> onnx.ModelProto:
    int8, scales, codes = plan.int8, plan.scales, plan.codes
    proto = ir.to_proto(model)
    graph = proto.graph
    graph.input.append(helper.make_tensor_value_info(_SWITCHES, TensorProto.BOOL, [len(place)]))
    nodes, constants = [], {}
    picked: dict[str, str] = {}

    def constant(name: str, array: np.ndarray) -> str:
        constants[name] = numpy_helper.from_array(np.asarray(array), name)
        return name

    def switch(key: str) -> str:
        if key not in picked:
            index = constant(f"octavo.place.{place[key]}", np.int64(place[key]))
            picked[key] = f"octavo.switch.{place[key]}"
            nodes.append(helper.make_node("Gather", [_SWITCHES, index], [picked[key]], axis=0))
        return picked[key]

    def rounded(name: str, source: str) -> None:
        pair = [constant(f"{name}.octavo.{what}", array) for what, array in _pair(scales[name])]
        out = helper.make_tensor_value_info(f"{name}.octavo.then", TensorProto.FLOAT, None)
        rounds = [
            helper.make_node("QuantizeLinear", [source, *pair], [f"{name}.octavo.codes"], axis=1),
            helper.make_node("DequantizeLinear", [f"{name}.octavo.codes", *pair], [out.name], axis=1),
        ]
        other = helper.make_tensor_value_info(f"{name}.octavo.else", TensorProto.FLOAT, None)
        keeps = [helper.make_node("Identity", [source], [other.name])]
        nodes.append(
            helper.make_node(
                "If",
                [switch(of_tensor.get(name, name))],
                [name],
                then_branch=helper.make_graph(rounds, "rounds", [], [out]),
                else_branch=helper.make_graph(keeps, "keeps", [], [other]),
            )
        )

    rename = {}
    for value in list(graph.input):
        if value.name in scales:
            rename[value.name] = f"{value.name}.octavo.rounded"
            # The input keeps its name; readers get the switched copy.
            pair = [constant(f"{value.name}.octavo.{what}", array) for what, array in _pair(scales[value.name])]
            codes_of, back = f"{value.name}.octavo.codes", f"{value.name}.octavo.then"
            nodes.append(helper.make_node("QuantizeLinear", [value.name, *pair], [codes_of]))
            nodes.append(helper.make_node("DequantizeLinear", [codes_of, *pair], [back]))
            nodes.append(helper.make_node("Where", [switch(value.name), back, value.name], [rename[value.name]]))
    weighted = {unit.main.name: unit for unit in int8 if unit.kind == "linear"}
    for node in graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for index, name in enumerate(copy.input):
            copy.input[index] = rename.get(name, name)
        if copy.name in weighted:
            _weights(copy, codes[copy.name], switch(weighted[copy.name].name), nodes, constant)
        behind = []
        for index, name in enumerate(copy.output):
            if name in scales:
                copy.output[index] = f"{name}.octavo.raw"
                behind.append(name)
        nodes.append(copy)
        for name in behind:
            rounded(name, f"{name}.octavo.raw")
    del graph.node[:], graph.value_info[:], graph.output[:]
    graph.node.extend(nodes)
    graph.initializer.extend(constants.values())
    graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in heads)
    proto.ir_version = max(proto.ir_version, 10)
    return proto


def _pair(chosen: QParams) -> list[tuple[str, np.ndarray]]:
    return [("scale", chosen.scale), ("zero", chosen.zero_point)]


def _weights(copy: onnx.NodeProto, codes: Codes, switch: str, nodes: list, constant) -> None:
    restored = constant(f"{copy.name}.octavo.weights", codes.restored)
    nodes.append(helper.make_node("Where", [switch, restored, copy.input[1]], [f"{copy.name}.octavo.chosen"]))
    copy.input[1] = f"{copy.name}.octavo.chosen"
    if codes.bias is None:
        return
    while len(copy.input) < 3:
        copy.input.append("")
    old = copy.input[2] or constant(f"{copy.name}.octavo.none", np.zeros_like(codes.bias))
    bias = constant(f"{copy.name}.octavo.bias", codes.bias.astype(np.float32))
    nodes.append(helper.make_node("Where", [switch, bias, old], [f"{copy.name}.octavo.chosen_bias"]))
    copy.input[2] = f"{copy.name}.octavo.chosen_bias"
