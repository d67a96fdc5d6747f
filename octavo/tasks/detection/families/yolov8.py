"""YOLOv8, v9 and v11 (https://docs.ultralytics.com): no anchors, no objectness, channels before cells, or after in some exports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.tasks.detection.boxes import corners
from octavo.tasks.detection.families.obb import ends_in_angles
from octavo.tasks.detection.family import Family, Rows, Size, are_key_points, are_scores, cells, coefficients
from octavo.tasks.detection.shares import in_both_units
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILIES", "ROWS", "has_cells"]

# With P2 and P6 heads, too.
_STRIDES = ((8, 16, 32), (8, 16, 32, 64), (4, 8, 16, 32))
# YOLOv3-tinyu's. They make few cells, which queries or their columns may be as many as: cells come last and outnumber channels.
_TINY = (16, 32)
# Channels at least of a box, its score and two points.
_POSED = 9


def _output(outputs: Outputs) -> np.ndarray | None:
    """The one output 1 x ... x ...; of several of one shape the last.

    YOLOv9 as its own repository exports it puts out its auxiliary branches before the main one (DualDDetect of
    https://github.com/WongKinYiu/yolov9, whose detect_dual.py takes the last).
    """
    found = [value for value in outputs.values() if value.ndim == 3 and value.shape[0] == 1]
    return found[-1] if len({value.shape for value in found}) == 1 else None


def has_cells(outputs: Outputs, size: Size) -> bool:
    """Whether the columns of the one output are the cells of a grid, whatever its rows are."""
    rows = _output(outputs)
    return rows is not None and rows.shape[2] in [cells(size, strides) for strides in _STRIDES]


def _scores(rows: np.ndarray, outputs: Outputs, size: Size) -> np.ndarray:
    return rows[0, 4 : rows.shape[1] - coefficients(outputs, size, rows.shape[1])]


def _allows(outputs: Outputs, size: Size) -> bool:
    rows = _output(outputs)
    wide = rows is not None and rows.shape[2] > rows.shape[1]
    return _allows_on(outputs, size, (*_STRIDES, _TINY) if wide else _STRIDES)


def _fits(outputs: Outputs, size: Size) -> bool:
    return _allows(outputs, size) and not ends_in_angles(_scores(_output(outputs), outputs, size))


def _allows_on(outputs: Outputs, size: Size, known: Sequence[Sequence[int]]) -> bool:
    rows = _output(outputs)
    if rows is None or rows.shape[2] not in [cells(size, strides) for strides in known]:
        return False
    scores = _scores(rows, outputs, size)
    return len(scores) > 0 and are_scores(scores) and not are_key_points(rows[0, :2].T, scores.T)


def _rows(outputs: Outputs, size: Size) -> Rows:
    rows = _output(outputs)
    box, scores = (part.astype(np.float32, copy=False).T for part in (rows[0, :4], _scores(rows, outputs, size)))
    return corners(box[:, :2], box[:, 2:]), scores


def _turned(outputs: Outputs) -> Outputs:
    return {name: value.swapaxes(1, 2) if value.ndim == 3 else value for name, value in outputs.items()}


def _allows_rows(outputs: Outputs, size: Size) -> bool:
    turned = _turned(outputs)
    # YOLOX's sizes are logarithms.
    return _allows_on(turned, size, _STRIDES) and bool((_output(turned)[0, 2:4] >= 0).all())


def _fits_rows(outputs: Outputs, size: Size) -> bool:
    turned = _turned(outputs)
    return _allows_rows(outputs, size) and not ends_in_angles(_scores(_output(turned), turned, size))


def _classes(outputs: Outputs, size: Size) -> int:
    return len(_scores(_output(outputs), outputs, size))


def _lacks(outputs: Outputs, size: Size) -> str | None:
    """The rows of a network for poses: sure boxes of some classes, and behind their scores what is none."""
    rows = _output(outputs)
    if rows is None or not has_cells(outputs, size) or len(rows[0]) < _POSED or not are_scores(rows[0, 4]):
        return None
    scores = _scores(rows, outputs, size)
    if are_scores(scores) and not are_key_points(rows[0, :2].T, scores.T):
        return None
    return (
        "they look like the rows of a network for poses, whose key points are not read: put out box and scores alone, the first "
        f"4 + c of {len(rows[0])} channels for c classes"
    )


FAMILIES = in_both_units(
    Family(
        name="yolov8",
        networks="YOLOv8, YOLOv9, YOLO11, YOLOv3u and YOLOv5u",
        layout="1 x (4 + c) x n: centre, size, class scores (0 to 1) at each of n cells; 1 x 84 x 8400 for 640x640; of "
        "several such outputs the last",
        fits=_fits,
        allows=_allows,
        rows=_rows,
        classes=_classes,
        lacks=_lacks,
    )
)
ROWS = in_both_units(
    Family(
        name="yolov8-rows",
        networks="YOLOv8, YOLOv9, YOLO11 with cells before channels",
        layout="1 x n x (4 + c): centre, size, class scores (0 to 1) at each of n cells; 1 x 8400 x 84 for 640x640",
        fits=_fits_rows,
        allows=_allows_rows,
        rows=lambda outputs, size: _rows(_turned(outputs), size),
        classes=lambda outputs, size: _classes(_turned(outputs), size),
    )
)
