"""ONNX files of one network side by side: how far each is from the first, and how fast, in turns in one process.

    python benchmarks/compare.py FP32.onnx FILE.onnx... --arrays FOLDER [--boxes 4] [--rounds 40]

`--arrays` holds `*.npy`, one input tensor each, as `benchmarks/tools/` takes them, and others than were calibrated on. SQNR is of
each float output over all arrays. `--boxes N` holds the first N channels of the first output [1, N + classes, positions] apart from
the others, each channel against its own variance: coordinates are a thousand times the scores, which SQNR would not see.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np

from octavo.runtime.noise import sqnr_db
from octavo.runtime.session import Session
from octavo.runtime.timing import interleaved

THREADS, WARMUP = 2, 5


def main() -> None:
    """Run all files on all arrays, then time them; a line a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="the reference first")
    parser.add_argument("--arrays", type=Path, required=True, help="folder of .npy files")
    parser.add_argument("--boxes", type=int, default=0, help="channels of the first output that are coordinates")
    parser.add_argument("--rounds", type=int, default=40, help="timed runs of each file")
    chosen = parser.parse_args()
    arrays = [np.load(path) for path in sorted(chosen.arrays.glob("*.npy"))]
    if not arrays or len(chosen.files) < 2:
        parser.error(f"at least two files, and arrays: {chosen.arrays} has {len(arrays)}")
    sessions = {path: Session(path, threads=THREADS) for path in chosen.files}
    results = {path: [list(one.run({one.inputs[0]: array}).values()) for array in arrays] for path, one in sessions.items()}
    feeds = arrays[0]
    times = interleaved(
        {str(path): partial(one.run, {one.inputs[0]: feeds}) for path, one in sessions.items()}, rounds=chosen.rounds, warmup=WARMUP
    )
    first, *others = chosen.files
    base = times[str(first)]
    print(f"{first}: {base.median:.1f} ms")
    for path in others:
        said = [f"{times[str(path)].speedup(base):.2f}x", outputs(results[first], results[path])]
        if chosen.boxes:
            said.append(apart(results[first], results[path], chosen.boxes))
        print(f"{path}: {', '.join(said)}")


def outputs(wanted: list[list[np.ndarray]], got: list[list[np.ndarray]]) -> str:
    """SQNR of each float output whose shapes agree."""
    found = []
    for place, value in enumerate(wanted[0]):
        pairs = [(a[place].astype(np.float64), b[place]) for a, b in zip(wanted, got, strict=True)]
        if value.dtype == np.float32 and all(a.shape == b.shape for a, b in pairs):
            found.append(
                sqnr_db(sum(float(np.square(a).sum()) for a, _ in pairs), sum(float(np.square(a - b).sum()) for a, b in pairs))
            )
    return f"outputs {' '.join(f'{each:.1f}' for each in found)} dB"


def apart(wanted: list[list[np.ndarray]], got: list[list[np.ndarray]], boxes: int) -> str:
    """Boxes and scores of the first output, mean noise of channels against their own variance."""
    true, other = (np.concatenate([one[0] for one in results]).astype(np.float64) for results in (wanted, got))
    ratios = np.square(true - other).mean(axis=(0, 2)) / np.maximum(true.var(axis=(0, 2)), 1e-20)
    parts = {"boxes": ratios[:boxes], "scores": ratios[boxes:]}
    return ", ".join(f"{name} {sqnr_db(1.0, float(part.mean())):.1f} dB" for name, part in parts.items())


if __name__ == "__main__":
    main()
