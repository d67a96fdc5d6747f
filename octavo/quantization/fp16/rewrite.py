"""Carry a plan out: types, attributes, weights, and one Cast for each value and precision, on the border only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from octavo.graph.names import unique
from octavo.quantization.fp16.plan import NodePlan
from octavo.quantization.fp16.prepare import ONNX
from octavo.quantization.fp16.schema import is_control_flow, is_float, subgraphs
from octavo.quantization.fp16.weights import to_half

__all__ = ["rewrite"]

# For a model of other domains only (trees of ai.onnx.ml), which imports no opset that has Cast.
CAST_OPSET = 18
SUFFIX = {ir.DataType.FLOAT: "fp32", ir.DataType.FLOAT16: "fp16"}


def rewrite(model: ir.Model, plan: Mapping[ir.Node, NodePlan], *, keep_io: bool) -> None:
    """Turn a prepared model into its planned form, in place.

    Names of nodes, inputs, outputs and values stay; where an output needs a Cast the Cast's result takes the name and the value
    before it is called `<name>_fp16` or `<name>_fp32`.
    """
    _Rewriter(model, plan, keep_io=keep_io).run()


class _Rewriter:
    def __init__(self, model: ir.Model, plan: Mapping[ir.Node, NodePlan], *, keep_io: bool) -> None:
        self.model, self.graph, self.plan = model, model.graph, plan
        self.io = ir.DataType.FLOAT if keep_io else ir.DataType.FLOAT16
        self.casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
        self.first = next(iter(self.graph), None)
        self.taken = {value.name for value in _all_values(self.graph)} | {node.name for node in self.graph}
        # What was float32 before anything changed: only that is ours.
        self.floats = [value for value in _main_values(self.graph) if is_float(value)]

    def run(self) -> None:
        ours = set(self.floats)
        for value in self.graph.inputs:
            if value in ours:
                _retype(value, self.io)
        for node, planned in self.plan.items():
            for flag, value in zip(planned.outputs, node.outputs, strict=True):
                if flag:
                    _retype(value, ir.DataType.FLOAT16)
            _convert_attributes(node, planned)
        self._cast_outputs(ours)
        for node, planned in self.plan.items():
            self._cast_inputs(node, planned, ours)
        self._convert_weights(ours)

    def _cast_outputs(self, ours: set[ir.Value]) -> None:
        for place, value in enumerate(list(self.graph.outputs)):
            if value not in ours or value.dtype == self.io:
                continue
            if (value, self.io) not in self.casts:
                name = value.name or ""
                value.name = unique(f"{name}_{SUFFIX[value.dtype]}", self.taken)
                self._cast(value, self.io, name)
            self.graph.outputs[place] = self.casts[value, self.io]

    def _cast_inputs(self, node: ir.Node, planned: NodePlan, ours: set[ir.Value]) -> None:
        for place, value in enumerate(node.inputs):
            if value is None or value not in ours or value.is_initializer() or planned.as_it_comes:
                continue
            wanted = ir.DataType.FLOAT16 if planned.inputs[place] else ir.DataType.FLOAT
            if value.dtype != wanted:
                node.replace_input_with(place, self._cast(value, wanted))
        if is_control_flow(node):
            self._cast_captured(node, ours)

    def _cast_captured(self, node: ir.Node, ours: set[ir.Value]) -> None:
        """Inside subgraphs all stays float32, so outer values that are float16 now come in through a Cast."""

        def replaced(value: ir.Value | None) -> ir.Value | None:
            if value in ours and value.dtype == ir.DataType.FLOAT16:
                return self._cast(value, ir.DataType.FLOAT)
            return None

        for inner in subgraphs(node):
            for place, value in enumerate(list(inner.outputs)):
                inner.outputs[place] = replaced(value) or value
            for inside in inner:
                for place, value in enumerate(inside.inputs):
                    if cast := replaced(value):
                        inside.replace_input_with(place, cast)

    def _cast(self, value: ir.Value, dtype: ir.DataType, name: str = "") -> ir.Value:
        """The one Cast of a value to a precision; it stands right behind the value's producer, before all its readers."""
        if (value, dtype) not in self.casts:
            name = name or unique(f"{value.name}_{SUFFIX[dtype]}", self.taken)
            if not any(domain in self.graph.opset_imports for domain in ONNX):
                self.graph.opset_imports[""] = CAST_OPSET
            cast = ir.node("Cast", [value], {"to": dtype}, name=unique(f"{name}_cast", self.taken))
            output = cast.outputs[0]
            output.name, output.shape = name, value.shape
            _retype(output, dtype)
            producer = value.producer()
            if producer is not None:
                self.graph.insert_after(producer, cast)
            elif self.first is not None:
                self.graph.insert_before(self.first, cast)
            else:
                self.graph.append(cast)
            self.casts[value, dtype] = output
        return self.casts[value, dtype]

    def _convert_weights(self, ours: set[ir.Value]) -> None:
        """Weights are stored in the precision that their readers need; in both where the readers differ."""
        for weight in list(self.graph.initializers.values()):
            if weight not in ours or weight.const_value is None:
                continue
            uses = list(weight.uses())
            half = [use for use in uses if use.node in self.plan and self.plan[use.node].inputs[use.idx]]
            if not uses and not weight.is_graph_output():
                if not self._is_captured_output(weight):
                    del self.graph.initializers[weight.name]
            elif half and len(half) == len(uses) and not weight.is_graph_output():
                weight.const_value = to_half(weight.const_value, weight.name)
                _retype(weight, ir.DataType.FLOAT16)
            elif half:
                name = unique(f"{weight.name}_fp16", self.taken)
                tensor = to_half(weight.const_value, name)
                copy = ir.Value(name=name, shape=weight.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
                self.graph.register_initializer(copy)
                for use in half:
                    use.node.replace_input_with(use.idx, copy)

    def _is_captured_output(self, weight: ir.Value) -> bool:
        return any(weight is output for inner in self.graph.subgraphs() for output in inner.outputs)


def _retype(value: ir.Value, dtype: ir.DataType) -> None:
    # A new type object: a clone shares them with the model that it was made from.
    value.type = ir.TensorType(dtype)


def _convert_attributes(node: ir.Node, planned: NodePlan) -> None:
    if not any(planned.outputs):
        return
    # Cast names its output type `to`; generators, Range-like ops and normalisations `dtype`.
    for name in ("to", "dtype"):
        attribute = node.attributes.get(name)
        if attribute is not None and attribute.type == ir.AttributeType.INT and attribute.value == ir.DataType.FLOAT:
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT16))
    if node.op_type == "ConstantOfShape":
        value = node.attributes.get("value")
        # Without the attribute the result is a float32 zero.
        tensor = ir.tensor([0.0], dtype=ir.DataType.FLOAT) if value is None else value.value
        node.attributes["value"] = ir.AttrTensor("value", to_half(tensor, tensor.name))


def _main_values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def _all_values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from _main_values(graph)
    for inner in graph.subgraphs():
        yield from _main_values(inner)
