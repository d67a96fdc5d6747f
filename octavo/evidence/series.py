"""Figures of every variant as rows, for plots and tables: accuracy against latency, and both at every input size."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from octavo.layout import VARIANTS

__all__ = ["headline_setting", "resolutions", "tradeoff"]

# An input size beside the model's own, as keys have it.
SIZE = re.compile(r"\d+x\d+")


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
