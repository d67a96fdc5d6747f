"""Boxes that a graph has chosen: as RT-DETR, D-FINE and DEIM are exported for use, with their post-processing, and by MMDeploy."""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.boxes import Boxes
from octavo.tasks.detection.family import Family, Size
from octavo.tasks.detection.shares import in_both_units
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILIES"]


def _parts(outputs: Outputs) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """(corners, scores, classes), told apart by shape and type; None where they are others."""
    values = [value[0] for value in outputs.values() if value.ndim in (2, 3) and value.shape[0] == 1]
    # Some keep a column for the one score, and the one label, of a box.
    values = [value[:, 0] if value.ndim == 2 and value.shape[1] == 1 else value for value in values]
    boxes = [value for value in values if value.ndim == 2 and value.shape[1] in (4, 5)]
    whole = [value for value in values if value.ndim == 1 and np.issubdtype(value.dtype, np.integer)]
    scores = [value for value in values if value.ndim == 1 and np.issubdtype(value.dtype, np.floating)]
    if len(boxes) != 1 or len(whole) != 1:
        return None
    if boxes[0].shape[1] == 5 and not scores:
        scores = [boxes[0][:, 4]]
    if len(scores) != 1 or not len(boxes[0]) == len(scores[0]) == len(whole[0]):
        return None
    return boxes[0][:, :4], scores[0], whole[0]


def _fits(outputs: Outputs, size: Size) -> bool:  # noqa: ARG001 - one signature for all families
    return _parts(outputs) is not None


def _decode(outputs: Outputs, size: Size, least: float) -> Boxes:  # noqa: ARG001
    boxes, scores, classes = _parts(outputs)
    # Rows that hold no box have a class of -1 (MMDeploy).
    return Boxes.of(boxes, scores, classes).taken((np.nan_to_num(scores, nan=0.0) > least) & (classes >= 0))


FAMILIES = in_both_units(
    Family(
        name="chosen",
        networks="RT-DETR, D-FINE, DEIM exported with their post-processing, MMDeploy's detectors",
        layout="1 x k x 4 boxes (corners, pixels of the input), 1 x k (x 1) scores and labels (integers); or 1 x k x 5 boxes with "
        "their scores, 1 x k labels",
        fits=_fits,
        decode=_decode,
        overlaps=False,
    )
)
