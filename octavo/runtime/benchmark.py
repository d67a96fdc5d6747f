"""Latency, throughput, load time and peak memory of a model's variants, all in one run on one machine."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from octavo.errors import ModelRunError
from octavo.runtime.session import Session
from octavo.runtime.timing import Latency, interleaved

__all__ = ["latencies", "load_ms", "peak_memory_mib"]


def latencies(
    models: Mapping[str, Path],
    feeds: Mapping[str, np.ndarray],
    *,
    provider: str,
    threads: int,
    rounds: int,
    warmup: int,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, Latency]:
    """Time `session.run` of several models on the same feeds, interleaved in this process.

    Raises:
        ModelRunError: a model does not take the feeds (a fixed batch, say) or the provider is not there.
    """
    sessions = {name: Session(path, provider=provider, threads=threads) for name, path in models.items()}
    runners = {name: (lambda session=session: session.run(feeds)) for name, session in sessions.items()}
    return interleaved(runners, rounds=rounds, warmup=warmup, progress=progress)


def load_ms(model: Path, *, provider: str, threads: int, repeats: int = 3) -> float:
    """Median milliseconds to make a session: reading, optimizing and packing weights."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        Session(model, provider=provider, threads=threads)
        taken.append((time.perf_counter() - start) * 1e3)
    return float(np.median(taken))


def peak_memory_mib(model: Path, feeds: Mapping[str, np.ndarray], *, provider: str, threads: int) -> float:
    """Peak resident memory in MiB of a fresh process that loads the model and runs it three times.

    Interpreter and libraries (about 60 MiB) are part of it, as they are of any deployment in Python.
    """
    shapes = {name: [list(value.shape), str(value.dtype)] for name, value in feeds.items()}
    command = [sys.executable, "-m", "octavo.runtime.benchmark", str(model), provider, str(threads), json.dumps(shapes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ModelRunError(f"{model} fails in a process of its own: {done.stderr.strip().splitlines()[-1:]}", "run it by hand")
    return float(done.stdout)


def _child(model: str, provider: str, threads: str, shapes: str) -> None:
    session = Session(model, provider=provider, threads=int(threads))
    feeds = {name: np.zeros(shape, dtype) for name, (shape, dtype) in json.loads(shapes).items()}
    for _ in range(3):
        session.run(feeds)
    # Linux counts KiB, macOS bytes.
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**10 if sys.platform != "darwin" else 2**20))


if __name__ == "__main__":
    _child(*sys.argv[1:])
