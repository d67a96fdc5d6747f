"""Latency, compared where one machine measured both sides, and shown as measured elsewhere where not.

A figure belongs to the host of its record (`host.id`). Where the head was measured on another host than the base, the base's ledger
(metrics/hosts/<host id>/<model>.json) may still have that host's figures; without them there is no ratio to be told. Two medians
differ where their 95 % intervals do not meet. Machines drift from one day to the next, FP32 with them: the speed-up to FP32, taken
in the same rounds, stands beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.evidence.series import headline_setting
from octavo.layout import VARIANTS
from octavo.review.markdown import Section, code, folded, plural, table
from octavo.review.records import LEDGER, Record, Side

__all__ = ["Timed", "compared", "same_host", "section"]

SHOWN, MORE = 40, 100
MEDIAN = ".median_ms"
FASTER, SLOWER, NOISE, EQUAL = "faster", "slower", "within noise", "unchanged"


@dataclass(frozen=True)
class Timed:
    """One median: a variant of a model in one setting (provider, threads, batch).

    Attributes:
        now, before: ms with the ends of their intervals, which may be None; `before` None where it was not measured on this host.
        elsewhere: ms that the base has of another host.
        speedup, speedup_before: to FP32 in the same rounds, at the head and, of this host, at the base.
        headline: whether it is of the setting that tables show.
    """

    model: str
    variant: str
    setting: str
    now: tuple[float, float | None, float | None]
    before: tuple[float, float | None, float | None] | None
    elsewhere: float | None
    speedup: float | None
    speedup_before: float | None
    headline: bool

    @property
    def answer(self) -> str | None:
        """faster, slower, within noise or unchanged; None where nothing is compared or there is no interval."""
        if self.before is None:
            return None
        if self.now == self.before:
            return EQUAL
        (_, low, high), (_, low_before, high_before) = self.now, self.before
        if None in (low, high, low_before, high_before):
            return None
        return SLOWER if low > high_before else FASTER if high < low_before else NOISE


def same_host(head: Record, base: Record) -> bool:
    """Whether one machine measured both records."""
    return head.get("host.id") is not None and head.get("host.id") == base.get("host.id")


def compared(model: str, head: Side, base: Side | None) -> list[Timed]:
    """Each median of a model at the head, with the base's of the same host where it has one."""
    record = head.latency.get(model, {})
    recorded = base.latency.get(model, {}) if base is not None else {}
    same, other = (recorded, {}) if same_host(record, recorded) else (_ledger(model, record, base), recorded)
    shown = _headline(record)
    found = []
    for key in (key for key in record if key.endswith(MEDIAN)):
        variant, _, setting = key.removesuffix(MEDIAN).partition(".")
        now = _median(record, key)
        if now is not None:
            before, name = _median(same, key), f"{variant}.{setting}.speedup"
            far = _number(other.get(key)) if before is None else None
            speedups = _number(record.get(name)), _number(same.get(name))
            found.append(Timed(model, variant, setting, now, before, far, *speedups, setting == shown))
    return sorted(
        found, key=lambda one: (VARIANTS.index(one.variant) if one.variant in VARIANTS else len(VARIANTS), one.variant, one.setting)
    )


def section(head: Side, base: Side | None) -> Section:
    """Tables of what is compared and what is not; other settings that changed unfold."""
    found = {model: compared(model, head, base) for model in head.models}
    every = [one for several in found.values() for one in several]
    told = [f"{code(model)} has no latency in {head.name}: `dvc repro` measures it." for model in head.models if not found[model]]
    here = [one for one in every if one.before is not None]
    away = [one for one in every if one.before is None]
    moved = [one for one in here if one.answer != EQUAL]
    parts = ["### Latency", *told]
    if here and not moved:
        parts.append(f"Unchanged: {plural(len(here), 'median')}, measured on the same host.")
    ledgers = [
        model
        for model in head.models
        if any(one.before for one in found[model]) and not same_host(head.latency[model], base.latency.get(model, {}))
    ]
    if ledgers:
        parts.append(f"{', '.join(map(code, ledgers))}: the base's ledger has this host's figures.")
    if moved:
        answers = {answer: sum(one.answer == answer for one in moved) for answer in (SLOWER, FASTER, NOISE)}
        said = ", ".join(f"{many} {answer}" for answer, many in answers.items() if many) or "no interval on file"
        parts.append(f"Same host at base and head, {plural(len(moved), 'median')} measured again: {said}.")
    loud = [one for one in moved if one.headline and one.answer != NOISE]
    parts.append(_compared(loud))
    parts += _hosts([model for model in head.models if any(one.elsewhere is not None for one in found[model])], head, base)
    parts.append(_shown([one for one in away if one.headline]))
    quiet = [one for one in moved if one not in loud]
    more = (
        folded(f"... and {plural(len(quiet), 'more median')}, of other settings or within noise", _compared(quiet, MORE))
        if quiet
        else ""
    )
    return Section("\n\n".join(part for part in parts if part), more)


def _compared(found: Sequence[Timed], most: int = SHOWN) -> str:
    order = {SLOWER: 0, None: 1, FASTER: 2, NOISE: 3, EQUAL: 4}
    found = sorted(found, key=lambda one: order[one.answer])
    rows = []
    for one in found[:most]:
        change = f"{one.now[0] / one.before[0] - 1:+.0%}" if one.before[0] else "-"
        answer = f"**{SLOWER}**" if one.answer == SLOWER else one.answer or "no interval"
        speed = f"{_times(one.speedup_before)} to {_times(one.speedup)}"
        rows.append((code(one.model), code(f"{one.variant} {one.setting}"), _ms(one.before), _ms(one.now), change, answer, speed))
    columns = ("model", "variant and setting", "base ms", "head ms [95 % interval]", "change", "beyond noise?", "of FP32's speed")
    return _with_rest(columns, rows, len(found), ("change", "of FP32's speed"))


def _shown(found: Sequence[Timed]) -> str:
    far = any(one.elsewhere is not None for one in found)
    columns = ("model", "variant and setting", "head ms [95 % interval]", "of FP32's speed", *(("base ms",) if far else ()))
    rows = []
    for one in found[:SHOWN]:
        speed = _times(one.speedup)
        there = (f"{one.elsewhere:.2f}, measured elsewhere" if one.elsewhere is not None else "-",) if far else ()
        rows.append((code(one.model), code(f"{one.variant} {one.setting}"), _ms(one.now), speed, *there))
    return _with_rest(columns, rows, len(found), ("of FP32's speed",))


def _with_rest(columns: Sequence[str], rows: Sequence[Sequence[str]], count: int, right: Sequence[str]) -> str:
    if not rows:
        return ""
    return table(columns, rows, right) + (f"\n\n... and {count - len(rows):,} more" if count > len(rows) else "")


def _hosts(models: Sequence[str], head: Side, base: Side | None) -> list[str]:
    """A sentence for each pair of hosts."""
    pairs: dict[tuple[str, str], list[str]] = {}
    for model in models if base is not None else ():
        pairs.setdefault((_host(base.latency.get(model, {})), _host(head.latency.get(model, {}))), []).append(model)
    return [
        f"{', '.join(map(code, several))}: the base's figures were measured elsewhere, on {before}; the head's on {now}. "
        "The two do not compare."
        for (before, now), several in pairs.items()
    ]


def _host(record: Record) -> str:
    name = record.get("host.id")
    return (
        f"host {code(name)} ({code(record.get('host.cpu', 'CPU unknown'))})" if name is not None else "a host that is not on file"
    )


def _ledger(model: str, record: Record, base: Side | None) -> Record:
    name = record.get("host.id")
    found = base.record(LEDGER / str(name) / f"{model}.json") if base is not None and name is not None else None
    # The folder names the host, too.
    return found if found is not None and found.get("host.id", name) == name else {}


def _headline(record: Record) -> str | None:
    try:
        return headline_setting(record)
    except (ValueError, TypeError):
        return next((key.removesuffix(MEDIAN).partition(".")[2] for key in record if key.endswith(MEDIAN)), None)


def _median(record: Record, key: str) -> tuple[float, float | None, float | None] | None:
    stem = key.removesuffix("_ms")
    median, low, high = (_number(record.get(name)) for name in (key, f"{stem}_low_ms", f"{stem}_high_ms"))
    return (median, low, high) if median is not None else None


def _number(found: object) -> float | None:
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def _times(speedup: float | None) -> str:
    return f"{speedup:.2f}x" if speedup is not None else "-"


def _ms(figure: tuple[float, float | None, float | None]) -> str:
    median, low, high = figure
    return f"{median:.2f}" + (f" [{low:.2f}, {high:.2f}]" if low is not None and high is not None else "")
