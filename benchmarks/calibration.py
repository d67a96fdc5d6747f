"""Time and memory of calibration: Octavo's statistics beside ONNX Runtime's MinMax, Percentile and Entropy calibrators.

Each measurement is a process of its own, fed with the same preprocessed arrays from files; the contestants take turns, and medians
count. Wall time is from the model's file to the finished statistics or ranges, without imports and image decoding; memory is the
process's peak as the system counts it (getrusage). Exits with 1 where a bar is missed.

    python benchmarks/calibration.py [--images FOLDER] [--rounds 3] [--skip-large]

This file imports nothing beyond the standard library: a child's peak would otherwise start at its parent's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

CHILD = Path(__file__).with_name("calibration_child.py")
DEMO = ("data/photos", "data/imagenet20")
ORT = ("MinMax", "Percentile", "Entropy")
LARGE_SIZE = 640


def main() -> int:
    """Measure, print a table, hold it against the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("models/efficientnet_lite0/fp32/model.onnx"), help="EfficientNet-Lite0")
    parser.add_argument(
        "--images", type=Path, action="append", help="folder of images, repeatable; repeated where they are too few"
    )
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--large", type=Path, help="resnet50 for 640x640 images; exported with random weights where left out (torch)"
    )
    parser.add_argument("--large-samples", type=int, nargs=2, default=(8, 64), metavar=("FEW", "MANY"))
    parser.add_argument("--skip-large", action="store_true", help="leave the resnet50 out: it runs for several minutes")
    arguments = parser.parse_args()
    folders = arguments.images or [Path(folder) for folder in DEMO if Path(folder).is_dir()]
    for needed, mend in ((arguments.model, "make repro"), *((folder, "--images FOLDER") for folder in folders or [Path(DEMO[0])])):
        if not needed.exists():
            sys.exit(f"{needed} does not exist; to mend: {mend}")
    bars: list[tuple[str, float, float]] = []
    with tempfile.TemporaryDirectory(prefix="octavo-benchmark-") as scratch:
        small = Path(scratch) / "small"
        child("arrays", arguments.model, small, samples=arguments.samples, images=folders)
        bars += lite0(arguments.model, small, arguments.samples, arguments.rounds)
        if not arguments.skip_large:
            bars += large(arguments.large, Path(scratch), folders, sorted(arguments.large_samples))
    print(f"\n{'bar':<66}{'measured':>10}{'at most':>10}")
    for name, measured, limit in bars:
        print(f"{name:<66}{measured:>10.3f}{limit:>10.3f}  {'ok' if measured <= limit else 'MISSED'}")
    return int(any(measured > limit for _, measured, limit in bars))


def lite0(model: Path, arrays: Path, samples: int, rounds: int) -> list[tuple[str, float, float]]:
    """The calibrators against each other, and the time that all methods' ranges take from saved statistics."""
    walls: dict[str, list[float]] = {}
    peaks: dict[str, list[float]] = {}
    saved = arrays.parent / "statistics"
    for _ in range(rounds):
        for name in ("octavo", *ORT):
            result = child(name, model, arrays, samples=samples, statistics=saved)
            walls.setdefault(name, []).append(result["seconds"])
            peaks.setdefault(name, []).append(result["megabytes"])
    print(f"{model}, {samples} images, {rounds} rounds")
    print(f"{'calibrator':<14}{'median s':>10}{'least s':>10}{'most s':>10}{'peak MB':>10}")
    for name, taken in walls.items():
        print(f"{name:<14}{statistics.median(taken):>10.2f}{min(taken):>10.2f}{max(taken):>10.2f}{max(peaks[name]):>10.0f}")
    ranges = statistics.median(child("ranges", model, arrays, statistics=saved)["seconds"] for _ in range(rounds))

    def ratio(other: str) -> float:
        return statistics.median(ours / theirs for ours, theirs in zip(walls["octavo"], walls[other], strict=True))

    return [
        ("wall time of ONNX Runtime's MinMax (share)", ratio("MinMax"), 0.5),
        ("wall time of ONNX Runtime's Percentile (share)", ratio("Percentile"), 0.1),
        ("peak memory (MB)", max(peaks["octavo"]), 300),
        ("all four methods' ranges of all tensors from saved statistics (s)", ranges, 1),
    ]


def large(model: Path | None, scratch: Path, folders: Sequence[Path], counts: Sequence[int]) -> list[tuple[str, float, float]]:
    """Peak memory on a large input, beside plain FP32 inference and for few and many images."""
    if model is None:
        model = scratch / "resnet50.onnx"
        child("export", model, scratch)
    arrays = scratch / "large"
    child("arrays", model, arrays, samples=max(counts), images=folders, size=LARGE_SIZE)
    plain = child("inference", model, arrays, samples=min(counts))
    results = [child("octavo", model, arrays, samples=count, statistics=scratch / "large-statistics") for count in counts]
    print(f"\nresnet50 at {LARGE_SIZE}x{LARGE_SIZE}\n{'':<34}{'s':>10}{'peak MB':>10}")
    print(f"{f'plain inference, {min(counts)} images':<34}{plain['seconds']:>10.1f}{plain['megabytes']:>10.0f}")
    for count, result in zip(counts, results, strict=True):
        print(f"{f'octavo, {count} images':<34}{result['seconds']:>10.1f}{result['megabytes']:>10.0f}")
    few, many = (result["megabytes"] for result in results)
    return [
        ("resnet50: peak memory of plain FP32 inference (share)", many / plain["megabytes"], 1.3),
        (f"resnet50: peak memory, {counts[1]} images to {counts[0]} (share)", many / few, 1.05),
    ]


def child(
    what: str,
    model: Path,
    arrays: Path,
    *,
    samples: int = 0,
    images: Sequence[Path] = (),
    statistics: Path | None = None,
    size: int = 0,
) -> dict[str, float]:
    """Run one measurement in a process of its own; its result is the last line that it prints."""
    command = [sys.executable, str(CHILD), what, str(model), str(arrays), "--samples", str(samples), "--size", str(size)]
    command += ["--statistics", str(statistics)] if statistics else []
    command += [part for folder in images for part in ("--images", str(folder))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{what} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
