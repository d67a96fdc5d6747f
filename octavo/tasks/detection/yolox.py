"""YOLOX (https://arxiv.org/abs/2107.08430): no anchors, boxes relative to their cell, which the graph leaves undecoded."""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection import yolov5
from octavo.tasks.detection.boxes import corners
from octavo.tasks.detection.family import Family, Rows, Size, cells, centres, only
from octavo.tasks.outputs import Outputs

__all__ = ["DECODED", "FAMILY"]

_STRIDES = (8, 16, 32)
# exp of more is wider than any image: the output of a broken network would overflow.
_WIDEST = 10.0
# Of the input's longer side: nearer to their cells than this are all centres as the network writes them, in cells.
_FAR = 0.25


def _rows(outputs: Outputs, size: Size) -> np.ndarray | None:
    rows = only(outputs, 3)
    fits = rows is not None and rows.shape[2] > 5 and rows.shape[1] == cells(size, _STRIDES)
    return rows[0].astype(np.float64) if fits else None


def _is_decoded(rows: np.ndarray, size: Size) -> bool:
    """Whether centres are spread over the image, in pixels."""
    return bool(np.abs(rows[:, :2]).max() > _FAR * max(size))


def _fits(outputs: Outputs, size: Size) -> bool:
    rows = _rows(outputs, size)
    return rows is not None and not _is_decoded(rows, size)


def _fits_decoded(outputs: Outputs, size: Size) -> bool:
    rows = _rows(outputs, size)
    return rows is not None and _is_decoded(rows, size)


def _located(outputs: Outputs, size: Size) -> Rows:
    rows = only(outputs, 3)[0].astype(np.float32, copy=False)
    grid, step = centres(size, _STRIDES, 0.0)
    extent = np.exp(np.minimum(rows[:, 2:4], _WIDEST)) * step
    return corners((rows[:, :2] + grid) * step, extent), rows[:, 4:5] * rows[:, 5:]


FAMILY = Family(
    name="yolox",
    networks="YOLOX as its exporter writes it",
    layout="1 x n x (5 + c): centre and log of size, in cells, objectness, class scores at n cells; 1 x 3549 x 85 for 416x416",
    fits=_fits,
    rows=_located,
    classes=yolov5.FAMILY.classes,
)
DECODED = Family(
    name="yolox-decoded",
    networks="YOLOX exported with `--decode_in_inference`",
    layout="1 x n x (5 + c): centre and size in pixels, objectness, class scores",
    fits=_fits_decoded,
    rows=yolov5.FAMILY.rows,
    classes=yolov5.FAMILY.classes,
)
