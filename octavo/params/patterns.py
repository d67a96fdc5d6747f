"""How names in params.yaml are matched with what a graph holds, and what to say when one matches nothing."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from fnmatch import fnmatchcase

__all__ = ["matches", "near"]


def matches(pattern: str, names: Iterable[str]) -> list[str]:
    """Names that a pattern means: the name itself, else those that a shell pattern (`/head/*`) fits.

    Names of exporters may hold `[` and `*`; an exact match is therefore tried first.
    """
    names = list(names)
    return [name for name in names if name == pattern] or [name for name in names if fnmatchcase(name, pattern)]


def near(pattern: str, words: Iterable[str]) -> str | None:
    """A question that names the words most like a pattern that matched nothing, or None where nothing is alike."""
    lowered = {word.lower(): word for word in words if word}
    found = difflib.get_close_matches(pattern.strip("*").lower(), list(lowered), n=4, cutoff=0.5)
    if not found:
        return None
    return f"did you mean {', '.join(lowered[word] for word in found)}? A shell pattern needs its `*`"
