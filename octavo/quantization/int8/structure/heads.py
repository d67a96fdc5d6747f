"""A network's heads: its last layers with weights, and what of their outputs its answer is made of.

Behind the heads stands the tail, which multiplies nothing by weights: box decoding, softmax, the resizing of logits, an average.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from octavo.graph.nodes import is_pointwise
from octavo.quantization.int8.structure.curves import CURVES
from octavo.quantization.int8.structure.units import ACTIVATIONS, Unit, constant, readers

__all__ = ["channels_last", "heads_of", "is_last_weighted", "is_map", "last_of", "map_heads", "pixel_heads"]

# What leaves values at their positions, or moves whole axes: behind it a map is still averaged over all positions.
_IN_PLACE = (
    ACTIVATIONS
    | CURVES.keys()
    | {
        *("Abs", "Div", "Erf", "Exp", "HardSwish", "PRelu", "Pow", "Sqrt", "Tanh"),
        *("Add", "BatchNormalization", "LayerNormalization", "Mul", "Sub"),
        *("AveragePool", "Concat", "Dropout", "Identity", "MaxPool", "Transpose"),
    }
)
# Inputs that say where values are read or put, not which: what decodes boxes is a tail, though regions are looked at again there.
_PLACES = {"RoiAlign": (1, 2), "ScatterElements": (1,), "ScatterND": (1,), "Shape": (0,), "Size": (0,)}
_POOLS = frozenset({"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"})


def heads_of(units: Sequence[Unit]) -> list[ir.Value]:
    """The tensors behind the last weights, in topological order; of maps that are only averaged, the averages."""
    units = list(units)
    last = _last_layers(units)
    return list(dict.fromkeys(value for unit in units if unit in last for value in _answers(unit)))


def last_of(units: Sequence[Unit]) -> list[ir.Value]:
    """Of `heads_of`, those with no other weights behind them: they tell what kind of answer a network gives."""
    leads = is_last_weighted(list(units))
    return list(dict.fromkeys(value for unit in units if leads.get(unit) for value in _answers(unit)))


def is_last_weighted(units: list[Unit]) -> dict[Unit, bool]:
    """For each unit that has weights or leads to some: whether no other weights come behind it.

    Units missing from the answer are the network's tail: nothing behind them multiplies what they put out. Where it only says which
    regions are cut out of another tensor (the boxes of a Mask R-CNN, before its masks), no weights multiply it.
    """
    by_node = _by_node(units)
    leads: dict[Unit, bool] = {}
    for unit in reversed(units):
        behind = [
            by_node[node]
            for value in unit.outputs
            for node, place in value.uses()
            if node in by_node and place not in _PLACES.get(node.op_type, ())
        ]
        further = any(reader in leads for reader in behind)
        if further or unit.kind == "linear" or _is_float_layer(unit):
            leads[unit] = not further
    return leads


def _by_node(units: list[Unit]) -> dict[ir.Node, Unit]:
    """Whose each node is; the nodes in an If's branches or a Loop's body, which read the graph around them, are that unit's."""
    by_node = {node: unit for unit in units for node in unit.nodes}
    for node, unit in list(by_node.items()):
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                by_node |= dict.fromkeys(ir.traversal.RecursiveGraphIterator(attribute.as_graph()), unit)
    return by_node


def _is_float_layer(unit: Unit) -> bool:
    """Whether a unit multiplies constant weights without an integer kernel: a ConvTranspose that overlaps.

    What it reads is no answer: channels count by its weights. Of an upscaler (waifu2x's, all in INT8) its input had 13 dB, each
    channel against its own variance, and what it made of that 27.
    """
    node = unit.main
    return node.op_type == "ConvTranspose" and node.domain in ("", "ai.onnx") and constant(node.inputs[1])


def _last_layers(units: list[Unit]) -> set[Unit]:
    """The layers with no other weights behind them; and where an output of the graph comes from none of these, those with no others
    on the way to it. What D-FINE and GFLv2 make boxes of is also read by layers that tell from it how good a box is: scores alone
    would be looked at.

    An output that itself leads on to layers (features that a classifier reads) is not meant.
    """
    leads = is_last_weighted(units)
    last = {unit for unit, ends in leads.items() if ends}
    makers = {value: unit for unit in units for value in unit.outputs}
    for unit in units:
        if unit in leads or not any(value.is_graph_output() for value in unit.outputs):
            continue
        way, waiting = {unit}, [unit]
        while waiting:
            before = {makers[value] for value in waiting.pop().inputs if value in makers} - way
            way |= before
            waiting += before
        if not way & last:
            last |= {each for each, ends in is_last_weighted([each for each in units if each in way]).items() if ends}
    return last


def is_map(value: ir.Value) -> bool:
    """Whether a head's output has more than one position, or may have. A vector may be written with an axis of one token."""
    if value.shape is None:
        return True
    positions = value.shape[1:-1] if channels_last(value) else value.shape[2:]
    return any(dim != 1 for dim in positions)


def channels_last(value: ir.Value) -> bool:
    """Whether a tensor has its channels on the last axis, as what comes from a product of matrices has."""
    node, turned = value.producer(), False
    while node is not None and node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        turned ^= node.op_type == "Transpose"
        node = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    return node is not None and (node.op_type in ("Gemm", "MatMul")) != turned


def map_heads(units: list[Unit]) -> dict[str, str]:
    """Last layers that should stay float: Convs whose output is a map (boxes, scores, masks) that nothing multiplies any more.

    One position of it decides, and 8 bits for the logarithm of a box's width are a step of 2 %: on YOLOv5n rounding these three
    outputs alone costs 1.5 % of AP, at 30 dB. A MatMul's or Gemm's output is written in float anyway; a map that is only averaged
    (features, pooled) has no position that decides.

    Returns:
        Node name to reason; none where the network has no other layers.
    """
    last = _last_layers(units)
    linear = [unit for unit in units if unit.kind == "linear"]
    found = [unit for unit in linear if unit in last and unit.main.op_type == "Conv" and _is_mapped(unit)]
    if len(found) == len(linear):
        return {}
    reason = "its output is a map in which single positions decide"
    return {unit.main.name: reason for unit in found if not unit.writes_float}


def pixel_heads(units: list[Unit]) -> set[Unit]:
    """Last layers that put out maps and are 1x1: as a product of matrices over pixels their integer kernel writes float.

    What `map_heads` keeps in float is the output; int8 weights cost next to nothing there. ONNX Runtime's integer convolutions
    write codes only, its integer Gemm (QGemm) writes float where no Q stands behind it. A head that is resized stays a float Conv:
    in the blocked layout that this leaves behind, ONNX Runtime interpolates in half the time (CGNet, 1.5 ms instead of 3.1).

    Args:
        units: of one graph; what a Relu or Clip follows stays as it is.
    """
    last = _last_layers(units)
    found = [unit for unit in units if unit in last and len(unit.nodes) == 1 and is_pointwise(unit.main)]
    found = [unit for unit in found if all(reader.op_type != "Resize" for reader in readers(unit.outputs[0]))]
    return {
        unit
        for unit in found
        if _is_mapped(unit) and unit.inputs and unit.inputs[0].shape is not None and len(unit.inputs[0].shape) == 4
    }


def _is_mapped(unit: Unit) -> bool:
    return any(is_map(value) for value in _answers(unit))


def _answers(unit: Unit) -> list[ir.Value]:
    """What is left of a head's output that is averaged over all its positions on every way to the graph's outputs, through
    activations, a residual Add and the like: the averages. Else the output itself.
    """
    (head,) = unit.outputs
    found: dict[ir.Value, None] = {}
    # Each with whether its channels come last, as those of a MatMul do.
    left, seen = [(head, unit.main.op_type not in ("Conv", "ConvTranspose"))], {head}
    while left:
        value, last = left.pop()
        nodes = list(readers(value))
        # What an If's branch makes of it is no tensor of this graph.
        if value.is_graph_output() or not nodes or any(node.graph is not unit.main.graph for node in nodes):
            return [head]
        for node in nodes:
            if _condenses(node, last=last):
                found[node.outputs[0]] = None
            elif node.op_type in _IN_PLACE and len(node.outputs) == 1:
                left += [(behind, last != (node.op_type == "Transpose")) for behind in node.outputs if behind not in seen]
                seen.update(node.outputs)
            else:
                return [head]
    return list(found)


def _condenses(node: ir.Node, *, last: bool) -> bool:
    """Whether a node makes one value a channel, an average or the largest, of all positions of a map or all tokens, or takes one
    token of them (transformers for images put what they see into the first).

    Args:
        node: it reads a map or tokens.
        last: their channels come last.
    """
    value = node.inputs[0]
    if value is None or value.shape is None or is_map(node.outputs[0]):
        return False
    if node.op_type in _POOLS:
        return not last
    rank = len(value.shape)
    positions = set(range(1, rank - 1)) if last else set(range(2, rank))
    if node.op_type == "Gather":
        return {(node.attributes["axis"].as_int() if "axis" in node.attributes else 0) % rank} == positions
    axes = ir.convenience.get_const_tensor(node.inputs[1]) if node.op_type == "ReduceMean" and len(node.inputs) > 1 else None
    return axes is not None and {int(axis) % rank for axis in axes.numpy().reshape(-1)} == positions
