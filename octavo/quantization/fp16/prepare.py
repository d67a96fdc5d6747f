"""A copy of the graph in the one form that conversion reads: named nodes, weights as initializers, every type known."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx_ir.passes import common

__all__ = ["ONNX", "prepare", "unique"]

ONNX = ("", "ai.onnx")
# Bytes; shapes and axes are smaller, and inference reads their values.
SMALL = 4096


def prepare(model: ir.Model) -> ir.Model:
    """Copy a model and bring it into form; a model that has it already comes back equal.

    1. Constant nodes of the main graph become initializers, except one that is a graph output: half of an exporter's weights
       may sit in them.
    2. Initializers are no longer listed as graph inputs (files of IR version 3 list them all): a weight that a caller may
       replace cannot be stored in another type.
    3. A node without a name, or with one that is taken, is named `<op type>_<place>`: decisions refer to names.
    4. Types and shapes are inferred where they are missing.

    Args:
        model: not changed; the copy shares its tensors.
    """
    copy = model.clone()
    common.RemoveInitializersFromInputsPass()(copy)
    _lift_constants(copy)
    _name_nodes(copy)
    if any(value.type is None for node in copy.graph for value in node.outputs if value.name):
        _infer_types(copy)
    return copy


def unique(wanted: str, taken: set[str]) -> str:
    """`wanted`, or with the first free number behind it; the result is added to `taken`."""
    name, number = wanted, 1
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    taken.add(name)
    return name


def _infer_types(model: ir.Model) -> None:
    # Not onnx_ir's ShapeInferencePass: it takes a sequence of tensors for a tensor (1.1).
    light = model.clone()
    for value in list(light.graph.initializers.values()):
        if value.const_value is not None and value.const_value.nbytes > SMALL:
            # Inference needs a weight's shape only, and a message with all weights may pass protobuf's 2 GiB.
            del light.graph.initializers[value.name]
            light.graph.inputs.append(value)
    inferred = ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(light)))
    known = {value.name: value for node in inferred.graph for value in node.outputs}
    for node in model.graph:
        for value in node.outputs:
            if value.type is None and value.name in known:
                value.type, value.shape = known[value.name].type, value.shape or known[value.name].shape


def _lift_constants(model: ir.Model) -> None:
    for node in list(model.graph):
        if node.op_type != "Constant" or node.domain not in ONNX or node.outputs[0].is_graph_output():
            continue
        output = node.outputs[0]
        tensor = _tensor(node)
        if tensor is None:
            continue
        constant = ir.Value(name=output.name, shape=ir.Shape(tensor.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
        output.replace_all_uses_with(constant)
        _replace_captured_outputs(node, output, constant)
        model.graph.remove(node, safe=True)
        model.graph.register_initializer(constant)


def _tensor(node: ir.Node) -> ir.TensorProtocol | None:
    for name, attribute in node.attributes.items():
        if name == "value":
            return attribute.value
        if name in ("value_float", "value_floats"):
            return ir.tensor(attribute.value, dtype=ir.DataType.FLOAT, name=node.outputs[0].name)
        if name in ("value_int", "value_ints"):
            return ir.tensor(attribute.value, dtype=ir.DataType.INT64, name=node.outputs[0].name)
    # Strings and sparse tensors hold no float32 weights of ours.
    return None


def _replace_captured_outputs(node: ir.Node, old: ir.Value, new: ir.Value) -> None:
    # A branch of an If may hand an outer value on as its output, which is no use by a node.
    graph = node.graph
    if graph is None:
        return
    for inner in graph.subgraphs():
        for place, value in enumerate(inner.outputs):
            if value is old:
                inner.outputs[place] = new


def _name_nodes(model: ir.Model) -> None:
    nodes = list(model.graph)
    taken: set[str] = set()
    unnamed = []
    for place, node in enumerate(nodes):
        if not node.name or node.name in taken:
            unnamed.append((place, node))
        else:
            taken.add(node.name)
    for place, node in unnamed:
        node.name = unique(f"{node.op_type}_{place}", taken)
