"""What validation and benchmark found out about one variant, from metrics/<model>/ into its manifest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["accuracy_of", "gates_of", "latency_of"]

# `<provider>.t<threads>.b<batch>`, behind it a further input size, then the figure.
_TIMED = re.compile(r"(?P<provider>\w+)\.t(?P<threads>\d+)\.b(?P<batch>\d+)(?:\.(?P<size>\d+x\d+|\d+))?\.(?P<figure>\w+)")
_GATE = "gate."


def accuracy_of(record: Mapping[str, Any], variant: str) -> dict[str, Any]:
    """A variant's figures of metrics/<model>/accuracy.json.

    Args:
        record: the whole record (docs/metrics.md).
        variant: one of `octavo.layout.VARIANTS`.

    Returns:
        Its figures by their names there, and `images`, `labelled`, `metric` and `warning` where there is one; `fp32`: FP32's own.
    """
    about = {key: record[key] for key in ("images", "labelled", "metric", "warning") if key in record}
    mine = {key: value for key, value in _own(record, variant).items() if not key.startswith(_GATE)}
    return about | mine | ({"fp32": _own(record, "fp32")} if variant != "fp32" else {})


def gates_of(record: Mapping[str, Any], variant: str) -> dict[str, str]:
    """A variant's verdicts by the gate's name: `pass`, `fail`, `inconclusive` or `no-labels`."""
    return {key.removeprefix(_GATE): value for key, value in _own(record, variant).items() if key.startswith(_GATE)}


def latency_of(record: Mapping[str, Any], variant: str) -> dict[str, Any]:
    """A variant's figures of metrics/<model>/latency.json.

    Returns:
        `host`: the fingerprint of the machine that measured; `figures`: one record a provider, number of threads, batch and
        input size (null: the model's own) with the figures of docs/metrics.md; and what does not depend on them.
    """
    host = {key.removeprefix("host."): value for key, value in record.items() if key.startswith("host.")}
    figures: dict[tuple, dict[str, Any]] = {}
    others = {}
    for key, value in _own(record, variant).items():
        timed = _TIMED.fullmatch(key)
        if timed is None:
            others[key] = value
            continue
        place = timed["provider"], int(timed["threads"]), int(timed["batch"]), timed["size"]
        figures.setdefault(place, dict(zip(("provider", "threads", "batch", "size"), place, strict=True)))[timed["figure"]] = value
    return {"host": host, "figures": list(figures.values())} | others


def _own(record: Mapping[str, Any], variant: str) -> dict[str, Any]:
    return {key.removeprefix(f"{variant}."): value for key, value in record.items() if key.startswith(f"{variant}.")}
