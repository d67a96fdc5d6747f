"""Which nodes the patterns of `keep_float` name."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from octavo.errors import QuantizationError
from octavo.params.patterns import matches, near

__all__ = ["asked", "select"]


def asked(patterns: Iterable[str], model: ir.Model, float_anyway: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The patterns without those that only name nodes which quantization never sees, as they stay float anyway.

    Args:
        patterns: in the order of params.yaml.
        model: what is quantized.
        float_anyway: (name, op type) of custom operators, and of what lies behind a cut.
    """
    nodes, others = [(node.name or "", node.op_type) for node in model.graph], list(float_anyway)
    return tuple(pattern for pattern in patterns if _named(pattern, nodes) or not _named(pattern, others))


def select(patterns: Iterable[str], nodes: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Match patterns against nodes.

    A pattern is an exact node name, an op type (`Softmax`), or a shell pattern on the node's name (`/head/*`).

    Args:
        patterns: in the order of params.yaml.
        nodes: (name, op type) of each node.

    Returns:
        Node name to the first pattern that names it, in the order of `nodes`.

    Raises:
        QuantizationError: a pattern matches nothing; near matches are named.
    """
    nodes = list(nodes)
    found: dict[str, str] = {}
    for pattern in patterns:
        matched = _named(pattern, nodes)
        if not matched:
            words = dict.fromkeys([op_type for _, op_type in nodes] + [name for name, _ in nodes])
            raise QuantizationError(
                f"`keep_float` names {pattern!r}, and no node has this name, op type or pattern",
                near(pattern, words) or f"the graph's op types are {', '.join(sorted({op_type for _, op_type in nodes}))}",
            )
        for name in matched:
            found.setdefault(name, pattern)
    return {name: found[name] for name, _ in nodes if name in found}


def _named(pattern: str, nodes: list[tuple[str, str]]) -> list[str]:
    exact = [name for name, op_type in nodes if pattern in (name, op_type)]
    return exact or list(matches(pattern, [name for name, _ in nodes]))
