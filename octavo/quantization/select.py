"""Which nodes the patterns of `keep_float` name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from fnmatch import fnmatchcase

from octavo.errors import QuantizationError

__all__ = ["select"]


def select(patterns: Iterable[str], nodes: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Match patterns against nodes.

    A pattern is an exact node name, an op type (`Softmax`), or a shell pattern on the node's name (`/head/*`). Names of exporters
    may hold `[` and `*`; an exact match is therefore tried first.

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
        matched = exact or [name for name, _ in nodes if fnmatchcase(name, pattern)]
        if not matched:
            raise QuantizationError(
                f"`keep_float` names {pattern!r}, and no node has this name, op type or pattern", _near(pattern, nodes)
            )
        for name in matched:
            found.setdefault(name, pattern)
    return {name: found[name] for name, _ in nodes if name in found}


def _near(pattern: str, nodes: list[tuple[str, str]]) -> str:
    words = dict.fromkeys([op_type for _, op_type in nodes] + [name for name, _ in nodes if name])
    lowered = {word.lower(): word for word in words}
    near = difflib.get_close_matches(pattern.strip("*").lower(), list(lowered), n=4, cutoff=0.5)
    if near:
        return f"did you mean {', '.join(lowered[word] for word in near)}? A shell pattern needs its `*`"
    return f"the graph's op types are {', '.join(sorted({op_type for _, op_type in nodes}))}"
