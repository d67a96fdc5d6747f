"""Which nodes the patterns of `keep_float` name."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.errors import QuantizationError
from octavo.params.patterns import matches, near

__all__ = ["select"]


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
        exact = [name for name, op_type in nodes if pattern in (name, op_type)]
        matched = exact or matches(pattern, [name for name, _ in nodes])
        if not matched:
            words = dict.fromkeys([op_type for _, op_type in nodes] + [name for name, _ in nodes])
            raise QuantizationError(
                f"`keep_float` names {pattern!r}, and no node has this name, op type or pattern",
                near(pattern, words) or f"the graph's op types are {', '.join(sorted({op_type for _, op_type in nodes}))}",
            )
        for name in matched:
            found.setdefault(name, pattern)
    return {name: found[name] for name, _ in nodes if name in found}
