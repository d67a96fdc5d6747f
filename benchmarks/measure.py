"""Several variants of one network on the same images in one process: what they keep, and how fast they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort

from networks import Network
from octavo.images.dataset import Item
from octavo.progress import track
from octavo.runtime.session import Session, session_config
from octavo.runtime.timing import Latency, interleaved

__all__ = ["FP32", "Speed", "accuracy", "speed"]

# The name of the reference among the variants.
FP32 = "fp32"


def accuracy(network: Network, variants: Mapping[str, Path], *, limit: int | None = None) -> dict[str, dict[str, float]]:
    """Score FP32 and its variants.

    Sessions are Octavo's own, so that results on a CPU without VNNI are those of exact kernels.

    Args:
        network: what to run.
        variants: name to ONNX file, without FP32.
        limit: at most this many validation images.

    Returns:
        Name (`fp32` first) to metrics; `kept` is the share of FP32's metric.
    """
    sessions = {name: Session(path, threads=2) for name, path in {FP32: network.file, **variants}.items()}
    scorers = {name: network.scorer() for name in sessions}
    validation: Iterable[tuple[Item, np.ndarray]] = network.validation(limit)
    for item, tensor in track(validation, f"running {network.name}"):
        reference: Mapping[str, np.ndarray] | None = None
        for name, session in sessions.items():
            # A quantizer may rename the input; it may not change the order of the outputs.
            raw = session.run({session.inputs[0]: tensor})
            reference = raw if reference is None else reference
            scorers[name].update(item, reference, dict(zip(reference, raw.values(), strict=True)))
    results = {name: scorer.result() for name, scorer in scorers.items()}
    for name, scorer in scorers.items():
        base = results[FP32][scorer.metric] if scorer.kept == "ratio" else 1.0
        results[name]["kept"] = results[name][scorer.metric] / base if base else float("nan")
    return results


@dataclass(frozen=True)
class Speed:
    """Latencies of one variant.

    Attributes:
        exact: in Octavo's sessions (on x86 without VNNI: `session.x64quantprecision`, slower than anything deployed with VNNI).
        default: in sessions without that entry. On x86 without VNNI their results saturate, but their time is nearest to what
            a CPU with VNNI does. None where both are the same.
    """

    exact: Latency
    default: Latency | None


def speed(
    network: Network, variants: Mapping[str, Path], *, rounds: int = 40, warmup: int = 5, threads: int = 2
) -> dict[str, Speed]:
    """Time FP32 and its variants, interleaved, on one validation image; name (`fp32` first) to `Speed`."""
    _, tensor = next(network.validation(1))
    runners = {}
    for name, path in {FP32: network.file, **variants}.items():
        session = Session(path, threads=threads)
        feeds = {session.inputs[0]: tensor}
        runners[name, "exact"] = lambda session=session, feeds=feeds: session.run(feeds)
        if session_config():
            plain = _default_session(path, threads)
            runners[name, "default"] = lambda plain=plain, feeds=feeds: plain.run(None, feeds)
    keys = {" ".join(key): key for key in runners}
    taken = interleaved({text: runners[key] for text, key in keys.items()}, rounds=rounds, warmup=warmup)
    found = {keys[text]: latency for text, latency in taken.items()}
    return {name: Speed(found[name, "exact"], found.get((name, "default"))) for name in (FP32, *variants)}


def _default_session(path: Path, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
