"""PaddleDetection's exports with suppression (https://github.com/PaddlePaddle/PaddleDetection): whole boxes, and how many."""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.boxes import Boxes
from octavo.tasks.detection.family import Family, Size
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILY"]


def _rows(outputs: Outputs) -> np.ndarray | None:
    """Class, score, corners, k x 6; None where the outputs are others."""
    rows = [value for value in outputs.values() if value.ndim == 2 and value.shape[1] == 6]
    counts = [value for value in outputs.values() if value.size == 1 and np.issubdtype(value.dtype, np.integer)]
    return rows[0] if len(rows) == 1 and len(counts) == 1 and len(outputs) == 2 else None


def _fits(outputs: Outputs, size: Size) -> bool:  # noqa: ARG001 - one signature for all families
    return _rows(outputs) is not None


def _decode(outputs: Outputs, size: Size, least: float) -> Boxes:  # noqa: ARG001
    # Where nothing is found there is one row with a class of -1.
    rows = np.nan_to_num(_rows(outputs).astype(np.float64), nan=0.0)
    rows = rows[(rows[:, 1] > least) & (rows[:, 0] >= 0)]
    return Boxes.of(rows[:, 2:], rows[:, 1], np.rint(rows[:, 0]))


FAMILY = Family(
    name="paddle",
    networks="PaddleDetection's (PP-YOLOE, PicoDet, RT-DETR, ...) exported with suppression",
    layout="k x 6: class, score, corners in pixels of the input; and their number",
    fits=_fits,
    decode=_decode,
    overlaps=False,
)
