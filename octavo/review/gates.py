"""Gates first: every one of every model, the failing ones on top, and which of them the base passed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.review.markdown import Section, code, folded, plural, table
from octavo.review.records import Side
from octavo.verdicts import FAIL, INCONCLUSIVE, PASS, Verdict, verdicts

__all__ = ["Gate", "gates", "section", "summary"]

# Rows of a table; what is over is counted.
ROWS = 80


@dataclass(frozen=True)
class Gate:
    """One gate with its answer on both sides.

    Attributes:
        now: at the head; None where it is gone.
        before: at the base; None where it was not there.
    """

    model: str
    now: Verdict | None
    before: Verdict | None

    @property
    def lost(self) -> bool:
        """Whether it passed at the base and does not now."""
        return self.before is not None and self.before.answer == PASS and (self.now is None or self.now.answer != PASS)

    @property
    def moved(self) -> bool:
        """Whether it is judged by another bound than at the base."""
        if self.now is None or self.before is None or self.now.bound is None or self.before.bound is None:
            return False
        return self.now.bound != self.before.bound


def gates(head: Side, base: Side | None) -> list[Gate]:
    """All gates of the head's models, and those of them that only the base has; the worst first."""
    found = []
    for model in head.models:
        now, before = _of(head, model), _of(base, model) if base is not None else {}
        found += [Gate(model, one, before.get(key)) for key, one in now.items()]
        # Without a record nothing is gone: it was not measured.
        found += [Gate(model, None, one) for key, one in before.items() if key not in now and model in head.accuracy]
    return sorted(found, key=lambda one: (one.now.order if one.now else 1, not one.lost, not one.moved))


def summary(found: Sequence[Gate], unmeasured: int) -> str:
    """`1 gate fails, 2 inconclusive, 50 pass`.

    Args:
        unmeasured: models without figures; a headline must not sound as if their gates had passed.
    """
    count = Counter(one.now.answer if one.now else "gone" for one in found)
    failing, passing = count.pop(FAIL, 0), count.pop(PASS, 0)
    words = [f"{plural(failing, 'gate')} {'fails' if failing == 1 else 'fail'}" if failing else "no gate fails"]
    words += [f"{many} {answer if answer == 'gone' else _word(answer)}" for answer, many in count.items()]
    words += [f"{passing} pass"] if passing else []
    if found and passing == len(found):
        words = [f"all {plural(passing, 'gate')} pass" if passing > 1 else "1 gate passes"]
    elif not found:
        words = ["no gate was judged"]
    words += [f"{plural(unmeasured, 'model')} without figures"] if unmeasured else []
    return ", ".join(words)


def section(found: Sequence[Gate], head: Side) -> Section:
    """The table; gates that pass as they did unfold at a click."""
    missing = [model for model in head.models if model not in head.accuracy]
    told = [f"{code(model)} has no figures in {head.name}: `dvc repro` measures it." for model in missing]
    outdated = [one for one in found if one.now is not None and one.now.outdated]
    told += [
        f"{code(f'{one.model} {one.now.key}')} was judged by another bound than params.yaml has now: `dvc repro` judges it again."
        for one in outdated[:5]
    ]
    quiet = [one for one in found if one.now is not None and one.now.answer == PASS and not one.moved and one not in outdated]
    loud = [one for one in found if one not in quiet]
    parts = ["### Gates", *([_table(loud)] if loud else []), *told]
    if not found and not missing:
        parts.append("No variant is held to a gate (`validate.gates.variants`).")
    return Section("\n\n".join(parts), folded(f"{plural(len(quiet), 'gate')} that pass", _table(quiet)) if quiet else "")


def _table(found: Sequence[Gate]) -> str:
    columns = ("model", "gate", "answer", "figure [95 % interval]", "asked for")
    rows = [_row(one) for one in found[:ROWS]]
    rest = Counter(one.now.answer if one.now else "gone" for one in found[ROWS:])
    counts = ", ".join(f"{many} {_word(answer)}" for answer, many in rest.items())
    more = f"\n\n... and {rest.total():,} more ({counts})"
    return table(columns, rows) + (more if rest else "")


def _row(one: Gate) -> tuple[str, ...]:
    shown = one.now or one.before
    name = f"{shown.variant} {shown.gate}"
    if one.now is None:
        return code(one.model), code(name), f"**gone** (was {_word(one.before.answer)})", "-", f"was {shown.asked or '-'}"
    answer = f"**{_word(shown.answer)}**" if shown.answer != PASS else PASS
    if one.lost:
        answer += ", **was pass**"
    elif one.before is not None and one.before.answer != shown.answer:
        answer += f" (was {_word(one.before.answer)})"
    asked = (shown.asked or "-") + (f" (**was {one.before.asked}**)" if one.moved else "")
    return code(one.model), code(name), answer, shown.measured or "-", asked


def _word(answer: str) -> str:
    return answer if answer in (PASS, FAIL, INCONCLUSIVE, "no-labels") else code(answer)


def _of(side: Side, model: str) -> dict[str, Verdict]:
    record = side.accuracy.get(model)
    found = verdicts(record, side.bounds.get(model), side.latency.get(model)) if record is not None else []
    return {one.key: one for one in found}
