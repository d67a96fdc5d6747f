"""Where values break: from every tensor's loss to the nodes to give back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from octavo.quantization.decisions import Decision
from octavo.quantization.fp16.measure import Loss
from octavo.quantization.fp16.schema import subgraphs

__all__ = ["culprits"]


def culprits(
    reference: ir.Model, decisions: Iterable[Decision], losses: Mapping[str, Loss], failing: Iterable[str]
) -> dict[str, str]:
    """Choose the nodes that go back to float32 because a value is NaN or infinite where FP32's is not.

    Those before a failing tensor that break first: all their inputs are whole, and an output is not. It may be the rounding of an
    input that broke it (a divisor that became 0), so the nearest float16 nodes before go too; next round, those before them.

    Args:
        reference: FP32.
        decisions: of the model that was measured.
        losses: by tensor name, float activations of both graphs.
        failing: names of the broken tensors that are to be mended.

    Returns:
        Node name to the measured reason, in the graph's order; empty where nothing is left to give back.
    """
    half = {decision.node for decision in decisions if decision.precision == "fp16"}
    wanted = set(failing)
    before = _ancestors(node for node in reference.graph if any(value.name in wanted for value in node.outputs))
    found: dict[str, str] = {}
    for node in reference.graph:
        ruined = next((value.name for value in node.outputs if _is_broken(value, losses)), None)
        if node not in before or ruined is None or any(_is_broken(value, losses) for value in node.inputs):
            continue
        reason = f"{ruined} is NaN or infinite in float16"
        for given in _with_inputs(node, half):
            found.setdefault(given, reason if given == node.name else f"feeds {node.name}, where {reason}")
    return {node.name: found[node.name] for node in reference.graph if node.name in found}


def _is_broken(value: ir.Value | None, losses: Mapping[str, Loss]) -> bool:
    return value is not None and value.name in losses and losses[value.name].broken


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
