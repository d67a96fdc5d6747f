"""YOLO's text files: for each image a .txt with a line `class cx cy width height` an object, in shares of the image's sides.

Or, in sets for segmentation and rotated boxes, `class x1 y1 x2 y2 x3 y3 ...`: the box that encloses these points is the object's.

Sources: https://docs.ultralytics.com/datasets/detect, /segment and /obb. The label of `.../images/a/b.jpg` is `.../labels/a/b.txt`
(the last `images` of the path), or lies beside the image. An image without label file, or with an empty one, has no objects:
whatever is found there is wrong.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from pathlib import Path

from octavo.errors import DataError
from octavo.images.formats.annotated import Annotation, Photo, listed
from octavo.images.formats.class_map import Category, class_indices
from octavo.images.formats.listed import Classes, Listed, image_files, refuse_lost
from octavo.images.formats.places import ImageFinder, annotations_path, shown, text_lines
from octavo.images.formats.yolo_names import NAME_LISTS, class_names
from octavo.images.formats.yolo_yaml import last_images
from octavo.params.grammar import ImageSet
from octavo.progress import say

__all__ = ["label_of", "read"]

# What a line may be.
_LINE = "a line is `class cx cy width height`, or `class x1 y1 x2 y2 x3 y3 ...` of an outline"
# An outline has three points at least, behind the class.
_OUTLINE = 7
# How far key points may lie beyond their box, in shares; and how many lines say that such they are.
_BESIDE, _LINES = 0.01, 3
# Beyond it numbers are pixels and no shares; below, a box may stick out of its image.
_MOST = 2


def read(root: Path, images: ImageSet, where: str, classes: Classes) -> list[Listed]:
    """Images below `images` (else below the folder) with the boxes of their label files.

    `annotations` may name the folder of the label files, a .txt that lists the set's images by their path below the folder, or the
    .yaml with the class names. Without it they come from data.yaml, dataset.yaml, another .yaml with `names`, or classes.txt, and
    from a YAML file above it that has the folder for a part: beside `images` (ultralytics' layout: images/train, images/val), or
    beside a folder with `images` (Roboflow's: train/images, valid/images).

    Raises:
        DataError: no image has a label file, one is a link to nothing, has no image or a malformed line, or a class is none of the
            model's.
    """
    told = annotations_path(root, images, where)
    below = root / "images" if (root / "images").is_dir() else root
    chosen = told if told is not None and told.is_file() and told.suffix == ".txt" else None
    photos = image_files(below) if chosen is None else _chosen(root, chosen)
    folder = told if told is not None and told.is_dir() else None
    labels = {path: _label_file(path, below, folder) for path in photos}
    refuse_lost(labels.values())
    if photos and not any(label.is_file() for label in labels.values()):
        first = photos[0]
        raise DataError(
            f"{where}: none of {len(photos)} images has a label file; that of {first} would be {labels[first]}",
            "put them there, or name their folder: `annotations`; for calibration alone `format: folder` will do",
        )
    alone = [path for path, label in labels.items() if not label.is_file()]
    if alone:
        say(
            f"note: {where}: {len(alone)} of {len(labels)} images have no label file and count as images without objects, "
            f"the first: {alone[0]}"
        )
    _refuse_shared(labels)
    if chosen is None:
        _refuse_orphans(labels)
    names_at = [root, *sorted({label.parent for label in labels.values()})]
    names = class_names(told if told is not None and told.suffix in (".yaml", ".yml") else None, names_at, where)
    if not names and classes.names is not None and not images.class_map:
        say(
            f"note: {where}: no file (data.yaml, say) names the set's classes, so that their numbers are taken for the model's: "
            f"0 for {classes.names[0]!r}"
        )
    found = [_photo(path, label, names) for path, label in labels.items()]
    _tell_outlines([label for label in labels.values() if label.is_file()], where)
    counts = Counter(box.category for photo in found for box in photo.annotations)
    categories = [Category(number, name) for number, name in names.items()] or [Category(number) for number in sorted(counts)]
    indices = class_indices(categories, counts, images, where, classes, unnamed="number", closed=bool(names))
    return listed(found, indices, where)


def label_of(photo: Path) -> Path:
    """Where an image's labels are, or would be, if no folder of theirs is named."""
    beside = _as_spelt(photo.with_suffix(".txt"))
    folders = photo.parts[:-1]
    last = last_images(folders)
    if last is None or beside.is_file():
        return beside
    return _as_spelt(Path(*folders[:last], "labels", *folders[last + 1 :], photo.with_suffix(".txt").name))


def _chosen(root: Path, file: Path) -> list[Path]:
    finder = ImageFinder(root)
    found: dict[Path, int] = {}
    for number, line in enumerate(text_lines(file), 1):
        name, here = line.strip(), f"{file}, line {number}"
        if not name:
            continue
        path = finder.find(name, here)
        if path is None:
            raise DataError(
                f"{here}: there is no image {name} below {root}", "put it there (`dvc pull`), or take it out of the list"
            )
        if path in found:
            raise DataError(f"{here} names {name} again, after line {found[path]}", "list each image once")
        found[path] = number
    return list(found)


def _as_spelt(label: Path) -> Path:
    """The label file as it lies there: some programs write A.TXT, and some systems an accent apart from its letter."""
    names = [unicodedata.normalize(form, label.name) for form in ("NFC", "NFD")]
    spelt = (path for name in names for path in (label.with_name(name), label.with_name(name).with_suffix(".TXT")))
    return next((path for path in (label, *spelt) if path.is_file()), label)


def _label_file(path: Path, below: Path, folder: Path | None) -> Path:
    """Where an image's labels are, or would be."""
    if folder is not None:
        return _as_spelt((folder / (path.relative_to(below) if path.is_relative_to(below) else path.name)).with_suffix(".txt"))
    return label_of(path)


def _refuse_shared(labels: dict[Path, Path]) -> None:
    first: dict[Path, Path] = {}
    for path, label in labels.items():
        other = first.setdefault(label, path)
        if other != path and label.is_file():
            raise DataError(
                f"{other} and {path} have the same label file {label}", "keep one of them, or rename one with its labels"
            )


def _refuse_orphans(labels: dict[Path, Path]) -> None:
    """Labels without an image mean that images are missing; beside images, text files may be anything."""
    folders = {label.parent for path, label in labels.items() if label.parent != path.parent}
    known = set(labels.values())
    orphans = [
        path
        for folder in sorted(folders)
        for path in sorted(folder.glob("*.[tT][xX][tT]"))
        if path not in known and path.name not in NAME_LISTS
    ]
    if orphans:
        raise DataError(
            f"{len(orphans)} label file(s) have no image: {shown([str(path) for path in orphans])}",
            "put the images there (`dvc pull`), or remove the labels",
        )


def _photo(path: Path, label: Path, names: dict[int, str]) -> Photo:
    photo = Photo(path, str(label), shares=True)
    for number, line in enumerate(text_lines(label) if label.is_file() else [], 1):
        if line.strip():
            photo.annotations.append(_annotation(line.split(), f"{label}, line {number}", names))
    return photo


def _annotation(columns: list[str], here: str, names: dict[int, str]) -> Annotation:
    outline = _is_outline(columns)
    if mark := next((mark for mark in ",;" if any(mark in column for column in columns)), None):
        raise DataError(
            f"{here} has {mark!r} in it: {' '.join(columns)!r}", f"{_LINE}: numbers with a decimal point, parted by spaces"
        )
    if len(columns) != 5 and not outline:
        other = " (key points?)" if len(columns) > 6 else " (a detection with its score?)" if len(columns) == 6 else ""
        raise DataError(f"{here} has {len(columns)} columns{other}", _LINE)
    try:
        number, *shares = map(float, columns)
    except ValueError:
        raise DataError(f"{here} is not of numbers: {' '.join(columns)!r}", _LINE) from None
    if not (number >= 0 and number.is_integer()):
        raise DataError(f"{here} has the class {columns[0]}", "classes are 0, 1, 2 ...")
    if names and int(number) not in names:
        given = f"names are given for {len(names)}" + f", {min(names)} to {max(names)}" * (max(names) >= len(names))
        raise DataError(f"{here} has the class {int(number)}, {given}", "correct the line or the names")
    if max(shares) > _MOST:
        raise DataError(
            f"{here} is not in shares of the image's sides: {' '.join(columns[1:])}",
            "divide x and width by the image's width, y and height by its height",
        )
    if outline:
        x, y = shares[::2], shares[1::2]
        # `min` and `max` pass over what is no number.
        corners = (min(x), min(y), max(x), max(y)) if all(map(math.isfinite, shares)) else (math.nan,) * 4
    else:
        cx, cy, width, height = shares
        corners = (cx - width / 2, cy - height / 2, cx + width / 2, cy + height / 2)
    return Annotation(int(number), corners, here)


def _is_outline(columns: list[str]) -> bool:
    return len(columns) >= _OUTLINE and len(columns) % 2 == 1


def _tell_outlines(labels: list[Path], where: str) -> None:
    """Say that outlines are read as boxes; key points without a visibility have as many columns as outlines have.

    Raises:
        DataError: in every line all points lie in the box that its first four numbers are.
    """
    lines = [columns for label in labels for line in text_lines(label) if (columns := line.split())]
    outlines = [list(map(float, columns[1:])) for columns in lines if _is_outline(columns)]
    if len(outlines) >= _LINES and len({len(line) for line in outlines}) == 1 and all(map(_are_key_points, outlines)):
        raise DataError(
            f"{where}: lines of {len(outlines[0]) + 1} columns hold key points behind a box, and no outline",
            "leave the class and the box in each line: `class cx cy width height`",
        )
    if outlines:
        say(
            f"note: {where}: {len(outlines)} of {len(lines)} objects are given by an outline or a rotated box: the upright box "
            "that encloses it counts"
        )


def _are_key_points(numbers: list[float]) -> bool:
    """Whether behind the first four, a box, there are points within it, or at 0, 0, which stands for a point that is not known."""
    cx, cy, width, height = numbers[:4]
    points = zip(numbers[4::2], numbers[5::2], strict=True)
    return all(x == y == 0 or (abs(x - cx) <= width / 2 + _BESIDE and abs(y - cy) <= height / 2 + _BESIDE) for x, y in points)
