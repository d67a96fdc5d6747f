"""The command line that the benchmarks on real networks share."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

__all__ = ["parser"]

DATA = "OCTAVO_BENCHMARK_DATA"
OPENVINO = "OCTAVO_OPENVINO_PYTHON"


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with `--data`, `--models`, `--limit`, `--views`, `--rounds` and `--openvino-python`."""
    arguments = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", type=Path, default=environment_path(DATA), help=f"the benchmark data's folder (or {DATA})")
    arguments.add_argument("--models", type=Path, default=Path("models"), help="the pipeline's models (default: models)")
    arguments.add_argument("--limit", type=int, help="at most this many validation images")
    arguments.add_argument("--views", action="store_true", help="of detectors: eight views of each photo instead of one")
    arguments.add_argument("--rounds", type=int, default=40, help="timed runs of each variant; 0 leaves timing out (default: 40)")
    arguments.add_argument(
        "--openvino-python",
        type=Path,
        default=environment_path(OPENVINO),
        help=f"also run every file under OpenVINO, in this interpreter's onnxruntime-openvino (or {OPENVINO})",
    )
    return arguments


def environment_path(name: str) -> Path | None:
    """The path that an environment variable names, None where it is unset or empty."""
    value = os.environ.get(name)
    return Path(value) if value else None
