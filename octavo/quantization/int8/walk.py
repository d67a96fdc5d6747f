"""Two worlds side by side: one pass over the units, in which every layer sees what FP32 gives it and what INT8 gives it.

For each unit in topological order both worlds' tensors are at hand for some images. That makes, in one bounded pass:

- bias correction: a layer's output is compared with FP32's, channel by channel, with the *quantized* input it will really get, and
  the mean difference goes into its bias. Layers before it are corrected already, so nothing is counted twice (correcting all layers at
  once on observed means diverges), and clipped ranges and the bend of SiLU are covered, which statistics of FP32 alone cannot see
  (Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", 2019, section 4.2, made sequential);
- the SQNR of each tensor, in the network and on its own.

A tensor lives from its unit to its last reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from octavo.quantization.int8.qparams import QParams
from octavo.quantization.int8.units import Unit
from octavo.quantization.int8.weights import Codes
from octavo.runtime.noise import sqnr_db
from octavo.runtime.session import Session

__all__ = ["Step", "Walk"]


@dataclass(frozen=True)
class Step:
    """SQNR in dB of one tensor.

    Attributes:
        tensor, unit: names.
        network_db: with everything before it quantized.
        alone_db: with only its own unit quantized, its input as in FP32.
    """

    tensor: str
    unit: str
    network_db: float
    alone_db: float


class Walk:
    """The pass.

    Args:
        model: FP32, as prepared for INT8.
        units: all its units, in topological order.
        samples: feeds of some images, batch dimension 1.
    """

    def __init__(self, model: ir.Model, units: Sequence[Unit], samples: Sequence[Mapping[str, np.ndarray]]) -> None:
        self.units = units
        self.samples = samples
        proto = ir.to_proto(model)
        self._nodes = {node.name: node for node in proto.graph.node}
        self._constants = {tensor.name: tensor for tensor in proto.graph.initializer}
        self._opsets = list(proto.opset_import)
        self._types = {value.name: value.dtype for node in model.graph for value in node.outputs}
        self._types |= {value.name: value.dtype for value in model.graph.inputs}
        self._inputs = [value.name for value in model.graph.inputs]
        self._outputs = {value.name for value in model.graph.outputs}
        self._last = {name: index for index, unit in enumerate(units) for name in _reads(unit, self._constants)}
        self._sessions: dict[object, Session] = {}

    def correct(self, int8: set[Unit], scales: Mapping[str, QParams], codes: dict[str, Codes]) -> list[Step]:
        """Walk once; put corrected biases into `codes`.

        Returns:
            The noise of each quantized tensor, in topological order.
        """
        float_world = {name: [feeds[name] for feeds in self.samples] for name in self._inputs}
        int_world = {name: [self._coded(name, value, scales) for value in float_world[name]] for name in self._inputs}
        steps = []
        for index, unit in enumerate(self.units):
            true = self._run(unit, float_world)
            if unit in int8 and unit.kind == "linear":
                got = self._run(unit, int_world, codes[unit.main.name], folded=False)
                raw = true if len(unit.nodes) == 1 else self._run(unit, float_world, folded=False)
                shift = _mean_shift(unit, raw, got)
                codes[unit.main.name].bias = _corrected(codes[unit.main.name].bias, shift)
                if shift is not None:
                    for values in got.values():
                        for value in values:
                            value -= shift.reshape(_along(unit, value.ndim)).astype(np.float32)
                got = {unit.outputs[0].name: list(got.values())[0]}
            elif unit in int8:
                got = self._run(unit, int_world, scales=scales)
            else:
                got = self._run(unit, int_world)
            for value in unit.outputs:
                if value.name in scales and unit in int8:
                    got[value.name] = [self._coded(value.name, array, scales) for array in got[value.name]]
                    steps.append(self._step(value.name, unit, true, got, scales))
            float_world |= true
            int_world |= got
            for name in [name for name in float_world if self._last.get(name, -1) <= index and name not in self._outputs]:
                del float_world[name], int_world[name]
        self.results = {name: (float_world[name], int_world[name]) for name in self._outputs}
        return steps

    def _coded(self, name: str, value: np.ndarray, scales: Mapping[str, QParams]) -> np.ndarray:
        return scales[name].rounded(value) if name in scales else value

    def _step(self, name: str, unit: Unit, true: dict, got: dict, scales: Mapping[str, QParams]) -> Step:
        signal = noise = own = 0.0
        for wanted, value in zip(true[name], got[name], strict=True):
            signal += float(np.square(wanted, dtype=np.float64).sum())
            noise += float(np.square(wanted - value, dtype=np.float64).sum())
            own += float(np.square(wanted - scales[name].rounded(wanted), dtype=np.float64).sum())
        return Step(name, unit.name, sqnr_db(signal, noise), sqnr_db(signal, own))

    def _run(
        self,
        unit: Unit,
        world: Mapping[str, list[np.ndarray]],
        codes: Codes | None = None,
        *,
        folded: bool = True,
        scales: Mapping[str, QParams] | None = None,
    ) -> dict[str, list[np.ndarray]]:
        """A unit's outputs on every sample of one world."""
        session = self._session(unit, codes, folded, scales)
        names = session.inputs
        found: dict[str, list[np.ndarray]] = {name: [] for name in session.outputs}
        for index in range(len(self.samples)):
            result = session.run({name: world[name][index] for name in names})
            for name, value in result.items():
                found[name].append(value)
        return found

    def _session(self, unit: Unit, codes: Codes | None, folded: bool, scales: Mapping[str, QParams] | None) -> Session:
        nodes = [self._nodes[node.name] for node in (unit.nodes if folded else unit.nodes[:1])]
        constants = dict(self._constants)
        if codes is not None:
            node = onnx.NodeProto()
            node.CopyFrom(nodes[0])
            node.input[1] = "octavo.weights"
            constants["octavo.weights"] = numpy_helper.from_array(codes.restored, "octavo.weights")
            if codes.bias is not None:
                while len(node.input) < 3:
                    node.input.append("")
                node.input[2] = "octavo.bias"
                constants["octavo.bias"] = numpy_helper.from_array(codes.bias.astype(np.float32), "octavo.bias")
            nodes[0] = node
        if scales is not None and unit.inner:
            nodes = self._with_inner(unit, nodes, constants, scales)
        made = {name for node in nodes for name in node.output}
        reads = dict.fromkeys(name for node in nodes for name in node.input if name and name not in constants and name not in made)
        outputs = [name for name in nodes[-1].output if name]
        graph = helper.make_graph(
            nodes,
            "unit",
            [helper.make_tensor_value_info(name, int(self._types[name]), None) for name in reads],
            [helper.make_empty_tensor_value_info(name) for name in outputs],
            [constants[name] for name in dict.fromkeys(name for node in nodes for name in node.input) if name in constants],
        )
        proto = helper.make_model(graph, opset_imports=self._opsets)
        proto.ir_version = 10
        return Session(proto.SerializeToString(), optimization="all" if scales is None else "off")

    def _with_inner(self, unit: Unit, nodes: list, constants: dict, scales: Mapping[str, QParams]) -> list:
        """The unit with Q and DQ behind its inner tensors."""
        inner = unit.inner[0].name
        pair = []
        for what, array in (("scale", scales[inner].scale), ("zero", scales[inner].zero_point)):
            constants[f"octavo.{what}"] = numpy_helper.from_array(np.asarray(array), f"octavo.{what}")
            pair.append(f"octavo.{what}")
        product = onnx.NodeProto()
        product.CopyFrom(nodes[1])
        for place, name in enumerate(product.input):
            if name == inner:
                product.input[place] = "octavo.restored"
        return [
            nodes[0],
            helper.make_node("QuantizeLinear", [inner, *pair], ["octavo.codes"]),
            helper.make_node("DequantizeLinear", ["octavo.codes", *pair], ["octavo.restored"]),
            product,
        ]


def _reads(unit: Unit, constants: Mapping[str, object]) -> set[str]:
    return {value.name for node in unit.nodes for value in node.inputs if value is not None and value.name not in constants}


def _along(unit: Unit, rank: int) -> list[int]:
    """The shape in which one value a channel broadcasts with the unit's output."""
    axis = 1 if unit.main.op_type == "Conv" else rank - 1
    return [-1 if place == axis else 1 for place in range(rank)]


def _mean_shift(unit: Unit, true: dict[str, list[np.ndarray]], got: dict[str, list[np.ndarray]]) -> np.ndarray | None:
    """Mean of INT8 minus FP32 per channel, float64; None for a MatMul, which has no bias to take it."""
    if unit.main.op_type == "MatMul":
        return None
    total, count = 0.0, 0
    for wanted, value in zip(next(iter(true.values())), next(iter(got.values())), strict=True):
        axis = 1 if unit.main.op_type == "Conv" else wanted.ndim - 1
        others = tuple(place for place in range(wanted.ndim) if place != axis)
        total = total + (value - wanted).sum(axis=others, dtype=np.float64)
        count += wanted.size // wanted.shape[axis]
    return total / count


def _corrected(bias: np.ndarray | None, shift: np.ndarray | None) -> np.ndarray | None:
    if shift is None:
        return bias
    return ((0.0 if bias is None else bias.astype(np.float64)) - shift).astype(np.float32)
