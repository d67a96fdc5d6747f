"""Guesses at the `data:` block: formats, labels that the model's classes fit, and parts that share no image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from octavo.errors import DataError, OctavoError
from octavo.images.dataset import Classes, Item, cut, list_set, refuse_overlap
from octavo.images.decode import read_shape
from octavo.images.formats.voc import class_names_of
from octavo.images.splits import pick
from octavo.intake.folder import Found, recognised
from octavo.intake.parts import parted
from octavo.intake.task import TaskGuess
from octavo.params.grammar import ImageSet, Split
from octavo.tasks.detection.names import COCO80, NAMED
from octavo.tasks.detection.shares import SUFFIX

__all__ = ["DataGuess", "guessed_data"]

# Calibration images wanted, and the share of one folder at least and at most that they are taken from.
WANTED, _LEAST, _MOST = 200, 0.2, 0.5
# Masks that are looked into for values beyond the classes.
_MASKS = 16
WHERE = "--data"


@dataclass
class DataGuess:
    """A value for each key of `data:`, and why.

    Attributes:
        calibration, validation: the sets' blocks as maps, with `path` as it was given.
        why: `calibration`, `validation`, `classes`, `void`: what they were concluded from.
        samples: calibration images to take.
        items: validation's, with labels where these can be read.
        photos: calibration's.
        labelled: whether labels count.
    """

    calibration: dict[str, Any]
    validation: dict[str, Any]
    samples: int
    why: dict[str, str] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    photos: list[Item] = field(default_factory=list)
    labelled: bool = False


def guessed_data(task: TaskGuess, data: Path, calibration: Path | None) -> DataGuess:
    """Recognise the folders, and see that the stages can read them; `task` gets the classes that labels need.

    Raises:
        DataError: a folder is missing or holds no image, both share an image, or there are too few to part.
    """
    name = task.keys["name"]
    if calibration is None:
        training, found, told = parted(data, name)
    else:
        training, found, told = recognised(calibration, name), recognised(data, name), "the folder that was given"
    why: dict[str, str] = {}
    found, items, why["validation"] = _readable(found, task)
    validation = _block(found)
    if training is not None and calibration is None and found.format == "folder" and found.path == training.plain.path:
        training = None  # two lists of one folder are one set of images where their labels are of no use
    if training is not None:
        why["calibration"] = told
        # Its labels are never asked for.
        other, others, _ = _readable(training, TaskGuess(dict(task.keys)), asked=False)
        refuse_overlap(_hashes(others), _hashes(items), str(other.path), str(found.path))
        count = len({item.sha256 for item in others})
        return DataGuess(_block(other), validation, min(WANTED, count), why, items, others, _labelled(items))
    count = len({item.sha256 for item in items})
    if count < 2:
        raise DataError(
            f"{data} has {count} different image(s), too few to part in two", "add images, or give `--calibration FOLDER`"
        )
    stop = round(min(_MOST, max(_LEAST, WANTED / count)), 2)
    sides = {"start": 0.0, "stop": stop}, {"start": stop, "stop": 1.0}
    why["calibration"] = f"{count} images in one folder: parted so that calibration and validation share none"
    blocks = tuple(validation | {"split": side} for side in sides)
    chosen = [cut(items, ImageSet(**_plain_block(found), split=Split(**side)), WHERE) for side in sides]
    samples = min(WANTED, len({item.sha256 for item in chosen[0]}))
    return DataGuess(*blocks, samples, why, *chosen[::-1], _labelled(items))


def _readable(found: Found, task: TaskGuess, *, asked: bool = True) -> tuple[Found, list[Item], str]:
    """The set as the stages can read it: without labels where these do not fit the model. (set, its images, why)."""
    problem = ""
    for classes, reason in _classes_tried(found, task) if asked else [(None, "")]:
        known = Classes(task.classes, _names(classes), scored=True) if asked else Classes()
        try:
            items = list_set(ImageSet(**_plain_block(found)), WHERE, known)
            void = None
            if asked and found.format == "masks" and task.classes is not None:
                values = _values(items)
                mapped, void = _second(values, task.classes), _void(values, task.classes)
                if mapped is not None:
                    found = replace(found, why=f"{found.why}; masks of 0 and {mapped}: {mapped} is the second of two classes")
                    found = replace(found, class_map={str(mapped): 1})
                    items = list_set(ImageSet(**_plain_block(found)), WHERE, known)
        except OctavoError as error:
            problem = problem or error.problem
            continue
        if classes is not None:
            task.keys["classes"], task.why["classes"] = classes, reason
        if void is not None:
            task.keys["void"] = void
            task.why["void"] = f"the masks' only value beyond the model's {task.classes} classes"
        return found, items, found.why
    plain = found.plain
    words = (
        f"labels were recognised ({found.format}: {found.why}), but do not fit: {problem}. So fidelity to FP32 alone is measured"
    )
    return plain, list_set(ImageSet(**_plain_block(plain)), WHERE), words


def _classes_tried(found: Found, task: TaskGuess) -> list[tuple[Any, str]]:
    """Class names that a detector may have, the likeliest first, with the reason; None: as the format has it."""
    if task.keys["name"] != "detection":
        return [(None, "")]
    tried: list[tuple[Any, str]] = [(None, "")]
    coco = ("coco80", f"{task.classes} classes, as COCO has")
    if task.classes == len(COCO80):
        tried.insert(0, coco)
    family = task.family and task.family.removesuffix(SUFFIX)
    if family in ("torchvision", "tensorflow", "tflite"):
        kind = "coco90" if family == "tflite" else "coco91"
        tried.insert(0, (kind, f"detectors read as {family} mostly number their classes as COCO's categories"))
    if found.format == "voc":
        names = class_names_of(found.path)
        if task.classes in (None, len(names)):
            tried.append(
                (names, "the names in the XML files in alphabetical order: that this is the model's order is a bare guess")
            )
    if task.names is not None and (task.names != COCO80 or task.classes is None):
        named = "coco80" if task.names == COCO80 else list(task.names)
        tried.insert(0, (named, "as the file's own metadata names them"))
    return tried


def _names(classes: Any) -> tuple[str, ...] | None:
    return NAMED[classes] if isinstance(classes, str) else (tuple(classes) if classes else None)


def _values(items: list[Item]) -> set[int]:
    """The values of some of the masks.

    Raises:
        DataError: the masks are colours.
    """
    found: set[int] = set()
    for item in pick(items, _MASKS, 0):
        found |= set(np.unique(item.mask.unjudged(read_shape(item.path), None)).tolist())
    return found


def _second(values: set[int], count: int) -> int | None:
    """The value that is written in place of 1 (255, say) where masks of two classes have 0 and that alone; else None."""
    return max(values) if count == 2 and len(values) == 2 and min(values) == 0 and max(values) > 1 else None


def _void(values: set[int], count: int) -> int | None:
    """The one value of the masks that is no class; None where there is none.

    Raises:
        DataError: there are several, or it alone stands beside another.
    """
    beyond = sorted(value for value in values if value >= count)
    if _second(values, count) is not None or not beyond:
        return None
    if len(beyond) > 1 or len(values) < 3:
        raise DataError(
            f"masks have the values {sorted(values)[-8:]}, the model has classes 0..{count - 1}", "say which is which: `class_map`"
        )
    return beyond[0]


def _block(found: Found) -> dict[str, Any]:
    block: dict[str, Any] = {"format": found.format, "path": found.path}
    further = {"annotations": found.annotations, "class_map": found.class_map}
    return block | {key: value for key, value in further.items() if value is not None}


def _plain_block(found: Found) -> Mapping[str, Any]:
    return _block(found) | {"path": str(found.path)}


def _labelled(items: list[Item]) -> bool:
    return any(item.labelled for item in items)


def _hashes(items: list[Item]) -> list[tuple[str, str]]:
    return [(item.name, item.sha256) for item in items]
