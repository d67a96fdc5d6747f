"""Training and validation images of one folder, where its layout tells them apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from octavo.errors import DataError
from octavo.images.formats.listed import image_files
from octavo.images.formats.places import text_lines
from octavo.images.formats.voc import places_of
from octavo.images.formats.yolo_yaml import last_images, parts_in, with_names
from octavo.intake.folder import Found, instances_of, recognised

__all__ = ["parted"]

_TRAIN, _REST = ("train", "training"), ("val", "valid", "validation", "test")
# Lists of PASCAL VOC: `trainval` is what a network was trained on that is judged on `test`.
_LISTS = (("trainval", "test"), ("train", "val"), ("train", "test"))
_MAIN = "ImageSets/Main"


def parted(folder: Path, task: str) -> tuple[Found | None, Found, str]:
    """(training images, validation images, what tells them apart); no training images where the folder is one set.

    1. Of COCO's files of instances those called after folders of images, `train` and `val` with or without a year behind it:
       `annotations/instances_val2017.json` for `val2017`, which may lie in `images`. The first may have no such file.
    2. Folders called `train` and `val` (`valid`, `test`): Roboflow's layout, and that of most classifiers' data.
    3. Of YOLO's text files, folders within `images`, as ultralytics has them: those that a YAML file names, else those so called.
    4. Of PASCAL VOC, the lists of `ImageSets/Main`, where every image of theirs lies there and none stands in both.

    Raises:
        DataError: there is no such folder, or no image in it.
    """
    pair = _by_instances(folder) if task == "detection" else None
    if pair is not None:
        return *pair, f"the folder has parts named {' and '.join((each.photos or each.path).name for each in pair)}"
    found = _named(folder)
    if found is None:
        whole = recognised(folder, task)
        if whole.format == "voc":
            return _listed(whole)
        found = _told(folder) or _named(folder / "images") if whole.format == "yolo" else None
        if found is None:
            return None, whole, ""
    first, second = found
    names = " and ".join(path.relative_to(folder).as_posix() for path in found)
    return recognised(first, task), recognised(second, task), f"the folder has parts named {names}"


def _by_instances(folder: Path) -> tuple[Found, Found] | None:
    """Folders for training and for validation where a file of instances is called after the second, and perhaps the first."""
    for photos in (folder, folder / "images"):
        first, second = _named(photos, dated=True) or (None, None)
        file = instances_of(folder, second.name) if second else None
        if file:
            training = instances_of(folder, first.name)
            plain = Found("folder", first, "images for training")
            return _of(folder, first, training) if training else plain, _of(folder, second, file)
    return None


def _of(folder: Path, photos: Path, file: str) -> Found:
    return Found("coco", folder, f"{file} is a COCO file of instances, called after {photos.name}", file, photos)


def _named(folder: Path, *, dated: bool = False) -> tuple[Path, Path] | None:
    """Folders of images called for training and for validation; with `dated` also those with a year behind it, the last first."""
    names = sorted((path.name for path in folder.iterdir() if path.is_dir()), reverse=True) if folder.is_dir() else []

    def called(kinds: tuple[str, ...]) -> Path | None:
        found = (name for kind in kinds for name in names if name == kind or (dated and re.fullmatch(rf"{kind}\d{{4}}", name)))
        return next((folder / name for name in found), None)

    return _with_images(called(_TRAIN), called(_REST))


def _told(folder: Path) -> tuple[Path, Path] | None:
    """What a YAML file in the folder has for parts within its `images`, whatever it says of where the folder lies.

    Of several folders for training the one with most images, which is enough to calibrate on; several for validation are no set.
    """
    for file in with_names(folder):
        try:
            named = [parts_in(file, "train"), parts_in(file, "val") or parts_in(file, "test")]
        except DataError:
            continue  # is told of when the set is read
        inner = [[path[last_images(path) :] for path in part if "images" in path] for part in named]
        if len(inner[1]) != 1 or any(_holds(*pair) or _holds(*pair[::-1]) for pair in product(*inner)):
            continue
        pairs = [_with_images(folder.joinpath(*first), folder.joinpath(*inner[1][0])) for first in inner[0]]
        found = max(filter(None, pairs), key=lambda pair: len(image_files(pair[0])), default=None)
        if found is not None:
            return found
    return None


def _holds(folder: Sequence[str], other: Sequence[str]) -> bool:
    return folder == other[: len(folder)]


def _with_images(first: Path | None, second: Path | None) -> tuple[Path, Path] | None:
    if first is None or second is None or not all(path.is_dir() and image_files(path) for path in (first, second)):
        return None
    return first, second


def _listed(whole: Found) -> tuple[Found | None, Found, str]:
    photos = places_of(whole.path)[0]
    stems = {path.relative_to(photos).with_suffix("").as_posix() for path in image_files(photos)}
    for pair in _LISTS:
        files = [f"{_MAIN}/{name}.txt" for name in pair]
        if not all((whole.path / file).is_file() for file in files):
            continue
        first, second = ({line.split()[0] for line in text_lines(whole.path / file) if line.strip()} for file in files)
        if first and second and first.isdisjoint(second) and first | second <= stems:
            parts = [Found("voc", whole.path, f"{whole.why}, of the images in {file}", file, whole.photos) for file in files]
            return *parts, f"{_MAIN} has lists named {pair[0]} and {pair[1]}"
    return None, whole, ""
