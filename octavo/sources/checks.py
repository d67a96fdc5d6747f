"""An exported graph held against what it came from: its torch module, and itself at another batch size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from octavo.errors import SourceError
from octavo.layout import TORCH_OUTPUTS

__all__ = ["compare_with_reference", "refuse_mixed_batch"]

# Two implementations of FP32 round differently; a difference above this share of the largest output is a wrong export.
TOLERANCE = 1e-3

Outputs = Mapping[str, np.ndarray]
Run = Callable[[np.ndarray], Outputs]


def compare_with_reference(
    reference: Run, samples: Sequence[tuple[str, np.ndarray]], outputs: Sequence[Outputs], folder: Path
) -> dict[str, Any]:
    """Hold the graph's outputs against the torch module's and keep the latter in `folder`.

    Args:
        reference: the torch module, from a tensor with batch dimension 1 to outputs by name.
        samples: (sha256 of the image, tensor with batch dimension 1).
        outputs: the graph's outputs on them.
        folder: `torch_outputs.npz` goes here, with keys "<sha256>/<output>".

    Returns:
        `images`, `max_abs_diff`, `largest_output`.

    Raises:
        SourceError: they differ by more than rounding does.
    """
    truths = [reference(tensor) for _, tensor in samples]
    pairs = [(truth[key], mine[key]) for truth, mine in zip(truths, outputs, strict=True) for key in truth]
    largest = max(float(np.abs(truth - mine).max(initial=0.0)) for truth, mine in pairs)
    scale = max(float(np.abs(truth).max(initial=0.0)) for truth, _ in pairs)
    if not largest <= TOLERANCE * max(scale, 1e-6):
        raise SourceError(
            f"the exported graph differs from the torch module by {largest:.3g} (outputs reach {scale:.3g})",
            "try the other `source.exporter`, or another `source.opset`",
        )
    kept = {f"{digest}/{key}": value for (digest, _), truth in zip(samples, truths, strict=True) for key, value in truth.items()}
    np.savez_compressed(folder / TORCH_OUTPUTS, **kept)
    return {"images": len(samples), "max_abs_diff": largest, "largest_output": scale}


def refuse_mixed_batch(run: Run, tensors: Sequence[np.ndarray], outputs: Sequence[Outputs]) -> None:
    """Two images in one batch must come out as they do alone; for graphs whose batch dimension is dynamic.

    A graph whose fixed batch was made dynamic can still hold a Reshape that mixes images; only running it shows that.

    Args:
        run: from a tensor to the graph's outputs.
        tensors: real images, batch dimension 1.
        outputs: the graph's outputs on each alone.

    Raises:
        SourceError: an output differs.
    """
    if len(tensors) < 2 or tensors[0].shape != tensors[1].shape:
        return  # `resize.stride`: photos of different shapes never come in one batch
    both = run(np.concatenate(tensors[:2]))
    for name, value in both.items():
        alone = [single[name] for single in outputs[:2]]
        if not np.issubdtype(value.dtype, np.floating) or any(single.shape[:1] != (1,) for single in alone):
            continue
        expected = np.concatenate(alone) if value.shape[1:] == alone[0].shape[1:] else None
        scale = max(float(np.abs(single).max(initial=0.0)) for single in alone)
        if expected is None or expected.shape != value.shape or not np.abs(value - expected).max() <= TOLERANCE * max(scale, 1e-6):
            raise SourceError(
                f"output {name!r} of two images in one batch is not what each gives alone: the graph has a fixed batch size inside",
                "set `source.dynamic_batch: false`",
            )
