"""Which body stands in for each custom operator of a graph that comes in."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence

import onnx
import onnx_ir as ir

from octavo.errors import SourceError
from octavo.graph.custom_ops.bodies import Body, read_body, shipped_body
from octavo.graph.custom_ops.names import ONNX, called, parts
from octavo.graph.custom_ops.running import CustomOps, all_nodes
from octavo.graph.inspect import custom_ops

__all__ = ["resolve"]

SETTING = "source.custom_ops"


def resolve(model: ir.Model, settings: Mapping[str, str | None], opset: int) -> tuple[CustomOps, list[str]]:
    """Find a body for each custom operator: the file in the settings, else the shipped one, else none.

    Args:
        model: as its exporter wrote it.
        settings: `source.custom_ops`: operator, or `domain::operator`, to the path of its body; to None where it shall be cut off.
        opset: the model's will be at least this.

    Returns:
        The operators, and notes: one plain line on what stands in for each.

    Raises:
        SourceError: a setting names no custom operator of the graph, its file does not fit, or the graph uses an operator that
            ONNX has at a later opset than the file says.
    """
    nodes: dict[str, list[ir.Node]] = {}
    named = {(domain, op_type) for domain, op_type, _ in custom_ops(model)}
    for node in all_nodes(model):
        if (node.domain, node.op_type) in named:
            nodes.setdefault(called(node, settings), []).append(node)
    _refuse_unknown(settings, nodes, sorted(named))
    target = max(opset, model.opset_imports.get("", 1))
    bodies: dict[str, Body | None] = {}
    notes = []
    for op_type, calls in sorted(nodes.items()):
        if op_type not in settings:
            _refuse_later_opset(calls[0], target)
        path = settings.get(op_type)
        if path is not None:
            body = read_body(op_type, path, f"{SETTING}.{op_type}")
        else:
            body = None if op_type in settings else shipped_body(op_type, calls)
        notes.append(_note(op_type, len(calls), body))
        if body is not None:
            notes += body.check(calls, target)
        bodies[op_type] = body
    return CustomOps(bodies), notes


def _refuse_unknown(settings: Mapping[str, str | None], met: Collection[str], named: Sequence[tuple[str, str]]) -> None:
    for op_type in settings:
        if op_type not in met:
            plain = parts(op_type)[0] is None
            present = list(dict.fromkeys(name if plain else f"{domain or 'ai.onnx'}::{name}" for domain, name in named))
            if op_type in present:
                raise SourceError(
                    f"{SETTING}.{op_type}: all of these operators in the graph are named with their domain beside it",
                    f"take it out of `{SETTING}`",
                )
            near = difflib.get_close_matches(op_type, present, n=1)
            raise SourceError(
                f"{SETTING}.{op_type}: the graph has no such custom operator; it has: {', '.join(present) or 'none'}",
                f"did you mean {near[0]!r}?" if near else f"take it out of `{SETTING}`",
            )


def _refuse_later_opset(node: ir.Node, opset: int) -> None:
    if node.domain in ONNX and onnx.defs.has(node.op_type, ""):
        since = onnx.defs.get_schema(node.op_type, "").since_version
        raise SourceError(
            f"op {node.op_type!r} (node {node.name!r}) is ONNX's own from opset {since} on, and the graph is of opset {opset}",
            "export it again at the opset that its operators are of",
        )


def _note(op_type: str, count: int, body: Body | None) -> str:
    nodes = f"{count} node{'s' if count > 1 else ''}"
    if body is None:
        return f"custom operator {op_type} ({nodes}) has no body: the graph is cut before it to run, files keep it"
    return f"custom operator {op_type} ({nodes}) runs by its body ({body.origin}, sha256 {body.sha256[:12]}), files keep it"
