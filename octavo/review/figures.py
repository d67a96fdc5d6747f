"""What changed of accuracy, fidelity and size: `dvc metrics diff` against the merge base, cut to what a reviewer weighs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from octavo.evidence.report import FIDELITY, METRICS, headings, rows
from octavo.layout import VARIANTS
from octavo.review.markdown import Section, code, folded, plural, table, value
from octavo.review.project import Changes
from octavo.review.records import Side

__all__ = ["Change", "moved_figures", "section"]

# Rows that are shown at once, that unfold, and tables of new models.
SHOWN, MORE, NEW = 24, 150, 6
# Of a record, what is about the whole: how it was measured.
WHOLE = ("metric", "images", "labelled", "decoder", "warning", "holdout", "pairs", "flip")
# In this order within a variant.
HEADLINE = ("retained", *(key for _, key, _ in (*METRICS, *FIDELITY)), "size_mb")
# A change below this is rounding to the reader.
SMALLEST = 5e-5


@dataclass(frozen=True)
class Change:
    """One figure on both sides; `part` is its key without the variant."""

    model: str
    variant: str
    part: str
    old: Any
    new: Any
    interval: str = ""

    @property
    def difference(self) -> float | None:
        """New minus old, where both are numbers."""
        both = isinstance(self.old, int | float) and isinstance(self.new, int | float)
        return self.new - self.old if both else None

    @property
    def weight(self) -> float:
        """How much it changed, relative to what it was; what appeared or went away weighs 1."""
        return min(1.0, abs(self.difference) / max(abs(self.old), 1e-9)) if self.difference is not None else 1.0

    @property
    def headline(self) -> bool:
        """Whether it belongs to what is read first."""
        return self.part in HEADLINE or (not self.variant and self.part in WHOLE)


def moved_figures(found: Changes, head: Side, models: Iterable[str]) -> list[Change]:
    """The figures of these models that changed: no timing, no gates (they have sections of their own).

    Args:
        found: of `dvc metrics diff`.
        models: that are on both sides.
    """
    changed, models = [], set(models)
    for path, keys in found.items():
        parts = PurePosixPath(path).parts
        # metrics/<model>/<record>.json; the hosts' ledger lies deeper.
        if len(parts) != 3 or parts[0] != "metrics" or parts[1] not in models:
            continue
        for key, (old, new) in keys.items():
            timing = parts[2] == "latency.json" and not key.endswith(".size_mb")
            if timing or ".gate." in key or key.endswith(("_low", "_high")):
                continue
            variant, dot, part = key.partition(".")
            variant, part = (variant, part) if dot and variant in VARIANTS else ("", key)
            record = head.accuracy.get(parts[1], {})
            ends = [record.get(f"{key}_{end}") for end in ("low", "high")]
            interval = f" [{ends[0]:.4f}, {ends[1]:.4f}]" if all(isinstance(end, float | int) for end in ends) else ""
            changed.append(Change(parts[1], variant, part, old, new, interval))
    return changed


def section(changed: list[Change], new: list[str], removed: list[str], head: Side, base_commit: str) -> Section:
    """A table of the headline figures that changed, grouped by model; what is over unfolds.

    Args:
        changed: by `moved_figures`.
        new, removed: models that are on one side only.
    """
    told = [f"New: {code(model)}, without figures at the base to compare with." for model in new]
    told += [f"Removed: {code(model)}." for model in removed]
    # Written so that what is not a number is shown.
    visible = [one for one in changed if one.difference is None or not abs(one.difference) < SMALLEST]
    hidden = len(changed) - len(visible)
    first = sorted((one for one in visible if one.headline), key=lambda one: -one.weight)
    shown, rest = first[:SHOWN], first[SHOWN:] + [one for one in visible if not one.headline]
    parts = ["### Figures", *told]
    if shown:
        parts.append(_table(sorted(shown, key=lambda one: _order(one, head))))
    elif not rest:
        parts.append("No figure of accuracy, fidelity or size changed.")
    else:
        parts.append("None of the figures that are read first changed.")
    if hidden:
        parts.append(f"{plural(hidden, 'figure')} changed by less than {SMALLEST:g}.")
    unfolds = [_new(model, head) for model in new[:NEW] if model in head.accuracy]
    if rest:
        rest = sorted(rest, key=lambda one: -one.weight)
        over = (
            f"\n\n... and {plural(len(rest) - MORE, 'more', 'more')}: {code(f'dvc metrics diff {base_commit[:9]}')}"
            if len(rest) > MORE
            else ""
        )
        listed = _table(sorted(rest[:MORE], key=lambda one: _order(one, head)))
        unfolds.append(folded(f"... and {plural(len(rest), 'more figure')} that changed", listed + over))
    return Section("\n\n".join(parts), "\n\n".join(unfolds))


def _order(one: Change, head: Side) -> tuple[int, int, int, str]:
    models, variants = head.models, ("", *VARIANTS)
    return (
        models.index(one.model) if one.model in models else len(models),
        variants.index(one.variant),
        HEADLINE.index(one.part) if one.part in HEADLINE else len(HEADLINE),
        one.part,
    )


def _table(changed: Iterable[Change]) -> str:
    lines = []
    for one in changed:
        difference = f"{one.difference:+.4f}" if one.difference is not None else "-"
        figure = f"{one.variant} {one.part}" if one.variant else one.part
        lines.append((code(one.model), code(figure), _figure(one.old), _figure(one.new) + one.interval, difference))
    return table(("model", "figure", "base", "head [95 % interval]", "change"), lines, ("base", "change"))


def _figure(found: Any) -> str:
    return f"{found:.4f}" if isinstance(found, float) else value(found)


def _new(model: str, head: Side) -> str:
    accuracy, latency = head.accuracy[model], head.latency.get(model, {})
    try:
        columns, lines = headings(accuracy), rows(accuracy, latency)
    except (KeyError, ValueError, TypeError):
        return ""
    # A record may hold anything: what is no figure is shown as it stands.
    shown = [tuple(code(cell) if index == 0 else cell.replace("|", "\\|") for index, cell in enumerate(line)) for line in lines]
    return folded(f"Figures of the new model {code(model)}", table(columns, shown)) if lines else ""
