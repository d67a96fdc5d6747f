"""COCO's JSON of instances: images, boxes as [x, y, width, height] in pixels, categories (https://cocodataset.org/#format-data).

The file's list of images is the set: image files that it does not name are not part of it, and an image without annotations has no
objects, so that whatever is found there is wrong. Boxes alone are read; `iscrowd` and `area` are taken over; `ignore` is not, as
in COCO's own evaluation.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from octavo.errors import DataError
from octavo.images.formats.annotated import TOLERANCE, Annotation, Photo, Shape, listed
from octavo.images.formats.class_map import Category, class_indices
from octavo.images.formats.listed import Classes, Listed
from octavo.images.formats.places import ImageFinder, annotations_path, shown
from octavo.params.grammar import ImageSet
from octavo.progress import say

__all__ = ["read"]

# Above any number of pixels.
_MOST = 1e15
# Boxes that show how a file has them; a few may be as they are by chance.
_SEVERAL = 5

Entry = dict[str, Any]


def read(root: Path, images: ImageSet, where: str, classes: Classes) -> list[Listed]:
    """The images that the JSON file names, with their boxes.

    The file is `annotations`, else `instances.json` in the folder or in its `annotations`, else the only .json there. Of a set with
    one category more than the model has classes, a heading of the others is none of them (Roboflow's category 0).

    Raises:
        DataError: no such file, a file of another shape or without images, an image that is missing or named twice, an annotation
            of no image or category, a box that cannot be, boxes that are shares or corners, or a category that is none of the
            model's classes.
    """
    file = _file(root, images, where)
    content = _content(file)
    photos = _photos(root, file, content["images"])
    categories = _categories(file, content["categories"])
    known = {category.key for category in categories}
    for place, entry in enumerate(content["annotations"]):
        _add(photos, known, entry, f"{file}: annotation {entry.get('id', f'at place {place}')}")
    ignored = sum(bool(entry.get("ignore")) and not entry.get("iscrowd") for entry in content["annotations"])
    if ignored:
        say(
            f"note: {where}: {ignored} annotated box{'es' * (ignored > 1)} with `ignore: 1`, which COCO's evaluation passes over: "
            f"to be found as any other; `iscrowd: 1` in {file} makes finding one neither right nor wrong"
        )
    _refuse_corners(photos.values(), file)
    counts = Counter(box.category for photo in photos.values() for box in photo.annotations)
    # Where `class_map` says what the set's classes are, it may speak of the heading, too.
    if not images.class_map and classes.count == len(categories) - 1:
        heading = _heading(content["categories"], counts)
        categories = [category for category in categories if category.key != heading]
    return listed(photos.values(), class_indices(categories, counts, images, where, classes, unnamed="order"), where)


def _file(root: Path, images: ImageSet, where: str) -> Path:
    told = annotations_path(root, images, where)
    if told is not None:
        if told.is_dir():
            raise DataError(f"{where}.annotations: {told} is a folder", "name the JSON file of instances in it")
        return told
    folders = (root, root / "annotations")
    for folder in folders:
        if (folder / "instances.json").is_file():
            return folder / "instances.json"
    found = [path for folder in folders if folder.is_dir() for path in sorted(folder.glob("*.json"))]
    if len(found) != 1:
        problem = f"has {shown([path.name for path in found])}" if found else "has no .json file, nor has its folder `annotations`"
        raise DataError(f"{where}: {root} {problem}", f"say which file holds the instances: `{where}.annotations: file.json`")
    return found[0]


def _content(file: Path) -> dict[str, list[Entry]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file} is not readable JSON: {error}", "correct the file or fetch it again") from error
    keys = ("images", "annotations", "categories")
    for key in keys:
        entries = content.get(key) if isinstance(content, dict) else None
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise DataError(
                f"{file} has no list `{key}` of objects",
                f"a COCO file of instances is an object with the lists {', '.join(keys)}; a list of results is none",
            )
    return content


def _photos(root: Path, file: Path, entries: list[Entry]) -> dict[int | str, Photo]:
    if not entries:
        raise DataError(
            f"{file}: its list `images` is empty, and images that it does not name are not part of the set",
            "name them in it, or read the folder without labels: `format: folder`",
        )
    # COCO's own instances_val2017.json is of the folder val2017; others may have images of the same names.
    finder = ImageFinder(root, re.split("[_-]", file.stem)[-1])
    photos: dict[int | str, Photo] = {}
    seen: dict[Path, str] = {}
    missing: list[str] = []
    for place, entry in enumerate(entries):
        here = f"{file}: image {entry.get('id', f'at place {place}')}"
        key, name = entry.get("id"), entry.get("file_name")
        if type(key) not in (int, str):
            raise DataError(f"{here} has no `id`, or one that is neither a number nor text: {key!r}", "correct the file")
        if not isinstance(name, str) or not name:
            raise DataError(f"{here} has no `file_name`", "correct the file")
        if key in photos:
            raise DataError(f"{file}: two images have the id {key}, the second is {name}", "give each its own id")
        path = finder.find(name, here)
        if path is None:
            missing.append(name)
            continue
        if path in seen:
            raise DataError(f"{file}: {seen[path]} and {name} are the same file {path}", "list each image once")
        seen[path] = name
        photos[key] = Photo(path, here, _shape(entry, here))
    if missing:
        raise DataError(
            f"{file} names {len(missing)} image(s) of {len(entries)} that are not below {root}: {shown(missing)}",
            "put them there (`dvc pull`), or take them out of the file",
        )
    return photos


def _shape(entry: Entry, here: str) -> Shape | None:
    """(rows, columns); exporters that do not know them write 0 or null."""
    sides = entry.get("height"), entry.get("width")
    if any(side in (None, 0) for side in sides):
        return None
    if not all(_is_number(side) and side > 0 and side == int(side) for side in sides):
        raise DataError(f"{here} has the height and width {sides[0]!r} and {sides[1]!r}", "they are whole numbers of pixels")
    return int(sides[0]), int(sides[1])  # type: ignore[arg-type]


def _categories(file: Path, entries: list[Entry]) -> list[Category]:
    """By rising id."""
    found: dict[int, Category] = {}
    for place, entry in enumerate(entries):
        key, name = entry.get("id"), entry.get("name")
        if type(key) is not int or not isinstance(name, str):
            raise DataError(f"{file}: category at place {place} has id {key!r} and name {name!r}", "correct the file")
        if key in found:
            raise DataError(f"{file}: {found[key].name!r} and {name!r} have the same category id {key}", "give each its own id")
        found[key] = Category(key, name)
    return [found[key] for key in sorted(found)]


def _heading(entries: list[Entry], counts: Mapping[int | str, int]) -> int | None:
    """The id of a category that is no class: without objects, and `supercategory` of all others.

    Roboflow writes one with the id 0, after which networks count no class unless they were trained with it.
    """
    for entry in entries:
        others = [other for other in entries if other is not entry]
        if not counts.get(entry["id"]) and others and all(other.get("supercategory") == entry["name"] for other in others):
            return entry["id"]
    return None


def _add(photos: dict[int | str, Photo], known: set[int | str], entry: Entry, here: str) -> None:
    key, category = entry.get("image_id"), entry.get("category_id")
    if type(key) not in (int, str) or key not in photos:
        _refuse_twin(photos, key, f"{here} is of image", "images")
        raise DataError(f"{here} is of image {key!r}, which `images` does not list", "add the image, or remove the annotation")
    here += f" of {photos[key].path.name}"
    if type(category) is not int or category not in known:
        _refuse_twin(known, category, f"{here} is of category", "categories")
        raise DataError(f"{here} is of category {category!r}, which `categories` does not list", "add the category, or correct it")
    box = entry.get("bbox")
    if box is None:
        raise DataError(
            f"{here} has no `bbox`" + (", only a segmentation" if entry.get("segmentation") else ""),
            "detection is scored by boxes: add them as [x, y, width, height] in pixels",
        )
    if not isinstance(box, list) or len(box) != 4 or not all(_is_number(value) for value in box):
        raise DataError(f"{here} has the bbox {box!r}", "a bbox is four finite numbers: [x, y, width, height] in pixels")
    crowd, area = entry.get("iscrowd", 0), entry.get("area")
    if crowd not in (0, 1):
        raise DataError(f"{here} has `iscrowd: {crowd!r}`", "it is 0 or 1")
    if area is not None and not (_is_number(area) and area >= 0):
        raise DataError(f"{here} has `area: {area!r}`", "it is a number of square pixels; leave it out for the box's own")
    x, y, width, height = map(float, box)
    photos[key].annotations.append(
        Annotation(category, (x, y, x + width, y + height), here, bool(crowd), None if area is None else float(area))
    )


def _refuse_corners(photos: Iterable[Photo], file: Path) -> None:
    """Refuse boxes written as [x1, y1, x2, y2]: most would stick out to the right or below, and lie inside as what they are."""
    out, seen = 0, 0
    for photo in (photo for photo in photos if photo.shape is not None):
        rows, columns = (side + TOLERANCE for side in photo.shape)
        for left, top, right, bottom in (box.xyxy for box in photo.annotations):
            if not (left < right - left <= columns and top < bottom - top <= rows):
                return
            out, seen = out + (right > columns or bottom > rows), seen + 1
    if seen >= _SEVERAL and out > seen / 2:
        raise DataError(
            f"{file}: {out} of {seen} boxes stick out of their image to the right or below; read as two corners all lie inside",
            "a COCO bbox is [x, y, width, height]: subtract x and y from the last two",
        )


def _refuse_twin(known: Iterable[int | str], key: object, what: str, listed_in: str) -> None:
    """Refuse an id that is listed in another type: 7, 7.0 and "7" look alike in most messages.

    Raises:
        DataError: there is such a one.
    """
    twin = next((other for other in known if other == key or str(other) == str(key)), None)
    if twin is not None:
        raise DataError(
            f"{what} {key!r}, {_kind(key)}; `{listed_in}` has the id {twin!r}, {_kind(twin)}",
            "write an id the same way in both lists: a whole number, or text in quotes where it is an image's",
        )


def _kind(key: object) -> str:
    return "text" if isinstance(key, str) else "a whole number" if type(key) is int else f"a {type(key).__name__}"


def _is_number(value: object) -> bool:
    """Finite, that is; Python's JSON reads NaN, Infinity and integers of any length."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MOST
