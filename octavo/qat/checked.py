"""The written file before it is accepted: against the network that was trained, against FP32, and by the kernels that run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from octavo.graph.custom_ops import CustomOps
from octavo.graph.io import load
from octavo.layout import PARITY
from octavo.qat.run import Trained
from octavo.quantization.qdq_decisions import qdq_decisions
from octavo.quantization.verification import verified
from octavo.runtime.noise import sqnr_db
from octavo.runtime.session import Session
from octavo.tasks.outputs import class_axis

__all__ = ["checked"]


def checked(
    trained: Trained,
    written: Path,
    reference: Path,
    samples: Sequence[tuple[str, Mapping[str, np.ndarray]]],
    *,
    name: str,
    sizes: tuple[int, int],
    task: Any,
) -> dict[str, Any]:
    """Run the file on images.

    Args:
        trained: what it was written from.
        written: the file.
        reference: FP32's.
        samples: (what the image is, feeds with one image).
        name: what errors call the file.
        sizes: bytes of FP32 and of the file.
        task: the model's `task:` block.

    Returns:
        As `octavo.quantization.verification.verified`, and `parity`: with the trained network in torch, over the samples.

    Raises:
        QuantizationError: the file is not to be accepted.
    """
    classes = class_axis(task)
    found = verified(
        written,
        reference,
        qdq_decisions(trained.model),
        samples,
        name=name,
        custom=CustomOps(),
        sizes=sizes,
        classes=classes,
        graph=load(written),
    )
    parity = _parity(trained, Session(written), samples, classes=classes)
    if parity.get("agreement", 1.0) < PARITY:
        found["warnings"].append(
            f"ONNX Runtime names the class of the trained network at {parity['agreement']:.2%} of the positions"
        )
    layers, integer = found["executed"]["int8_layers"], found["executed"]["int8_layers_integer"]
    if integer < layers:
        found["warnings"].append(f"{layers - integer} of {layers} quantized layers run in float")
    return found | {"parity": parity}


def _parity(
    trained: Trained, session: Session, samples: Sequence[tuple[str, Mapping[str, np.ndarray]]], *, classes: int | None
) -> dict[str, float]:
    same: list[np.ndarray] = []
    signal = noise = 0.0
    for _, feeds in samples:
        mine, theirs = session.run(feeds), trained.torch(next(iter(feeds.values())))
        for name, value in theirs.items():
            if not np.issubdtype(value.dtype, np.floating):
                continue
            signal += float((value.astype(np.float64) ** 2).sum())
            noise += float(((value.astype(np.float64) - mine[name]) ** 2).sum())
            if classes is not None and value.ndim > classes and value.shape[classes] > 1:
                same.append((value.argmax(classes) == mine[name].argmax(classes)).ravel())
    found = {"images": len(samples), "sqnr_db": round(sqnr_db(signal, noise), 2)}
    return found | ({"agreement": round(float(np.concatenate(same).mean()), 6)} if same else {})
