"""Rotated boxes of YOLO's `-obb` networks (https://docs.ultralytics.com/tasks/obb), read as the upright boxes that enclose them."""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.boxes import corners
from octavo.tasks.detection.family import Family, Rows, Size, are_scores, cells, only
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILY", "ends_in_angles"]

_STRIDES = (8, 16, 32)
# Of the angle, in radians, and what rounding may add.
_LEAST, _MOST, _ROUNDED = -np.pi / 4, 3 * np.pi / 4, 0.1
# No class is as sure in as large a share of the cells. Where no object is, angles are about an eighth of a turn, .8.
_SURE, _NEARLY = 0.25, 0.9


def _allows(outputs: Outputs, size: Size) -> bool:
    rows = only(outputs, 3)
    shaped = rows is not None and rows.shape[2] == cells(size, _STRIDES) and rows.shape[1] >= 6
    return shaped and are_scores(rows[0, 4:-1])


def _fits(outputs: Outputs, size: Size) -> bool:
    return _allows(outputs, size) and ends_in_angles(only(outputs, 3)[0, 4:])


def ends_in_angles(values: np.ndarray) -> bool:
    """Whether the last row has angles, and no class beside those above it: out of 0 to 1, or surer than all nearly everywhere."""
    scores, angles = values[:-1], values[-1]
    if not len(scores) or angles.min() < _LEAST - _ROUNDED or angles.max() > _MOST + _ROUNDED:
        return False
    return not are_scores(angles) or bool((angles > np.maximum(scores.max(axis=0), _SURE)).mean() > _NEARLY)


def _rows(outputs: Outputs, size: Size) -> Rows:  # noqa: ARG001 - one signature for all families
    box, angle = only(outputs, 3)[0, :4].astype(np.float32, copy=False).T, only(outputs, 3)[0, -1].astype(np.float32, copy=False)
    along, across = np.abs(np.cos(angle)), np.abs(np.sin(angle))
    enclosing = [box[:, 2] * along + box[:, 3] * across, box[:, 2] * across + box[:, 3] * along]
    return corners(box[:, :2], np.stack(enclosing, axis=1)), only(outputs, 3)[0, 4:-1].astype(np.float32, copy=False).T


FAMILY = Family(
    name="yolov8-obb",
    networks="YOLOv8-obb, YOLO11-obb (rotated boxes are read as the upright ones that enclose them)",
    layout="1 x (4 + c + 1) x n: centre, size, class scores (0 to 1) and angle in radians at each of n cells; 1 x 20 x 21504 for "
    "1024x1024",
    fits=_fits,
    allows=_allows,
    rows=_rows,
    classes=lambda outputs, _: only(outputs, 3).shape[1] - 5,
)
