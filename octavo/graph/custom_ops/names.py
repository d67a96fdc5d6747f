"""Names that custom operators go by while a model is worked on.

Exporters leave plugins in ONNX's own domain, where the checker, the opset converter and functions cannot have them, and plugins of
other domains have names of ONNX operators (com.acme.Relu), by which passes and placement would take them for those.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import onnx
import onnx_ir as ir

__all__ = ["ONNX", "as_in_file", "called", "isolate", "operator", "parts", "stand_in", "to_file"]

ONNX = ("", "ai.onnx")
# The domain of those that have none, and what stands before the names of ONNX operators.
STAND_IN = "octavo.custom"


def operator(node: ir.Node) -> str:
    """The op type that the node has in its file."""
    return node.op_type.removeprefix(f"{STAND_IN}.")


def called(node: ir.Node, names: Container[str]) -> str:
    """Which of `names` means the operator of a node: `domain::Op`, or `Op` for those of any domain; `Op` where neither does."""
    domain = "ai.onnx" if node.domain in (*ONNX, STAND_IN) else node.domain
    exact = f"{domain}::{operator(node)}"
    return exact if exact in names else operator(node)


def parts(name: str) -> tuple[str | None, str]:
    """Domain and op type of an operator's name; the domain is None in one that means any."""
    domain, mark, op_type = name.rpartition("::")
    return (domain if mark else None), op_type


def stand_in(op_type: str) -> str:
    """The op type that a custom operator has while it is worked on; what has one already keeps it."""
    return f"{STAND_IN}.{op_type}" if onnx.defs.has(op_type, "") else op_type


def isolate(node: ir.Node) -> None:
    """Give a custom operator, in place, a domain of its own and an op type that no ONNX operator has."""
    node.domain = STAND_IN if node.domain in ONNX else node.domain
    node.op_type = stand_in(node.op_type)


def to_file(node: ir.Node) -> None:
    """Give a node, in place, the domain and op type of its file again."""
    node.op_type = operator(node)
    node.domain = "" if node.domain == STAND_IN else node.domain


def as_in_file(told: Any) -> Any:
    """What is told of nodes (a text, or JSON values), with the names that their file has."""
    if isinstance(told, str):
        return told.replace(f"{STAND_IN}.", "")
    if isinstance(told, dict):
        return {key: as_in_file(value) for key, value in told.items()}
    return [as_in_file(value) for value in told] if isinstance(told, (list, tuple)) else told
