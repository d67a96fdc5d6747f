"""DVC's plots that a reviewer wants, as small PNGs, where they changed: accuracy against latency, and ROC curves.

Where a model was measured at several input sizes the first is of all of them.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.layout import VARIANTS, metrics_dir
from octavo.review.assets import Assets
from octavo.review.latency import same_host
from octavo.review.markdown import Section, code
from octavo.review.project import WORKSPACE
from octavo.review.records import Side

__all__ = ["section"]

# Pictures at most; pixels of a plot's sides.
MOST, WIDTH, HEIGHT = 3, 340, 220
TRADEOFF, RESOLUTIONS, ROC = "tradeoff.csv", "resolutions.csv", "roc.csv"
# Of resolutions.csv: the model's own input size, which tradeoff.csv has, too.
OWN = "own"
SECONDS = 120
# A header without rows: stages write it where a plot does not apply.
ROWS = 2


def section(head: Side, base: Side | None, models: Sequence[str], assets: Assets | None) -> Section:
    """Draw the plots that changed; sentences where they cannot be.

    A trade-off has both sides in it only where one host timed both: points of two hosts beside each other would say what is not so.

    Args:
        models: the most interesting first.
        base: None where nothing is compared: the head's alone are drawn.
        assets: where pictures go; None draws none.
    """
    chosen = _chosen(head, base, models)
    title = "### Plots"
    if not chosen:
        return Section(f"{title}\n\nNo plot of accuracy against latency, and no ROC curve, changed.")
    names = ", ".join(code(path) for path in chosen)
    if assets is None:
        return Section(f"{title}\n\nChanged: {names} (`--assets FOLDER` draws them; `dvc plots diff` shows all).")
    try:
        import vl_convert
    except ImportError:
        return Section(
            f"{title}\n\nChanged: {names}. Drawing them takes `pip install octavo[review]`; `dvc plots diff` shows them."
        )
    parts = [title]
    specs = _specs(list(chosen), base.commit if base is not None and any(chosen.values()) else None, head.commit)
    for path, with_base in chosen.items():
        if path not in specs:
            parts.append(f"DVC makes no plot of {code(path)} (`dvc plots diff` says why).")
            continue
        spec = _small(specs[path], {head.commit or WORKSPACE: "head"} | ({base.commit: "base"} if base and with_base else {}))
        try:
            png = vl_convert.vegalite_to_png(json.dumps(spec), scale=1.5)
        except (ValueError, RuntimeError) as error:
            parts.append(f"{code(path)} cannot be drawn: {code(error)}.")
            continue
        model, kind = Path(path).parent.name, Path(path).stem
        parts.append(assets.show(f"{model}-{kind}.png", png, f"{model}: {kind}"))
        if with_base and path.endswith(RESOLUTIONS):
            parts.append("Filled: the head; rings: the base.")
    alone = [path for path, with_base in chosen.items() if not with_base]
    left = [path for path in alone if not path.endswith(ROC)] if base is not None else []
    if left:
        parts.append(
            f"Of {', '.join(map(code, left))} the head's points only: the base's latencies were measured elsewhere, or not at all."
        )
    return Section("\n\n".join(parts))


def _chosen(head: Side, base: Side | None, models: Sequence[str]) -> dict[str, bool]:
    """Paths, with whether the base belongs into the picture."""
    found: dict[str, bool] = {}
    for kind in (TRADEOFF, ROC):
        for model in models:
            path = metrics_dir(model) / (RESOLUTIONS if kind == TRADEOFF and _has_sizes(head, model) else kind)
            now, before = head.text(path), base.text(path) if base is not None else None
            if now is None or now == before or len(now.splitlines()) < ROWS:
                continue
            comparable = kind == ROC or same_host(
                head.latency.get(model, {}), base.latency.get(model, {}) if base is not None else {}
            )
            with_base = before is not None and len(before.splitlines()) >= ROWS and comparable
            found[path.as_posix()] = with_base
    trades = [path for path in found if not path.endswith(ROC)]
    curves = [path for path in found if path.endswith(ROC)]
    room = MOST - min(1, len(curves))
    return {path: found[path] for path in (*trades[:room], *curves[: MOST - len(trades[:room])])}


def _has_sizes(side: Side, model: str) -> bool:
    """Whether further input sizes were measured: their plot has all points of the one of the model's own."""
    rows = csv.DictReader((side.text(metrics_dir(model) / RESOLUTIONS) or "").splitlines())
    return any(row.get("resolution", OWN) != OWN for row in rows)


def _specs(paths: Sequence[str], base: str | None, head: str | None) -> dict[str, dict[str, Any]]:
    """Vega-Lite's specification of each plot, with the data of both sides, as `dvc plots diff --json` gives it."""
    shown = head or WORKSPACE
    with tempfile.TemporaryDirectory() as out:
        # Of one revision alone DVC makes a comparison with the working tree.
        command = [sys.executable, "-m", "dvc", "plots", "diff", base or shown, shown, "--targets", *paths, "--json", "--out", out]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
            found = json.loads(done.stdout).get("data", {})
        except (subprocess.TimeoutExpired, json.JSONDecodeError, AttributeError):
            return {}
    specs = {}
    for path, plots in found.items():
        for plot in plots:
            if plot.get("type") == "vega":
                content = plot["content"]
                specs[Path(path).as_posix()] = json.loads(content) if isinstance(content, str) else content
    return specs


def _small(spec: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The same for a still picture: its size, `base` and `head` in place of commits, and of points each in its variant's colour.

    Args:
        names: of the revisions as DVC has them; rows of others are left out.
    """
    spec = json.loads(json.dumps(spec))
    spec |= {"width": WIDTH, "height": HEIGHT, "background": "white"}
    # What only a browser can use.
    spec.pop("params", None)
    values = spec.get("data", {}).get("values", [])
    spec["data"] = {"values": [row | {"rev": names[row["rev"]]} for row in values if row.get("rev") in names]}
    encoding, mark = spec.get("encoding", {}), spec.get("mark", {})
    if (mark.get("type") if isinstance(mark, dict) else mark) == "point":
        for axis in ("x", "y"):
            # From zero, the differences that the plot is about would lie in one spot.
            encoding.get(axis, {})["scale"] = {"zero": False, "padding": 16}
        spec["mark"] = {"type": "point", "size": 80, "strokeWidth": 2}
        encoding["color"] = {"field": "variant", "type": "nominal", "sort": list(VARIANTS), "scale": {"scheme": "category10"}}
        values = [row for row in spec["data"]["values"] if "" not in (row.get(encoding[axis]["field"]) for axis in ("x", "y"))]
        spec["data"] = {"values": values}
        # The head's points are filled, the base's are rings around nothing; a shape is a size where there are several.
        if any(row.get("resolution", OWN) != OWN for row in values):
            encoding.pop("strokeDash", None)
        else:
            encoding["shape"] = {
                "field": "rev",
                "type": "nominal",
                "scale": {"domain": ["head", "base"], "range": ["circle", "square"]},
            }
        encoding["fillOpacity"] = {"condition": {"test": "datum.rev == 'head'", "value": 0.8}, "value": 0}
        encoding["fill"] = encoding["color"] | {"legend": None}
    return spec
