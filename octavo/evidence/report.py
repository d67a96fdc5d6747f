"""The one table: size, accuracy, kept, fidelity and speed of every variant, joined from accuracy.json and latency.json."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.layout import INT8_VARIANTS, VARIANTS

__all__ = [
    "caption",
    "headings",
    "markdown",
    "missing",
    "part_tables",
    "remarks",
    "resolutions",
    "rows",
    "shortfalls",
    "stood_in",
    "tradeoff",
]

# An input size beside the model's own, as keys have it.
SIZE = re.compile(r"\d+x\d+")
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


def headline_setting(latency: Mapping[str, Any]) -> str | None:
    """The setting that the table shows: of the smallest batch, the one at which FP32 is fastest, which is what a user would run.

    On the CPU where it was measured there: INT8 files are laid out for it, and other providers have a table of their own.
    """
    settings = [
        key.removeprefix("fp32.").removesuffix(".median_ms")
        for key in latency
        # Of the model's own input size: provider, threads, batch.
        if key.startswith("fp32.") and key.endswith(".median_ms") and key.count(".") == 4
    ]

    def order(setting: str) -> tuple[bool, int, float]:
        provider, _, batch = setting.split(".")
        return provider != "cpu", int(batch[1:]), latency[f"fp32.{setting}.median_ms"]

    return min(settings, key=order, default=None)


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
    for what, parts, fidelity in (("head", heads, of_maps), ("held out", _held_out(accuracy), FIDELITY)):
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


def _held_out(accuracy: Mapping[str, Any]) -> list[str]:
    return [key.removeprefix("images.") for key in accuracy if key.startswith("images.")]


def _figure(record: Mapping[str, Any], key: str, form: str) -> str:
    value = record.get(key)
    return "-" if value is None else form.format(value)


def _kept(record: Mapping[str, Any], variant: str, part: str = "") -> str:
    kept, low, high = (_figure(record, f"{variant}.{key}{part}", "{:.3f}") for key in ("retained", "retained_low", "retained_high"))
    return kept if kept == "-" else f"{kept} [{low}, {high}]"


def caption(accuracy: Mapping[str, Any], latency: Mapping[str, Any]) -> str:
    """On what the figures were measured: images, host, execution provider and threads; and how much of each file is INT8."""
    setting = (headline_setting(latency) or "").split(".")
    place = {"t": "threads", "b": "batch"}
    words = [setting[0]] + [
        f"{place[part[0]]} {part[1:]}" if part[:1] in place and part[1:].isdigit() else part for part in setting[1:]
    ]
    read = f", outputs read as {accuracy['decoder']}" if "decoder" in accuracy else ""
    if "genuine_pairs" in accuracy:
        read += f", {accuracy['genuine_pairs']:,} genuine and {accuracy['impostor_pairs']:,} impostor pairs"
        read += f" of {accuracy['identities']:,} identities"
    host = f"{latency['host.cpu']}, {latency['host.cores']} cores, VNNI: {'yes' if latency['host.vnni'] else 'no'}"
    held = [f"{part} ({accuracy[f'images.{part}']} images)" for part in _held_out(accuracy)]
    apart = f"; held out, never calibrated on: {', '.join(held)}" if held else ""
    shares = {variant: accuracy[f"{variant}.int8_share"] for variant in INT8_VARIANTS if f"{variant}.int8_share" in accuracy}
    integers = ", ".join(f"{variant} {share:.0%}" for variant, share in shares.items())
    return (
        f"{accuracy['images']} images, {accuracy['labelled']} labelled{apart}{read}; speed on host {latency['host.id']} ({host}), "
        f"{', '.join(words)}, session {latency['host.session']}" + (f"; multiplications in INT8: {integers}" if integers else "")
    )


def remarks(record: Mapping[str, Any]) -> list[str]:
    """What a reader of accuracy.json must know, and which gates did not pass, a line each."""
    words = {
        "decoder": "outputs read as",
        "flip": "vectors:",
        "holdout": "held out, with figures of their own:",
        "pairs": "note: compared are",
        "warning": "note:",
    }
    found = [f"{words[key]} {record[key]}" for key in words if key in record]
    return found + [f"gate {key}: {value}" for key, value in record.items() if ".gate." in key and value != "pass"]


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


def stood_in(record: Mapping[str, Any]) -> list[str]:
    """What figures are about where that is not the whole graph as its file has it, one line each.

    Args:
        record: as stage `validate` writes it.
    """
    mark = "custom_ops."
    ran = {key.removeprefix(mark): value for key, value in record.items() if key.startswith(mark)}
    found = [f"custom operator {operator}: {how}" for operator, how in ran.items()]
    if any(how.startswith("cut") for how in ran.values()):
        found.append("every figure and time here is of the part before the cut")
    return [*found, *([f"fidelity is that of {record['compared']}"] if "compared" in record else [])]


def missing(record: Mapping[str, Any]) -> list[str]:
    """Variants that params.yaml asks for and that were not made, one line each.

    Args:
        record: as stage `validate` writes it.
    """
    return [f"{key.removesuffix('.skipped')} is skipped: {value}" for key, value in record.items() if key.endswith(".skipped")]


def shortfalls(record: Mapping[str, Any]) -> list[str]:
    """What a reader of latency.json must not overlook: INT8 variants that are larger or slower than FP32.

    Args:
        record: as stage `benchmark` writes it.

    Returns:
        One line each; a slower one whose interval of the median meets FP32's is said to be within noise.
    """
    found = []
    for variant in INT8_VARIANTS:
        if record.get(f"{variant}.size_ratio", 0) > 1:
            found.append(f"{variant} is larger than FP32: {record[f'{variant}.size_ratio']:.0%} of its bytes")
        for key in sorted(key for key in record if key.startswith(f"{variant}.") and key.endswith(".speedup")):
            if record[key] < 1:
                setting = key.removeprefix(f"{variant}.").removesuffix(".speedup")
                apart = record[f"{variant}.{setting}.median_low_ms"] > record[f"fp32.{setting}.median_high_ms"]
                found.append(
                    f"{variant} is slower than FP32 at {setting}: {record[key]:.2f}x" + ("" if apart else ", which is within noise")
                )
    return found


def tradeoff(accuracy: Mapping[str, Any], latency: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows for the plot of accuracy against latency; accuracy is the task's metric, else closeness to FP32."""
    setting = headline_setting(latency)
    found = []
    for variant in (variant for variant in VARIANTS if f"{variant}.{setting}.median_ms" in latency):
        alike = 1.0 if variant == "fp32" else _alike(accuracy, f"{variant}.")
        found.append(
            {
                "variant": variant,
                "latency_ms": latency[f"{variant}.{setting}.median_ms"],
                "size_mb": latency[f"{variant}.size_mb"],
                "accuracy": accuracy.get(f"{variant}.{accuracy.get('metric')}", alike),
                "cosine": 1.0 if variant == "fp32" else accuracy.get(f"{variant}.cosine_mean", ""),
            }
        )
    return found


def resolutions(accuracy: Mapping[str, Any], latency: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Accuracy and latency of every variant at every input size, for the plot and the table; one size where no other is asked for.

    Returns:
        Rows `variant`, `resolution` (height x width; `own` for the model's), `accuracy` (the task's metric, else closeness to
        FP32), `ap_small` of detectors whose images have small objects, `retained`, `latency_ms`, `speedup`; "" where a figure does
        not exist.
    """
    setting = headline_setting(latency)
    found = []
    for size in ["", *_further(accuracy, latency)]:
        measured = any(_alike(accuracy, f"{variant}.{size}{'.' if size else ''}") != "" for variant in VARIANTS)
        for variant in (variant for variant in VARIANTS if f"{variant}.size_mb" in latency):
            prefix = f"{variant}.{size}." if size else f"{variant}."
            timed = f"{variant}.{setting}{'.' if size else ''}{size}"
            alike = 1.0 if variant == "fp32" and measured else _alike(accuracy, prefix)
            found.append(
                {
                    "variant": variant,
                    "resolution": size or "own",
                    "accuracy": accuracy.get(f"{prefix}{accuracy.get('metric')}", alike),
                    **({"ap_small": accuracy.get(f"{prefix}ap_small", "")} if "fp32.ap_small" in accuracy else {}),
                    "retained": accuracy.get(f"{prefix}retained", ""),
                    "latency_ms": latency.get(f"{timed}.median_ms", ""),
                    "speedup": latency.get(f"{timed}.speedup", ""),
                }
            )
    return found


def _alike(accuracy: Mapping[str, Any], prefix: str) -> float | str:
    """The cosine of the outputs to FP32's, of class maps of whole numbers the share of equal pixels; "" where neither is there."""
    return accuracy.get(f"{prefix}cosine_mean", accuracy.get(f"{prefix}agreement", ""))


def _further(accuracy: Mapping[str, Any], latency: Mapping[str, Any]) -> list[str]:
    """Input sizes beside the model's own, the smallest first, of any variant: FP32 has no accuracy where there are no labels."""
    # <variant>.<size>.<key>, and <variant>.<provider>.<threads>.<batch>.<size>.<key>: elsewhere a class may be called like a size.
    named = [key.split(".")[1:2] for key in accuracy] + [key.split(".")[4:5] for key in latency]
    found = {size for part in named for size in part if SIZE.fullmatch(size)}
    # By name 1024x1024 goes before 320x320.
    sides = {size: tuple(map(int, size.split("x"))) for size in found}
    return sorted(found, key=lambda size: (sides[size][0] * sides[size][1], sides[size]))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
