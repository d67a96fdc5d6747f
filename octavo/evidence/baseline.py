"""FP32 ONNX against the torch module it came from, without torch: `export` kept the module's outputs on some images."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from octavo.errors import DataError
from octavo.evidence.fidelity import Fidelity
from octavo.images.dataset import Images
from octavo.images.feeds import Feeds
from octavo.images.purpose import open_images
from octavo.layout import TORCH_OUTPUTS
from octavo.runtime.rows import matched_rows
from octavo.runtime.session import Session
from octavo.tasks.registry import SCORES

__all__ = ["torch_baseline"]


def torch_baseline(folder: Path, session: Session, feeds: Feeds, spec: Any, *, selecting: bool = False) -> dict[str, Any]:
    """Run FP32 on the images that `export` ran torch on.

    Args:
        folder: models/<model>/fp32.
        session: of its model.onnx.
        feeds: from an image's tensor to what the graph is fed.
        spec: the model's params.
        selecting: whether the graph chooses rows, which are then paired by what they hold.

    Returns:
        `torch.images`, `torch.max_abs_diff`, `torch.sqnr_db`, `torch.cosine_min` and how far the task's answers agree
        (classification `torch.agreement`, detection `torch.match_f1`); empty for a model that did not come from torch.

    Raises:
        DataError: an image is no longer in the calibration set, or the file of torch's outputs is damaged.
    """
    if not (folder / TORCH_OUTPUTS).is_file():
        return {}
    truths: dict[str, dict[str, np.ndarray]] = {}
    try:
        with np.load(folder / TORCH_OUTPUTS, allow_pickle=False) as archive:
            for key in archive.files:
                digest, output = key.split("/", 1)
                truths.setdefault(digest, {})[output] = archive[key]
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile) as error:
        raise DataError(f"{folder / TORCH_OUTPUTS} is damaged: {error}", "run the export stage again: `dvc repro -f`") from error
    items = [item for item in open_images(spec.data, "calibration", "data") if item.sha256 in truths]
    if {item.sha256 for item in items} != set(truths):
        raise DataError(
            f"images that {folder} was checked on are gone from {spec.data.calibration.path}, or held out now",
            "run the export stage again: `dvc repro -f`",
        )
    fidelity = Fidelity()
    scores = [SCORES[spec.task.name](spec.task, spec.input) for _ in range(2)] if spec.task.name in SCORES else []
    for item, tensor in Images(items, spec.input):
        outputs, truth = session.run_finite(feeds(tensor), item.name), truths[item.sha256]
        fidelity.update(*(matched_rows(truth, outputs, lost=True) if selecting else (truth, outputs)))
        for score, values in zip(scores, (outputs, truth), strict=False):
            score.update(values, truth, item.unlabelled())
    found = {key: value for key, value in fidelity.metrics().items() if key in ("sqnr_db", "max_abs_diff", "cosine_min")}
    if scores:
        # Absent where FP32 finds no box: nothing agrees or differs.
        found |= {key: value for key, value in scores[0].metrics(scores[1]).items() if key == scores[0].agrees}
    return {"torch.images": len(items)} | {f"torch.{key}": float(f"{value:.6g}") for key, value in found.items()}
