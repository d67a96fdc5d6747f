"""The command line that the benchmarks on real networks share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["at_least", "parser"]

DATA = "OCTAVO_BENCHMARK_DATA"
OPENVINO = "OCTAVO_OPENVINO_PYTHON"


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with `--data`, `--models`, `--limit`, `--views`, `--rounds` and `--openvino-python`."""
    arguments = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", type=Path, default=environment_path(DATA), help=f"the benchmark data's folder (or {DATA})")
    arguments.add_argument("--models", type=Path, default=Path("models"), help="the pipeline's models (default: models)")
    arguments.add_argument("--limit", type=at_least(1), help="at most this many validation images")
    arguments.add_argument("--views", action="store_true", help="of detectors: eight views of each photo instead of one")
    arguments.add_argument("--rounds", type=at_least(0), default=40, help="timed runs of each variant (default: 40; 0: none)")
    arguments.add_argument(
        "--openvino-python",
        type=_openvino,
        # Read as the option is: argparse has strings go through `type`.
        default=os.environ.get(OPENVINO) or None,
        help=f"also run every file under OpenVINO, in this interpreter's onnxruntime-openvino (or {OPENVINO})",
    )
    return arguments


def at_least(least: int) -> Callable[[str], int]:
    """Reads a whole number that may not be less, as an argument's `type`."""

    def whole_number(text: str) -> int:
        if (number := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{number} is less than {least}")
        return number

    return whole_number


def _openvino(text: str) -> Path:
    """An interpreter that is there: it is asked for when all files are made."""
    if not Path(text).exists():
        raise argparse.ArgumentTypeError(
            f"no interpreter {text}: make one by `python -m venv OPENVINO && OPENVINO/bin/pip install onnxruntime-openvino`"
        )
    return Path(text)


def environment_path(name: str) -> Path | None:
    """The path that an environment variable names, None where it is unset or empty."""
    value = os.environ.get(name)
    return Path(value) if value else None
