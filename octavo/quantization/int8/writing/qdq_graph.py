"""A float graph being rewritten with Q and DQ: its nodes in order, its constants, and how it is closed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from octavo.errors import QuantizationError
from octavo.graph.in_file import taken_out
from octavo.graph.protos import names_read

__all__ = ["QdqGraph"]


class QdqGraph:
    """Nodes and constants of the graph that is written.

    Args:
        model: FP32; it is not changed.

    Attributes:
        protos: the float graph's nodes by name.
        outputs: what must be there as float under its own name: the graph's outputs, and what a subgraph reads from outside.

    Raises:
        QuantizationError: two nodes share a name, or have none.
    """

    def __init__(self, model: ir.Model) -> None:
        # FP32's large weights are the model's own in whatever is written: a message of them, of which codes take the place of most,
        # is held as long as any of its parts.
        light = model.clone()
        self._large = taken_out(light, of_protobufs=True)
        self.proto = ir.to_proto(light)
        self.protos = {node.name: node for node in self.proto.graph.node}
        if len(self.protos) < len(self.proto.graph.node):
            shared = Counter(node.name for node in self.proto.graph.node).most_common(1)[0][0]
            raise QuantizationError(
                f"two nodes or more are called {shared!r}: what is written for one would stand for the other",
                "bring the graph into form first, as `export` does (`octavo.graph.clean.clean`)",
            )
        self.nodes: list[onnx.NodeProto] = []
        self.constants = {tensor.name: tensor for tensor in self.proto.graph.initializer}
        self._tensors = {value.name for value in self.proto.graph.input} | {
            name for node in self.proto.graph.node for name in node.output
        }
        self._nodes = set(self.protos)
        self._codes: dict[str, str] = {}
        self.outputs = {value.name for value in model.graph.outputs} | {
            value.name
            for node in model.graph
            for value in node.outputs
            if any(use.node.graph is not model.graph for use in value.uses())
        }

    def constant(self, name: str, array: np.ndarray) -> str:
        """An initializer that holds an array; the name that it has: this one, with a `+` for each that something else has already.

        FP32 may have a tensor of any name: the factor behind a module's output is often called `<module>.scale`.
        """
        tensor = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape))
        while not self._is_free(name, tensor):
            name += "+"
        tensor.name = name
        self.constants.setdefault(name, tensor)
        return name

    def _is_free(self, name: str, tensor: onnx.TensorProto) -> bool:
        """Whether nothing has a name, or a constant of the same content."""
        held = self.constants.get(name)
        if held is None:
            return name not in self._tensors
        same = held.data_type == tensor.data_type and list(held.dims) == list(tensor.dims)
        return same and self.held(name).tobytes() == tensor.raw_data

    def held(self, name: str) -> np.ndarray:
        """What a constant holds."""
        return self._large[name].numpy() if name in self._large else numpy_helper.to_array(self.constants[name])

    def code(self, name: str) -> str:
        """What the codes of a tensor of FP32 are called."""
        if name not in self._codes:
            self._codes[name] = self.fresh(f"{name}.code")
        return self._codes[name]

    def fresh(self, name: str) -> str:
        """A name for a new tensor: this one, with a `+` for each that something else has already."""
        while name in self._tensors or name in self.constants:
            name += "+"
        self._tensors.add(name)
        return name

    def add(self, op_type: str, inputs: list[str], output: str, name: str, *, instead: bool = False, **attributes: object) -> str:
        """Append a node; its output's name.

        Args:
            output: of FP32, or `fresh`.
            name: gets a `+` for each node that has it already.
            instead: the node stands for that of FP32 which has this name.
        """
        while name in self._nodes and not instead:
            name += "+"
        self._nodes.add(name)
        self.nodes.append(helper.make_node(op_type, inputs, [output], name=name, **attributes))
        return output

    def restored(self, copy: onnx.NodeProto, place: int, name: str, codes: np.ndarray, scale: np.ndarray, *, axis: int) -> None:
        """Let a node read constant codes through a DQ."""
        per_axis = scale.size > 1
        zero = np.zeros(scale.shape if per_axis else (), codes.dtype)
        inputs = [
            self.constant(name, codes),
            self.constant(f"{name}.scale", scale if per_axis else scale.reshape(())),
            self.constant(f"{name}.zero", zero),
        ]
        copy.input[place] = self.add(
            "DequantizeLinear", inputs, self.fresh(f"{name}.restored"), f"{name}.DQ", **({"axis": axis} if per_axis else {})
        )

    def closed(self) -> ir.Model:
        """The graph of the nodes so far, with what they and their bodies read and no more."""
        graph = self.proto.graph
        del graph.node[:], graph.initializer[:]
        graph.node.extend(self.nodes)
        used = {name for node in graph.node for name in names_read(node)} | {value.name for value in graph.output}
        graph.initializer.extend(tensor for name, tensor in self.constants.items() if name in used)
        made = {name for node in graph.node for name in node.output}
        for index in reversed(range(len(graph.value_info))):
            if graph.value_info[index].name not in made:
                del graph.value_info[index]
        model = ir.from_proto(self.proto)
        for name, tensor in self._large.items():
            if name in model.graph.initializers:
                model.graph.initializers[name].const_value = tensor
        return model
