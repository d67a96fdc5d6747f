"""The graph as units: the groups of nodes that run as one integer kernel, or that are given back to float together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

__all__ = [
    "ACTIVATIONS",
    "CARRIERS",
    "COMBINERS",
    "Unit",
    "constant",
    "is_depthwise",
    "is_last_weighted",
    "is_map",
    "is_pointwise",
    "is_weighted",
    "pooled",
    "units_of",
]

# Values pass through unchanged, so that input and output share one scale.
CARRIERS = frozenset(
    {"DepthToSpace", "Flatten", "MaxPool", "Reshape", "Resize", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
# Kernels with a scale of their own for each input and the output.
COMBINERS = frozenset({"Add", "AveragePool", "Concat", "GlobalAveragePool", "LeakyRelu", "Mul", "Sigmoid"})
# Units that bend each value by itself.
ACTIVATIONS = frozenset(
    {"Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Relu", "Sigmoid", "prelu", "silu"}
)
_FOLDED = ("Relu", "Clip")
# ConvTranspose has no integer kernel: as one unit with its Relu it is kept safe from ONNX Runtime's WeightBiasQuantization.
_FOLDS_BEHIND = frozenset({"Add", "Conv", "ConvTranspose", "Gemm", "MatMul"})


@dataclass(frozen=True, eq=False)
class Unit:
    """Nodes that share one precision.

    Attributes:
        name: that of its first node.
        kind: `linear` (Conv, Gemm or MatMul with constant weights), `silu` (Sigmoid and Mul), `prelu` (a constant
            slope a channel, or one in all), or the op type of its only node. A Relu, or a Clip with constant bounds, that is its
            producer's only reader folds into the unit.
        nodes: in topological order.
        inputs: float32 tensors that it reads from outside, each once; constants left out.
        outputs: tensors that it hands on.
        inner: tensors between its nodes that need a scale of their own in int8.
        writes_float: in int8, its kernel puts out float: a Gemm over pixels (`placement.pixel_heads`).
    """

    name: str
    kind: str
    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    inner: tuple[ir.Value, ...] = ()
    writes_float: bool = False

    @property
    def main(self) -> ir.Node:
        """Its first node: the one with the weights, where there are any."""
        return self.nodes[0]


def units_of(model: ir.Model) -> list[Unit]:
    """Group the nodes of the main graph.

    Args:
        model: FP32; each node has a name of its own.

    Returns:
        The units in topological order; every node is in exactly one.
    """
    outputs = {id(value) for value in model.graph.outputs}
    taken: set[ir.Node] = set()
    units = []
    for node in model.graph:
        if node in taken:
            continue
        nodes, kind, inner = [node], node.op_type, ()
        if is_weighted(node):
            kind = "linear"
        elif node.op_type == "PRelu" and _one_slope_a_channel(node):
            kind = "prelu"
        product = _silu(node, outputs)
        if product is not None:
            nodes, kind, inner = [node, product], "silu", (node.outputs[0],)
        folded = _folded(node, outputs)
        if folded is not None:
            nodes.append(folded)
        taken.update(nodes)
        members = set(nodes)
        reads = dict.fromkeys(
            value
            for member in nodes
            for value in member.inputs
            if value is not None and value.producer() not in members and value.dtype == ir.DataType.FLOAT and not constant(value)
        )
        units.append(Unit(node.name or "", kind, tuple(nodes), tuple(reads), tuple(nodes[-1].outputs), inner))
    return units


def is_weighted(node: ir.Node) -> bool:
    """Whether a node has an integer kernel that multiplies constant float32 weights."""
    if node.op_type not in ("Conv", "Gemm", "MatMul") or node.domain not in ("", "ai.onnx") or len(node.inputs) < 2:
        return False
    weights = node.inputs[1]
    if not constant(weights) or weights.dtype != ir.DataType.FLOAT or constant(node.inputs[0]):
        return False
    if len(node.inputs) > 2 and node.inputs[2] is not None and not constant(node.inputs[2]):
        return False
    if node.op_type == "Gemm":
        if len(node.inputs) > 2 and node.inputs[2] is not None and any(size != 1 for size in list(node.inputs[2].shape or ())[:-1]):
            return False  # a bias for each row is no bias of a kernel
        settings = {name: attribute.value for name, attribute in node.attributes.items()}
        return not settings.get("transA", 0) and settings.get("alpha", 1.0) == 1.0 and settings.get("beta", 1.0) == 1.0
    return node.op_type == "Conv" or (weights.shape is not None and len(weights.shape) == 2)


def is_last_weighted(units: list[Unit]) -> dict[Unit, bool]:
    """For each unit that has weights or leads to some: whether no other weights come behind it.

    Units missing from the answer are the network's tail (decoding, softmax, resizing of logits): nothing behind them multiplies.
    """
    by_node = {node: unit for unit in units for node in unit.nodes}
    leads: dict[Unit, bool] = {}
    for unit in reversed(units):
        behind = [by_node[use.node] for value in unit.outputs for use in value.uses() if use.node in by_node]
        further = any(reader in leads for reader in behind)
        if further or unit.kind == "linear":
            leads[unit] = not further
    return leads


def constant(value: ir.Value | None) -> bool:
    """Whether a value is known before the graph runs."""
    return value is not None and ir.convenience.get_const_tensor(value) is not None


def is_depthwise(node: ir.Node) -> bool:
    """Whether a node is a Conv each of whose output channels reads one input channel."""
    groups = node.attributes["group"].as_int() if node.op_type == "Conv" and "group" in node.attributes else 1
    return groups > 1 and node.inputs[1] is not None and node.inputs[1].shape is not None and node.inputs[1].shape[1] == 1


def is_pointwise(node: ir.Node) -> bool:
    """Whether a node is a Conv that multiplies each pixel of an image by one matrix."""
    if node.op_type != "Conv" or node.inputs[1] is None or list(node.inputs[1].shape or ())[2:] != [1, 1]:
        return False
    settings = {name: attribute.value for name, attribute in node.attributes.items()}
    plain = settings.get("group", 1) == 1 and set(settings.get("strides") or [1]) == {1} and not any(settings.get("pads") or [])
    return plain and settings.get("auto_pad", "NOTSET") in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


def is_map(value: ir.Value) -> bool:
    """Whether a head's output has more than one position, or may have."""
    return value.shape is None or any(dim != 1 for dim in value.shape[2:])


def pooled(value: ir.Value) -> ir.Value:
    """What is left of a head that is averaged over all its positions at once: the vector, where nothing else reads the map."""
    found = list(readers(value))
    if len(found) != 1 or value.is_graph_output():
        return value
    (node,) = found
    if node.op_type == "GlobalAveragePool":
        return node.outputs[0]
    axes = ir.convenience.get_const_tensor(node.inputs[1]) if node.op_type == "ReduceMean" and len(node.inputs) > 1 else None
    if axes is None or value.shape is None or len(value.shape) != 4:
        return value
    return node.outputs[0] if {int(axis) % 4 for axis in axes.numpy().reshape(-1)} == {2, 3} else value


def readers(value: ir.Value) -> Iterator[ir.Node]:
    """The nodes that read a value."""
    return (use.node for use in value.uses())


def _only_reader(value: ir.Value, outputs: set[int]) -> ir.Node | None:
    found = list(readers(value))
    return found[0] if len(found) == 1 and id(value) not in outputs else None


def _folded(node: ir.Node, outputs: set[int]) -> ir.Node | None:
    """The Relu, or Clip with constant bounds, that is all that reads `node`."""
    reader = _only_reader(node.outputs[0], outputs) if node.op_type in _FOLDS_BEHIND else None
    if reader is None or reader.op_type not in _FOLDED or reader.graph is not node.graph or reader.inputs[0] is not node.outputs[0]:
        return None
    return reader if all(bound is None or constant(bound) for bound in reader.inputs[1:]) else None


def _one_slope_a_channel(node: ir.Node) -> bool:
    """Whether PRelu's slopes are constant and differ between channels only; they broadcast from the last axis backwards."""
    value, slopes = node.inputs[0], node.inputs[1]
    if not constant(slopes) or value.shape is None or slopes.shape is None:
        return False
    sizes = list(slopes.shape)
    channel = len(sizes) - len(value.shape) + 1
    return all(size == 1 or place == channel for place, size in enumerate(sizes))


def _silu(node: ir.Node, outputs: set[int]) -> ir.Node | None:
    """The Mul of `x * Sigmoid(x)`, where `node` is that Sigmoid."""
    if node.op_type != "Sigmoid":
        return None
    product = _only_reader(node.outputs[0], outputs)
    if product is None or product.op_type != "Mul" or product.graph is not node.graph:
        return None
    return product if set(product.inputs) == {node.inputs[0], node.outputs[0]} else None
