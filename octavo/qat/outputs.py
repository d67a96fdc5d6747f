"""What stage `qat` writes beside the model; nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from octavo.files import read_json, replace_dir, write_csv, write_json
from octavo.layout import MANIFEST, SKIPPED, metrics_dir, variant_dir
from octavo.progress import say

__all__ = ["made_of", "skip", "write_curves"]

CURVES = {"steps": ["step", "loss", "learning_rate"], "epochs": ["step", "metric", "loss"]}


def made_of(folder: Path) -> dict[str, str] | None:
    """The key of the run that made the variant in a folder; None where there is none."""
    return read_json(folder / MANIFEST)["made"].get("key") if (folder / MANIFEST).is_file() else None


def skip(model: str, reason: str, *, asked: bool) -> None:
    """Write down that there is no trained variant, in its place.

    Args:
        model: its name.
        reason: why.
        asked: whether params.yaml asks for one, so that tables have to say that it is missing.
    """
    with replace_dir(variant_dir(model, "qat")) as folder:
        write_json(folder / SKIPPED, {"reason": reason, "asked": asked})
    write_curves(model, {})
    say(f"{variant_dir(model, 'qat')}: not trained: {reason}")


def write_curves(model: str, rows: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    """Write metrics/<model>/qat_steps.csv and qat_epochs.csv, with no row where nothing was trained."""
    for curve, columns in CURVES.items():
        # Distances and learning rates are far below the four decimals of other tables.
        told = [{key: f"{value:.6g}" for key, value in row.items()} for row in rows.get(curve, ())]
        write_csv(metrics_dir(model) / f"qat_{curve}.csv", told, columns)
