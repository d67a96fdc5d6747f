"""The Markdown table of `peers.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["markdown"]

# What stands in the metric column, in this order, of whatever the network's scorer has.
METRICS = {
    "ap": "AP {:.3f}",
    "top1": "Top-1 {:.3f}",
    "iou": "IoU {:.3f}",
    "cosine_mean": "cos {:.4f}",
    "cosine_min": "min {:.4f}",
    "auc": "AUC {:.3f}",
    "photos": "photos {:.2f}",
    "agreement": "agr {:.3f}",
}


def markdown(record: Mapping[str, Any]) -> str:
    """The record of `peers.py` as a table with its host and versions."""
    rows = [(name, tool, row) for name, tools in record["networks"].items() for tool, row in tools.items()]
    default = any("speed_default" in row for _, _, row in rows)
    openvino = any("openvino" in row for _, _, row in rows)
    heads = ["network", "tool", "metric", "kept", "SQNR dB (by channel)", "speed"]
    heads += ["speed, default kernels"] * default
    heads += ["in OpenVINO: kept, ms, speed"] * openvino
    heads += ["size", "calibration + quantization s", "peak MiB"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for name, tool, row in rows:
        if "failed" in row:
            cells = [name, tool, f"failed: {row['failed']}".replace("|", "/"), *["-"] * (len(heads) - 3)]
        else:
            cells = [name, tool, _metric(row), f"{row['kept']:.3f}", f"{row['sqnr_db']:.1f} ({row['sqnr_db_channels']:.1f})"]
            cells += [_number(row, "speed", "{:.2f}x")]
            cells += [_number(row, "speed_default", "{:.2f}x")] * default
            cells += [_openvino(row)] * openvino
            cells += [f"{row['size']:.0%}", _cost(row, "seconds"), _cost(row, "peak_mib")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n\n" + _footnote(record, rows, default, openvino) + "\n"


def _metric(row: Mapping[str, Any]) -> str:
    return ", ".join(text.format(row[key]) for key, text in METRICS.items() if key in row)


def _number(row: Mapping[str, Any], key: str, text: str) -> str:
    return text.format(row[key]) if key in row else "-"


def _openvino(row: Mapping[str, Any]) -> str:
    if "openvino" not in row:
        return "-"
    there = row["openvino"]
    return f"{there['kept']:.3f}, {_number(there, 'ms', '{:.1f}')}, {_number(there, 'speed', '{:.2f}x')}"


def _cost(row: Mapping[str, Any], key: str) -> str:
    """One number where a tool calibrates and quantizes in one step, two where it has two."""
    steps = [row.get("cost", {}).get(step) for step in ("calibrate", "quantize")]
    text = "{:.1f}" if key == "seconds" else "{:.0f}"
    return " + ".join(text.format(step[key]) for step in steps if step) or "-"


def _views(record: Mapping[str, Any]) -> str:
    """What the command line changed of what is measured, and of Octavo's settings."""
    text = f"Each photo in {record['views']} views. " if record.get("views", 1) > 1 else ""
    return text + (f"Octavo with `int8: {record['int8']}`. " if record.get("int8") else "")


def _footnote(record: Mapping[str, Any], rows: list[tuple[str, str, Mapping[str, Any]]], default: bool, openvino: bool) -> str:
    host = record["host"]
    versions = dict(record["versions"])
    for _, _, row in rows:
        versions |= {name: value for name, value in row.get("cost", {}).get("versions", {}).items() if name not in versions}
    text = (
        f"Host {host['id']}: {host['cpu']}, {host['cores']} cores, VNNI: {'yes' if host['vnni'] else 'no'}; 2 threads, batch 1. "
        f"{record['samples']} calibration images at most. Speed: FP32's latency over the variant's (median over rounds). "
    )
    text += _views(record)
    if default:
        text += (
            "This CPU lacks VNNI: `speed` is that of exact kernels (`session.x64quantprecision`), with which the other figures "
            "were made; `default kernels` saturate here and are nearest in time to a CPU with VNNI. "
        )
    if openvino and not host["vnni"]:
        text += (
            "On a CPU without VNNI OpenVINO's INT8 kernels saturate: what others than `ours-openvino` (made for `openvino-no-vnni` "
            "here) keep in it does not carry over to one with VNNI. "
        )
    return text + "Versions: " + ", ".join(f"{name} {value}" for name, value in sorted(versions.items())) + "."
