"""What each rounding costs in fidelity alone: one float graph with switches, run once for each rounding and image.

The graph computes in float32; behind every tensor to quantize stands an `If` that rounds it or does not, and each weighted layer
stands in an `If` with its rounded and its original weights. Building it once and throwing switches is what makes a layer-wise
analysis affordable: no session is created per layer, and all weights are constants, which ONNX Runtime packs once.
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
from octavo.quantization.int8.shifts import own_shifts
from octavo.quantization.int8.trade import Noise
from octavo.quantization.int8.units import CARRIERS, Unit
from octavo.runtime.session import Session

__all__ = ["noise_of"]

_SWITCHES = "octavo.switches"
_TENSOR, _LAYER = "tensor", "layer"


def noise_of(model: ir.Model, plan: Plan, judge: Judge, samples: Sequence[Mapping[str, np.ndarray]]) -> Noise:
    """Noise of each rounding alone, all else float.

    Args:
        model: FP32, as prepared for INT8.
        plan: which units are INT8, and what they would be written with.
        judge: measures the network's heads.
        samples: feeds of some images.
    """
    copies = {value.name: unit for unit in plan.int8 for value in unit.outputs if _only_copies(unit, plan.scales)}
    tensors = [name for name in plan.scales if name not in copies]
    layers = {unit.main.name: unit.name for unit in plan.int8 if unit.kind == "linear"}
    graph = _Switched(model, plan, tensors, list(layers))
    if plan.unshifted:
        graph.shifts = own_shifts(model, list(plan.reasons), plan.scales, samples)
    session = Session(graph.written(judge.heads), optimization="extended")
    noise = []
    for place in range(len(graph.keys)):
        switches = np.zeros(len(graph.keys), bool)
        switches[place] = True
        noise.append(judge.noise([session.run({**feeds, _SWITCHES: switches}, judge.heads) for feeds in samples]))
    rounded = dict(zip(tensors, noise, strict=False))
    for name, unit in copies.items():
        # Rounded behind a float unit instead, it loses what its inputs would.
        rounded[name] = sum(rounded[value.name] for value in unit.inputs)
    return Noise(rounded, dict(zip(layers.values(), noise[len(tensors) :], strict=True)), frozenset(copies))


def _only_copies(unit: Unit, scales: Mapping[str, QParams]) -> bool:
    """Whether a unit hands codes on as they are: its outputs' rounding adds nothing."""
    if unit.kind not in CARRIERS and unit.kind != "Concat":
        return False
    around = [scales.get(value.name) for value in (*unit.inputs, *unit.outputs)]
    return all(one is not None and not one.by_channel and one == around[0] for one in around)


class _Switched:
    """A float graph whose input `octavo.switches` says what is rounded."""

    def __init__(self, model: ir.Model, plan: Plan, tensors: Sequence[str], layers: Sequence[str]) -> None:
        self.model, self.plan = model, plan
        self.keys = [*((_TENSOR, name) for name in tensors), *((_LAYER, name) for name in layers)]
        self.place = {key: place for place, key in enumerate(self.keys)}
        # What biases take back of the rounding of each tensor; noise is what is left.
        self.shifts: dict[str, np.ndarray] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def written(self, heads: Sequence[str]) -> bytes:
        proto = ir.to_proto(self.model)
        graph = proto.graph
        self.originals = list(graph.initializer)
        values = [*self.model.graph.inputs, *(value for node in self.model.graph for value in node.outputs)]
        self.ranks = {value.name: len(value.shape or ()) for value in values}
        rename = {}
        for value in graph.input:
            if (_TENSOR, value.name) in self.place:
                # The input keeps its name; its readers get the switched copy.
                rename[value.name] = f"{value.name}.octavo.rounded"
                self._rounded(value.name, value.name, rename[value.name])
        graph.input.append(helper.make_tensor_value_info(_SWITCHES, TensorProto.BOOL, [len(self.place)]))
        for node in graph.node:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            for index, name in enumerate(copy.input):
                copy.input[index] = rename.get(name, name)
            behind = []
            for index, name in enumerate(copy.output):
                if (_TENSOR, name) in self.place:
                    copy.output[index] = f"{name}.octavo.raw"
                    behind.append(name)
            if (_LAYER, copy.name) in self.place:
                self._layer(copy)
            else:
                self.nodes.append(copy)
            for name in behind:
                self._rounded(name, f"{name}.octavo.raw", name)
        del graph.node[:], graph.value_info[:], graph.output[:]
        graph.node.extend(self.nodes)
        graph.initializer.extend(self.constants.values())
        graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in heads)
        proto.ir_version = max(proto.ir_version, 10)
        return proto.SerializeToString()

    def _constant(self, name: str, array: np.ndarray) -> str:
        self.constants[name] = numpy_helper.from_array(np.asarray(array), name)
        return name

    def _if(self, key: tuple[str, str], target: str, then: onnx.GraphProto, otherwise: onnx.GraphProto) -> None:
        index = self._constant(f"octavo.place.{self.place[key]}", np.int64(self.place[key]))
        switch = f"octavo.switch.{self.place[key]}"
        self.nodes.append(helper.make_node("Gather", [_SWITCHES, index], [switch], axis=0))
        self.nodes.append(helper.make_node("If", [switch], [target], then_branch=then, else_branch=otherwise))

    def _rounded(self, name: str, source: str, target: str) -> None:
        chosen = self.plan.scales[name]
        pair = [self._constant(f"{name}.octavo.scale", chosen.scale), self._constant(f"{name}.octavo.zero", chosen.zero_point)]
        codes, out, other = f"{name}.octavo.codes", f"{name}.octavo.then", f"{name}.octavo.else"
        rounds = [
            helper.make_node("QuantizeLinear", [source, *pair], [codes], axis=1),
            helper.make_node("DequantizeLinear", [codes, *pair], [out], axis=1),
        ]
        if name in self.shifts:
            shift = self.shifts[name].astype(np.float32).reshape(self._broadcast(self.shifts[name].size, name))
            rounds[-1].output[0] = f"{name}.octavo.shifted"
            rounds.append(helper.make_node("Sub", [rounds[-1].output[0], self._constant(f"{name}.octavo.shift", shift)], [out]))
        keeps = [helper.make_node("Identity", [source], [other])]
        self._if((_TENSOR, name), target, _branch(rounds, out), _branch(keeps, other))

    def _broadcast(self, channels: int, name: str) -> list[int]:
        """The shape in which a value for each channel meets a tensor: axis 1 of images, else the last."""
        return [1, channels, *[1] * (self.ranks[name] - 2)] if self.ranks[name] > 3 else [channels]

    def _layer(self, node: onnx.NodeProto) -> None:
        """Two layers, of rounded and of original weights: constants of its branch, each is packed as it would be alone."""
        codes, branches = self.plan.codes[node.name], []
        original = {tensor.name: tensor for tensor in self.originals}
        for what in ("then", "else"):
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.output[0] = f"{node.name}.octavo.{what}"
            held = []
            if what == "then":
                copy.input[1:] = [f"{node.name}.octavo.weights"]
                held.append(numpy_helper.from_array(codes.restored, copy.input[1]))
                if codes.bias is not None:
                    copy.input.append(f"{node.name}.octavo.bias")
                    held.append(numpy_helper.from_array(codes.bias.astype(np.float32), copy.input[2]))
            else:
                held = [original[name] for name in dict.fromkeys(copy.input[1:]) if name in original]
            branches.append(_branch([copy], copy.output[0], held))
        self._if((_LAYER, node.name), node.output[0], *branches)


def _branch(nodes: list[onnx.NodeProto], output: str, constants: Sequence[onnx.TensorProto] = ()) -> onnx.GraphProto:
    return helper.make_graph(nodes, output, [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)], constants)
