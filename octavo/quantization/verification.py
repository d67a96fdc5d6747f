"""A quantized file before it is accepted: what ONNX Runtime runs of what was decided, and runs on real images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from octavo.graph.custom_ops import CustomOps
from octavo.graph.io import load
from octavo.graph.operators import LAYERS
from octavo.graph.selection import pasted, selects
from octavo.quantization.acceptance import accept
from octavo.quantization.decisions import Decision
from octavo.quantization.executed import executed
from octavo.quantization.int8.structure.targets import target_of
from octavo.quantization.share import integer_share
from octavo.runtime.entries import exact_from, session_config
from octavo.runtime.kernels import optimized_nodes

__all__ = ["images_to_verify", "verified"]

# Names in one warning; the manifest has all.
_SHOWN = 5
# dB below what the last layers keep: so far off, an output that they read is worth a warning.
_FAR = 3.0
# Images that a file must run on before it is accepted; fewer where all of them together take more multiplications. Without
# optimizations runs take longest: Faster R-CNN v2 took 33 processor seconds for each image.
_IMAGES, _MACS = 4, 2e11


def images_to_verify(macs: int) -> int:
    """On how many images a file has to run that makes so many multiplications of one: 1 to 4."""
    return max(1, min(_IMAGES, int(_MACS // max(1, macs))))


def verified(
    quantized: Path,
    reference: Path,
    decisions: Sequence[Decision],
    samples: Sequence[tuple[str, Mapping[str, np.ndarray]]],
    *,
    name: str,
    custom: CustomOps,
    sizes: tuple[int, int],
    classes: int | None = None,
    original: ir.Model | None = None,
    graph: ir.Model | None = None,
    kept_db: float | None = None,
    asked_db: float | None = None,
    target: str = "cpu",
) -> dict[str, Any]:
    """Load and run a file as a service would.

    Args:
        quantized: the file just written.
        reference: FP32's.
        decisions: for every node of FP32, or of `graph`.
        samples: (what the image is, feeds).
        name: what errors call the file: where it will lie.
        custom: the operators that ONNX Runtime lacks.
        sizes: bytes of FP32 and of the file.
        classes: the axis of the outputs that class scores lie along; None where there are none.
        original: FP32, where it is loaded already; it is not changed.
        graph: whose nodes the decisions are of, where that is not FP32's.
        kept_db: the SQNR that the last layers have, where they were held to one: no output that leads on to a layer was.
        asked_db: the SQNR that `fidelity` asks for, of a file of which nothing was measured: only these runs say how far it is.
        target: the runtime that the file is for. Of one whose kernels are not ONNX Runtime's here, what runs otherwise than decided
            is in `executed` and no warning: it says nothing of that runtime.

    Returns:
        For the manifest: `nodes`, `executed` (`Executed.record`, and `int8_share` where it is known), `accepted`
        (`Accepted.record`, and `pasted`, which `octavo.graph.selection.pasted` names), `from_bytes`, `size_ratio` and `warnings`,
        which a user should see.

    Raises:
        QuantizationError: the file is not to be accepted; see `octavo.quantization.acceptance.accept`.
    """
    original = original if original is not None else load(reference)
    part = custom.part(original)
    compared = custom.compared(original) if custom.bodies else []
    # Integer operators that saturate are exact from a higher level on.
    fits16 = target_of(target).saturates
    inside = ir.traversal.RecursiveGraphIterator(load(quantized).graph)
    written_level = "off" if fits16 else exact_from(node.op_type for node in inside)
    with custom.files({"fp32": reference, "quantized": quantized}, outputs=compared) as runs:
        accepted = accept(
            runs["fp32"],
            runs["quantized"],
            samples,
            name=name,
            written_level=written_level,
            compared=compared,
            classes=classes,
            selecting=selects(part),
            entries=session_config(fits16=fits16),
        )
    with custom.files({"quantized": quantized}) as runs:
        # What stands in for an operator here is not what a service runs: nothing is said of nodes that are cut off.
        ran = executed(graph if graph is not None else part, decisions, optimized_nodes(runs["quantized"]))
    here = target_of(target).runs_here
    # What is cut off is in the file, and in float.
    counted, running = (graph, None) if graph is not None else (custom.attached(original) if custom.bodies else part, part)
    behind = {name for name, _, _ in custom.untouched(original)}
    share = integer_share(counted, ran.nodes, samples[0][1], here=here, behind=behind, running=running)
    warnings = list(accepted.warnings)
    if kept_db is not None:
        warnings += [
            f"output {output!r} is {accepted.sqnr_db[output]:.1f} dB from FP32: `fidelity` ({kept_db:g} dB) holds at the last "
            "layers, to which it leads on; where it is used by itself, keep the layers before it in float (`int8.keep_float`)"
            for output in _leading_on(part)
            if accepted.sqnr_db.get(output, kept_db) <= kept_db - _FAR
        ]
    if asked_db is not None and not selects(part):
        warnings += [
            f"output {output!r} is {db:.1f} dB from FP32 on {accepted.images} images, where `fidelity` asks INT8 for {asked_db:g}: "
            "nothing is measured and no layer given back in this file; `int8.keep_float` names layers of both INT8 files"
            for output, db in accepted.sqnr_db.items()
            if db <= asked_db - _FAR
        ]
    if sizes[1] > sizes[0]:
        warnings.append(f"the file is larger than FP32: {sizes[1]:,} bytes against {sizes[0]:,}")
    if ran.unexpected and here:
        listed = [
            f"{each['node']} ({each['op_type']}) was decided {each['decided']} and runs as {each['runs']}"
            for each in ran.unexpected
        ]
        warnings.append(_few(listed))
    if ran.unresolved and here:
        warnings.append(f"no kernel was found by name for {_few(ran.unresolved)}")
    return {
        "nodes": ran.nodes,
        "executed": ran.record() | ({"int8_share": share} if share is not None else {}),
        "accepted": accepted.record() | ({"pasted": moved} if (moved := pasted(part)) else {}),
        "from_bytes": sizes[0],
        "size_ratio": round(sizes[1] / sizes[0], 4),
        "warnings": warnings,
    }


def _leading_on(model: ir.Model) -> list[str]:
    """The graph's outputs behind which layers stand."""
    found = []
    for value in model.graph.outputs:
        ahead = [use.node for use in value.uses()]
        # A list that grows while it is gone through.
        for node in ahead:
            ahead += [use.node for output in node.outputs for use in output.uses() if use.node not in ahead]
        if any(node.op_type in LAYERS for node in ahead):
            found.append(value.name or "")
    return found


def _few(names: Sequence[str]) -> str:
    more = f"; and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return "; ".join(names[:_SHOWN]) + more
