"""Several variants of one network on the same images in one process: what they keep, and how fast they are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from networks import Network
from octavo.errors import ModelRunError
from octavo.images.dataset import Item
from octavo.progress import track
from octavo.runtime.entries import session_config
from octavo.runtime.session import Session
from octavo.runtime.timing import interleaved
from openvino_session import OpenVino, OpenVinoSession
from views import VIEWS, View

__all__ = ["FP32", "NOTE", "accuracy", "judge", "open_exact"]

# The name of the reference among the variants.
FP32 = "fp32"
THREADS = 2
WARMUP = 5
NOTE = (
    "ms, speed: in Octavo's sessions. On an x86 CPU without VNNI these ask for exact kernels (session.x64quantprecision=1), which "
    "right results need there; ms_default, speed_default are then those of sessions without that entry: nearest in time, not in "
    "results, to a CPU with VNNI."
)


def accuracy(
    network: Network,
    sessions: Mapping[str, Session | OpenVinoSession],
    *,
    limit: int | None = None,
    views: Sequence[View] = VIEWS[:1],
) -> dict[str, dict[str, float]]:
    """Score sessions of one network on its validation images.

    Args:
        network: what they are variants of.
        sessions: name to session; `FP32`, the first, is the reference.
        limit: at most this many images.
        views: that each image is seen in.

    Returns:
        Name to metrics; `kept` is the share of FP32's metric.
    """
    scorers = {name: network.scorer() for name in sessions}
    validation: Iterable[tuple[Item, np.ndarray]] = network.validation(limit, views)
    for item, tensor in track(validation, f"running {network.name}"):
        reference: Mapping[str, np.ndarray] | None = None
        for name, session in sessions.items():
            # A quantizer may rename inputs and outputs; it may not change their order.
            raw = session.run({session.inputs[0]: tensor})
            reference = raw if reference is None else reference
            scorers[name].update(item, reference, dict(zip(reference, raw.values(), strict=True)))
    results = {name: scorer.result() for name, scorer in scorers.items()}
    for name, scorer in scorers.items():
        base = results[FP32][scorer.metric] if scorer.kept == "ratio" else 1.0
        results[name]["kept"] = results[name][scorer.metric] / base if base else float("nan")
    return results


def judge(
    network: Network,
    variants: Mapping[str, Path],
    *,
    limit: int | None = None,
    rounds: int = 40,
    openvino: Path | None = None,
    views: Sequence[View] = VIEWS[:1],
) -> dict[str, dict[str, Any]]:
    """Metrics, size and latency of FP32 and its variants, as JSON values.

    Args:
        network: what they are variants of.
        variants: name to ONNX file, without FP32.
        limit: at most this many validation images.
        rounds: timed runs of each; 0 leaves timing out.
        openvino: the interpreter of an environment with onnxruntime-openvino, to run every file there too.
        views: that each image is seen in.

    Returns:
        Name (`fp32` first) to the scorer's metrics, `kept`, `size` (share of FP32's bytes), and of timing (`NOTE`) `ms` (median),
        `speed` (FP32's latency over this one's, the median over rounds), `ms_default`, `speed_default`. Under `openvino`, where
        asked for: metrics, `kept`, `ms`, `speed` (over FP32 in OpenVINO).

    Raises:
        ModelRunError: a file does not load or run.
    """
    files = {FP32: network.file, **variants}
    with OpenVino(openvino) if openvino else contextlib.nullcontext() as worker:
        sessions: dict[str, Session | OpenVinoSession] = {name: open_exact(path)[0] for name, path in files.items()}
        if worker:
            sessions |= {_beside(name): OpenVinoSession(worker, name, path) for name, path in files.items()}
        scored: dict[str, dict[str, Any]] = accuracy(network, sessions, limit=limit, views=views)  # type: ignore[assignment]
        results = {name: scored[name] for name in files}
        for name, path in files.items():
            results[name]["size"] = path.stat().st_size / network.file.stat().st_size
            if worker:
                results[name]["openvino"] = scored[_beside(name)]
        if rounds:
            _, tensor = next(network.validation(1))
            _add_speed(results, files, tensor, rounds)
            if worker:
                taken = worker.latencies(list(files), tensor, rounds=rounds, warmup=WARMUP)
                for name, latency in taken.items():
                    results[name]["openvino"] |= {"ms": latency.median, "speed": latency.speedup(taken[FP32])}
    return results


def open_exact(path: Path) -> tuple[Session, bool]:
    """Octavo's session of a file; whether it is an optimized one, whose latency means something.

    ONNX Runtime 1.31 fails with "Attempt to replace the existing tensor" on some files under `session.x64quantprecision` (a
    YOLOv5n by Quark) that it loads without. Such a file is judged at basic optimization, which computes the same in float.

    Raises:
        ModelRunError: it does not load at all.
    """
    try:
        return Session(path, threads=THREADS), True
    except ModelRunError:
        if not session_config():
            raise
        return Session(path, threads=THREADS, optimization="basic"), False


def _beside(name: str) -> str:
    return f"{name} in OpenVINO"


def _add_speed(
    results: dict[str, dict[str, Any]],
    files: Mapping[str, Path],
    tensor: np.ndarray,
    rounds: int,
) -> None:
    runners = {}
    for name, path in files.items():
        session, optimized = open_exact(path)
        feeds = {session.inputs[0]: tensor}
        if optimized:
            runners[name, ""] = lambda session=session, feeds=feeds: session.run(feeds)
        if session_config():
            plain = Session(path, threads=THREADS, entries={})
            runners[name, "_default"] = lambda plain=plain, feeds=feeds: plain.run(feeds)
    taken = interleaved(runners, rounds=rounds, warmup=WARMUP)  # type: ignore[type-var]
    for (name, kind), latency in taken.items():
        results[name] |= {f"ms{kind}": latency.median, f"speed{kind}": latency.speedup(taken[FP32, kind])}
