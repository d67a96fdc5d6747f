"""Candidates for preprocessing tried on a few images: which of them the network understands best.

With labels that is how right it is. Without, it is how alike a photo and its mirror image come out, beyond what two different
photos do. Confidence alone misleads, as pixels of the wrong scale saturate a network and make it sure of anything (MobileNetV2 on
16 photos: entropy 1.6 nats with pixels 0..255 that it was not made for, 2.7 with what it was trained on).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.errors import OctavoError
from octavo.images.dataset import Item
from octavo.images.frame import Frame
from octavo.images.preprocess import preprocess
from octavo.params.grammar import Input
from octavo.tasks.detection import Reading, detect
from octavo.tasks.detection.boxes import Boxes
from octavo.tasks.ranking import are_shares, class_scores
from octavo.tasks.segmentation.decode import class_count, classes_of_pixels, logits_of

__all__ = ["Run", "Trial", "Tried", "tried"]

Run = Callable[[np.ndarray], Mapping[str, np.ndarray]]
# Boxes that are compared: of at least this score, overlapping at least so much.
_SURE, _IOU = 0.25, 0.5
# What two results, of 0 to 1, must lie apart: among networks that find nothing under any candidate none is better by that.
_SEEN = 0.01


@dataclass(frozen=True)
class Tried:
    """What one candidate came to: of each image, the larger the better."""

    scores: np.ndarray

    @property
    def mean(self) -> float:
        """Over the images."""
        return float(self.scores.mean())

    def clearly_beats(self, other: Tried) -> bool:
        """Whether it is better by two standard errors of the differences, image by image, by a twentieth, and by `_SEEN`."""
        differences = self.scores - other.scores
        error = float(differences.std(ddof=1)) / len(differences) ** 0.5
        return float(differences.mean()) > max(2 * error, abs(other.mean) / 20, _SEEN)


@dataclass(frozen=True)
class Trial:
    """How candidates are told apart.

    Attributes:
        measure: what `Tried.scores` are, in words.
        labelled: they are held against labels.
        images: how many photos.
        results: of each candidate; None for one that does not run.
    """

    measure: str
    labelled: bool
    images: int
    results: tuple[Tried | None, ...]


def tried(run: Run, task: Any, items: Sequence[Item], candidates: Sequence[Input]) -> Trial | None:
    """Try candidates on images.

    Args:
        run: the network, from a preprocessed image.
        task: the `task:` block.
        items: a few images; where all have labels these decide, of detectors if there is an object in any.
        candidates: `input:` blocks; None stands in the results for one that does not run.

    Returns:
        None where no image can be read, or fewer than two tell nothing.
    """
    photos = []
    for item in items:
        try:
            photos.append((item, item.read()))
        except OctavoError:
            continue  # a broken image is for the stages to complain of
    if len(photos) < 2:
        return None
    labelled = task.name in _LABELLED and _labels_tell(task.name, [item for item, _ in photos])
    results: list[Tried | None] = []
    for spec in candidates:
        try:
            answer = _answering(run, task, spec)
            answers = [answer(photo) for _, photo in photos]
            if labelled:
                scores = _LABELLED[task.name][1](answers, [item for item, _ in photos], task)
            else:
                mirrored = [answer(np.ascontiguousarray(photo[:, ::-1]), mirror=True) for _, photo in photos]
                scores = _separation(task.name, answers, mirrored)
            results.append(Tried(np.asarray(scores, np.float64)))
        except OctavoError:
            results.append(None)
    measure = _LABELLED[task.name][0] if labelled else _UNLABELLED[task.name]
    return Trial(measure, labelled, len(photos), tuple(results))


_UNLABELLED = {
    "classification": "a photo and its mirror image are of one class, less what two photos are (0 to 1)",
    "detection": "F1 of a photo's boxes to its mirror image's, less that to another's",
    "segmentation": "pixels of one class in a photo and its mirror image, less what two photos have (0 to 1)",
    "embedding": "cosine of a photo and its mirror image, less that of two photos",
}


def _answering(run: Run, task: Any, spec: Input) -> Callable[..., Any]:
    """What the network says of one photo, brought back where that was mirrored."""
    reading = Reading(task.decoder) if task.name == "detection" else None

    def answer(photo: np.ndarray, *, mirror: bool = False) -> Any:
        outputs = run(preprocess(photo, spec))
        frame = Frame.of(*photo.shape[:2], spec)
        if task.name == "classification":
            return _shares(class_scores(outputs, task))
        if reading is not None:
            found = detect(outputs, reading.of(frame.input, outputs), frame, task)
            found = found.taken(found.scores >= _SURE)
            width = photo.shape[1]
            xyxy = found.xyxy[:, [2, 1, 0, 3]] * [-1, 1, -1, 1] + [width, 0, width, 0] if mirror else found.xyxy
            return Boxes(xyxy, found.scores, found.classes)
        if task.name == "segmentation":
            head = next(iter(task.each.values()))
            classes = classes_of_pixels(outputs, head, frame)
            return classes[:, :: -1 if mirror else 1], class_count(logits_of(outputs, head, frame.input))
        value = outputs[task.output or next(iter(outputs))].reshape(-1).astype(np.float64)
        return value / max(float(np.linalg.norm(value)), 1e-12)

    return answer


def _separation(task: str, answers: Sequence[Any], mirrored: Sequence[Any]) -> list[float]:
    alike = {"classification": _overlap, "detection": _same_boxes, "segmentation": _same_pixels, "embedding": _overlap}[task]
    # Each photo beside its own mirror image, and beside its neighbour's.
    return [alike(one, mirrored[place]) - alike(one, mirrored[place - 1]) for place, one in enumerate(answers)]


def _overlap(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other)


def _same_boxes(one: Boxes, other: Boxes) -> float:
    """F1 of one image's boxes against the other's; two images without any say nothing."""
    return 2 * _matches(one, other, classes=True) / max(len(one) + len(other), 1)


def _same_pixels(one: tuple[np.ndarray, Any], other: tuple[np.ndarray, Any]) -> float:
    first, second = one[0], other[0]
    rows, columns = min(first.shape[0], second.shape[0]), min(first.shape[1], second.shape[1])
    return float(np.mean(first[:rows, :columns] == second[:rows, :columns]))


def _matches(found: Boxes, wanted: Boxes, *, classes: bool) -> int:
    """Boxes that have a counterpart, each of which counts once."""
    if not len(found) or not len(wanted):
        return 0
    low = np.maximum(found.xyxy[:, None, :2], wanted.xyxy[None, :, :2])
    high = np.minimum(found.xyxy[:, None, 2:], wanted.xyxy[None, :, 2:])
    inner = np.prod(np.clip(high - low, 0, None), axis=2)
    areas = [np.prod(one.xyxy[:, 2:] - one.xyxy[:, :2], axis=1) for one in (found, wanted)]
    overlap = inner / np.maximum(areas[0][:, None] + areas[1][None] - inner, 1e-9)
    if classes:
        overlap = np.where(found.classes[:, None] == wanted.classes[None], overlap, 0)
    count = 0
    for row in range(len(found)):
        best = int(overlap[row].argmax())
        if overlap[row, best] >= _IOU:
            overlap[:, best] = 0
            count += 1
    return count


def _labels_tell(task: str, items: Sequence[Item]) -> bool:
    """Whether all have labels; objects that nobody annotated tell nothing of preprocessing."""
    if task == "detection":
        return all(item.objects is not None for item in items) and any(len(item.objects) for item in items)
    return all((item.mask if task == "segmentation" else item.label) is not None for item in items)


def _right(answers: Sequence[np.ndarray], items: Sequence[Item], task: Any) -> list[float]:  # noqa: ARG001 - one signature for all
    return [float(answer[item.label]) for answer, item in zip(answers, items, strict=True)]


def _f1(answers: Sequence[Boxes], items: Sequence[Item], task: Any) -> list[float]:  # noqa: ARG001
    """Whatever the classes: a wrong class map must not decide about pixels."""
    found = []
    for answer, item in zip(answers, items, strict=True):
        truth = Boxes(item.objects.xyxy, np.ones(len(item.objects.xyxy)), item.objects.classes)
        found.append(2 * _matches(answer, truth, classes=False) / max(len(answer) + len(truth), 1))
    return found


def _pixels(answers: Sequence[tuple[np.ndarray, int | None]], items: Sequence[Item], task: Any) -> list[float]:
    head = next(iter(task.each.values()))
    masks = [item.mask.read(found.shape, count, head.void) for (found, count), item in zip(answers, items, strict=True)]
    return [
        float((mask == found)[mask >= 0].mean()) if (mask >= 0).any() else 0.0
        for (found, _), mask in zip(answers, masks, strict=True)
    ]


def _people(answers: Sequence[np.ndarray], items: Sequence[Item], task: Any) -> list[float]:  # noqa: ARG001
    # By order, not by size: larger pixels spread all cosines, and tell nobody apart by that.
    vectors, labels = np.stack(answers), np.array([item.label for item in items])
    cosines, same = vectors @ vectors.T, labels[:, None] == labels[None]
    apart = ~np.eye(len(labels), dtype=bool)
    rows = [(row[one & beside], row[~one]) for row, one, beside in zip(cosines, same, apart, strict=True)]
    return [float((own[:, None] > others).mean()) if len(own) and len(others) else 0.5 for own, others in rows]


_LABELLED: dict[str, tuple[str, Callable[[Any, Sequence[Item], Any], list[float]]]] = {
    "classification": ("probability of the right class", _right),
    "detection": ("F1 of boxes, whatever their class", _f1),
    "segmentation": ("share of the pixels that are right", _pixels),
    "embedding": ("how often another image of one identity is more alike than one of another", _people),
}


def _shares(scores: np.ndarray) -> np.ndarray:
    """Class scores as shares of 1, which they may be already."""
    values = scores.astype(np.float64)
    if are_shares(values):
        return values
    powers = np.exp(values - values.max())
    return powers / powers.sum()
