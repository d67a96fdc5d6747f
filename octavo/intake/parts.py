"""Training and validation images of one folder, where its layout tells them apart."""

from __future__ import annotations

from pathlib import Path

from octavo.errors import DataError
from octavo.images.formats.listed import image_files
from octavo.images.formats.places import text_lines
from octavo.images.formats.voc import places_of
from octavo.images.formats.yolo_yaml import last_images, parts_in, with_names
from octavo.intake.folder import Found, recognised

__all__ = ["parted"]

_TRAIN, _REST = ("train", "training"), ("val", "valid", "validation", "test")
# Lists of PASCAL VOC: `trainval` is what a network was trained on that is judged on `test`.
_LISTS = (("trainval", "test"), ("train", "val"), ("train", "test"))
_MAIN = "ImageSets/Main"


def parted(folder: Path, task: str) -> tuple[Found | None, Found, str]:
    """(training images, validation images, what tells them apart); no training images where the folder is one set.

    1. Folders called `train` and `val` (`valid`, `test`): Roboflow's layout, and that of most classifiers' data.
    2. Of YOLO's text files, folders within `images`, as ultralytics has them: those that a YAML file names, else those so called.
    3. Of PASCAL VOC, the lists of `ImageSets/Main`, where every image of theirs lies there and none stands in both.

    Raises:
        DataError: there is no such folder, or no image in it.
    """
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


def _named(folder: Path) -> tuple[Path, Path] | None:
    first = next((folder / name for name in _TRAIN if (folder / name).is_dir()), None)
    second = next((folder / name for name in _REST if (folder / name).is_dir()), None)
    return _with_images(first, second)


def _told(folder: Path) -> tuple[Path, Path] | None:
    """What a YAML file in the folder has for parts within its `images`, whatever it says of where the folder lies."""
    for file in with_names(folder):
        try:
            named = [parts_in(file, "train"), parts_in(file, "val") or parts_in(file, "test")]
        except DataError:
            continue  # is told of when the set is read
        inner = [part[0][last_images(part[0]) :] for part in named if len(part) == 1 and "images" in part[0]]
        if len(inner) == 2 and inner[0] != inner[1][: len(inner[0])] and inner[1] != inner[0][: len(inner[1])]:
            found = _with_images(*(folder.joinpath(*path) for path in inner))
            if found is not None:
                return found
    return None


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
