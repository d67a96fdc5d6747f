"""The evidence of a detector: average precision where boxes are annotated, and its boxes held against FP32's on every image."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from octavo.errors import DataError
from octavo.images.dataset import Classes, Item
from octavo.images.frame import Frame
from octavo.images.objects import Objects
from octavo.params.grammar import Detection, Input
from octavo.tasks.detection import Reading, detect, families_of, surest
from octavo.tasks.detection.ap import average_precision
from octavo.tasks.detection.boxes import Boxes
from octavo.tasks.detection.family import Family
from octavo.tasks.detection.matching import SAME, matched
from octavo.tasks.detection.names import class_names
from octavo.tasks.detection.picture import drawn_found, drawn_truth
from octavo.tasks.detection.plugin import Plugin
from octavo.tasks.detection.resampled import Curves
from octavo.tasks.outputs import Outputs
from octavo.tasks.score import Needs, Panel, Shown

__all__ = ["DetectionScore"]


class DetectionScore:
    """Boxes of one variant, image by image; see `octavo.tasks.score.Score`.

    Args:
        plugin: how outputs are read that are not the file's own, as the graph is cut before an operator; None for the file's own.

    Attributes:
        found: the boxes of every image, on the photo, by falling score.
        truth: the annotated ones; None where an image has no annotation.
    """

    metric = "ap"
    to_fp32 = ("match_f1", "match_iou", "match_score_diff")
    agrees = "match_f1"
    drop = None
    by_size = ("ap_small", "ap_medium", "ap_large")
    doubted = (0.01, "`task.decoder`, the boxes' units, `task.classes` or `input:` are in doubt")
    # One of fifty moves F1 by .01; one of three takes it from 1 to .8.
    needs = Needs("sure_boxes", "boxes of at least `task.sure`", 50, "`match_f1` and `gate.agreement`")
    least = 50

    def __init__(self, task: Detection, spec: Input, plugin: Plugin | None = None) -> None:
        self.task, self.spec = task, spec
        self._reading = Reading(task.decoder, plugin.families if plugin else None)
        self.found: list[Boxes] = []
        self.truth: list[Objects | None] = []

    @classmethod
    def classes(cls, task: Detection, outputs: Outputs, size: tuple[int, int], plugin: Plugin | None = None) -> Classes:
        """Names from params.yaml, the number from the outputs where their layout tells it.

        Raises:
            DataError: the outputs are of no known family.
        """
        family = Reading(task.decoder, plugin.families if plugin else None).of(size, outputs)
        names, count = class_names(task), family.classes(outputs, size) if family.classes else None
        others = [] if names is None or count in (None, len(names)) else families_of(outputs, size)
        rivals = tuple(other.name for other in others if other.classes and other.classes(outputs, size) == len(names))
        return Classes(count, names, True, family.name, rivals=rivals)

    @property
    def family(self) -> Family | None:
        """How outputs are read; None before the first image."""
        return self._reading.family

    @property
    def labelled(self) -> int:
        """Images with annotations, be it that there is nothing to be found in them; 0 where nothing is to be found in any."""
        return len(self._labelled())

    @property
    def units(self) -> int:
        """Labelled images."""
        return self.labelled

    def update(self, outputs: Outputs, reference: Outputs, item: Item) -> None:
        """Decode one image.

        Raises:
            DataError: FP32's outputs are of no known family, or which class is which cannot be told.
        """
        frame = Frame.of(*item.shape, self.spec)
        family = self._reading.of(frame.input, reference, outputs)
        if family.background and self.task.classes is None and item.objects is not None:
            raise DataError(
                f"outputs read as {family.name} number the background 0, and nothing says which label is which class",
                "set `task.classes`: coco91 for weights trained on COCO (coco80 for Detectron2, whose labels begin with 0), "
                "else the names, `__background__` first",
            )
        self.found.append(detect(outputs, family, frame, self.task))
        self.truth.append(item.objects)

    def about(self) -> dict[str, str]:
        """`decoder`: the family that the outputs were read as."""
        return {"decoder": self.family.name} if self.family else {}

    def metrics(self, reference: DetectionScore) -> dict[str, float]:
        """COCO's figures (`octavo.tasks.detection.ap`), `ap.<class>` of each, and how the boxes compare with FP32's.

        `match_f1`: of the sure boxes of both, the share that has its partner (F1, so that misses and false ones count);
        `match_iou`: mean IoU of the partners; `match_score_diff`: mean absolute difference of their scores; `sure_boxes`: how many.
        """
        found: dict[str, float] = {}
        rows = self._labelled()
        if rows:
            names = class_names(self.task)
            ap = average_precision(_annotations(self.truth, rows), _detections(self.found, rows), rows)
            found |= ap.figures
            found |= {f"ap.{names[kind] if names else kind}": value for kind, value in ap.classes.items()}
        pairs = [self._compared(reference, place) for place in range(len(self.found))]
        boxes = sum(both for _, _, both in pairs)
        iou = np.concatenate([np.zeros(0), *(each for each, _, _ in pairs)])
        apart = np.concatenate([np.zeros(0), *(each for _, each, _ in pairs)])
        found["sure_boxes"] = sum(len(self._sure(place)) for place in range(len(self.found)))
        if boxes:
            found["match_f1"] = 2 * len(iou) / boxes
        if len(iou):
            found["match_iou"], found["match_score_diff"] = float(iou.mean()), float(apart.mean())
        return found

    def resampled(self, counts: np.ndarray) -> np.ndarray:
        """`ap` of resamples of the annotated images; see `octavo.tasks.detection.resampled`."""
        return self._curves.resampled(counts)

    def row(self, place: int) -> dict[str, Any]:
        """`boxes`: how many are sure."""
        return {"boxes": len(self._sure(place))}

    def likeness(self, reference: DetectionScore, place: int) -> float:
        """`match_f1` of one image; infinite where neither has a sure box."""
        iou, _, boxes = self._compared(reference, place)
        return 2 * len(iou) / boxes if boxes else math.inf

    @property
    def views(self) -> tuple[DetectionScore]:
        """Itself: one row a picture."""
        return (self,)

    def first_panels(self, shown: Shown, outputs: Outputs) -> list[Panel]:
        """Annotated boxes, coloured by whether a variant found them, with their classes."""
        truth = shown.item.objects
        if truth is None:
            return []
        return [drawn_truth(shown.photo, shown.scale, self._found(shown.item, outputs), truth, class_names(self.task))]

    def panels(self, shown: Shown, outputs: Outputs, reference: Outputs) -> list[Panel]:
        """Sure boxes, coloured by whether they are right, with class and score.

        By the annotations, or by FP32's boxes where there are none.
        """
        truth = shown.item.objects
        if truth is None:
            theirs = self._found(shown.item, reference)
            truth = Objects.of(theirs.xyxy, theirs.classes)
        return [drawn_found(shown.photo, shown.scale, self._found(shown.item, outputs), truth, class_names(self.task))]

    def _found(self, item: Item, outputs: Outputs) -> Boxes:
        return surest(detect(outputs, self.family, Frame.of(*item.shape, self.spec), self.task), self.task)

    def _as_truth(self, place: int) -> Objects:
        boxes = self._sure(place)
        return Objects.of(boxes.xyxy, boxes.classes)

    @cached_property
    def _curves(self) -> Curves:
        rows = self._labelled()
        return Curves([self.truth[place] for place in rows], [self.found[place] for place in rows])

    def _labelled(self) -> list[int]:
        rows = [place for place, objects in enumerate(self.truth) if objects is not None]
        return rows if any((~self.truth[place].crowd).any() for place in rows) else []

    def _sure(self, place: int) -> Boxes:
        return surest(self.found[place], self.task)

    def _compared(self, reference: DetectionScore, place: int) -> tuple[np.ndarray, np.ndarray, int]:
        """(IoU and difference of score of each pair of partners, number of sure boxes of both)."""
        mine, theirs = self._sure(place), reference._sure(place)
        pairs = matched(mine, reference._as_truth(place), SAME)
        hit = pairs.partner[0] >= 0
        apart = np.abs(mine.scores[pairs.found[hit]] - theirs.scores[pairs.partner[0][hit]])
        return pairs.iou[hit], apart, len(mine) + len(theirs)


def _annotations(truth: list[Objects | None], rows: list[int]) -> list[dict[str, Any]]:
    return [
        {"image_id": place, "category_id": int(kind), "bbox": _xywh(box), "iscrowd": int(crowd), "area": float(area)}
        for place in rows
        for box, kind, crowd, area in zip(
            truth[place].xyxy, truth[place].classes, truth[place].crowd, truth[place].area, strict=True
        )
    ]


def _detections(found: list[Boxes], rows: list[int]) -> list[dict[str, Any]]:
    return [
        {"image_id": place, "category_id": int(kind), "bbox": _xywh(box), "score": float(score)}
        for place in rows
        for box, kind, score in zip(found[place].xyxy, found[place].classes, found[place].scores, strict=True)
    ]


def _xywh(box: np.ndarray) -> list[float]:
    # Corners the wrong way round, as a broken model may write them, are no area.
    return [float(box[0]), float(box[1]), max(0.0, float(box[2] - box[0])), max(0.0, float(box[3] - box[1]))]
