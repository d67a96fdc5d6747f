"""What was decided for each node of the graph as it came in, for its manifest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from octavo.graph.nodes import ends_ahead, only_reader
from octavo.graph.operators import LAYERS
from octavo.graph.passes.cleaning.computed_once import repeated
from octavo.graph.passes.folding import AFFINE
from octavo.graph.passes.forms.shuffle_by_order import FETCH
from octavo.quantization.decisions import Decision
from octavo.quantization.int8.structure.placement import decisions_of
from octavo.quantization.int8.structure.units import Unit

__all__ = ["decided", "with_halves"]

_FOLDED = "folded into the layers around it"
# Operators that preparation makes one node of where exporters spelled them out.
_OF_SEVERAL = frozenset({"Clip", "Gelu", "HardSigmoid", "HardSwish", "LayerNormalization", "LeakyRelu", "PRelu", "Relu"})


def decided(model: ir.Model, reasons: Mapping[Unit, str], choosers: Collection[str], wide: Collection[str] = ()) -> list[Decision]:
    """A record for every node of the graph as it came in; what preparation rewrote says so.

    Args:
        model: FP32 as it came in.
        reasons: each unit of the prepared graph, and why it stays float ("" for INT8).
        choosers: nodes that choose among values before layers.
        wide: names of the tensors that have 16-bit codes.
    """
    made = {decision.node: decision for decision in decisions_of(reasons, wide)}
    names = {node.name for node in model.graph}
    doubles = {node.name: first.name or "" for node, first in repeated(model.graph)}
    records: dict[str, Decision] = {}
    for node in model.graph:
        if node.op_type == "Constant":
            continue
        decision = made.get(node.name or "")
        if node.name in choosers:
            decision = Decision(node.name, node.op_type, "float", "chooses among values, which one rounding may reorder")
        elif decision is None and node.name in doubles:
            decision = replace(records[doubles[node.name]], reason=f"computed once, by {doubles[node.name]}")
        elif decision is None and (parts := _parts(node, made, names)):
            decision = _of_parts(parts)
        elif decision is None and (one := _became(node, made)) is not None:
            decision = one
        elif decision is None:
            decision = _nearest(node, made) or Decision(node.name or "", node.op_type, "int8", _FOLDED)
        records[node.name or ""] = Decision(node.name or "", node.op_type, decision.precision, decision.reason)
    return list(records.values())


def _became(node: ir.Node, made: Mapping[str, Decision]) -> Decision | None:
    """What preparation made of several nodes, this one among them: it has the last one's name, and all paths lead there."""
    if node.op_type == "BatchNormalization" and only_reader(node.inputs[0]) is node:
        # No part of any: the layer before it has taken it in. One beside other branches is part of their sum (`ParallelConvsPass`).
        return None
    ends = ends_ahead(node, lambda one: one.name in made)
    if len(ends) != 1:
        return None
    found = made[ends[0].name or ""]
    # Means of one axis after another are one pool.
    means = found.op_type == "GlobalAveragePool" and node.op_type == ends[0].op_type == "ReduceMean"
    changed = found.op_type != ends[0].op_type and (found.op_type in _OF_SEVERAL or ends[0].op_type in AFFINE)
    return found if means or changed else None


def _nearest(node: ir.Node, made: Mapping[str, Decision]) -> Decision | None:
    """The decision for what a node was folded into.

    1. What fetches the channels in place of a shuffle that it is a part of.
    2. What it read, else what reads it.
    3. Of several folded ones in a row, what lies around these.
    """

    def fetched(one: ir.Node) -> list[Decision]:
        return [made[f"{value.name}{FETCH}"] for value in one.outputs if f"{value.name}{FETCH}" in made]

    for end in ends_ahead(node, lambda one: one.name in made or bool(fetched(one))):
        if end.name not in made:
            return fetched(end)[0]
    ring, seen = [node], {node}
    while ring:
        near = next((one for one in ring if one.name in made), None)
        if near is not None:
            return replace(made[near.name or ""], reason=_FOLDED)
        behind = [value.producer() for one in ring for value in one.inputs if value is not None]
        ahead = [use.node for one in ring for value in one.outputs for use in value.uses()]
        ring = list(dict.fromkeys(one for one in (*behind, *ahead) if one is not None and one not in seen))
        seen |= set(ring)
    return None


def _parts(node: ir.Node, made: Mapping[str, Decision], names: Collection[str | None]) -> list[Decision]:
    """What preparation made of a node for some channels each.

    Their names begin with its layer's (`RowsOfAnchorsPass`), or with its own: Convs for what a norm reads of a Concat
    (`FoldBatchNormPass`).
    """
    if node.op_type == "BatchNormalization":
        starts = f"{node.name}.part"
        return [one for name, one in made.items() if one.op_type == "Conv" and name.startswith(starts) and name not in names]
    before = [node]
    for one in before:
        makers = [value.producer() for value in one.inputs if value is not None] if one.op_type not in LAYERS else []
        before += [maker for maker in makers if maker is not None and maker.name not in made and maker not in before]
    starts = tuple(f"{one.name}." for one in before)
    return [one for one in made.values() if one.op_type == node.op_type and one.node.startswith(starts) and one.node not in names]


def _of_parts(parts: Sequence[Decision]) -> Decision:
    floats = [part for part in parts if part.precision == "float"]
    reason = (floats or parts)[0].reason
    if len(parts) > 1:
        reason = f"in {len(parts)} parts: {reason}"
    if floats and len(floats) < len(parts):
        named = ", ".join(part.node for part in floats)
        reason = f"{len(parts) - len(floats)} of its {len(parts)} parts are int8, and not {named}: {floats[0].reason}"
    return replace((floats or parts)[0], reason=reason)


def with_halves(decisions: Sequence[Decision], halves: Collection[str]) -> list[Decision]:
    """Decisions that also say whose weights the file has as float16, by names of nodes."""
    return [
        replace(one, reason=f"{one.reason}; weights float16 in the file")
        if one.precision == "float" and one.node in halves
        else one
        for one in decisions
    ]
