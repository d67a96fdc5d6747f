"""Detectors of torchvision (Faster R-CNN, SSD, SSDlite, RetinaNet, FCOS): boxes, labels and scores, suppressed by the graph.

Detectron2's traced ones have the same, and the image's size beside them; their classes begin with 0. lufficc's SSD has
boxes in shares.
"""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.boxes import Boxes
from octavo.tasks.detection.family import Family, Size
from octavo.tasks.detection.shares import in_both_units
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILIES"]


def _parts(outputs: Outputs, size: Size) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """(boxes, labels, scores), told apart by rank and type; None where they are others."""
    boxes = [value for value in outputs.values() if value.ndim == 2 and value.shape[1] == 4]
    labels = [value for value in outputs.values() if value.ndim == 1 and np.issubdtype(value.dtype, np.integer)]
    scores = [value for value in outputs.values() if value.ndim == 1 and np.issubdtype(value.dtype, np.floating)]
    if len(labels) == 2:
        labels = [value for value in labels if value.tolist() != list(size)]
    if len(boxes) != 1 or len(labels) != 1 or len(scores) != 1 or not len(boxes[0]) == len(labels[0]) == len(scores[0]):
        return None
    return boxes[0], labels[0], scores[0]


def _fits(outputs: Outputs, size: Size) -> bool:
    return _parts(outputs, size) is not None


def _decode(outputs: Outputs, size: Size, least: float) -> Boxes:
    boxes, labels, scores = _parts(outputs, size)
    return Boxes.of(boxes, scores, labels).taken(np.nan_to_num(scores, nan=0.0) > least)


FAMILIES = in_both_units(
    Family(
        name="torchvision",
        networks="Faster R-CNN, SSD, SSDlite, RetinaNet, FCOS of torchvision, and Detectron2's",
        layout="k x 4 boxes (corners, pixels of the input), k labels (integers, 0 is the background, but of Detectron2), k scores",
        fits=_fits,
        decode=_decode,
        overlaps=False,
        background=True,
    )
)
