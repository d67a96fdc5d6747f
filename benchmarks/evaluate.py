"""Judge ONNX files against the FP32 file of a network: metric, fidelity, latency ratio, one line a file.

    python benchmarks/evaluate.py --data FOLDER --network yolov5n MODEL.onnx [MODEL2.onnx ...] [--limit N]

Without a MODEL, FP32 alone. Speed is FP32's median latency over the file's (2 threads, interleaved): above 1 is faster.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from measure import FP32, accuracy, speed
from networks import NETWORKS, Network, network
from octavo import cli
from octavo.errors import DataError
from octavo.files import write_json
from octavo.runtime.host import fingerprint
from octavo.runtime.session import session_config

__all__ = ["common_arguments", "judge"]

DATA = "OCTAVO_BENCHMARK_DATA"


def common_arguments(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the arguments that all benchmarks on these networks share."""
    arguments = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    data = os.environ.get(DATA)
    arguments.add_argument(
        "--data", type=Path, default=Path(data) if data else None, help=f"the benchmark data's folder (or {DATA})"
    )
    arguments.add_argument("--models", type=Path, default=Path("models"), help="the pipeline's models (default: models)")
    arguments.add_argument("--limit", type=int, help="at most this many validation images")
    arguments.add_argument("--rounds", type=int, default=40, help="timed runs of each variant; 0 leaves timing out (default: 40)")
    return arguments


def judge(chosen: Network, variants: dict[str, Path], *, limit: int | None, rounds: int) -> dict[str, dict[str, Any]]:
    """Metrics, size and latencies of FP32 and the variants, as JSON values."""
    results: dict[str, dict[str, Any]] = accuracy(chosen, variants, limit=limit)  # type: ignore[assignment]
    size = chosen.file.stat().st_size
    for name, path in variants.items():
        results[name]["size"] = path.stat().st_size / size
    if rounds:
        taken = speed(chosen, variants, rounds=rounds)
        for name, each in taken.items():
            results[name] |= {"ms": each.exact.median, "speed": taken[FP32].exact.median / each.exact.median}
            if each.default is not None:
                results[name] |= {
                    "ms_default": each.default.median,
                    "speed_default": taken[FP32].default.median / each.default.median,  # type: ignore[union-attr]
                }
    return results


def main() -> None:
    """Parse, judge, print."""
    arguments = common_arguments(__doc__)
    arguments.add_argument("--network", required=True, help=f"one of: {', '.join(NETWORKS)}")
    arguments.add_argument("--json", type=Path, help="also write the figures here")
    arguments.add_argument("files", nargs="*", type=Path, metavar="MODEL.onnx")
    given = arguments.parse_args()
    for path in given.files:
        if not path.is_file():
            raise DataError(f"{path}: no such file", "correct the path")
    names = [path.name for path in given.files]
    variants = {str(path) if names.count(path.name) > 1 else path.name: path for path in given.files}
    results = judge(network(given.network, given.data, given.models), variants, limit=given.limit, rounds=given.rounds)

    keys = list(results[FP32])
    keys[1:1] = [key for key in ("kept",) if keys.remove(key) is None]
    keys += [key for key in ("size",) if variants]
    table = Table("file", *keys, title=given.network)
    for name, values in results.items():
        table.add_row(name, *(f"{values[key]:.4g}" if key in values else "-" for key in keys))
    Console(width=200 if not Console().is_terminal else None).print(table)
    if session_config():
        print(
            "ms, speed: exact kernels (session.x64quantprecision=1), which this CPU without VNNI needs for right results;\n"
            "ms_default, speed_default: without that entry, nearest in time, not in results, to a CPU with VNNI"
        )
    if given.json:
        write_json(given.json, {"host": fingerprint(), "network": given.network, "results": results})


if __name__ == "__main__":
    cli.run(main)
