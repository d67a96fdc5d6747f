"""Where accuracy is lost: from the SQNR of every tensor to the nodes to give back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from octavo.quantization.decisions import Decision
from octavo.quantization.fp16.measure import Loss
from octavo.quantization.fp16.schema import subgraphs
from octavo.runtime.noise import SQNR_CAP

__all__ = ["culprits"]

# Of the noise that the worst node adds; nodes above this share go back together.
SHARE = 0.5


def culprits(
    reference: ir.Model, decisions: Iterable[Decision], losses: Mapping[str, Loss], failing: Iterable[str], enough: float
) -> dict[str, str]:
    """Choose the nodes that go back to float32.

    1. Only nodes before a failing tensor count.
    2. First to lose: a node whose output is below `enough` while all its inputs are above.
    3. Where loss builds up slowly no one of these stands out: nodes that add at least half as much noise as the worst join them.
    4. Good inputs and a bad output mean that the node magnifies the rounding of its inputs (a difference of near-equal values), so
       the nearest float16 nodes before it go too; next round, those before them.

    Args:
        reference: FP32.
        decisions: of the model that was measured.
        losses: by tensor name, float activations of both graphs.
        failing: names of the tensors that are to be mended.
        enough: dB.

    Returns:
        Node name to the measured reason, in the graph's order; empty where nothing is left to give back.
    """
    half = {decision.node for decision in decisions if decision.precision == "fp16"}
    wanted = set(failing)
    before = _ancestors(node for node in reference.graph if any(value.name in wanted for value in node.outputs))
    first: dict[ir.Node, str] = {}
    added: dict[ir.Node, tuple[float, str]] = {}
    for node in reference.graph:
        if node not in before:
            continue
        came, _ = _least(node.inputs, losses)
        went, tensor = _least(node.outputs, losses)
        reason = f"{tensor} is NaN or infinite in float16" if losses.get(tensor, Loss()).broken else ""
        reason = reason or f"{tensor} falls to {went:.1f} dB SQNR in float16, its inputs have {came:.1f} dB"
        if went < enough <= came:
            first[node] = reason
        if went < came and went > -SQNR_CAP:
            added[node] = (10 ** (-went / 10) - 10 ** (-came / 10), reason)
    worst = max((noise for noise, _ in added.values()), default=0.0)
    chosen = first | {node: reason for node, (noise, reason) in added.items() if noise >= SHARE * worst and node not in first}
    found: dict[str, str] = {}
    for node, reason in chosen.items():
        for given in _with_inputs(node, half):
            found.setdefault(given, reason if given == node.name else f"feeds {node.name}, where {reason}")
    return {node.name: found[node.name] for node in reference.graph if node.name in found}


def _least(values: Iterable[ir.Value | None], losses: Mapping[str, Loss]) -> tuple[float, str]:
    measured = [(losses[value.name].sqnr_db, value.name) for value in values if value is not None and value.name in losses]
    return min(measured, key=lambda pair: pair[0], default=(SQNR_CAP, ""))


def _ancestors(nodes: Iterable[ir.Node]) -> set[ir.Node]:
    seen: set[ir.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += _producers(node)
    return seen


def _with_inputs(node: ir.Node, half: set[str]) -> Iterator[str]:
    """The node if it is float16, and the nearest float16 nodes before it, through float32 ones."""
    if node.name in half:
        yield node.name
    seen: set[ir.Node] = set()
    waiting = _producers(node)
    while waiting:
        nearest = waiting.pop(0)
        if nearest in seen:
            continue
        seen.add(nearest)
        if nearest.name in half:
            yield nearest.name
        else:
            waiting += _producers(nearest)


def _producers(node: ir.Node) -> list[ir.Node]:
    captured = [value for inner in subgraphs(node) for inside in inner for value in inside.inputs]
    return [value.producer() for value in (*node.inputs, *captured) if value is not None and value.producer() is not None]
