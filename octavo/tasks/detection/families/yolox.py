"""YOLOX (https://arxiv.org/abs/2107.08430): no anchors, boxes relative to their cell, which the graph leaves undecoded."""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.boxes import corners
from octavo.tasks.detection.families import yolov5
from octavo.tasks.detection.family import Family, Rows, Size, are_key_points, are_scores, cells, centres, grown, only
from octavo.tasks.detection.shares import in_both_units
from octavo.tasks.outputs import Outputs

__all__ = ["DECODED", "FAMILY"]

_STRIDES = (8, 16, 32)
# Of the input's longer side: nearer to their cells than this are all centres as the network writes them, in cells.
_FAR = 0.25
# The least correlation of decoded centres with their cells.
_FOLLOWS = 0.5
# The mean of the best class score of each cell: trained on cells with objects alone, it is above in the background, too.
_BACKGROUND = 0.05


def _rows(outputs: Outputs, size: Size) -> np.ndarray | None:
    rows = only(outputs, 3)
    fits = rows is not None and rows.shape[2] > 5 and rows.shape[1] == cells(size, _STRIDES)
    return rows[0].astype(np.float64) if fits else None


def _is_decoded(rows: np.ndarray, size: Size) -> bool:
    """Whether centres are spread over the image in pixels, or lie where their cells do, in whatever unit."""
    return bool(np.abs(rows[:, :2]).max() > _FAR * max(size)) or _follows_cells(rows[:, :2], size)


def _follows_cells(centre: np.ndarray, size: Size) -> bool:
    grid, step = centres(size, _STRIDES, 0.5)
    place, found = (values - values.mean(axis=0) for values in (grid * step, centre))
    # Of offsets from cells the correlation is near 0, or below: they point to objects.
    apart = np.sqrt((place**2).sum(axis=0) * (found**2).sum(axis=0))
    return bool(((place * found).sum(axis=0) > _FOLLOWS * apart).all())


def _has_objectness(scores: np.ndarray) -> bool:
    """Whether the first column is objectness, and no class.

    Of classes, one is high where the others are low, and in the background all are low. YOLOv6 has an objectness of 1 everywhere.
    """
    best = scores[:, 1:].max(axis=1)
    together = (scores[:, 0] * best).max()
    return bool(best.mean() > _BACKGROUND or together >= scores.max() / 2 or scores[:, 0].min() > 0.5)


def _fits(outputs: Outputs, size: Size) -> bool:
    rows = _rows(outputs, size)
    return rows is not None and not _is_decoded(rows, size) and are_scores(rows[:, 4:])


def _allows(outputs: Outputs, size: Size) -> bool:
    """Whether centres may be in cells, however far from theirs: of an image that the network was not made for they are far, too."""
    rows = _rows(outputs, size)
    return rows is not None and not _follows_cells(rows[:, :2], size) and are_scores(rows[:, 4:])


def _allows_decoded(outputs: Outputs, size: Size) -> bool:
    rows = _rows(outputs, size)
    if rows is None or not _is_decoded(rows, size) or not are_scores(rows[:, 4:]):
        return False
    return not are_key_points(rows[:, :2], rows[:, 4:])


def _fits_decoded(outputs: Outputs, size: Size) -> bool:
    return _allows_decoded(outputs, size) and _has_objectness(_rows(outputs, size)[:, 4:])


def _located(outputs: Outputs, size: Size) -> Rows:
    rows = only(outputs, 3)[0].astype(np.float32, copy=False)
    grid, step = centres(size, _STRIDES, 0.0)
    extent = grown(rows[:, 2:4]) * step
    return corners((rows[:, :2] + grid) * step, extent), rows[:, 4:5] * rows[:, 5:]


FAMILY = Family(
    name="yolox",
    networks="YOLOX as its exporter writes it",
    layout="1 x n x (5 + c): centre and log of size, in cells, objectness, class scores at n cells; 1 x 3549 x 85 for 416x416",
    fits=_fits,
    allows=_allows,
    rows=_located,
    classes=yolov5.classes,
)
DECODED = in_both_units(
    Family(
        name="yolox-decoded",
        networks="YOLOX exported with `--decode_in_inference`",
        layout="1 x n x (5 + c): centre and size in pixels, objectness, class scores",
        fits=_fits_decoded,
        allows=_allows_decoded,
        rows=yolov5.located,
        classes=yolov5.classes,
    )
)
