"""Float graphs with switches: they compute in float32, and round what they are told to in a run.

Behind every tensor to quantize stands an `If` that rounds it or does not, and each weighted layer stands in an `If` with its
rounded and its original weights. Throwing switches is what makes a layer-wise analysis affordable: no session is created per layer,
and all weights are constants, which ONNX Runtime packs once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from octavo.graph.io import copied
from octavo.graph.passes.kernels.mish_by_exp import MishByExpPass
from octavo.graph.protos import branchless, leading_to, names_read, part_of
from octavo.quantization.int8.numbers.shifts import OwnShift
from octavo.quantization.int8.plan import Plan
from octavo.runtime.mapped import MappedConstants

__all__ = ["LAYER", "READ", "TENSOR", "FloatGraph", "Key", "Stretch"]

_SWITCHES = "octavo.switches"
TENSOR, LAYER, READ = "tensor", "layer", "read"

# A rounding: TENSOR and the name of a tensor; LAYER and the name of the node with the weights; READ and that of a node which alone
# gets its first input rounded.
Key = tuple[str, str]


class FloatGraph:
    """A float graph that can be entered anywhere.

    Attributes:
        plan: what is rounded, and how.
        shifts: of rounded tensors, taken off again.
        behind: of tensors, those others whose shifts are taken off behind them.
        heads: names of the tensors that are wanted of it.
        mapped: has its large constants; sessions are opened by it.
        nodes, constants: of the main graph.
        static: of tensors of one shape that shape, of those whose first size is no batch's with that size left open.
    """

    def __init__(self, model: ir.Model, plan: Plan, shifts: Mapping[str, OwnShift], heads: Sequence[str]) -> None:
        # As the file computes it: every trial runs it.
        model = copied(model)
        MishByExpPass()(model)
        self.mapped = MappedConstants()
        self.proto = self.mapped.proto(model)
        self.plan, self.shifts = plan, shifts
        self.behind: dict[str, list[str]] = {}
        for name, own in shifts.items():
            if own.behind != name:
                self.behind.setdefault(own.behind, []).append(name)
        self.nodes = list(self.proto.graph.node)
        self.constants = {tensor.name: tensor for tensor in self.proto.graph.initializer}
        self.heads = list(heads)
        values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
        # Inputs behind the first may be what an image's values chose, of any number.
        batch = [value.shape[0] for value in model.graph.inputs[:1] if value.shape]
        self.static = {value.name: shape for value in values if (shape := _described(value, batch)) is not None}
        self._made = {name: place for place, node in enumerate(self.nodes) for name in node.output}
        self._place = {node.name: place for place, node in enumerate(self.nodes)}

    def place(self, key: Key) -> int:
        """The node that a rounding stands at; -1 for an input of the graph."""
        what, name = key
        return self._made.get(name, -1) if what == TENSOR else self._place[name]

    def rest(self, place: int) -> list[onnx.NodeProto]:
        """The nodes from a rounding's place on."""
        return self.nodes[max(0, place) :]

    def border(self, place: int) -> list[str]:
        """What the nodes from a rounding's place on read of those before, and the heads that those before make."""
        rest = self.rest(place)
        made = {name for node in rest for name in node.output}
        read = dict.fromkeys(name for node in rest for name in names_read(node) if name)
        return [name for name in [*read, *self.heads] if name not in made and name not in self.constants]

    def changed(self, keys: Collection[Key]) -> list[str]:
        """The heads that some roundings change: not those of other branches or levels."""
        named = {node.name: node for node in self.nodes}
        found = {name for what, one in keys for name in ([one] if what == TENSOR else named[one].output)}
        for node in self.rest(min(map(self.place, keys), default=0)):
            if not found.isdisjoint(names_read(node)):
                found.update(filter(None, node.output))
        return [name for name in self.heads if name in found]

    def described(self, name: str, value: np.ndarray) -> onnx.ValueInfoProto:
        """A tensor as the input of a graph that begins behind it, from its value on one image."""
        shape = self.static.get(name, [None] * value.ndim)
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), shape)


class Stretch:
    """The graph from the first of some roundings on, whose input `octavo.switches` says which of them are done.

    Args:
        graph: the whole float graph.
        keys: the roundings.
        nodes: all that follows what was made before.
        held: what was made before; it tells dtypes and ranks.
        outputs: tensors to put out; what does not lead to them is left out.
    """

    def __init__(
        self,
        graph: FloatGraph,
        keys: Sequence[Key],
        nodes: Sequence[onnx.NodeProto],
        held: Mapping[str, np.ndarray],
        outputs: Sequence[str],
    ) -> None:
        self.graph, self.held = graph, held
        self.place = {key: place for place, key in enumerate(keys)}
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.switches: set[str] = set()
        # ONNX Runtime would run the rest, too.
        nodes = leading_to(nodes, outputs)
        self.session = graph.mapped.session(self._written(nodes, [*dict.fromkeys(outputs)]), threads=1, memory_pattern=False)

    def run(self, keys: Collection[Key], names: Sequence[str], values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What was held and these tensors, with some roundings done."""
        switches = np.isin(np.arange(len(self.place)), [self.place[key] for key in keys])
        feeds = {name: values[name] for name in self.session.inputs if name != _SWITCHES}
        return {**values, **(self.session.run({**feeds, _SWITCHES: switches}, names) if names else {})}

    def _written(self, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> bytes:
        rename = {}
        read = dict.fromkeys(name for node in nodes for name in names_read(node) if name in self.held)
        for name in read:
            if (TENSOR, name) in self.place:
                # An input keeps its name; its readers get the switched copy.
                rename[name] = f"{name}.octavo.rounded"
                self._rounded(name, name, rename[name])
        for node in nodes:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            for index, name in enumerate(copy.input):
                copy.input[index] = rename.get(name, name)
            if (READ, copy.name) in self.place:
                target = f"{copy.name}.octavo.read"
                self._rounded(node.input[0], copy.input[0], target, (READ, copy.name))
                copy.input[0] = target
            made = list(copy.output)
            for index, name in enumerate(made):
                if self._steps(name):
                    copy.output[index] = f"{name}.octavo.raw"
            if (LAYER, copy.name) in self.place:
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
        inputs = [self.graph.described(name, self.held[name]) for name in read]
        inputs.append(helper.make_tensor_value_info(_SWITCHES, TensorProto.BOOL, [len(self.place)]))
        nodes, self.nodes, self.constants = self.nodes, [], {}
        return part_of(self.graph.proto, nodes, inputs, outputs, list(constants.values()))

    def _constant(self, name: str, array: np.ndarray) -> str:
        self.constants[name] = numpy_helper.from_array(np.asarray(array), name)
        return name

    def _steps(self, name: str) -> list[str]:
        """Roundings that do something to a tensor once it is made: those whose shift comes off here, and its own."""
        behind = [other for other in self.graph.behind.get(name, []) if (TENSOR, other) in self.place]
        return [*behind, name] if (TENSOR, name) in self.place else behind

    def _if(self, key: Key, target: str, then: onnx.GraphProto, otherwise: onnx.GraphProto) -> None:
        index = self._constant(f"octavo.place.{self.place[key]}", np.int64(self.place[key]))
        switch = f"octavo.switch.{self.place[key]}"
        if switch not in self.switches:
            self.switches.add(switch)
            self.nodes.append(helper.make_node("Gather", [_SWITCHES, index], [switch], axis=0))
        self.nodes.append(helper.make_node("If", [switch], [target], then_branch=then, else_branch=otherwise))

    def _rounded(self, name: str, source: str, target: str, key: Key | None = None) -> None:
        chosen = self.graph.plan.scales[name]
        pair = [self._constant(f"{name}.octavo.scale", chosen.scale), self._constant(f"{name}.octavo.zero", chosen.zero_point)]
        codes, out, other = f"{target}.octavo.codes", f"{target}.octavo.then", f"{target}.octavo.else"
        rounds = [
            helper.make_node("QuantizeLinear", [source, *pair], [codes], axis=1),
            helper.make_node("DequantizeLinear", [codes, *pair], [out], axis=1),
        ]
        own = self.graph.shifts.get(name)
        if own is not None and own.behind == name:
            rounds[-1].output[0] = f"{target}.octavo.shifted"
            rounds.append(self._sub(own, name, rounds[-1].output[0], out))
        keeps = [helper.make_node("Identity", [source], [other])]
        self._if(key or (TENSOR, name), target, _branch(rounds, out), _branch(keeps, other))

    def _unshifted(self, name: str, source: str, target: str) -> None:
        """Take a rounding's shift off, where it is done."""
        out, other = f"{target}.octavo.then", f"{target}.octavo.else"
        takes, keeps = self._sub(self.graph.shifts[name], name, source, out), helper.make_node("Identity", [source], [other])
        self._if((TENSOR, name), target, _branch([takes], out), _branch([keeps], other))

    def _sub(self, own: OwnShift, name: str, source: str, target: str) -> onnx.NodeProto:
        shift = own.shift.astype(np.float32)
        return helper.make_node("Sub", [source, self._constant(f"{name}.octavo.shift", shift)], [target])

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
                held.append(self.graph.mapped.constant(copy.input[1], codes.restored))
                if codes.bias is not None:
                    # Its input is exact here, or its shift is taken off: the bias shall not do it again.
                    bias = codes.bias + self.graph.plan.taken.get(node.name, 0.0)
                    copy.input.append(f"{node.name}.octavo.bias")
                    held.append(numpy_helper.from_array(bias.astype(np.float32), copy.input[2]))
            else:
                held = [original[name] for name in dict.fromkeys(copy.input[1:]) if name in original]
            branches.append(_branch([copy], copy.output[0], held))
        self._if((LAYER, node.name), node.output[0], *branches)


def _described(value: ir.Value, batch: Collection[int | ir.SymbolicDim]) -> list[int | None] | None:
    """A tensor's sizes at batch 1: None where more than the first is open, which may be the rows that an image's values choose."""
    first, rest = (list(value.shape[:1]), list(value.shape[1:])) if value.shape is not None else ([], [None])
    if not all(isinstance(size, int) for size in rest):
        return None
    return [size if isinstance(size, int) else 1 if size in batch else None for size in first] + rest


def _branch(nodes: list[onnx.NodeProto], output: str, constants: Sequence[onnx.TensorProto] = ()) -> onnx.GraphProto:
    return helper.make_graph(nodes, output, [], [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)], constants)
