"""What single roundings, or some together, cost in fidelity: float graphs with switches, run once for each of them and image.

The graphs compute in float32; behind every tensor to quantize stands an `If` that rounds it or does not, and each weighted layer
stands in an `If` with its rounded and its original weights. Throwing switches is what makes a layer-wise analysis affordable: no
session is created per layer, and all weights are constants, which ONNX Runtime packs once.

Nothing changes before what is rounded. The network is therefore cut into stretches: the roundings of one are switched in a graph
that begins where the stretch does, reads what FP32 has there and computes only what follows. Most roundings stand far behind the
large images of the first layers, and cost a fraction of a whole run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from octavo.graph.protos import branchless, names_read
from octavo.quantization.int8.draft import Plan
from octavo.quantization.int8.judge import Judge
from octavo.quantization.int8.qparams import QParams
from octavo.quantization.int8.shifts import OwnShift, own_shifts
from octavo.quantization.int8.specimens import shape_of
from octavo.quantization.int8.trade import Noise
from octavo.quantization.int8.units import CARRIERS, Unit
from octavo.runtime.host import cores
from octavo.runtime.session import Session
from octavo.runtime.tensors import images_within

__all__ = ["joint_noise", "noise_of", "worth_measuring"]

_SWITCHES = "octavo.switches"
_TENSOR, _LAYER = "tensor", "layer"
# Stretches at most, and roundings that are worth a session of their own.
_STRETCHES, _ROUNDINGS = 12, 16
# Bytes of tensors that are made to measure each rounding alone, and images that this is done on at most. It takes about .07 s a
# gigabyte (AMD Zen 3, 2 cores). Masks say with one image what they say with four (CGNet); detectors are better off with more
# (NanoDet-m's placement, held to 24 dB, is priced at 16.4 ms from two or three and at 14.4 from four or eight).
_WORK, _IMAGES = 160e9, 8
# Runs at once, each with tensors of its own in memory.
_AT_ONCE = 4

_Key = tuple[str, str]


def worth_measuring(
    model: ir.Model, roundings: int, samples: Sequence[Mapping[str, np.ndarray]]
) -> Sequence[Mapping[str, np.ndarray]]:
    """As many of these images as so many roundings can be measured on within a bound of work: 1 to 8."""
    return samples[: images_within(model, _WORK / roundings, _IMAGES)]


def noise_of(
    model: ir.Model,
    plan: Plan,
    judge: Judge,
    samples: Sequence[Mapping[str, np.ndarray]],
) -> Noise:
    """Noise of each rounding alone, all else float.

    Args:
        model: FP32, as prepared for INT8.
        plan: which units are INT8, and what they would be written with.
        judge: tells the network's heads and their power; noise is held against `model` itself.
        samples: feeds of some images.
    """
    copies = _copies(plan)
    layers = {unit.main.name: unit.name for unit in plan.int8 if unit.kind == "linear"}
    keys = [*((_TENSOR, name) for name in plan.scales if name not in copies), *((_LAYER, name) for name in layers)]
    found = dict(zip(keys, _measured(model, plan, judge, samples, [[key] for key in keys]), strict=True))
    rounded = {name: noise for (what, name), noise in found.items() if what == _TENSOR}
    for name, unit in copies.items():
        # Rounded behind a float unit instead, it loses what its inputs would.
        rounded[name] = sum(rounded[value.name] for value in unit.inputs)
    return Noise(rounded, {unit: found[_LAYER, name] for name, unit in layers.items()}, frozenset(copies))


def joint_noise(
    model: ir.Model,
    plan: Plan,
    judge: Judge,
    samples: Sequence[Mapping[str, np.ndarray]],
    together: Sequence[tuple[Collection[str], Collection[str]]],
) -> list[float]:
    """Noise of some roundings at a time, all else float.

    Args:
        model, plan, judge, samples: as for `noise_of`.
        together: names of tensors, and of nodes with weights, that are rounded together; what the plan does not round is exact.
    """
    copies = _copies(plan)
    sets = [
        [
            *((_TENSOR, name) for name in tensors if name in plan.scales and name not in copies),
            *((_LAYER, name) for name in layers if name in plan.codes),
        ]
        for tensors, layers in together
    ]
    found = iter(_measured(model, plan, judge, samples, [keys for keys in sets if keys]))
    return [next(found) if keys else 0.0 for keys in sets]


def _measured(
    model: ir.Model, plan: Plan, judge: Judge, samples: Sequence[Mapping[str, np.ndarray]], sets: Sequence[Sequence[_Key]]
) -> list[float]:
    # What biases take back of the rounding of each tensor; noise is what is left.
    shifts = own_shifts(model, list(plan.reasons), plan.scales, samples) if plan.taken else {}
    judge = judge.on(model, samples)
    found = dict(_noise(_Float(model, plan, shifts, judge.heads), sets, judge, samples))
    return [found[place] for place in range(len(sets))]


def _copies(plan: Plan) -> dict[str, Unit]:
    """The tensors that INT8 units only hand codes on to, by name, with these units."""
    return {value.name: unit for unit in plan.int8 for value in unit.outputs if _only_copies(unit, plan.scales)}


def _noise(
    graph: _Float, sets: Sequence[Sequence[_Key]], judge: Judge, samples: Sequence[Mapping[str, np.ndarray]]
) -> Iterator[tuple[int, float]]:
    """Place and noise of each set of roundings, stretch by stretch."""
    begin = [min(map(graph.place, keys)) for keys in sets]
    ordered = sorted(range(len(sets)), key=begin.__getitem__)
    length = max(_ROUNDINGS, -(-len(ordered) // _STRETCHES))
    parts = [ordered[start : start + length] for start in range(0, len(ordered), length)]
    held = [dict(feeds) for feeds in samples]
    # Before the first rounding there may be nodes as well: a Cast of raw pixels, say.
    nodes = graph.nodes
    # A rounding on each core: elementwise kernels gain little from a second thread.
    with ThreadPoolExecutor(min(_AT_ONCE, cores())) as pool:
        for part, following in zip(parts, [*parts[1:], None], strict=True):
            wanted = graph.border(begin[following[0]]) if following is not None else []
            made = [name for name in wanted if name not in held[0]]
            stretch = _Stretch(graph, list(dict.fromkeys(key for place in part for key in sets[place])), nodes, held[0], made)
            heads = [name for name in judge.heads if name not in held[0]]
            yield from zip(
                part, pool.map(partial(_of_one, stretch, heads, judge, held), [sets[place] for place in part]), strict=True
            )
            held = [stretch.run((), made, values) for values in held] if made else held
            held = [{name: values[name] for name in wanted} for values in held]
            nodes = graph.rest(begin[following[0]]) if following is not None else []


def _of_one(
    stretch: _Stretch, heads: Sequence[str], judge: Judge, held: Sequence[Mapping[str, np.ndarray]], keys: Collection[_Key]
) -> float:
    return judge.noise([stretch.run(keys, heads, values) for values in held])


def _only_copies(unit: Unit, scales: Mapping[str, QParams]) -> bool:
    """Whether a unit hands codes on as they are: its outputs' rounding adds nothing."""
    if unit.kind not in CARRIERS and unit.kind != "Concat":
        return False
    around = [scales.get(value.name) for value in (*unit.inputs, *unit.outputs)]
    return all(one is not None and not one.by_channel and one == around[0] for one in around)


class _Float:
    """A float graph that can be entered anywhere.

    Attributes:
        plan: what is rounded, and how.
        shifts: of rounded tensors, taken off again.
        behind: of tensors, those others whose shifts are taken off behind them.
        heads: names of the tensors that are wanted of it.
        nodes, constants: of the main graph.
        ranks: of all its tensors, 0 where not known.
        static: tensors of one shape.
    """

    def __init__(self, model: ir.Model, plan: Plan, shifts: Mapping[str, OwnShift], heads: Sequence[str]) -> None:
        self.proto = ir.to_proto(model)
        self.plan, self.shifts = plan, shifts
        self.behind: dict[str, list[str]] = {}
        for name, own in shifts.items():
            if own.behind != name:
                self.behind.setdefault(own.behind, []).append(name)
        self.nodes = list(self.proto.graph.node)
        self.constants = {tensor.name: tensor for tensor in self.proto.graph.initializer}
        self.heads = list(heads)
        values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
        self.ranks = {value.name: len(value.shape or ()) for value in values}
        self.static = {value.name for value in values if shape_of(value) is not None}
        self._made = {name: place for place, node in enumerate(self.nodes) for name in node.output}
        self._place = {node.name: place for place, node in enumerate(self.nodes)}

    def place(self, key: _Key) -> int:
        """The node that a rounding stands at; -1 for an input of the graph."""
        what, name = key
        return self._place[name] if what == _LAYER else self._made.get(name, -1)

    def rest(self, place: int) -> list[onnx.NodeProto]:
        """The nodes from a rounding's place on."""
        return self.nodes[max(0, place) :]

    def border(self, place: int) -> list[str]:
        """What the nodes from a rounding's place on read of those before, and the heads that those before make."""
        rest = self.rest(place)
        made = {name for node in rest for name in node.output}
        read = dict.fromkeys(name for node in rest for name in names_read(node) if name)
        return [name for name in [*read, *self.heads] if name not in made and name not in self.constants]


class _Stretch:
    """The graph from the first of some roundings on, whose input `octavo.switches` says which of them are done.

    Args:
        graph: the whole float graph.
        keys: the roundings.
        nodes: all that follows what was made before.
        held: what was made before; it tells dtypes and ranks.
        also: tensors to put out besides the heads.
    """

    def __init__(
        self,
        graph: _Float,
        keys: Sequence[_Key],
        nodes: Sequence[onnx.NodeProto],
        held: Mapping[str, np.ndarray],
        also: Sequence[str],
    ) -> None:
        self.graph, self.held = graph, held
        self.place = {key: place for place, key in enumerate(keys)}
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.switches: set[str] = set()
        heads = [name for name in graph.heads if name not in held]
        self.session = Session(self._written(nodes, [*dict.fromkeys([*heads, *also])]), threads=1)

    def run(self, keys: Collection[_Key], names: Sequence[str], values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What was held and these tensors, with some roundings done."""
        switches = np.isin(np.arange(len(self.place)), [self.place[key] for key in keys])
        feeds = {name: values[name] for name in self.session.inputs if name != _SWITCHES}
        return {**values, **(self.session.run({**feeds, _SWITCHES: switches}, names) if names else {})}

    def _written(self, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> bytes:
        rename = {}
        read = dict.fromkeys(name for node in nodes for name in names_read(node) if name in self.held)
        for name in read:
            if (_TENSOR, name) in self.place:
                # An input keeps its name; its readers get the switched copy.
                rename[name] = f"{name}.octavo.rounded"
                self._rounded(name, name, rename[name])
        for node in nodes:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            for index, name in enumerate(copy.input):
                copy.input[index] = rename.get(name, name)
            made = list(copy.output)
            for index, name in enumerate(made):
                if self._steps(name):
                    copy.output[index] = f"{name}.octavo.raw"
            if (_LAYER, copy.name) in self.place:
                self._layer(copy)
            else:
                self.nodes += branchless([copy], self.graph.constants)
            for name in made:
                source = f"{name}.octavo.raw"
                for step in self._steps(name):
                    last = step == self._steps(name)[-1]
                    target = name if last else f"{name}.octavo.raw.{step}"
                    if step == name:
                        self._rounded(name, source, target)
                    else:
                        self._unshifted(step, source, target)
                    source = target
        kept = {name for node in self.nodes for name in names_read(node)}
        constants = {name: tensor for name, tensor in self.graph.constants.items() if name in kept} | self.constants
        inputs = [self._input(name) for name in read]
        inputs.append(helper.make_tensor_value_info(_SWITCHES, TensorProto.BOOL, [len(self.place)]))
        found = [helper.make_empty_tensor_value_info(name) for name in outputs]
        whole = helper.make_graph(self.nodes, "octavo.stretch", inputs, found, list(constants.values()))
        proto = onnx.ModelProto()
        proto.ir_version = max(self.graph.proto.ir_version, 10)
        proto.opset_import.extend(self.graph.proto.opset_import)
        proto.functions.extend(self.graph.proto.functions)
        proto.graph.CopyFrom(whole)
        return proto.SerializeToString()

    def _input(self, name: str) -> onnx.ValueInfoProto:
        value = self.held[name]
        shape = value.shape if name in self.graph.static else [None] * value.ndim
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), shape)

    def _constant(self, name: str, array: np.ndarray) -> str:
        self.constants[name] = numpy_helper.from_array(np.asarray(array), name)
        return name

    def _steps(self, name: str) -> list[str]:
        """Roundings that do something to a tensor once it is made: those whose shift comes off here, and its own."""
        behind = [other for other in self.graph.behind.get(name, []) if (_TENSOR, other) in self.place]
        return [*behind, name] if (_TENSOR, name) in self.place else behind

    def _if(self, key: tuple[str, str], target: str, then: onnx.GraphProto, otherwise: onnx.GraphProto) -> None:
        index = self._constant(f"octavo.place.{self.place[key]}", np.int64(self.place[key]))
        switch = f"octavo.switch.{self.place[key]}"
        if switch not in self.switches:
            self.switches.add(switch)
            self.nodes.append(helper.make_node("Gather", [_SWITCHES, index], [switch], axis=0))
        self.nodes.append(helper.make_node("If", [switch], [target], then_branch=then, else_branch=otherwise))

    def _rounded(self, name: str, source: str, target: str) -> None:
        chosen = self.graph.plan.scales[name]
        pair = [self._constant(f"{name}.octavo.scale", chosen.scale), self._constant(f"{name}.octavo.zero", chosen.zero_point)]
        codes, out, other = f"{name}.octavo.codes", f"{name}.octavo.then", f"{name}.octavo.else"
        rounds = [
            helper.make_node("QuantizeLinear", [source, *pair], [codes], axis=1),
            helper.make_node("DequantizeLinear", [codes, *pair], [out], axis=1),
        ]
        own = self.graph.shifts.get(name)
        if own is not None and own.behind == name:
            rounds[-1].output[0] = f"{name}.octavo.shifted"
            rounds.append(self._sub(own, name, rounds[-1].output[0], out))
        keeps = [helper.make_node("Identity", [source], [other])]
        self._if((_TENSOR, name), target, _branch(rounds, out), _branch(keeps, other))

    def _unshifted(self, name: str, source: str, target: str) -> None:
        """Take a rounding's shift off, where it is done."""
        out, other = f"{target}.octavo.then", f"{target}.octavo.else"
        takes, keeps = self._sub(self.graph.shifts[name], name, source, out), helper.make_node("Identity", [source], [other])
        self._if((_TENSOR, name), target, _branch([takes], out), _branch([keeps], other))

    def _sub(self, own: OwnShift, name: str, source: str, target: str) -> onnx.NodeProto:
        shift = own.shift.astype(np.float32).reshape(self._broadcast(own.shift.size, own.behind))
        return helper.make_node("Sub", [source, self._constant(f"{name}.octavo.shift", shift)], [target])

    def _broadcast(self, channels: int, name: str) -> list[int]:
        """The shape in which a value for each channel meets a tensor: axis 1 of images, else the last."""
        return [1, channels, *[1] * (self.graph.ranks[name] - 2)] if self.graph.ranks[name] > 3 else [channels]

    def _layer(self, node: onnx.NodeProto) -> None:
        """Two layers, of rounded and of original weights: constants of its branch, each is packed as it would be alone."""
        codes, original, branches = self.graph.plan.codes[node.name], self.graph.constants, []
        for what in ("then", "else"):
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.output[0] = f"{node.name}.octavo.{what}"
            held = []
            if what == "then":
                copy.input[1:] = [f"{node.name}.octavo.weights"]
                held.append(numpy_helper.from_array(codes.restored, copy.input[1]))
                if codes.bias is not None:
                    # Its input is exact here, or its shift is taken off: the bias shall not do it again.
                    bias = codes.bias + self.graph.plan.taken.get(node.name, 0.0)
                    copy.input.append(f"{node.name}.octavo.bias")
                    held.append(numpy_helper.from_array(bias.astype(np.float32), copy.input[2]))
            else:
                held = [original[name] for name in dict.fromkeys(copy.input[1:]) if name in original]
            branches.append(_branch([copy], copy.output[0], held))
        self._if((_LAYER, node.name), node.output[0], *branches)


def _branch(nodes: list[onnx.NodeProto], output: str, constants: Sequence[onnx.TensorProto] = ()) -> onnx.GraphProto:
    return helper.make_graph(nodes, output, [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)], constants)
