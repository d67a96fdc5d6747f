"""SSD and its kin whose graph decodes boxes and scores, and leaves suppression to the caller; class 0 is the background."""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.family import Family, Rows, Size
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILY"]

# Rows from which boxes are those of a grid; fewer are queries.
_LEAST = 1000


def _parts(outputs: Outputs) -> tuple[np.ndarray, np.ndarray] | None:
    values = [value[0] for value in outputs.values() if value.ndim == 3 and value.shape[0] == 1]
    boxes = [value for value in values if value.shape[1] == 4]
    scores = [value for value in values if value.shape[1] != 4]
    if len(values) != 2 or len(boxes) != 1 or len(boxes[0]) != len(scores[0]):
        return None
    return boxes[0], scores[0]


def _fits(outputs: Outputs, size: Size) -> bool:  # noqa: ARG001 - one signature for all families
    parts = _parts(outputs)
    return parts is not None and len(parts[0]) > _LEAST


def _rows(outputs: Outputs, size: Size) -> Rows:
    boxes, scores = _parts(outputs)
    return boxes.astype(np.float64) * np.tile(size[::-1], 2), scores[:, 1:]


FAMILY = Family(
    name="ssd",
    networks="SSD, and face detectors of its kind",
    layout="1 x n x 4 boxes (corners, 0 to 1) and 1 x n x (1 + c) scores, the first that of the background; n above 1000",
    fits=_fits,
    rows=_rows,
    classes=lambda outputs, _: _parts(outputs)[1].shape[1] - 1,
)
