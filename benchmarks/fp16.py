"""Octavo's FP16 against ONNX Runtime's converter, on a GPU or a CPU: what is kept, how fast, how small.

    python benchmarks/fp16.py --data FOLDER [--networks yolov5n,mobilefacenet] [--provider cuda] [--batch 1,32] --out FOLDER

Both convert the same FP32 file with float32 inputs and outputs; ONNX Runtime's is `onnxruntime.transformers.float16` with its own
settings. Metric, `kept` and SQNR are of a file on the provider against FP32 on the CPU, FP32's own on the provider too: a GPU
multiplies float32 as TF32. Latencies are interleaved, on a GPU with inputs and outputs in its memory; a graph of a fixed batch is
timed at that. Writes FOLDER/fp16.md, FOLDER/fp16.json and FOLDER/<network>/<tool>.onnx.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.transformers.float16 import convert_float_to_float16

from arguments import parser
from measure import FP32, accuracy
from networks import UNLESS_TOLD, Network, network
from octavo import cli
from octavo.files import write_json, write_text
from octavo.graph.io import save
from octavo.progress import say
from octavo.quantization.fp16 import quantize_fp16
from octavo.runtime.benchmark import latencies
from octavo.runtime.host import fingerprint
from octavo.runtime.providers import PROVIDERS
from octavo.runtime.session import Session
from views import chosen_views

# Images that a conversion is verified on, as in the stage.
SAMPLES = 8


def ours(found: Network, target: Path) -> None:
    """As the stage `quantize_fp16` does it."""
    samples = [{found.input_name(): tensor} for tensor in found.calibration(SAMPLES)]
    save(quantize_fp16(found.file, samples=samples).model, target)


def onnxruntime(found: Network, target: Path) -> None:
    """ONNX Runtime's converter."""
    onnx.save(convert_float_to_float16(onnx.load(str(found.file)), keep_io_types=True), str(target))


TOOLS: dict[str, Callable[[Network, Path], None]] = {"ours": ours, "ort": onnxruntime}


def main() -> None:
    """Parse, convert, judge, write."""
    arguments = parser(__doc__)
    arguments.add_argument("--networks", default=",".join(UNLESS_TOLD))
    arguments.add_argument("--provider", default="cpu", choices=sorted(PROVIDERS))
    arguments.add_argument("--batch", default="1", help="batch sizes, for graphs that take any")
    arguments.add_argument("--out", type=Path, required=True)
    given = arguments.parse_args()
    record: dict[str, Any] = {"host": fingerprint(), "provider": given.provider, "networks": {}}
    for name in given.networks.split(","):
        found, batches = network(name, given.data, given.models), [int(each) for each in given.batch.split(",")]
        rows, files = _converted(found, given.out / name, given.provider)
        # First, as what the others are held against.
        sessions = {FP32: Session(found.file)} | {
            f"{tool}'s": Session(path, provider=given.provider) for tool, path in files.items()
        }
        for tool, metrics in accuracy(found, sessions, limit=given.limit, views=chosen_views(given.views)).items():
            rows.get(tool.removesuffix("'s"), {}).update(metrics)
        for tool, figures in _timed(found, files, given.provider, batches, given.rounds).items():
            rows[tool] |= figures
        record["networks"][name] = rows
        write_json(given.out / "fp16.json", record)
        write_text(given.out / "fp16.md", markdown(record))
    say(f"{given.out / 'fp16.md'}: {len(record['networks'])} networks")


def _converted(found: Network, folder: Path, provider: str) -> tuple[dict[str, dict[str, Any]], dict[str, Path]]:
    """(tool to size and seconds, or to `failed` and why; tool to file, of those that load), FP32 first in both."""
    folder.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, Any]] = {FP32: {"size": 1.0}}
    files = {FP32: found.file}
    for tool, convert in TOOLS.items():
        target, started = folder / f"{tool}.onnx", time.perf_counter()
        try:
            convert(found, target)
            rows[tool] = {"seconds": time.perf_counter() - started, "size": target.stat().st_size / found.file.stat().st_size}
            Session(target, provider=provider)
        # The other tool's errors are of any kind.
        except Exception as error:
            rows[tool] = {"failed": str(error).splitlines()[0][:200]}
        else:
            files[tool] = target
    return rows, files


def _timed(
    found: Network, files: Mapping[str, Path], provider: str, batches: Sequence[int], rounds: int
) -> dict[str, dict[str, float]]:
    """Tool to `ms.b<batch>` (median) and `speed.b<batch>` (FP32's over it, the median over rounds)."""
    _, tensor = next(found.validation(1))
    fixed, rows = Session(found.file).input_shapes[found.input_name()][0], {tool: dict[str, float]() for tool in files}
    for batch in [fixed] if isinstance(fixed, int) else batches:
        feeds = {found.input_name(): np.repeat(tensor, batch, axis=0)}
        timed = latencies(files, feeds, provider=provider, threads=2, rounds=rounds, warmup=10) if rounds else {}
        for tool, latency in timed.items():
            rows[tool] |= {f"ms.b{batch}": latency.median, f"speed.b{batch}": latency.speedup(timed[FP32])}
    return rows


def markdown(record: Mapping[str, Any]) -> str:
    """The record as a table with its host."""
    lines = ["| network | file | kept | SQNR dB | size | seconds | ms (x FP32) |", "|---|---|---|---|---|---|---|"]
    for name, rows in record["networks"].items():
        for tool, row in rows.items():
            if "failed" in row:
                lines.append(f"| {name} | {tool} | failed: {row['failed']} | | | | |")
                continue
            batches = [key.removeprefix("ms.b") for key in row if key.startswith("ms.b")]
            cells = [name, tool, f"{row['kept']:.4f}", f"{row['sqnr_db']:.1f}", f"{row['size']:.0%}"]
            cells += [f"{row['seconds']:.1f}" if "seconds" in row else "-"]
            cells += [", ".join(f"b{each} {row[f'ms.b{each}']:.2f} ({row[f'speed.b{each}']:.2f}x)" for each in batches) or "-"]
            lines.append(f"| {' | '.join(cells)} |")
    host = record["host"]
    lines += ["", f"Host {host['id']}: {host['cpu']}, {host['cores']} cores, {host['gpu'] or 'no GPU'}; {record['provider']}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    cli.run(main)
