"""Latency, throughput, load time and peak memory of a model's variants, all in one run on one machine."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

from octavo.errors import ModelRunError
from octavo.runtime.noise import sqnr_db
from octavo.runtime.providers import ON_GPU
from octavo.runtime.session import Session
from octavo.runtime.timing import Latency, interleaved

__all__ = ["figures", "footprint", "latencies", "load_ms", "on_device", "peak_memory_mib"]


def latencies(
    models: Mapping[str, Path],
    feeds: Mapping[str, np.ndarray],
    *,
    provider: str,
    threads: int,
    rounds: int,
    warmup: int,
    progress: Callable[[], None] = lambda: None,
    entries: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, Latency]:
    """Time `session.run` of several models on the same feeds, interleaved in this process.

    On a GPU inputs and outputs stay in its memory (I/O binding): copies depend on what stands around the model. `entries` are the
    session entries of models that have some of their own, by name.

    Raises:
        ModelRunError: a model does not take the feeds (a fixed batch, say) or the provider is not there.
    """
    own = entries or {}
    sessions = {name: Session(path, provider=provider, threads=threads, entries=own.get(name)) for name, path in models.items()}
    # Cast once: a program that feeds float16 makes float16 of its images itself.
    fed = {name: session.fed(feeds) for name, session in sessions.items()}
    runners = {
        name: session.bound(fed[name]) if provider in ON_GPU else (lambda session=session, feeds=fed[name]: session.run(feeds))
        for name, session in sessions.items()
    }
    return interleaved(runners, rounds=rounds, warmup=warmup, progress=progress)


def figures(timed: Mapping[str, Latency], setting: str, batch: int, reference: str = "fp32") -> dict[str, float]:
    """The record of one setting: `<model>.<setting>.<figure>`, as docs/metrics.md describes them; times in ms."""
    record = {}
    for name, latency in timed.items():
        low, high = latency.interval()
        record |= {
            f"{name}.{setting}.median_ms": round(latency.median, 3),
            f"{name}.{setting}.median_low_ms": round(low, 3),
            f"{name}.{setting}.median_high_ms": round(high, 3),
            f"{name}.{setting}.p95_ms": round(latency.p95, 3),
            f"{name}.{setting}.images_per_s": round(batch * 1e3 / latency.median, 2),
            f"{name}.{setting}.speedup": round(latency.speedup(timed[reference]), 3),
        }
    return record


def on_device(
    models: Mapping[str, Path], samples: Iterable[Mapping[str, np.ndarray]], *, provider: str, reference: str = "fp32"
) -> dict[str, dict[str, float]]:
    """What a provider's arithmetic costs: each model there against `reference` on the CPU, all outputs together.

    A GPU sums in another order, and ONNX Runtime lets it multiply float32 as TF32 by default.

    Args:
        models: name to file, `reference` among them.
        samples: feeds of one image each.
        provider: where the models run; the reference runs on the CPU.

    Returns:
        Of each model `cosine_min` (the least over images; all outputs of an image as one vector) and `sqnr_db`. Outputs whose shape
        depends on the image (rows that the graph chose) are left out where the shapes differ.

    Raises:
        ModelRunError: a model does not run on the provider.
    """
    truth = Session(models[reference])
    sessions = {name: Session(path, provider=provider) for name, path in models.items()}
    signal, noise, cosines = dict.fromkeys(models, 0.0), dict.fromkeys(models, 0.0), {name: [1.0] for name in models}
    for feeds in samples:
        wanted = truth.run(feeds)
        for name, session in sessions.items():
            found = session.run(feeds)
            same = [key for key in wanted if key in found and found[key].shape == wanted[key].shape]
            if not same:
                continue
            a, b = (np.concatenate([values[key].astype(np.float64).ravel() for key in same]) for values in (wanted, found))
            signal[name] += float(a @ a)
            noise[name] += float((a - b) @ (a - b))
            lengths = np.linalg.norm(a) * np.linalg.norm(b)
            cosines[name].append(float(a @ b / lengths) if lengths else float(np.array_equal(a, b)))
    return {
        name: {"cosine_min": round(min(cosines[name]), 6), "sqnr_db": round(sqnr_db(signal[name], noise[name]), 2)}
        for name in models
    }


def footprint(
    model: Path, feeds: Mapping[str, np.ndarray], *, provider: str, threads: int, entries: Mapping[str, str]
) -> dict[str, float]:
    """What loading a model takes: `load_ms` and `peak_memory_mib`, as these functions measure them."""
    how = {"provider": provider, "threads": threads, "entries": entries}
    return {
        "load_ms": round(load_ms(model, **how), 1),
        "peak_memory_mib": round(peak_memory_mib(model, feeds, **how), 1),
    }


def load_ms(model: Path, *, provider: str, threads: int, repeats: int = 3, entries: Mapping[str, str] | None = None) -> float:
    """Median milliseconds to make a session: reading, optimizing and packing weights."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        Session(model, provider=provider, threads=threads, entries=entries)
        taken.append((time.perf_counter() - start) * 1e3)
    return float(np.median(taken))


def peak_memory_mib(
    model: Path, feeds: Mapping[str, np.ndarray], *, provider: str, threads: int, entries: Mapping[str, str] | None = None
) -> float:
    """Peak resident memory in MiB of a fresh process that loads the model and runs it three times.

    Interpreter and libraries (about 60 MiB) are part of it, as they are of any deployment in Python.
    """
    shapes = {name: [list(value.shape), str(value.dtype)] for name, value in feeds.items()}
    asked = (str(model), provider, str(threads), json.dumps(shapes), json.dumps(entries))
    command = [sys.executable, "-m", "octavo.runtime.benchmark", *asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
        why = said if done.returncode > 0 else f"native code ended it ({signal.strsignal(-done.returncode)})"
        raise ModelRunError(f"{model} fails in a process of its own: {why}", "run it by hand")
    return float(done.stdout)


def _child(model: str, provider: str, threads: str, shapes: str, entries: str) -> None:
    session = Session(model, provider=provider, threads=int(threads), entries=json.loads(entries))
    feeds = {name: np.zeros(shape, dtype) for name, (shape, dtype) in json.loads(shapes).items()}
    for _ in range(3):
        session.run(feeds)
    print(_peak_mib())


def _peak_mib() -> float:
    """Peak resident memory of this process since it became this program.

    Not getrusage's ru_maxrss where Linux tells more: that survives exec, and a child of a large process reports its parent's peak.
    """
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    for line in lines:
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 2**10
    # Linux counts KiB, macOS bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**10 if sys.platform != "darwin" else 2**20)


if __name__ == "__main__":
    _child(*sys.argv[1:])
