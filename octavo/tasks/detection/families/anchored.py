"""RetinaNet, EfficientDet and their kin whose graph does not decode: offsets from anchors, sigmoid scores, and the anchors.

Which anchors stand at a cell, in which order, and whether y comes first are the network's settings, which no shape tells: a graph
that puts its anchors out beside the rest can be read, as zylo117's EfficientDet does.
"""

from __future__ import annotations

import numpy as np

from octavo.tasks.detection.boxes import corners
from octavo.tasks.detection.candidates import centre_and_size
from octavo.tasks.detection.family import Family, Rows, Size, are_scores, grown, sigmoid
from octavo.tasks.detection.shares import are_even, y_first
from octavo.tasks.outputs import Outputs

__all__ = ["FAMILY"]

# Fewer rows are queries of another kind.
_LEAST = 100
# Anchors have few sizes, decoded boxes nearly as many as there are; two are one size where they differ by less, in shares of the
# input.
_SIZES, _SAME = 0.1, 1e-4
_DECODED = "export boxes that the graph decodes, or suppresses (torchvision's and Detectron2's detectors do as they are)"


def _tables(outputs: Outputs) -> list[np.ndarray]:
    """Each output as n x k; maps beside them, as EfficientDet puts out its features, are not read."""
    values = [value for value in outputs.values() if value.ndim < 4 and value.dtype.kind == "f"]
    return [value[0] if value.ndim == 3 and value.shape[0] == 1 else value for value in values]


def _parts(outputs: Outputs, size: Size) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """(offsets n x 4, scores or logits n x c, anchors n x 4); None where they are others."""
    tables = _tables(outputs)
    if len(tables) != 3 or any(table.ndim != 2 for table in tables) or len({len(table) for table in tables}) != 1:
        return None
    anchors = [place for place, table in enumerate(tables) if _anchors(table, size) is not None]
    if len(anchors) != 1 or len(tables[0]) < _LEAST:
        return None
    others = (table for place, table in enumerate(tables) if place != anchors[0])
    # Of four classes, scores are what lies in 0 to 1, or is lower: most places are background.
    offsets, scores = sorted(others, key=lambda table: (table.shape[1] != 4, are_scores(table), -table.mean()))
    return (offsets, scores, tables[anchors[0]]) if offsets.shape[1] == 4 and not _are_distances(offsets) else None


def _are_distances(offsets: np.ndarray) -> bool:
    """As FCOS has them, from a cell's place to the box's four sides."""
    return bool((offsets >= 0).all())


def _anchors(table: np.ndarray, size: Size) -> tuple[np.ndarray, np.ndarray, bool] | None:
    """(middles and sides, n x 2, with x before y; whether y stands before x in the table); None where these are no anchors."""
    for turned in (False, True) if table.shape[1] == 4 and len(table) >= _LEAST else ():
        each = (table[:, [1, 0, 3, 2]] if turned else table).astype(np.float64)
        centred = centre_and_size(each, size)
        if centred is None:
            continue
        middles = each[:, :2] if centred else (each[:, :2] + each[:, 2:]) / 2
        sides = each[:, 2:] if centred else each[:, 2:] - each[:, :2]
        kinds = np.unique(np.round(sides / (1 if are_even(middles) else min(size)) / _SAME), axis=0)
        if len(kinds) <= _SIZES * len(table) and not y_first(corners(middles, sides), size):
            return middles, sides, turned
    return None


def _rows(outputs: Outputs, size: Size) -> Rows:
    offsets, scores, anchors = _parts(outputs, size)
    middles, sides, turned = _anchors(anchors, size)
    offsets = (offsets[:, [1, 0, 3, 2]] if turned else offsets).astype(np.float64)
    boxes = corners(middles + offsets[:, :2] * sides, sides * grown(offsets[:, 2:]))
    scale = np.tile(size[::-1], 2) if are_even(middles) else 1
    return boxes * scale, scores.astype(np.float64) if are_scores(scores) else sigmoid(scores)


def _lacks(outputs: Outputs, size: Size) -> str | None:
    """Rows that are no boxes beside scores of as many, or maps of both for each level."""
    tables = _tables(outputs)
    rows = len(tables) in (2, 3) and all(table.ndim == 2 and len(table) == len(tables[0]) >= _LEAST for table in tables)
    fours = [table for table in tables if rows and table.shape[1] == 4]
    offsets = [table for table in fours if centre_and_size(table, size) is None]
    if offsets and _are_distances(offsets[0]):
        return f"they look like distances from cells, as FCOS computes them, and scores: {_DECODED}"
    if len(offsets) < len(fours) or not (offsets or _are_levels(outputs)):
        return None
    form = "" if offsets else "put all levels together as rows, 1 x n x 4 and 1 x n x c, "
    return (
        f"they look like offsets from anchors and scores, as RetinaNet and EfficientDet compute them: {form}put the anchors out, "
        f"too (n x 4, corners or centre and size), which is `anchored`; or {_DECODED}"
    )


def _are_levels(outputs: Outputs) -> bool:
    """Two maps for each of several levels, with as many channels at each level, those of one of them offsets of four."""
    maps: dict[tuple[int, ...], list[int]] = {}
    for value in outputs.values():
        maps.setdefault(value.shape[2:], []).append(value.shape[1] if value.ndim == 4 else 0)
    kinds = {tuple(sorted(each)) for each in maps.values()}
    channels = kinds.pop() if len(kinds) == 1 else ()
    return len(maps) > 2 and len(channels) == 2 and any(count % 4 == 0 < count for count in channels)


FAMILY = Family(
    name="anchored",
    networks="RetinaNet and EfficientDet whose graph does not decode",
    layout="1 x n x 4 offsets (centre in sides of the anchor, logarithm of size), 1 x n x c scores or logits of a sigmoid, "
    "n x 4 anchors (corners or centre and size, pixels or 0 to 1), with y before x in both or in neither: their order tells",
    fits=lambda outputs, size: _parts(outputs, size) is not None,
    rows=_rows,
    classes=lambda outputs, size: _parts(outputs, size)[1].shape[1],
    lacks=_lacks,
)
