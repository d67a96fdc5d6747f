"""The comment: verdict, gates, figures, parameters, latency, plots, the worst picture; in the order in which a reviewer asks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from octavo.review import figures, latency, pictures, plots, settings
from octavo.review.assets import Assets
from octavo.review.gates import Gate, gates, summary
from octavo.review.gates import section as gates_section
from octavo.review.history import History, history
from octavo.review.markdown import MARKER, Section, code, compose, plural
from octavo.review.project import Changes, changes, opened, seen
from octavo.review.records import Side, read_side

__all__ = ["comment"]

# Stages that are named.
STAGES = 6


def comment(base: str, head: str | None = None, assets: Assets | None = None) -> str:
    """Compare the project in the working directory with the merge base of `base` and `head`.

    Args:
        base: what the pull request is to be merged into: `origin/main`.
        head: a revision; None is the working tree.
        assets: where pictures go; None names them without copying.

    Returns:
        Markdown, of fewer characters than GitHub takes; its first line is `markdown.MARKER`.

    Raises:
        ParamsError: `head` is no commit.
        OutputError: a picture cannot be written.
    """
    told = history(base, head)
    now = read_side("the head", told.commit if head is not None else None)
    before = read_side("the base", told.base) if told.base is not None else None
    found = gates(now, before)
    need = pictures.by_need(now, found)
    notes: list[str] = []
    metrics: Changes = {}
    params: Changes = {}
    compared = False
    # DVC draws in a process of its own, meanwhile.
    with ThreadPoolExecutor(1) as pool:
        plotted = pool.submit(plots.section, now, before, need, assets) if not told.unchanged else None
        with opened(notes) as repo:
            picture = pictures.section(now, need, repo, assets)
            if repo is not None and not told.unchanged:
                new = seen(repo, now, notes)
                notes += _outdated(new.outdated)
            if repo is not None and not told.unchanged and before is not None:
                old = seen(repo, before, notes)
                metrics, params = changes(old.metrics, new.metrics), changes(old.params, new.params)
                compared = True
    parts = [gates_section(found, now)]
    if compared:
        parts += _differences(now, before, metrics, params)
    parts.append(latency.section(now, before))
    if plotted is not None:
        parts.append(plotted.result())
    parts.append(picture)
    # Broken files are found while sections are made: their sentences are complete only now.
    sentences = [*told.notes, *notes, *now.notes, *(before.notes if before is not None else ())]
    top = Section(
        "\n\n".join(
            [
                MARKER,
                f"## Octavo: {summary(found, sum(model not in now.accuracy for model in now.models))}",
                *_changed(found, metrics, params, told),
                *dict.fromkeys(sentences),
            ]
        )
    )
    foot = [Section(f"---\n{told.compared[:1].upper()}{told.compared[1:]}; `octavo review --base REVISION` makes this comment.")]
    return compose([top, *parts, *(foot if told.compared else [])])


def _differences(now: Side, before: Side, metrics: Changes, params: Changes) -> list[Section]:
    # A model is new where it has figures now and had none, whether or not params.yaml had it, or is new in params.yaml.
    new = [model for model in now.models if model not in before.accuracy]
    new = [model for model in new if model in now.accuracy or model not in before.models]
    removed = [model for model in before.models if model not in now.models]
    both = [model for model in now.models if model not in new]
    moved = figures.moved_figures(metrics, now, both)
    fresh = [model for model in now.models if model not in before.models]
    return [
        figures.section(moved, new, removed, now, before.commit or ""),
        settings.section(params, fresh, removed, before.commit or ""),
    ]


def _changed(found: list[Gate], metrics: Changes, params: Changes, told: History) -> list[str]:
    lost = sum(one.lost for one in found)
    moved = sum(one.moved for one in found)
    words = [f"**{plural(lost, 'gate')} that passed at the base {'does' if lost == 1 else 'do'} not pass now.**"] if lost else []
    words += (
        [f"**{plural(moved, 'gate')} {'is' if moved == 1 else 'are'} judged by another bound than at the base.**"] if moved else []
    )
    if told.base is not None and not told.unchanged:
        words.append(f"{plural(settings.count(params), 'parameter')} and {plural(_records(metrics), 'record')} of metrics changed.")
    return [" ".join(words)] if words else []


def _outdated(stages: list[str]) -> list[str]:
    if not stages:
        return []
    names = ", ".join(map(code, stages[:STAGES])) + (f" and {len(stages) - STAGES} more" if len(stages) > STAGES else "")
    return [f"**Not run since their parameters changed: {names}.** The figures are those of the earlier parameters: `dvc repro`."]


def _records(metrics: Changes) -> int:
    return sum(bool(keys) for keys in metrics.values())
