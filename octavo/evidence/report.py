"""The one table: size, accuracy, kept, fidelity and speed of every variant, joined from accuracy.json and latency.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.evidence.remarks import caption, held_out, missing, shortfalls, stood_in
from octavo.evidence.series import headline_setting, resolutions
from octavo.layout import VARIANTS

__all__ = ["headings", "markdown", "part_tables", "provider_table", "rows"]

# Heading, key of accuracy.json and form of the figures that depend on the task; a table has those that the record has.
METRICS = (("Top-1", "top1", "{:.3f}"), ("Top-5", "top5", "{:.3f}"), ("AP", "ap", "{:.3f}"), ("AP50", "ap50", "{:.3f}"))
METRICS += (("AP small", "ap_small", "{:.3f}"), ("mIoU", "miou", "{:.3f}"), ("pixel accuracy", "pixel_accuracy", "{:.3f}"))
METRICS += (("AUC", "auc", "{:.4f}"), ("EER", "eer", "{:.3f}"), ("TAR@FAR=.01", "tar_1e-2", "{:.3f}"))
METRICS += (("accuracy", "accuracy", "{:.3f}"), ("rank-1", "rank1", "{:.3f}"))
FIDELITY = (("agreement", "agreement", "{:.3f}"), ("F1 to FP32", "match_f1", "{:.3f}"), ("mask IoU", "mask_iou", "{:.3f}"))
FIDELITY += (("AUC drop", "auc_drop", "{:.4f}"), ("neighbours", "neighbours", "{:.3f}"), ("cosine P1", "cosine_p1", "{:.4f}"))
FIDELITY += (("SQNR dB", "sqnr_db", "{:.1f}"), ("cosine", "cosine_mean", "{:.4f}"))
PROVIDER_FIDELITY = (("sqnr_db", "{:.1f}"), ("cosine_min", "{:.5f}"))


def headings(accuracy: Mapping[str, Any]) -> tuple[str, ...]:
    """The table's columns: what every task has, and between them the task's own figures."""
    own, fidelity = ([heading for heading, _, _ in _present(columns, accuracy)] for columns in (METRICS, FIDELITY))
    return ("variant", "size MB", "of FP32", *own, "kept [95 % interval]", *fidelity, "ms", "speed", "gates")


def rows(accuracy: Mapping[str, Any], latency: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """One row of text a variant, in the order of `headings`; '-' where a figure does not exist."""
    setting = headline_setting(latency)
    found = []
    for variant in (variant for variant in VARIANTS if f"{variant}.size_mb" in latency):

        def figure(key: str, form: str, record: Mapping[str, Any] = accuracy, variant: str = variant) -> str:
            return _figure(record, f"{variant}.{key}", form)

        gates = sorted({str(value) for key, value in accuracy.items() if key.startswith(f"{variant}.gate.")} - {"pass"})
        judged = any(key.startswith(f"{variant}.gate.") for key in accuracy)
        found.append(
            (
                variant,
                figure("size_mb", "{:.2f}", latency),
                figure("size_ratio", "{:.0%}", latency),
                *(figure(key, form) for _, key, form in _present(METRICS, accuracy)),
                _kept(accuracy, variant),
                *(figure(key, form) for _, key, form in _present(FIDELITY, accuracy)),
                figure(f"{setting}.median_ms", "{:.2f}", latency),
                figure(f"{setting}.speedup", "{:.2f}x", latency),
                ", ".join(gates) or ("pass" if judged else "-"),
            )
        )
    return found


def part_tables(accuracy: Mapping[str, Any]) -> list[list[tuple[str, ...]]]:
    """A table of the heads of a segmentation network and one of the held-out datasets, where there are such.

    Returns:
        Of each table the headings, then a row of text a variant and part; '-' where a figure does not exist.
    """
    tables = []
    heads = accuracy["heads"].split(", ") if "heads" in accuracy else []
    # SQNR is of outputs; one may be named as a head.
    of_maps = [column for column in FIDELITY if column[1] in ("agreement", "mask_iou")]
    for what, parts, fidelity in (("head", heads, of_maps), ("held out", held_out(accuracy), FIDELITY)):
        columns = [column for column in (*METRICS, *fidelity) if any(_present([column], accuracy, f".{part}") for part in parts)]
        kept = any(_present([("", "retained", "")], accuracy, f".{part}") for part in parts)
        found = [("variant", what, *(["kept [95 % interval]"] if kept else []), *(heading for heading, _, _ in columns))]
        for variant in (variant for variant in VARIANTS if any(key.startswith(f"{variant}.") for key in accuracy)):
            for part in parts:
                figures = [_figure(accuracy, f"{variant}.{name}.{part}", form) for _, name, form in columns]
                found.append((variant, part, *([_kept(accuracy, variant, f".{part}")] if kept else []), *figures))
        if parts:
            tables.append(found)
    return tables


def provider_table(latency: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """What other providers than the table's take, and what their arithmetic costs: headings, then a row a variant and setting.

    Empty where nothing was measured on another one.
    """
    shown = (headline_setting(latency) or "").split(".")[0]
    found = []
    for key in latency:
        variant, *setting, figure = key.split(".")
        if figure != "median_ms" or setting[0] == shown:
            continue
        timed = f"{variant}.{'.'.join(setting)}"
        kept = (_figure(latency, f"{variant}.{setting[0]}.{name}", form) for name, form in PROVIDER_FIDELITY)
        found.append((variant, ".".join(setting), f"{latency[key]:.2f}", f"{latency[f'{timed}.speedup']:.2f}x", *kept))
    found.sort(key=lambda row: (row[1], VARIANTS.index(row[0])))
    return [("variant", "provider", "ms", "speed", "SQNR dB to FP32 on the CPU", "least cosine"), *found] if found else []


def _present(columns: Sequence[tuple[str, str, str]], record: Mapping[str, Any], part: str = "") -> list[tuple[str, str, str]]:
    there = {key.split(".", 1)[1] for key in record if "." in key}
    return [column for column in columns if column[1] + part in there]


def _figure(record: Mapping[str, Any], key: str, form: str) -> str:
    value = record.get(key)
    return "-" if value is None else form.format(value)


def _kept(record: Mapping[str, Any], variant: str, part: str = "") -> str:
    kept, low, high = (_figure(record, f"{variant}.{key}{part}", "{:.3f}") for key in ("retained", "retained_low", "retained_high"))
    return kept if kept == "-" else f"{kept} [{low}, {high}]"


def markdown(name: str, accuracy: Mapping[str, Any], latency: Mapping[str, Any]) -> str:
    """The table as Markdown, with its caption and what falls short of FP32 in size or speed."""
    columns = headings(accuracy)
    lines = [f"## {name}", "", _line(columns), _line(["---"] * len(columns))]
    lines += [_line(row) for row in rows(accuracy, latency)]
    for columns, *parts in [*part_tables(accuracy), *filter(None, [provider_table(latency)])]:
        lines += ["", _line(columns), _line(["---"] * len(columns)), *(_line(row) for row in parts)]
    sized = resolutions(accuracy, latency)
    if len(sized) > len(rows(accuracy, latency)):
        lines += ["", _line(list(sized[0])), _line(["---"] * len(sized[0]))]
        lines += [_line([str(value) if value != "" else "-" for value in row.values()]) for row in sized]
    notes = [
        f"- {note}"
        for note in [
            *([accuracy["warning"]] if "warning" in accuracy else []),
            *stood_in(accuracy),
            *missing(accuracy),
            *shortfalls(latency),
        ]
    ]
    return "\n".join([*lines, "", caption(accuracy, latency), *([""] if notes else []), *notes, ""])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
