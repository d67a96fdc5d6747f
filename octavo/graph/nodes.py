"""What rules ask of nodes and values of the float graph."""

from __future__ import annotations

from collections.abc import Callable, Collection

import onnx_ir as ir

from octavo.graph.operators import CURVES, WEIGHTED

__all__ = [
    "TAKES_CUT",
    "cut_behind",
    "ends_ahead",
    "is_pointwise",
    "is_taken_in",
    "leads_to",
    "mish_of",
    "only_reader",
    "origin",
    "silu_of",
]

# Operators whose kernels, in float or in integers, take in a Relu or Clip behind them. ConvTranspose has no integer kernel: as one
# with its Relu it is kept safe from ONNX Runtime's WeightBiasQuantization.
TAKES_CUT = WEIGHTED | {"Add"}


def cut_behind(node: ir.Node) -> ir.Node | None:
    """The Relu, or Clip with constant bounds, that is all that reads what a node puts out."""
    reader = only_reader(node.outputs[0])
    if reader is None or reader.op_type not in ("Clip", "Relu") or reader.graph is not node.graph:
        return None
    bounds = (ir.convenience.get_const_tensor(bound) for bound in reader.inputs[1:] if bound is not None)
    return reader if reader.inputs[0] is node.outputs[0] and all(bound is not None for bound in bounds) else None


def ends_ahead(node: ir.Node, is_end: Callable[[ir.Node], bool]) -> list[ir.Node]:
    """The first nodes, on each path from a node to what reads it, that `is_end` says yes to; itself alone where it is one."""
    ends, ahead, seen = [], [node], {node}
    for one in ahead:
        if is_end(one):
            ends.append(one)
            continue
        fresh = dict.fromkeys(use.node for value in one.outputs for use in value.uses() if use.node not in seen)
        ahead += fresh
        seen |= fresh.keys()
    return ends


def leads_to(node: ir.Node, op_types: Collection[str]) -> bool:
    """Whether an operator of these comes behind a node."""
    return bool(ends_ahead(node, lambda one: one is not node and one.op_type in op_types))


def only_reader(value: ir.Value) -> ir.Node | None:
    """The node that alone reads a value, once; None where there are others, or none, or it is an output of the graph."""
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def is_taken_in(value: ir.Value | None) -> bool:
    """Whether what bends a tensor belongs to a layer, for runtimes whose layers take in all that stands behind them.

    One makes it, bent or not and added to another tensor or not, and nothing else reads it.
    """
    if value is None or only_reader(value) is None or (maker := value.producer()) is None:
        return False
    if maker.op_type in CURVES or maker.op_type in ("BatchNormalization", "Clip", "PRelu", "Relu"):
        return is_taken_in(maker.inputs[0])
    sums = maker.inputs if maker.op_type == "Add" else [value]
    made = [one.producer() for one in sums if only_reader(one) is not None]
    return any(node is not None and node.op_type in WEIGHTED for node in made)


def origin(value: ir.Value | None, across: Collection[str]) -> ir.Value | None:
    """The tensor that a value was made of by operators of `across` alone, from their first inputs; None where one is left out."""
    while value is not None and (node := value.producer()) is not None and node.op_type in across:
        value = node.inputs[0]
    return value


def is_pointwise(node: ir.Node) -> bool:
    """Whether a node is a Conv that multiplies each pixel of an image by one matrix."""
    if node.op_type != "Conv" or node.inputs[1] is None or list(node.inputs[1].shape or ())[2:] != [1, 1]:
        return False
    settings = {name: attribute.value for name, attribute in node.attributes.items()}
    plain = settings.get("group", 1) == 1 and set(settings.get("strides") or [1]) == {1} and not any(settings.get("pads") or [])
    return plain and settings.get("auto_pad", "NOTSET") in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


def silu_of(node: ir.Node) -> ir.Node | None:
    """The Mul of `x * Sigmoid(x)`, where `node` is that Sigmoid and nothing else reads it."""
    if node.op_type != "Sigmoid":
        return None
    product = only_reader(node.outputs[0])
    if product is None or product.op_type != "Mul" or product.graph is not node.graph:
        return None
    return product if set(product.inputs) == {node.inputs[0], node.outputs[0]} else None


def mish_of(node: ir.Node) -> tuple[ir.Node, ir.Node, ir.Node] | None:
    """The nodes of `x * Tanh(Softplus(x))`, where `node` is that Softplus and nothing else reads what lies between."""
    bend = only_reader(node.outputs[0]) if node.op_type == "Softplus" else None
    product = only_reader(bend.outputs[0]) if bend is not None and bend.op_type == "Tanh" else None
    if product is None or product.op_type != "Mul" or product.graph is not node.graph:
        return None
    return (node, bend, product) if set(product.inputs) == {node.inputs[0], bend.outputs[0]} else None
