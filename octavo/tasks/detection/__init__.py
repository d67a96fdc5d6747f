"""Detection: from a detector's raw outputs to boxes on the photo. A family is one module of families/ and a line there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from octavo.errors import DataError
from octavo.images.frame import Frame
from octavo.images.objects import Objects
from octavo.params.grammar import Detection
from octavo.tasks.detection.boxes import Boxes, suppressed
from octavo.tasks.detection.candidates import Candidates
from octavo.tasks.detection.families import FAMILIES
from octavo.tasks.detection.family import Family, Rows, Size
from octavo.tasks.detection.matching import SAME, matched
from octavo.tasks.outputs import Outputs

__all__ = [
    "FAMILIES",
    "Boxes",
    "Family",
    "Reading",
    "RowReader",
    "SureBoxes",
    "detect",
    "families_of",
    "family_of",
    "readers_of",
    "row_reader",
    "surest",
]

# From one image's outputs, and what was fed for them, to (corners n x 4, scores n x c); None where they are no rows.
RowReader = Callable[[Outputs, Mapping[str, np.ndarray]], Rows | None]


def families_of(outputs: Outputs, size: Size) -> list[Family]:
    """All families that `task.decoder` may name for one image's outputs; `size` is (rows, columns) of the network's input."""
    return [family for family in FAMILIES.values() if family.fits(outputs, size) or _allowed(family, outputs, size)]


def family_of(outputs: Outputs, size: Size, asked: str = "auto", among: Collection[Family] = FAMILIES.values()) -> Family:
    """The family that one image's outputs are read as.

    Args:
        outputs: of the FP32 graph, on one image.
        size: (rows, columns) of the network's input.
        asked: `task.decoder`: a key of `FAMILIES`, or `auto` for the first that fits.
        among: what `auto` chooses among.

    Raises:
        DataError: there is no such family, it does not fit, or none does; the message has the shapes found.
    """
    fitting = [family for family in among if family.fits(outputs, size)]
    if asked == "auto":
        if fitting:
            return fitting[0]
        known = "".join(f"\n  {family.name}: {family.layout}" for family in FAMILIES.values())
        lacking = next((said for family in among if family.lacks and (said := family.lacks(outputs, size))), None)
        raise DataError(
            f"these outputs are of no known family of detectors: {_shapes(outputs, size)}; known:{known}",
            lacking or "export the graph in one of these layouts, or add a family (octavo/tasks/detection/families)",
        )
    if asked not in FAMILIES:
        raise DataError(f"there is no detector family {asked!r}", f"use `task.decoder: auto`, or one of: {', '.join(FAMILIES)}")
    family = FAMILIES[asked]
    if family in fitting or _allowed(family, outputs, size):
        return family
    raise DataError(
        f"`task.decoder: {asked}` reads {family.layout}; the graph puts out {_shapes(outputs, size)}",
        f"use {' or '.join(family.name for family in fitting)}, which would fit, or auto" if fitting else "check the export",
    )


def _allowed(family: Family, outputs: Outputs, size: Size) -> bool:
    return family.allows is not None and family.allows(outputs, size)


class Reading:
    """How one network's outputs are read: its family is told once, by the first outputs that tell it.

    Args:
        asked: `task.decoder`.
        among: the families that it may be, where it is not one of those that files' own outputs are of.

    Attributes:
        family: None before the first outputs.
    """

    def __init__(self, asked: str = "auto", among: Collection[Family] | None = None) -> None:
        self._asked = (asked, FAMILIES.values()) if among is None else ("auto", among)
        self.family: Family | None = None
        self._told = False

    def of(self, size: Size, *outputs: Outputs) -> Family:
        """The family of all images.

        Args:
            size: (rows, columns) of the network's input.
            outputs: one image's, FP32's before a variant's; they are looked at as long as nothing has told the family.

        Raises:
            DataError: see `family_of`.
        """
        for one in outputs:
            if not self._told:
                self.family = family_of(one, size, *self._asked)
                self._told = self.family.tells is None or self.family.tells(one, size)
        return self.family


def detect(outputs: Outputs, family: Family, frame: Frame, task: Detection) -> Boxes:
    """Boxes on the photo, by falling score.

    Args:
        outputs: one image's.
        family: what they are read as.
        frame: where the photo lay in the input.
        task: score, IoU and number of boxes to keep.
    """
    return _in_input(outputs, family, frame.input, task).on_photo(frame)


def _in_input(outputs: Outputs, family: Family, size: Size, task: Detection) -> Boxes:
    """Boxes in pixels of the network's input, by falling score."""
    found = family.boxes(outputs, size, task.score)
    return suppressed(found, task.iou, task.max_detections) if family.overlaps else found.best(task.max_detections)


def surest(boxes: Boxes, task: Detection) -> Boxes:
    """Those to compare and to draw; a box without area, as one beyond the photo's edge, overlaps nothing, not even itself."""
    return boxes.taken((boxes.scores >= task.sure) & (boxes.xyxy[:, 2:] > boxes.xyxy[:, :2]).all(axis=1))


def row_reader(task: Detection, image_input: str, layout: str = "nchw") -> RowReader:
    """What reads one network's outputs as rows of boxes and scores, of every place that it has, before any suppression.

    Args:
        task: its `decoder` names the family, or the outputs tell it.
        image_input: the graph's input that takes the image.
        layout: of that input, `nchw` or `nhwc`.

    Returns:
        From one image's outputs, and what was fed for them, to (corners in input pixels n x 4, scores n x c); to None
        where the graph itself suppresses or chooses boxes, or the outputs are of no known family. The first outputs, FP32's, tell
        the family of all; DataError where they are not of the one that `decoder` names.
    """
    reading = Reading(task.decoder)

    def read(outputs: Outputs, feeds: Mapping[str, np.ndarray]) -> Rows | None:
        size = _size(feeds[image_input], layout)
        try:
            family = reading.of(size, outputs)
        except DataError:
            if task.decoder != "auto":
                raise
            # What no family reads is judged by the network's heads.
            return None
        return family.rows(outputs, size) if family.rows else None

    return read


class SureBoxes:
    """Reads the sure boxes of variants and pairs them, as validation does; in outputs of no known family there are none.

    Args:
        task: its `decoder` names the family, or the first outputs, FP32's, tell it.
        image_input: the graph's input that takes the image.
        layout: of that input, `nchw` or `nhwc`.
    """

    def __init__(self, task: Detection, image_input: str, layout: str = "nchw") -> None:
        self._task, self._image_input, self._layout = task, image_input, layout
        self._reading = Reading(task.decoder)

    def read(self, outputs: Outputs, feeds: Mapping[str, np.ndarray]) -> Boxes:
        """One image's, in pixels of the network's input, by falling score.

        Raises:
            DataError: the outputs are not of the family that `decoder` names.
        """
        size = _size(feeds[self._image_input], self._layout)
        try:
            family = self._reading.of(size, outputs)
        except DataError:
            if self._task.decoder != "auto":
                raise
            return Boxes.of(np.zeros((0, 4)), np.zeros(0), np.zeros(0))
        return surest(_in_input(outputs, family, size, self._task), self._task)

    @staticmethod
    def pairs(mine: Boxes, theirs: Boxes) -> int:
        """How many of one image's are the same boxes: of one class, at an IoU of 0.5 or more, each once."""
        return int((matched(mine, Objects.of(theirs.xyxy, theirs.classes), SAME).partner[0] >= 0).sum())


def readers_of(
    task: Any, image_input: str, layout: str = "nchw", *, cut: bool = False
) -> tuple[RowReader | None, RowReader | None, SureBoxes | None]:
    """What reads a graph's outputs as rows (`row_reader`), what reads what its own suppression chooses among, and what reads and
    pairs the boxes that it finds, which is None where it is cut.

    The second, of the graph cut before it, reads boxes and scores, or one tensor of both as a family writes it; None where the
    first outputs, FP32's, are neither.

    Args:
        task: of any kind; all are None where it is no detection.
        image_input: the graph's input that takes the image.
        layout: of that input, `nchw` or `nhwc`.
        cut: the outputs are not the file's: it ends in a custom operator, and these are what it reads.
    """
    if not isinstance(task, Detection):
        return None, None, None
    whole = row_reader(Detection(name="detection"), image_input, layout)
    told: list[Candidates | None] = []

    def candidates(outputs: Outputs, feeds: Mapping[str, np.ndarray]) -> Rows | None:
        if not told:
            told.append(Candidates.told(outputs, _size(feeds[image_input], layout)))
        if told[0] is not None:
            return told[0].rows(outputs)
        # Scores alone look like rows of some families.
        several = sum(value.size > max(value.shape, default=0) for value in outputs.values()) > 1
        return None if several else whole(outputs, feeds)

    if cut:
        return candidates, candidates, None
    return row_reader(task, image_input, layout), candidates, SureBoxes(task, image_input, layout)


def _size(image: np.ndarray, layout: str) -> Size:
    return image.shape[1:3] if layout == "nhwc" else image.shape[2:4]


def _shapes(outputs: Outputs, size: Size) -> str:
    found = ", ".join(f"{name} {value.dtype} {list(value.shape)}" for name, value in outputs.items())
    return f"{found} for an input of {size[0]}x{size[1]}"
