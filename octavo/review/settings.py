"""Which parameters changed: `dvc params diff` against the merge base."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.review.markdown import Section, code, folded, plural, table, value
from octavo.review.project import Changes

__all__ = ["count", "section"]

SHOWN, MORE = 16, 100
MODELS = "params.yaml"


def section(found: Changes, new: Sequence[str], removed: Sequence[str], base_commit: str) -> Section:
    """A table of the keys that changed; of a model that came or went, how many it has.

    Args:
        found: of `dvc params diff`.
    """
    told, rows = [], []
    for path, keys in sorted(found.items(), key=lambda one: (one[0] != MODELS, one[0])):
        left = dict(keys)
        for words, models in (("new", new), ("removed", removed)):
            for model in models:
                of_it = [key for key in left if path == MODELS and key.startswith(f"models.{model}.")]
                for key in of_it:
                    del left[key]
                if of_it:
                    told.append(f"{code(f'models.{model}')} is {words}: {plural(len(of_it), 'key')}.")
        rows += [
            (code(key if path == MODELS else f"{path}: {key}"), value(old), value(new_))
            for key, (old, new_) in sorted(left.items())
        ]
    if not rows and not told:
        return Section("### Parameters\n\nNo parameter changed.")
    columns = ("parameter", "base", "head")
    parts = ["### Parameters", *told, *([table(columns, rows[:SHOWN])] if rows else [])]
    rest = rows[SHOWN:]
    over = f"\n\n... and {len(rest) - MORE:,} more: {code(f'dvc params diff {base_commit[:9]}')}" if len(rest) > MORE else ""
    title = f"... and {plural(len(rest), 'more parameter')}"
    return Section("\n\n".join(parts), folded(title, table(columns, rest[:MORE]) + over) if rest else "")


def count(found: Changes) -> int:
    """How many keys changed."""
    return sum(len(keys) for keys in found.values())
