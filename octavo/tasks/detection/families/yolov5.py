"""YOLOv3 to v7 (https://github.com/ultralytics/yolov5): three anchors a cell, decoded by the graph."""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.boxes import corners
from octavo.tasks.detection.family import Family, Rows, Size, are_key_points, are_scores, cells, coefficients, only
from octavo.tasks.detection.shares import cover, in_both_units
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILIES", "classes", "located"]

_STRIDES = ((8, 16, 32), (8, 16, 32, 64))
# YOLOv3-tiny's, and those of YOLOv5's models p2, p34 and p7: of small inputs they make numbers that queries may have.
_RARER = ((16, 32), (4, 8, 16, 32), (8, 16), (8, 16, 32, 64, 128))
_ANCHORS = 3


def _rows(outputs: Outputs, size: Size) -> np.ndarray | None:
    """Boxes, objectness and class scores, n x (5 + c)."""
    rows = only(outputs, 3)
    return None if rows is None else rows[0, :, : rows.shape[2] - coefficients(outputs, size, rows.shape[2])]


def _fits(outputs: Outputs, size: Size) -> bool:
    rows = _rows(outputs, size)
    if rows is None or rows.shape[1] <= 5 or not are_scores(rows[:, 4:]) or are_key_points(rows[:, :2], rows[:, 4:]):
        return False
    usual, rarer = ([_ANCHORS * cells(size, strides) for strides in known] for known in (_STRIDES, _RARER))
    return len(rows) in usual or (len(rows) in rarer and cover(rows[:, :2], size))


def located(outputs: Outputs, size: Size) -> Rows:
    """Corners, n x 4, and class scores times objectness, n x c."""
    rows = _rows(outputs, size).astype(np.float32, copy=False)
    return corners(rows[:, :2], rows[:, 2:4]), rows[:, 4:5] * rows[:, 5:]


def classes(outputs: Outputs, size: Size) -> int:
    """How many there are behind box and objectness."""
    return _rows(outputs, size).shape[1] - 5


def _lacks(outputs: Outputs, size: Size) -> str | None:
    """One map a level, of three anchors a cell: 1 x 3 x h x w x (5 + c), 1 x h x w x 3 x (5 + c) or 1 x 3(5 + c) x h x w."""
    maps = [value.shape[1:] for value in outputs.values() if value.shape[:1] == (1,)]
    for strides in (*_STRIDES, *_RARER):
        grids = [(-(-size[0] // stride), -(-size[1] // stride)) for stride in strides]
        found = [_numbers(shape, grid) for grid in grids for shape in maps]
        kinds = {numbers for numbers in found if numbers}
        if len(maps) == len(strides) == len([numbers for numbers in found if numbers]) and len(kinds) == 1:
            return (
                f"they look like maps of YOLOv5's kind before decoding, {_ANCHORS} anchors a cell with 5 + {kinds.pop() - 5} "
                "numbers, whose sizes no shape tells: let the graph decode them (YOLOv5's export.py does; YOLOv7's and its kin's "
                "with `--grid`), so that it puts out 1 x 3n x (5 + c), which is `yolov5`"
            )
    return None


def _numbers(shape: tuple[int, ...], grid: tuple[int, int]) -> int:
    """How many an anchor has in a map of this grid; 0 in other maps."""
    if len(shape) == 3 and shape[1:] == grid and shape[0] % _ANCHORS == 0:
        numbers = shape[0] // _ANCHORS
    else:
        numbers = shape[3] if len(shape) == 4 and shape[:3] in ((_ANCHORS, *grid), (*grid, _ANCHORS)) else 0
    return numbers if numbers > 5 else 0


FAMILIES = in_both_units(
    Family(
        name="yolov5",
        networks="YOLOv5",
        layout="1 x 3n x (5 + c): centre, size, objectness, class scores (0 to 1) of 3 anchors at n cells; 1 x 25200 x 85 for "
        "640x640",
        fits=_fits,
        rows=located,
        classes=classes,
        lacks=_lacks,
    )
)
