"""Rotated boxes of YOLO's `-obb` networks (https://docs.ultralytics.com/tasks/obb), read as the upright boxes that enclose them."""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.boxes import Boxes, corners
from octavo.tasks.detection.family import Family, Rows, Size, are_scores, cells, only
from octavo.tasks.outputs import Outputs

__all__ = ["CHOSEN", "FAMILY", "ends_in_angles"]

_STRIDES = (8, 16, 32)
# Of the angle, in radians, and what rounding may add.
_LEAST, _MOST, _ROUNDED = -np.pi / 4, 3 * np.pi / 4, 0.1
# No class is as sure in as large a share of the cells. Where no object is, angles are about an eighth of a turn, .8.
_SURE, _NEARLY = 0.25, 0.9
# Rows of a graph that chooses boxes at most, and the angles that it may write: a turn to either side, for networks that learn them
# without bounds.
_ROWS, _TURN = 1000, 2 * np.pi


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
    rows = only(outputs, 3)[0].astype(np.float32, copy=False).T
    return _enclosing(rows[:, :4], rows[:, -1]), rows[:, 4:-1]


def _enclosing(box: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """Corners, n x 4, of the upright boxes around centre and size, n x 4, turned by angles in radians."""
    along, across = np.abs(np.cos(angle)), np.abs(np.sin(angle))
    extent = [box[:, 2] * along + box[:, 3] * across, box[:, 2] * across + box[:, 3] * along]
    return corners(box[:, :2], np.stack(extent, axis=1))


def _fits_chosen(outputs: Outputs, size: Size) -> bool:  # noqa: ARG001 - one signature for all families
    rows = only(outputs, 3)
    if rows is None or rows.shape[2] != 7 or rows.shape[1] > _ROWS:
        return False
    found = rows[0, rows[0, :, 4] > 0]
    told = are_scores(found[:, 4]) and bool((found[:, 5] == np.rint(found[:, 5])).all() and (np.abs(found[:, 6]) <= _TURN).all())
    # In shares of the image they are queries of three classes.
    return told and not (len(found) and are_scores(found[:, :4]))


def _decode_chosen(outputs: Outputs, size: Size, least: float) -> Boxes:  # noqa: ARG001
    rows = only(outputs, 3)[0].astype(np.float64)
    # Rows that hold no box have a score of 0.
    rows = rows[np.nan_to_num(rows[:, 4], nan=0.0) > least]
    return Boxes.of(_enclosing(rows[:, :4], rows[:, 6]), rows[:, 4], np.rint(np.nan_to_num(rows[:, 5])))


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
CHOSEN = Family(
    name="yolov10-obb",
    networks="YOLO26-obb, and YOLO's -obb networks exported with NMS inside",
    layout="1 x k x 7: centre, size, score, class, angle in radians; 1 x 300 x 7",
    fits=_fits_chosen,
    decode=_decode_chosen,
    overlaps=False,
    tells=lambda outputs, _: bool((only(outputs, 3)[0, :, 4] > 0).any()),
)
