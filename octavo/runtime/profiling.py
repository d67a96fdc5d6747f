"""What each kernel of a graph costs: ONNX Runtime's own profile, beside the graph that it really ran."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from octavo.runtime.session import Session

__all__ = ["Kernel", "Variant", "kernel_times"]

_SUFFIX = "_kernel_time"
# Takes a Pad into the pool behind it, which stands for its neighbours here and is smaller than the pads: no such graph loads.
_WITHOUT = ("Pad_Fusion",)


@dataclass(frozen=True)
class Variant:
    """A graph to profile.

    Attributes:
        model: the ONNX file's bytes.
        feeds: its inputs.
        entries: session entries; nothing is added to them but what `Session` adds.
    """

    model: bytes
    feeds: Mapping[str, np.ndarray]
    entries: Mapping[str, str]


@dataclass(frozen=True)
class Kernel:
    """A node of the optimized graph.

    Attributes:
        name: that of the node it came from, often with a suffix.
        op_type: as ONNX Runtime names what it runs (`QLinearConv`, `ReorderInput`, ...).
        inputs, outputs: names of tensors, initializers among them.
        us: microseconds of each counted run, in the order of the runs.
    """

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    us: np.ndarray


def kernel_times(variants: Sequence[Variant], *, threads: int, rounds: int, warmup: int) -> list[list[Kernel]]:
    """Run variants in turn, all optimizations on, and read their profiles.

    Args:
        threads: intra-op threads.
        rounds: counted runs of each, interleaved.
        warmup: uncounted runs of each, first.

    Returns:
        For each variant its kernels in topological order.

    Raises:
        ModelRunError: a graph cannot be loaded, or its run fails.
    """
    with tempfile.TemporaryDirectory(prefix="octavo-profile-") as folder:
        sessions = [
            Session(
                variant.model,
                threads=threads,
                save_optimized=Path(folder) / f"{index}.onnx",
                profile=Path(folder) / f"{index}",
                without=_WITHOUT,
                # One block for all activations would be laid beside those of the first run; a kernel's time is its own.
                memory_pattern=False,
                entries=variant.entries,
            )
            for index, variant in enumerate(variants)
        ]
        graphs = [onnx.load(Path(folder) / f"{index}.onnx", load_external_data=False).graph.node for index in range(len(variants))]
        for _ in range(warmup + rounds):
            for session, variant in zip(sessions, variants, strict=True):
                session.run(variant.feeds)
        return [_kernels(nodes, session.end_profiling(), rounds) for nodes, session in zip(graphs, sessions, strict=True)]


def _kernels(nodes: Sequence[onnx.NodeProto], trace: Path, rounds: int) -> list[Kernel]:
    times: dict[str, list[int]] = defaultdict(list)

    def counted(event: dict[str, Any]) -> None:
        # What else an event tells, of a hundred kernels' shapes and threads each run, is let go as it is read.
        if event.get("cat") == "Node" and event["name"].endswith(_SUFFIX):
            times[event["name"].removesuffix(_SUFFIX)].append(event["dur"])

    json.loads(trace.read_bytes(), object_hook=counted)
    return [
        Kernel(node.name, node.op_type, tuple(node.input), tuple(node.output), np.array(times[node.name][-rounds:], np.float64))
        for node in nodes
    ]
