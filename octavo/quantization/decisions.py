"""Why each node runs in the precision it runs in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Decision", "as_records", "left_out", "reasons", "said", "summary"]


# Nodes that a line names of those with one reason: a detector that suppresses boxes class by class has 400.
_NAMED = 3


@dataclass(frozen=True)
class Decision:
    """One compute node's precision (`int8`, `16-bit`, `fp16` or `float`) and the reason for it.

    `arithmetic` is what it computes in where the precision is that of its weights in the file only.
    """

    node: str
    op_type: str
    precision: str
    reason: str
    arithmetic: str = ""


def left_out(nodes: Iterable[tuple[str, str, str]]) -> list[Decision]:
    """Decisions for nodes that quantization never saw: (node, op type, reason) of `CustomOps.untouched`."""
    return [Decision(node, op_type, "float", reason) for node, op_type, reason in nodes]


def as_records(decisions: Iterable[Decision]) -> list[dict[str, Any]]:
    """For a manifest."""
    return [{key: value for key, value in asdict(decision).items() if value or key != "arithmetic"} for decision in decisions]


def said(precision: str, arithmetic: str = "") -> str:
    """What tables call a decision: `int8 weights` where these alone are of its precision."""
    return f"{precision} weights" if arithmetic else precision


def summary(decisions: Iterable[Decision]) -> str:
    """One line: how many nodes of each op type in each precision."""
    counted = Counter((said(decision.precision, decision.arithmetic), decision.op_type) for decision in decisions)
    precisions = sorted({precision for precision, _ in counted})
    return "; ".join(
        f"{precision}: " + ", ".join(f"{count} {op}" for (kind, op), count in sorted(counted.items()) if kind == precision)
        for precision in precisions
    )


def reasons(decisions: Iterable[Decision]) -> list[str]:
    """A line for each reason, as they first come: the first nodes that have it, and how many more."""
    nodes: dict[str, list[str]] = {}
    for decision in decisions:
        nodes.setdefault(decision.reason, []).append(f"{decision.node} ({decision.op_type})")
    return [
        ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "") + f": {reason}"
        for reason, names in nodes.items()
    ]
